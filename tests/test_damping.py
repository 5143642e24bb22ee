"""λ's answer to ρ, and what ρ divides by."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from models import MODELS, mlp, targets_for

import natgrad as ng
from natgrad.calibration import Calibration
from natgrad.damping import Evidence, ratio

CASE = MODELS["mlp"]
few = settings(derandomize=True, deadline=None, max_examples=40)
TAKEN = {
    "rho": 0.5,
    "taken": True,
    "unmeasurable": False,
    "blameless": False,
    "suspect": False,
    "stretch": 1.0,
    "slope": 0.0,
    "fresh": False,
    "steepness": 0.0,
    "share": 1.0,
    "steps": 0,
}
"""A step that was taken and says nothing."""
REFUSED = TAKEN | {"taken": False}
UNMEASURABLE = TAKEN | {"rho": 1.0, "unmeasurable": True}
BLAMELESS = REFUSED | {"rho": np.nan, "blameless": True}
SUSPECT = REFUSED | {"rho": np.nan, "suspect": True}
FRESH = TAKEN | {"fresh": True}
STRETCHED = FRESH | {"stretch": 2.1}
SURE_FALL = (2 / 3) ** 3


def passed_on(slope, stretch=1.0):
    """Return a good step on a fresh batch, with gᵀd and dᵀFd of the step before it there, in units of its own dᵀFd."""
    return FRESH | {"stretch": stretch, "slope": slope, "rho": 0.8}


def evidence(facts, dtype=jnp.float32):
    return Evidence(
        **{
            name: jnp.asarray(value, dtype if isinstance(value, float) else None)
            for name, value in facts.items()
        }
    )


def answers(rule, *steps, start=None, sure=False, dtype=jnp.float64):
    """Return every λ after each of these steps, the answers' names, and the last record.

    With `sure`, the step before was taken with the first λ.
    """
    damping, record = rule.init(dtype), rule.record(dtype)
    damping = damping if start is None else jnp.asarray(start, dtype)
    if sure:
        record = record._replace(sure=damping)
    dampings, names = [], []
    for facts in steps:
        damping, record, answer = rule.answer(damping, record, evidence(facts, dtype))
        assert damping.dtype == dtype
        dampings.append(float(damping))
        names.append(ng.Answer.name_of(answer))
    return dampings, names, record


@pytest.mark.parametrize(
    ("facts", "factor", "answer"),
    [
        (TAKEN | {"rho": -3.0}, 1.5, "raised"),
        (TAKEN | {"rho": -np.inf}, 1.5, "raised"),
        (TAKEN | {"rho": 0.2}, 1.5, "raised"),
        (TAKEN | {"rho": 0.25}, 1.0, "kept"),
        (TAKEN, 1.0, "kept"),
        (TAKEN | {"rho": 0.75}, 1.0, "kept"),
        (TAKEN | {"rho": 0.8}, 2 / 3, "lowered"),
        (TAKEN | {"rho": 0.9}, 2 / 3, "lowered"),
        (TAKEN | {"rho": 0.91}, SURE_FALL, "lowered"),
        (TAKEN | {"rho": 1.0}, SURE_FALL, "lowered"),
        (TAKEN | {"rho": 7.0}, SURE_FALL, "lowered"),
        (TAKEN | {"rho": np.nan}, 1.0, "kept"),
        (REFUSED, 1.5, "raised refused"),
        (REFUSED | {"rho": 0.95}, 1.5, "raised refused"),
        (REFUSED | {"rho": np.nan}, 1.5, "raised refused"),
        (UNMEASURABLE, SURE_FALL, "lowered unmeasurable"),
        (UNMEASURABLE | {"taken": False}, SURE_FALL, "lowered unmeasurable"),
        (BLAMELESS, 1.0, "kept refused"),
        (SUSPECT, 1.5, "raised refused"),
        # On the next batch the last step is longer than it was: only there, and only by more than 2.
        (STRETCHED, 1.5, "raised stretched"),
        (STRETCHED | {"rho": 1.0}, 1.5, "raised stretched"),
        (STRETCHED | {"rho": 0.2}, 1.5, "raised"),
        (STRETCHED | {"rho": 1.0, "fresh": False}, SURE_FALL, "lowered"),
        (STRETCHED | {"rho": 1.0, "stretch": 2.0}, SURE_FALL, "lowered"),
        (STRETCHED | {"taken": False}, 1.5, "raised refused"),
        (STRETCHED | {"taken": False, "blameless": True}, 1.0, "kept refused"),
        # Where λ has no more part in the step than rounding it falls no further.
        (TAKEN | {"rho": 1.0, "share": 1e-20}, 1.0, "kept negligible"),
        (UNMEASURABLE | {"share": 1e-20}, 1.0, "kept negligible"),
        (TAKEN | {"rho": 0.0, "share": 1e-20}, 1.5, "raised"),
    ],
)
def test_levenberg_marquardt_answers_what_a_step_showed(facts, factor, answer):
    for dtype in (jnp.float32, jnp.float64):
        (damping,), (name,), _ = answers(ng.LevenbergMarquardt(3.0), facts, sure=True, dtype=dtype)
        np.testing.assert_allclose(damping, 3 * factor, rtol=1e-6)
        assert name == answer


def test_without_a_bound_on_the_stretch_it_is_not_looked_at():
    rule = ng.LevenbergMarquardt(3.0, stretch=None)
    assert not rule.needs_stretch
    assert ng.LevenbergMarquardt().needs_stretch
    (damping,), (name,), _ = answers(rule, STRETCHED | {"rho": 0.8, "stretch": 100.0})
    np.testing.assert_allclose(damping, 2)
    assert name == "lowered"


def test_rises_in_a_row_count_once_twice_and_then_three_times():
    broken, kept = TAKEN | {"rho": 0.0}, TAKEN
    rule = ng.LevenbergMarquardt(1.0)
    dampings, _, _ = answers(rule, broken, REFUSED, REFUSED, broken, kept, broken)
    np.testing.assert_allclose(dampings, np.cumprod([1.5, 1.5**2, 1.5**3, 1.5**3, 1, 1.5]))
    # A fall ends the row too, a refusal that λ has no part in does not.
    dampings, _, _ = answers(rule, broken, TAKEN | {"rho": 0.8}, broken, BLAMELESS, BLAMELESS, broken)
    np.testing.assert_allclose(dampings, np.cumprod([1.5, 2 / 3, 1.5, 1, 1, 1.5**2]))


def test_after_rises_on_fresh_batches_lambda_falls_warily_and_then_ever_faster():
    broken, good = FRESH | {"rho": 0.0}, FRESH | {"rho": 1.0}
    rule = ng.LevenbergMarquardt(1.0)
    # Two rises take all the calm; the first falls after them are the eighth root, one failure in nine keeps λ.
    dampings, _, record = answers(rule, broken, FRESH, broken, good)
    np.testing.assert_allclose(dampings[3] / dampings[2], 1.5 ** (-(2 ** (1 / 8)) / 8))
    assert record.calm == 1
    # Every eight falls they double, and after 32 nothing is held against the batches.
    dampings, _, record = answers(rule, broken, FRESH, broken, *(good,) * 40)
    falls = np.array(dampings[3:]) / np.array(dampings[2:-1])
    np.testing.assert_allclose(np.log(falls[15]) / np.log(falls[7]), 2)
    assert np.all(np.diff(falls) < 1e-12)
    np.testing.assert_allclose(falls[35:], SURE_FALL)
    assert record.calm == 32


def test_several_rises_in_a_row_are_taken_back_as_quickly_all_but_the_first():
    broken, good = FRESH | {"rho": 0.0}, FRESH | {"rho": 0.8}
    rule = ng.LevenbergMarquardt(1.0, lower_by=0.98)
    dampings, _, record = answers(rule, *[broken] * 4, *[good] * 9)
    np.testing.assert_allclose(np.log(dampings[3:11]) / np.log(1.5), np.arange(9, 1, -1))
    assert dampings[11] > 0.94 * dampings[10]
    assert dampings[12] > 0.94 * dampings[11]
    assert record.home == 1.5
    # Further rises are taken back to where the first of them left λ.
    dampings, _, record = answers(rule, *[broken] * 4, *[good] * 7, *[broken] * 4, *[good] * 7)
    np.testing.assert_allclose([dampings[-1], record.home], [1.5**4, 1.5**3])
    # A refusal that λ has no part in does not begin anew.
    assert answers(rule, broken, broken, BLAMELESS, broken)[2].home == 1.5
    # It is no floor: λ falls on, and it falls from there.
    *_, record = answers(rule, *[broken] * 4, *[good] * 60)
    assert record.home < 1


def test_rises_that_the_next_batch_asks_for_are_not_taken_back():
    rule = ng.LevenbergMarquardt(1.0, lower_by=0.98)
    good = FRESH | {"rho": 0.8}
    dampings, names, _ = answers(rule, *[STRETCHED | {"rho": 0.5}] * 8, good, sure=True)
    assert names == ["raised stretched", "kept"] * 4 + ["lowered"]
    assert dampings[8] > 0.94 * dampings[7]
    lifted = ng.LevenbergMarquardt(1.0, lower_by=0.98, least=0.01, shrink=0.6)
    short = passed_on(0.0, stretch=0.5) | {"steepness": 1e4}
    dampings, names, record = answers(lifted, *[short] * 100, passed_on(0.0))
    assert names == ["raised shrunk"] * 100 + ["lowered"]
    assert record.home > 2
    assert dampings[-1] > 0.94 * dampings[-2]


def test_the_same_batch_again_and_again_gives_the_calm_back():
    broken, same = FRESH | {"rho": 0.0}, TAKEN | {"rho": 1.0}
    rule = ng.LevenbergMarquardt(1.0)
    dampings, _, _ = answers(rule, broken, FRESH, broken, *(same,) * 4)
    falls = np.array(dampings[3:]) / np.array(dampings[2:-1])
    assert falls[0] > 0.8
    np.testing.assert_allclose(falls[-1], SURE_FALL)
    # A rise on one and the same batch is no failure on fresh ones; a batch that is not compared says nothing.
    _, _, record = answers(rule, TAKEN | {"rho": 0.0})
    assert record.calm == 32
    _, _, record = answers(rule, broken, BLAMELESS | {"stretch": 0.0})
    assert record.calm == 16


def test_a_stretched_step_speaks_of_its_own_lambda():
    rule = ng.LevenbergMarquardt(1.0)
    # λ has risen since, twice as high as it was: it is not raised again.
    dampings, names, _ = answers(rule, TAKEN | {"rho": 0.0}, STRETCHED | {"rho": 0.5})
    assert names == ["raised", "kept"]
    np.testing.assert_allclose(dampings[1], 1.5)
    # Nor does it count among the rises in a row.
    dampings, _, _ = answers(rule, STRETCHED, TAKEN | {"rho": 0.0}, sure=True)
    np.testing.assert_allclose(dampings, [1.5, 1.5**2])


def test_numbers_of_the_metric_that_are_not_finite_carry_lambda_threefold_at_most():
    rule = ng.LevenbergMarquardt(0.5)
    dampings, _, record = answers(rule, *(SUSPECT,) * 30)
    assert max(dampings) == dampings[-1] == 1.5
    assert record.sure == 0
    # From the λ of the last step that was taken, not of the first.
    dampings, _, record = answers(rule, TAKEN, *(SUSPECT,) * 30, start=4.0)
    assert record.sure == 4
    assert dampings[-1] == 12
    # A λ that is beyond it already stays; one that is all but 0 may rise to a millionth of the first.
    dampings, _, _ = answers(rule, *(REFUSED,) * 12, SUSPECT, SUSPECT, REFUSED)
    assert dampings[11] > 1.5
    assert dampings[11] == dampings[12] == dampings[13]
    np.testing.assert_allclose(dampings[14], dampings[13] * 1.5**3)
    dampings, _, _ = answers(rule, TAKEN, *(SUSPECT,) * 90, start=1e-12)
    np.testing.assert_allclose(dampings[-1], 5e-7)


def test_the_record_knows_the_lambda_of_the_last_step_taken():
    rule = ng.LevenbergMarquardt(1.0)
    assert rule.record(jnp.float32).sure == 0
    _, _, record = answers(rule, REFUSED)
    assert record.sure == 0
    _, _, record = answers(rule, REFUSED, TAKEN | {"rho": 1.0}, REFUSED)
    assert record.sure == 1.5


FACTS = st.fixed_dictionaries(
    {
        "rho": st.floats(allow_nan=True, allow_infinity=True),
        **{name: st.booleans() for name in ("taken", "unmeasurable", "blameless", "suspect", "fresh")},
        "stretch": st.floats(allow_nan=True, allow_infinity=True),
        "slope": st.floats(allow_nan=True, allow_infinity=True),
        "steepness": st.floats(allow_nan=True, allow_infinity=True),
        "share": st.floats(allow_nan=True, allow_infinity=True),
        "steps": st.just(0),
    }
)


@few
@given(st.lists(FACTS, min_size=5, max_size=60))
def test_damping_never_leaves_its_bounds_nor_the_numbers(steps):
    # A list is as good as a tuple.
    dampings, _, record = answers(ng.LevenbergMarquardt(1.0, bounds=[0.5, 2.0]), *steps)
    assert all(0.5 <= damping <= 2.0 for damping in dampings)
    assert np.isfinite(record.sure)
    assert 0 <= record.rises <= 3
    assert 0 <= record.calm <= 32


def test_no_two_numbers_of_a_record_share_a_buffer():
    """A state whose buffers are given away must not hold one of them twice."""
    record = ng.LevenbergMarquardt().record(jnp.float64)
    assert len({leaf.unsafe_buffer_pointer() for leaf in record}) == len(record)


def test_bounds_may_be_a_list():
    rule = ng.LevenbergMarquardt(bounds=[0.5, 2.0])
    assert rule.bounds == (0.5, 2.0)
    assert rule == ng.LevenbergMarquardt(bounds=(0.5, 2.0))
    assert hash(rule) == hash(ng.LevenbergMarquardt(bounds=(0.5, 2.0)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initial": "guess"}, "calibrate"),
        ({"initial": 3.0, "bounds": (1e-8, 2.0)}, "outside its bounds"),
        ({"low": 0.8}, "low < high"),
        ({"lower_by": 1.2}, "lower_by <= 1"),
        ({"reduction": "cubic"}, "quadratic"),
        ({"stretch": 1.0}, "stretch=1.0.*above 1"),
        ({"stretch": float("nan")}, "above 1"),
        ({"least": 0.1, "shrink": 1.0}, "shrink=1.0.*between 0 and 1"),
        ({"least": 0.1, "shrink": 0.0}, "between 0 and 1"),
        ({"shrink": 0.5}, "beside stretch= and a least="),
        ({"least": 1.5, "shrink": 0.5}, "at most 1"),
        ({"least": 0.1, "shrink": 0.5, "stretch": None}, "beside stretch="),
    ],
)
def test_levenberg_marquardt_refuses_what_makes_no_rule(options, words):
    with pytest.raises(ValueError, match=words):
        ng.LevenbergMarquardt(**options)


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
        # Nothing promised and nothing done is a promise kept.
        assert rho == 1 if actual == 0 else jnp.isnan(rho)
    else:
        np.testing.assert_allclose(rho, actual / -abs(predicted))


@pytest.mark.parametrize(
    ("actual", "predicted", "rho"),
    [
        (-1e-9, -1e-9, 1.0),
        (1e-7, -1e-9, 1.0),  # both within the resolution of 1e-7: rounding is no evidence
        (-1e-9, 1e-7, 1.0),
        (0.0, 0.0, 1.0),
        (2e-7, -1e-9, -200.0),  # what was done can be seen
        (1e-9, -2e-7, -0.005),  # what was promised could have been
        (2e-7, 0.0, np.nan),
        (-3.0, -4.0, 0.75),
        (-3.0, 4.0, 0.75),
        (np.nan, -1e-9, np.nan),
        (np.inf, -1.0, -np.inf),
    ],
)
def test_rho_is_one_where_neither_change_can_be_resolved(actual, predicted, rho):
    np.testing.assert_allclose(ratio(jnp.asarray(actual), jnp.asarray(predicted), 1e-7), rho, rtol=1e-12)


def test_constant_stays_constant_and_a_schedule_follows_the_count():
    seen = (TAKEN | {"rho": -1.0}, TAKEN, UNMEASURABLE, REFUSED, BLAMELESS, SUSPECT, STRETCHED)
    dampings, names, record = answers(ng.Constant(0.3), *seen)
    assert dampings == [0.3] * len(seen)
    assert set(names) == {"kept"}
    assert record == ()
    schedule = ng.Constant(lambda count: 1.0 / (1 + count))
    assert schedule.init(jnp.float64) == 1
    for facts in (TAKEN, REFUSED, BLAMELESS):
        (damping,), _, _ = answers(schedule, facts | {"steps": 2})
        assert damping == 0.25


def test_a_schedule_cannot_put_a_nan_in_the_state():
    rule = ng.Constant(lambda step: jnp.where(step > 0, jnp.nan, 2.0))
    for facts in (TAKEN, REFUSED):
        dampings, _, _ = answers(rule, facts, facts | {"steps": 1})
        assert dampings == [2.0, 2.0]


BOUNDS = (1e-8, 1e8)


def searched(rho, start, bounds):
    """Return every λ that Martens' rule tries, in plain arithmetic: at a bound it ends."""
    tried, low, high = [start], None, None
    while not 0.75 <= rho(tried[-1]) <= 0.95 and len(tried) < 20:
        if rho(tried[-1]) > 0.95:
            high = tried[-1]
        else:  # too small, or no number at all
            low = tried[-1]
        outside = min(max(tried[-1] / 8 if low is None else tried[-1] * 8, bounds[0]), bounds[1])
        following = outside if None in (low, high) else np.sqrt(low * high)
        if following == tried[-1]:
            break
        tried.append(following)
    return tried


