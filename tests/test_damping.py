"""λ's answer to ρ, and what ρ divides by."""

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import natgrad as ng
from natgrad.damping import Calibration, ratio

few = settings(derandomize=True, deadline=None, max_examples=40)
COUNT = jnp.zeros((), jnp.int32)


@pytest.mark.parametrize(
    ("rho", "factor"),
    [
        (-3.0, 1.5),
        (0.2, 1.5),
        (0.25, 1.0),
        (0.5, 1.0),
        (0.75, 1.0),
        (0.8, 2 / 3),
        (1.0, 2 / 3),
        (np.nan, 1.0),
    ],
)
def test_levenberg_marquardt_raises_where_the_promise_was_broken_and_lowers_where_it_was_kept(rho, factor):
    rule = ng.LevenbergMarquardt(3.0)
    damping = rule.init(jnp.float32)
    np.testing.assert_allclose(rule.update(damping, jnp.float32(rho), COUNT), 3 * factor, rtol=1e-6)
    np.testing.assert_allclose(rule.refuse(damping, COUNT), 4.5, rtol=1e-6)
    assert rule.update(damping, jnp.float32(rho), COUNT).dtype == jnp.float32


@few
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=5, max_size=60), st.booleans())
def test_damping_never_leaves_its_bounds_nor_the_numbers(ratios, refuse):
    rule = ng.LevenbergMarquardt(1.0, bounds=(0.5, 2.0))
    damping = rule.init(jnp.float64)
    for rho in ratios:
        damping = rule.refuse(damping, COUNT) if refuse else rule.update(damping, jnp.asarray(rho), COUNT)
        assert 0.5 <= damping <= 2.0


def test_the_quadratic_model_counts_half_the_curvature_and_the_linear_one_none():
    slope, curvature = jnp.asarray(-3.0), jnp.asarray(4.0)
    assert ng.LevenbergMarquardt(reduction="quadratic").predict(slope, curvature) == -1
    assert ng.LevenbergMarquardt(reduction="linear").predict(slope, curvature) == -3
    assert ng.Constant(1.0).predict(slope, curvature) == -1


@few
@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_rho_is_positive_exactly_where_the_loss_fell(actual, predicted):
    rho = ratio(jnp.asarray(actual), jnp.asarray(predicted))
    if predicted == 0:
        assert jnp.isnan(rho)
    else:
        np.testing.assert_allclose(rho, actual / -abs(predicted))


def test_constant_stays_constant_and_a_schedule_follows_the_count():
    rule = ng.Constant(0.3)
    damping = rule.init(jnp.float32)
    for rho in (-1.0, 0.5, np.nan):
        assert rule.update(damping, jnp.float32(rho), COUNT) == damping
    assert rule.refuse(damping, COUNT) == damping
    schedule = ng.Constant(lambda count: 1.0 / (1 + count))
    assert schedule.init(jnp.float64) == 1
    assert schedule.update(jnp.asarray(1.0), jnp.asarray(0.0), jnp.asarray(2)) == 0.25
    assert schedule.refuse(jnp.asarray(1.0), jnp.asarray(2)) == 0.25


def test_a_schedule_cannot_put_a_nan_in_the_state():
    rule = ng.Constant(lambda step: jnp.where(step > 0, jnp.nan, 2.0))
    first = rule.init(jnp.float64)
    assert rule.update(first, first, jnp.asarray(0)) == 2.0
    assert rule.refuse(first, jnp.asarray(0)) == 2.0


def searched(rho, start):
    """Return every λ that Martens' rule tries, in plain arithmetic."""
    tried, low, high = [start], None, None
    while not 0.75 <= rho(tried[-1]) <= 0.95 and len(tried) < 20:
        if rho(tried[-1]) > 0.95:
            high = tried[-1]
        else:  # too small, or no number at all
            low = tried[-1]
        outside = tried[-1] / 8 if low is None else tried[-1] * 8
        tried.append(outside if None in (low, high) else np.sqrt(low * high))
    return tried


@pytest.mark.parametrize("start", [1e-4, 1.0, 30.0])
@pytest.mark.parametrize(
    "rho",
    [
        *(
            lambda damping, at=at: damping / (damping + at)
            for at in (1e-6, 1e-3, 0.04, 0.4, 1.0, 7.0, 1e3, 1e6)
        ),
        lambda damping: 0.0,
        lambda damping: 1.0,
        lambda damping: np.nan,
        lambda damping: 0.75,
        lambda damping: 0.95,
        lambda damping: 0.9500001 if damping > 0.5 else 0.7499999,
    ],
)
def test_calibration_is_a_search_by_eights_and_then_by_halves(rho, start):
    search, tried = Calibration.start(jnp.asarray(start)), []
    while not search.done:
        tried.append(float(search.damping))
        search = search.judge(jnp.asarray(rho(tried[-1])), jnp.array(True))
    np.testing.assert_allclose(tried, searched(rho, start), rtol=1e-12)
    assert search.damping == tried[-1]
    assert search.tries == len(tried)


def test_a_refused_step_asks_for_more_damping():
    search = Calibration.start(jnp.asarray(2.0)).judge(jnp.asarray(0.9), jnp.array(False))
    assert (search.damping, bool(search.done)) == (16.0, False)


def test_calibration_starts_from_one():
    assert ng.LevenbergMarquardt("calibrate").init(jnp.float64) == 1
