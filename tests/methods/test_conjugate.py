"""Natural conjugate gradient is conjugate gradient, preconditioned by the metric."""

from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from methods.quadratic import EXACT, NO_DAMPING, iterates, model, preconditioned_cg, quadratic
from natgrad.directions.conjugate import Conjugate, ConjugateMemory
from natgrad.metric.here import Here

pytestmark = pytest.mark.usefixtures("fast_compile")

PROBLEM = quadratic()
STEPS = 5


def ncg(**options):
    settings = {"direction": ng.Natural(EXACT), "damping": NO_DAMPING} | options
    return ng.natural_conjugate_gradient(model, ng.Gaussian(), **settings)


def test_ncg_l_is_cg_preconditioned_by_the_metric():
    path = iterates(ncg(), PROBLEM, STEPS, metric_inputs=PROBLEM.other_inputs)
    expected = preconditioned_cg(PROBLEM, np.linalg.inv(PROBLEM.metric), STEPS)
    np.testing.assert_allclose(path, expected, rtol=1e-5, atol=1e-6)


def test_ncg_l_by_cobyla_is_the_same_to_cobylas_precision():
    search = ng.Cobyla(final_radius=1e-9, maxprobes=1000)
    path = iterates(ncg(search=search), PROBLEM, STEPS, metric_inputs=PROBLEM.other_inputs)
    expected = preconditioned_cg(PROBLEM, np.linalg.inv(PROBLEM.metric), STEPS)
    np.testing.assert_allclose(path, expected, atol=1e-3)


def test_ncg_l_steps_are_conjugate():
    steps = np.diff(iterates(ncg(), PROBLEM, STEPS, metric_inputs=PROBLEM.other_inputs), axis=0)
    for before, after in pairwise(steps):
        size = np.sqrt((before @ PROBLEM.hessian @ before) * (after @ PROBLEM.hessian @ after))
        assert abs(before @ PROBLEM.hessian @ after) <= 1e-6 * size


def test_ncg_f_with_an_exact_line_search_is_preconditioned_cg():
    opt = ncg(beta=ng.PolakRibiere(), search=ng.LineSearch(refinements=3))
    inverse = np.linalg.inv(PROBLEM.metric)
    path = iterates(opt, PROBLEM, STEPS, metric_inputs=PROBLEM.other_inputs)
    np.testing.assert_allclose(path, preconditioned_cg(PROBLEM, inverse, STEPS), rtol=1e-5, atol=1e-6)