@pytest.mark.parametrize("bounds", [BOUNDS, (1e-5, 40.0)], ids=["wide", "narrow"])
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
def test_calibration_is_a_search_by_eights_and_then_by_halves_that_ends_at_a_bound(rho, start, bounds):
    search, tried = Calibration.start(jnp.asarray(start)), []
    while not search.done:
        tried.append(float(search.damping))
        search = search.judge(jnp.asarray(rho(tried[-1])), jnp.asarray(ng.Answer.KEPT), bounds)
    np.testing.assert_allclose(tried, searched(rho, start, bounds), rtol=1e-12)
    assert search.damping == tried[-1]
    assert search.tries == len(tried)
    assert bounds[0] <= min(tried) <= max(tried) <= bounds[1]


@pytest.mark.parametrize(
    ("answer", "rho", "following"),
    [
        ("RAISED_REFUSED", np.nan, 16.0),  # no ρ at all: more damping
        ("RAISED_REFUSED", -3.0, 16.0),
        ("LOWERED_UNMEASURABLE", 1.0, 0.25),  # a step too short to be seen: less
        ("LOWERED_UNMEASURABLE", np.nan, 0.25),
        ("KEPT_REFUSED", np.nan, None),  # no λ mends what is not finite at θ
        ("KEPT_REFUSED", -3.0, None),
    ],
)
def test_calibration_minds_why_a_step_was_refused(answer, rho, following):
    search = Calibration.start(jnp.asarray(2.0))
    search = search.judge(jnp.asarray(rho), jnp.asarray(ng.Answer[answer]), BOUNDS)
    assert bool(search.done) == (following is None)
    assert search.damping == (2.0 if following is None else following)


