"""What a step is said to have done, from made-up numbers."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from natgrad import judge
from natgrad.metric.here import LastStep
from natgrad.problem import Start
from natgrad.state import Outcome

OPT = SimpleNamespace(measures_ratio=False, least_ratio=None, l2=None, decayed=None)


def named(slopes, z, moved=(), resolution=1e-3, **options):
    """Return the outcome of a step whose numbers are all finite, as far as nothing else is said."""
    number = jnp.ones(())
    here = SimpleNamespace(loss=number, metric=None, search=Start(number, jnp.asarray(resolution)))
    proposal = SimpleNamespace(slopes=jnp.asarray(slopes), solver=None)
    found = SimpleNamespace(z=jnp.asarray(z), change=-number)
    trial = SimpleNamespace(grad_norm=number, step_norm=number, moved=moved, **options)
    return Outcome.name_of(judge.outcome(OPT, here, proposal, found, trial))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_in_half_precision_a_sum_that_overflows_is_refused(dtype):
    assert named([-1.0], [1.0], [jnp.ones(2, dtype)]) == "accepted"
    assert named([-1.0], [1.0], [jnp.ones(2, dtype), jnp.full(2, jnp.inf, dtype)]) == "nonfinite metric"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_otherwise_the_lengths_tell_and_no_pass_over_the_parameters_is_made(dtype):
    assert named([-1.0], [1.0], [jnp.full(2, jnp.inf, dtype)]) == "accepted"


@pytest.mark.parametrize(
    ("slopes", "outcome"),
    [
        ([-2.5e-3, -1e-9], "no decrease"),
        ([-1.9e-3, -1.0], "unmeasurable"),
        ([2.5e-3, 0.0], "no decrease"),
    ],
)
def test_a_search_that_stays_could_not_see_half_the_slope_of_the_first_row_or_found_nothing(slopes, outcome):
    assert named(slopes, [0.0, 0.0]) == outcome
    for z in ([1.0, 1.0], [0.0, 0.5], [-1.0, 0.0]):
        assert named(slopes, z) == "accepted"


def test_the_loss_of_a_batch_whose_gradient_was_given_has_its_penalty():
    theta = [jnp.array([1.0, 2.0])]
    here = SimpleNamespace(loss=None, own=Start(jnp.array(3.0), None), params=theta, damping=jnp.array(1.0))
    opt = SimpleNamespace(l2=0.5, decayed=None)
    np.testing.assert_allclose(judge.own_loss(opt, here), 3 + 0.25 * 5)
    assert jnp.isnan(judge.own_loss(opt, SimpleNamespace(**{**vars(here), "own": None})))
    assert judge.own_loss(opt, SimpleNamespace(**{**vars(here), "loss": 7.0})) == 7


def again(curvature, damping, now=0.8):
    last = LastStep([jnp.array([3.0, 4.0])], jnp.asarray(curvature), jnp.array(0.0))
    metric = SimpleNamespace(divergence=lambda step: jnp.asarray(now))
    return judge._again(
        SimpleNamespace(
            last=last, metric=metric, damping=jnp.asarray(damping), gradient=[jnp.array([1.0, -2.0])]
        )
    )


def test_the_last_step_is_compared_with_itself():
    np.testing.assert_allclose(again(0.5, 0.1), (0.8 / 0.5, -5 / 0.5))
    # Where nothing is known, nothing is said.
    assert again(0.0, 0.0) == (0, 0)
    assert again(-1.0, 0.0) == (0, 0)
    stretch, slope = again(0.5, 0.1, jnp.inf)
    assert stretch == 0
    assert slope == -10


def test_a_step_whose_length_was_damping_s_alone_says_nothing():
    """λ‖d‖² is 25 λ here, and dᵀFd is ½."""
    assert again(0.5, 0.19)[0] > 0
    assert again(0.5, 0.21) == (0, 0)


@pytest.mark.parametrize(
    ("curvature", "loss", "left", "fresh"),
    [
        (0.5, 1.0, 1.0015, True),
        (0.5, 1.0015, 1.0, True),
        (0.5, 1.0, 1.0009, False),
        (0.5, -1.0, -1.0009, False),
        (0.5, -1.0, -1.0015, True),
        (0.5, -1.0, 1.0, True),
        (0.5, 1.0, 1.0, False),
        (0.0, 1.0, 2.0, False),
        (-0.5, 1.0, 2.0, False),
        (0.5, np.nan, 2.0, False),
        (0.5, np.inf, 2.0, False),
    ],
)
def test_another_batch_has_another_loss(curvature, loss, left, fresh):
    last = LastStep([], jnp.asarray(curvature), jnp.asarray(left))
    assert judge.fresh(jnp.asarray(loss), last) == fresh


def test_the_share_of_damping_is_that_of_the_first_row():
    """λ‖n‖² / gᵀn."""
    proposal = SimpleNamespace(
        scaled=([jnp.array([3.0, 4.0])], [jnp.ones(2)]), slopes=jnp.array([-0.5, 100.0])
    )
    here = SimpleNamespace(damping=jnp.array(0.01))
    np.testing.assert_allclose(judge._share(here, proposal), 0.01 * 25 / 0.5)
    proposal.slopes = jnp.array([0.0, 100.0])
    assert judge._share(here, proposal) == 0