def test_ncg_q_is_linear_cg():
    path = iterates(ncg(direction=ng.Preconditioned(ng.Identity())), PROBLEM, 7)
    np.testing.assert_allclose(path, preconditioned_cg(PROBLEM, np.eye(7), 7), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(path[-1], PROBLEM.minimum(), rtol=1e-6)


def test_ncg_q_takes_no_probe_and_reports_the_curvature_it_used():
    opt = ncg(direction=ng.Preconditioned(ng.Identity()))
    state = opt.init(PROBLEM.start)
    params, state, _ = opt.step(PROBLEM.start, state, PROBLEM.batch)
    moved, state, info = opt.step(params, state, PROBLEM.batch)
    step = np.asarray(moved - params)
    np.testing.assert_allclose(info.kl, step @ PROBLEM.hessian @ step / 2, rtol=1e-8)
    assert np.isnan(info.new_loss)


def test_ncg_q_with_damping_minimizes_the_damped_model_on_its_plane():
    opt = ncg(direction=ng.Preconditioned(ng.Identity()), damping=ng.Constant(2.0), l2=0.5)
    state = opt.init(PROBLEM.start)
    params, state, _ = opt.step(PROBLEM.start, state, PROBLEM.batch)
    moved, _, _ = opt.step(params, state, PROBLEM.batch)
    gradient = PROBLEM.gradient(np.asarray(params)) + 0.5 * np.asarray(params)
    rows = np.stack([-gradient, np.asarray(params - PROBLEM.start)])
    damped = PROBLEM.hessian + 2.5 * np.eye(7)
    z = np.linalg.solve(rows @ damped @ rows.T, -rows @ gradient)
    np.testing.assert_allclose(moved - params, z @ rows, rtol=1e-8)


def test_a_refused_step_restarts_the_conjugate_directions():
    for opt in (ncg(), ncg(beta=ng.PolakRibiere()), ncg(direction=ng.Preconditioned(ng.Identity()))):
        state = opt.init(PROBLEM.start)
        params, state, _ = opt.step(PROBLEM.start, state, PROBLEM.batch)
        x, t = PROBLEM.batch
        _, state, info = opt.step(params, state, (x.at[0, 0].set(jnp.nan), t))
        assert not info.accepted
        fresh = opt.init(params)
        again, _, _ = opt.step(params, state, PROBLEM.batch)
        restart, _, _ = opt.step(params, fresh, PROBLEM.batch)
        np.testing.assert_allclose(again, restart, rtol=1e-12)


def test_polak_ribiere_never_continues_uphill():
    """A last direction that points up is dropped: the step is the natural gradient's."""
    opt = ncg(beta=ng.PolakRibiere(), search=ng.FixedRate(1.0))
    state = opt.init(PROBLEM.start)
    memory = state.direction
    gradient = jnp.asarray(PROBLEM.gradient(np.asarray(PROBLEM.start)))
    uphill = memory._replace(direction=1e6 * gradient, natural=-gradient, decrement=jnp.asarray(1.0))
    moved, _, _ = opt.step(PROBLEM.start, state._replace(direction=uphill), PROBLEM.batch)
    np.testing.assert_allclose(moved, PROBLEM.minimum(), rtol=1e-6)


def test_cobyla_refuses_to_be_traced_and_names_the_native_search():
    opt = ncg(search=ng.Cobyla())
    state = opt.init(PROBLEM.start)
    with pytest.raises(TypeError, match=r"Cobyla runs on the host.*ng\.PlaneSearch"):
        jax.jit(opt.step)(PROBLEM.start, state, PROBLEM.batch)


def test_preconditioned_rows_point_downhill():
    """With a fixed rate there is no length whose sign could make up for theirs."""
    opt = ng.Optimizer(model, ng.Gaussian(), ng.Preconditioned(), ng.FixedRate(1e-3), ng.Fisher(), NO_DAMPING)
    before, after = iterates(opt, PROBLEM, 1)
    np.testing.assert_allclose(after, before - 1e-3 * PROBLEM.gradient(before), rtol=1e-10)


def test_ncg_f_asks_for_a_metric_only_if_the_inner_direction_does():
    assert ng.directions.Conjugate(ng.Natural()).needs_metric
    assert not ng.directions.Conjugate(ng.directions.Gradient()).needs_metric


@pytest.mark.parametrize(
    ("gradient", "decrement", "beta"),
    [((1.0, 2.0), 2.0, 2.5), ((1.0, 2.0), 1.0, 5.0), ((-1.0, -2.0), 1.0, 0.0), ((1.0, 2.0), 0.0, 0.0)],
)
def test_beta_is_polak_ribieres(gradient, decrement, beta):
    """gᵀ(n − n₋) / g₋ᵀn₋, not below 0, and 0 where there is no last step."""
    memory = ConjugateMemory((), jnp.array([2.0, -1.0]), jnp.asarray(decrement), jnp.zeros(2))
    natural = jnp.array([3.0, 1.0])
    assert ng.PolakRibiere()(jnp.array(gradient), natural, memory) == beta


@pytest.mark.parametrize(("along", "continued"), [(-1.0, True), (0.0, False), (0.5, False), (7.0, False)])
def test_a_conjugate_direction_must_lead_down(along, continued):
    """d = −n + β d₋, if gᵀd is below 0; else −n."""
    natural, gradient = jnp.array([1.0, 0.0]), jnp.array([2.0, 1.0])
    last = jnp.array([1.0, along])
    memory = ConjugateMemory((), natural, jnp.asarray(1.0), last)
    own = SimpleNamespace(
        inner=SimpleNamespace(natural=lambda here, inner: (natural, (), None)),
        beta=lambda *_: jnp.asarray(1.0),
    )
    proposal = Conjugate.propose(own, Here(None, None, None, None, gradient=gradient), memory)
    np.testing.assert_allclose(proposal.rows[0], last - natural if continued else -natural)


def test_the_last_step_is_one_more_row():
    opt = ncg(search=ng.PlaneSearch())
    assert opt.direction.width == 2
    assert opt.direction.inner.width == 1