def test_calibration_starts_from_one_or_as_near_as_the_bounds_allow():
    assert ng.LevenbergMarquardt("calibrate").init(jnp.float64) == 1
    assert ng.LevenbergMarquardt("calibrate", bounds=(4.0, 9.0)).init(jnp.float64) == 4
    assert ng.LevenbergMarquardt("calibrate", bounds=(1e-3, 0.1)).init(jnp.float64) == 0.1


def test_lambda_does_not_fall_below_a_part_of_the_gradient_over_the_parameters():
    rule = ng.LevenbergMarquardt(1.0, least=0.01)
    good = TAKEN | {"rho": 0.8}
    for steepness, answer in (
        (99.0, "lowered"),
        (100.0, "kept least"),
        (1e9, "kept least"),
        (np.nan, "lowered"),
    ):
        (damping,), (name,), _ = answers(rule, good | {"steepness": steepness})
        assert (name, damping) == (answer, pytest.approx(2 / 3 if answer == "lowered" else 1))
    # It holds λ; it does not raise it, nor keep it from rising.
    assert answers(rule, TAKEN | {"rho": 0.1, "steepness": 1e9})[1] == ["raised"]
    with pytest.raises(ValueError, match="least=-1"):
        ng.LevenbergMarquardt(least=-1.0)


