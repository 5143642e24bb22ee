"""Hessian-Free's habits: which iterate it goes back to, when it shortens, what it starts from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from methods.quadratic import model, quadratic
from natgrad.search import Local

pytestmark = pytest.mark.usefixtures("fast_compile")

PROBLEM = quadratic()


def local(slopes, loss):
    zero = jnp.zeros(())
    return Local(None, jnp.asarray(slopes), jnp.asarray(loss), zero, None, jnp.zeros((), jnp.int32))


def along_rows(losses):
    """A recorded sequence: the loss at each row taken whole, shortened linearly towards a start of 10."""
    losses = jnp.asarray(losses)

    def probe(z):
        row = jnp.argmax(jnp.abs(z))
        return 10.0 + (losses[row] - 10.0) * z[row]

    return probe


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([5.0, 4.0, 3.0, 3.5, 1.0], 2),  # back while it falls, not to the best of all
        ([3.0, 4.0, 1.0, 1.0, 1.0], 0),  # the predecessor is no better: stay
        ([5.0, 4.0, 3.0, 2.0, 1.0], 4),  # all the way
        ([3.0, 3.0, 1.0, 1.0, 1.0], 0),  # equal is not better
        ([np.nan, 4.0, 5.0, 1.0, 1.0], 1),  # a loss that is not finite is the worst of all
    ],
)
def test_backtracking_stops_at_the_first_iterate_its_predecessor_does_not_improve(losses, chosen):
    found = ng.Backtrack()(along_rows(losses), local(-np.ones(5), 10.0))
    np.testing.assert_array_equal(found.z, np.eye(5)[chosen])
    assert found.loss == losses[chosen]


def test_backtracking_returns_nothing_when_every_iterate_is_worse():
    found = ng.Backtrack()(along_rows([12.0, 13.0]), local(-np.ones(2), 10.0))
    np.testing.assert_array_equal(found.z, 0)
    assert found.loss == 10.0


def test_armijo_takes_the_first_length_that_falls_enough():
    """φ(α) = 1 − α + 2α²: enough at 1 − 10⁻²α needs α ≤ 0.495, and 0.8⁴ = 0.4096 is the first such power."""
    found = ng.Armijo()(lambda z: 1 - z[0] + 2 * z[0] ** 2, local([-1.0], 1.0))
    np.testing.assert_allclose(found.z, [0.8**4])


def test_armijo_counts_its_trials():
    rising = ng.Armijo(maxprobes=60)
    seen = []

    def probe(z):
        jax.debug.callback(lambda at: seen.append(float(at)), z[0])
        return 2.0 + 0 * z[0]

    found = rising(probe, local([-1.0], 1.0))
    jax.effects_barrier()
    assert len(seen) == 60
    assert found.z == 0


def test_the_default_first_step_is_martens_direction():
    """With the whole data as every batch, one step from 0 is CG on (F + λI) d = −g, λ = 45."""
    opt = ng.hessian_free(model, ng.Gaussian(), precondition=ng.Identity())
    params, state, info = opt.step(PROBLEM.start, opt.init(PROBLEM.start), PROBLEM.batch)
    damped = PROBLEM.hessian + 45 * np.eye(7)
    expected = -np.linalg.solve(damped, PROBLEM.gradient(np.asarray(PROBLEM.start)))
    np.testing.assert_allclose(params - PROBLEM.start, expected, rtol=1e-2)
    # On a quadratic the undamped model is exact: ρ = 1, and λ falls by 2/3.
    np.testing.assert_allclose(info.rho, 1, rtol=1e-6)
    np.testing.assert_allclose(state.damping, 30)


def test_the_next_solve_starts_from_a_part_of_the_last_solution():
    opt = ng.hessian_free(model, ng.Gaussian(), solver=ng.CG(3, 0.0, snapshots=True))
    params, state, _ = opt.step(PROBLEM.start, opt.init(PROBLEM.start), PROBLEM.batch)
    last = np.asarray(state.direction.start)
    assert np.linalg.norm(last) > 0
    # A solver of no iterations hands back its start.
    idle = ng.hessian_free(
        model, ng.Gaussian(), solver=ng.CG(1, 0.0, snapshots=True), precondition=ng.Identity()
    )
    far = state._replace(direction=state.direction._replace(start=jnp.asarray(last)))
    cold = state._replace(direction=state.direction._replace(start=jnp.zeros(7)))
    gradient = PROBLEM.gradient(np.asarray(params))
    for memory, start in ((far, 0.95 * last), (cold, np.zeros(7))):
        _, after, _ = idle.step(params, memory, PROBLEM.batch)
        damped = PROBLEM.hessian + float(state.damping) * np.eye(7)
        residual = gradient - damped @ start
        expected = start + residual * (residual @ residual) / (residual @ damped @ residual)
        np.testing.assert_allclose(after.direction.start, expected, rtol=1e-8)


def test_martens_preconditioner_estimates_the_mean_squared_gradients():
    x, t = PROBLEM.batch
    theta = np.asarray(PROBLEM.start)
    squares = np.mean((np.asarray(x) * (np.asarray(x) @ theta - np.asarray(t))[:, None]) ** 2, axis=0)
    metric = ng.metric_product(model, ng.Gaussian(), PROBLEM.start, x, None, ng.EmpiricalFisher(), targets=t)
    # One block an example: no cross terms, no noise.
    np.testing.assert_allclose(metric.diagonal(jax.random.key(0), blocks=40), squares, rtol=1e-10)
    draws = jax.lax.map(lambda key: metric.diagonal(key, 4), jax.random.split(jax.random.key(1), 2000))
    error = np.std(draws, axis=0) / np.sqrt(2000)
    np.testing.assert_array_less(np.abs(np.mean(draws, axis=0) - squares), 5 * error)


def test_jacobi_estimates_the_metrics_diagonal():
    metric = ng.metric_product(model, ng.Gaussian(), PROBLEM.start, PROBLEM.batch[0])
    np.testing.assert_allclose(metric.diagonal(jax.random.key(0), 40), np.diag(PROBLEM.hessian), rtol=1e-10)


@pytest.mark.parametrize("precondition", [ng.Diagonal(0.75), ng.Jacobi(), ng.Diagonal(1.0, floor=0.5)])
def test_a_preconditioner_does_not_change_the_solution(precondition):
    solver = ng.CG(100, 1e-12)
    plain = ng.natural_gradient(model, ng.Gaussian(), solver=solver)
    other = ng.Optimizer(
        model, ng.Gaussian(), ng.Natural(solver, precondition), ng.FixedRate(1.0), damping=plain.damping
    )
    expected, _, _ = plain.step(PROBLEM.start, plain.init(PROBLEM.start), PROBLEM.batch)
    found, _, _ = other.step(PROBLEM.start, other.init(PROBLEM.start), PROBLEM.batch)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_kiros_schedules():
    opt = ng.stochastic_hessian_free(model, ng.Gaussian(), steps_per_epoch=2)
    warm = opt.direction.natural.warm_start
    np.testing.assert_allclose([warm(0), warm(1), warm(2), warm(10_000)], [0.5, 0.5, 0.505, 0.99], rtol=1e-6)
    _, state, info = opt.step(PROBLEM.start, opt.init(PROBLEM.start), PROBLEM.batch)
    assert int(info.solver.iterations) == 5
    np.testing.assert_allclose(state.damping, 0.99)


def test_a_solver_without_snapshots_is_refused():
    with pytest.raises(ValueError, match="snapshots=True"):
        ng.hessian_free(model, ng.Gaussian(), solver=ng.CG(10))