def test_the_rule_is_told_the_gradient_over_the_parameters():
    """At ρ > ¾, with `least` on either side of λ‖θ‖ / ‖g‖."""
    t = targets_for(ng.Bernoulli(), mlp(CASE.params, CASE.inputs), 2)
    theta = float(jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(CASE.params))))

    def answer(least):
        opt = ng.natural_gradient(mlp, ng.Bernoulli(), damping=ng.LevenbergMarquardt(5.0, least=least))
        info = opt.step(CASE.params, opt.init(CASE.params), (CASE.inputs, t))[2]
        assert info.rho > 0.75
        return ng.Answer.name_of(info.answer), 5.0 * theta / float(info.grad_norm)

    _, edge = answer(0.0)
    assert [answer(part * edge)[0] for part in (0.99, 1.01)] == ["lowered", "kept least"]


def test_where_steps_do_the_next_batches_no_good_lambda_does_not_fall():
    """Back over d the loss would fall by gᵀd − ½dᵀFd: on the average of the last steps."""
    rule = ng.LevenbergMarquardt()
    _, names, record = answers(rule, *[passed_on(0.51)] * 9)
    assert names == ["kept undone"] * 9
    np.testing.assert_allclose([record.slope / record.stretch, record.stretch], [0.51, 1 - 0.9**9])
    assert answers(rule, *[passed_on(0.49)] * 9)[1] == ["lowered"] * 9
    assert answers(rule, *[passed_on(0.4, stretch=0.5)] * 9)[1] == ["kept undone"] * 9
    # One bad batch among good ones says little, and one good one among bad ones no more.
    assert answers(rule, *[passed_on(0.0)] * 9, passed_on(2.0))[1] == ["lowered"] * 10
    assert answers(rule, *[passed_on(1.0)] * 9, passed_on(-2.0))[1] == ["kept undone"] * 10


def test_while_steps_fit_their_own_batch_least_grows_and_lifts_lambda():
    rule = ng.LevenbergMarquardt(1.0, least=0.01, shrink=0.6)
    short = passed_on(0.0, stretch=0.5) | {"steepness": 100.0}
    dampings, names, record = answers(rule, *[short] * 50)
    assert names == ["raised shrunk"] * 50
    # From 1, which is 0.01 · 100, by 1% per step.
    np.testing.assert_allclose(dampings, 1.01 ** np.arange(1, 51))
    np.testing.assert_allclose(record.least, 0.01 * 1.01**50)
    # A λ far below the bound rises by 1 / lower_by per step, and no further than the bound.
    assert answers(rule, short, start=0.1)[0] == [pytest.approx(0.15)]
    assert answers(rule, short, start=0.9)[0] == [pytest.approx(1.01)]
    # The multiple is 1 at most.
    assert answers(rule, *[short] * 600)[2].least == 1


def test_least_falls_back_where_steps_keep_their_length_on_the_next_batch():
    rule = ng.LevenbergMarquardt(1.0, least=0.01, shrink=0.6)
    short, long = (passed_on(0.0, stretch) | {"steepness": 1.0} for stretch in (0.5, 0.7))
    _, _, record = answers(rule, *[short] * 50, *[long] * 30)
    assert 0.01 < record.least < 0.01 * 1.01**50
    assert answers(rule, *[short] * 50, *[long] * 200)[2].least == pytest.approx(0.01)
    # The same batch again tells nothing, nor does a step whose length there is not known; and None looks at nothing.
    silent = [short | {"fresh": False}, short | {"stretch": 0.0}]
    assert answers(rule, *silent * 20)[2].least == pytest.approx(0.01)
    assert answers(ng.LevenbergMarquardt(1.0, least=0.01), *[short] * 50)[2].least == pytest.approx(0.01)


def test_a_broken_promise_weighs_more_than_steps_that_fit_their_own_batch():
    rule = ng.LevenbergMarquardt(1.0, least=0.01, shrink=0.6)
    short = passed_on(0.0, stretch=0.5) | {"steepness": 1e4}
    assert answers(rule, short | {"rho": 0.0})[1] == ["raised"]
    assert answers(rule, short | {"taken": False})[1] == ["raised refused"]


def test_one_odd_batch_does_not_rule_the_averages():
    odd = passed_on(-1e9, stretch=1e6)
    _, names, record = answers(ng.LevenbergMarquardt(), *[passed_on(0.0)] * 9, odd)
    assert names[-1] == "raised stretched"
    np.testing.assert_allclose([record.slope, record.stretch], [-0.2, 0.9 * (1 - 0.9**9) + 0.2])


def test_what_the_next_batch_cannot_tell_leaves_the_average_as_it_is():
    rule = ng.LevenbergMarquardt()
    bad = [passed_on(1.0)] * 3
    _, _, before = answers(rule, *bad)
    for silent in (
        passed_on(np.nan),
        passed_on(5.0) | {"fresh": False},
        passed_on(5.0, stretch=0.0),
    ):
        _, _, after = answers(rule, *bad, silent)
        assert (after.slope, after.stretch) == (before.slope, before.stretch)
    # The same batch again: nothing was undone.
    assert answers(rule, *bad, passed_on(1.0) | {"fresh": False})[1][-1] == "lowered"


def test_on_minibatches_the_last_step_is_judged_by_the_next_gradient():
    """What the rule is told is gᵀd and dᵀFd on the new batch, from their definitions."""
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), damping=ng.LevenbergMarquardt(1.0))
    x, t = CASE.inputs, targets_for(ng.Bernoulli(), mlp(CASE.params, CASE.inputs), 2)
    half = len(x) // 2
    params, state, info = opt.step(CASE.params, opt.init(CASE.params), (x[:half], t[:half]))
    assert info.accepted
    step = jax.tree.map(jnp.subtract, params, CASE.params)
    loss = lambda p: jnp.mean(ng.Bernoulli().nll(mlp(p, x[half:]), t[half:]))  # noqa: E731
    _, slope = jax.jvp(loss, (params,), (step,))
    fisher = ng.metric_product(mlp, ng.Bernoulli(), params, x[half:])(step)
    curvature = sum(jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (fisher, step)), strict=True))
    _, after, _ = opt.step(params, state, (x[half:], t[half:]))
    found = np.array([after.record.slope, after.record.stretch])
    np.testing.assert_allclose(found, 0.1 * np.array([slope, curvature]) / (2 * info.kl), rtol=1e-6)
