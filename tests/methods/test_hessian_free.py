"""Hessian-Free's habits: which iterate it goes back to, when it shortens, what it starts from."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng
from methods.quadratic import model, quadratic
from natgrad.directions import Proposal
from natgrad.directions.natural import TruncatedNewton
from natgrad.metric.here import Here
from natgrad.problem import Start
from natgrad.solve.result import Solution
from natgrad.solve.truncated import Snapshots

pytestmark = pytest.mark.usefixtures("fast_compile")

PROBLEM = quadratic()


def local(slopes, resolution=0.0):
    search = Start(None, jnp.asarray(resolution))
    here = Here(None, None, None, None, search=search, shift=jnp.zeros(()), steps=jnp.zeros((), jnp.int32))
    return here, Proposal(None, jnp.asarray(slopes))


def along_rows(losses):
    """A recorded sequence: the change from a loss of 10 at each row taken whole, shortened linearly towards 0."""
    losses = jnp.asarray(losses)

    def probe(z):
        row = jnp.argmax(jnp.abs(z))
        return (losses[row] - 10.0) * z[row]

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
    found = ng.search.Backtrack()(*local(-np.ones(5)), along_rows(losses))
    np.testing.assert_array_equal(found.z, np.eye(5)[chosen])
    assert found.change == losses[chosen] - 10


def test_backtracking_returns_nothing_when_every_iterate_is_worse():
    found = ng.search.Backtrack()(*local(-np.ones(2)), along_rows([12.0, 13.0]))
    np.testing.assert_array_equal(found.z, 0)
    assert found.change == 0


def test_backtracking_shortens_the_first_row_where_the_solver_filled_no_other():
    """From a loss of 10 the first row leads to 12, and to 9 at 0.4 of it. The others are 0: no step is no iterate."""

    def probe(z):
        return -5.5 * z[0] + 7.5 * z[0] ** 2

    np.testing.assert_allclose([10 + probe(jnp.array([z])) for z in (1.0, 0.4)], [12, 9])
    found = ng.search.Backtrack()(*local([-1.0, 0.0, 0.0]), probe)
    assert 0 < found.z[0] < 0.5
    np.testing.assert_array_equal(found.z[1:], 0)
    np.testing.assert_allclose(found.change, probe(found.z))
    assert found.change < 0


def tried(search, phi, slope=-1.0):
    """Return the lengths that were probed, and what was found."""
    lengths = []

    def probe(z):
        lengths.append(float(z[0]))
        return phi(z[0])

    with jax.disable_jit():
        found = search(*local([slope]), probe)
    return lengths, found


def test_armijo_goes_to_the_bottom_of_the_parabola():
    """φ(α) = −α + 2α²: 1 is too long, and the parabola through what is known is φ itself, lowest at ¼."""
    lengths, found = tried(ng.search.Armijo(), lambda a: -a + 2 * a**2)
    np.testing.assert_allclose(lengths, [1, 0.25])
    np.testing.assert_allclose(found.z, [0.25])
    np.testing.assert_allclose(found.change, -0.125)


def test_armijo_takes_the_first_length_that_falls_enough():
    """φ(α) = −α + α²/2: at 1 the loss falls by half the slope, and a hundredth is enough."""
    lengths, found = tried(ng.search.Armijo(), lambda a: -a + a**2 / 2)
    assert lengths == [1.0]
    assert (found.z, found.change) == (1.0, -0.5)
    # Where ¾ is asked for, enough is α ≤ ½. The bottom of the parabola is at 1, but a length is shortened by 0.8
    # at the least.
    lengths, found = tried(ng.search.Armijo(decrease=0.75), lambda a: -a + a**2 / 2)
    np.testing.assert_allclose(lengths, [1, 0.8, 0.8**2, 0.8**3, 0.8**4])
    np.testing.assert_allclose(found.z, [0.8**4])


def test_armijo_goes_on_where_the_loss_is_what_it_was():
    """Any fall is enough here, and φ(α) = −α + α² falls by nothing at 1."""
    _, found = tried(ng.search.Armijo(decrease=0.0), lambda a: -a + a**2)
    np.testing.assert_allclose(found.z, [0.5])
    np.testing.assert_allclose(found.change, -0.25)


@pytest.mark.parametrize("times", [10, 100])
@pytest.mark.parametrize("shape", ["parabola", "quartic", "wall"])
def test_armijo_shortens_a_row_that_overshoots_within_ten_probes(times, shape):
    """The lowest point, or the wall, is at a tenth or a hundredth of the row."""

    def phi(a):
        a = a * times
        bend = {"parabola": a**2 / 2, "quartic": a**4 / 4, "wall": jnp.where(a < 1, a**2 / 4, jnp.nan)}
        return (-a + bend[shape]) / times

    lengths, found = tried(ng.search.Armijo(), phi)
    assert len(lengths) <= 10
    assert 0 < found.z[0] < 2 / times
    assert found.change == phi(found.z[0])
    assert found.change <= -1e-2 * found.z[0]
    assert found.change < -0.05 / times


def test_armijo_cuts_to_a_tenth_at_the_most():
    lengths, _ = tried(ng.search.Armijo(), lambda a: jnp.where(a < 0.005, -a, jnp.inf))
    np.testing.assert_allclose(lengths, [1, 0.1, 0.01, 0.001])
    lengths, _ = tried(ng.search.Armijo(), lambda a: -a + 1e3 * a**2)
    np.testing.assert_allclose(lengths, [1, 0.1, 0.01, 0.001, 0.0005])


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_armijo_does_not_shorten_a_row_that_does_not_lead_down(slope):
    lengths, found = tried(ng.search.Armijo(), lambda a: slope * a + a**2, slope=slope)
    assert lengths == [1.0]
    assert (found.z, found.change) == (0, 0)


def test_armijo_counts_its_trials():
    rising = ng.search.Armijo(maxprobes=60)
    seen = []

    def probe(z):
        jax.debug.callback(lambda at: seen.append(float(at)), z[0])
        return 1.0 + 0 * z[0]

    found = rising(*local([-1.0]), probe)
    jax.effects_barrier()
    assert len(seen) == 60
    assert found.z == 0


def test_the_default_first_step_is_martens_direction():
    """With the whole data as every batch, one step from 0 is CG on (F + λI) d = −g, λ = 45."""
    opt = ng.hessian_free(model, ng.Gaussian(), preconditioner=ng.Identity())
    params, state, info = opt.step(PROBLEM.start, opt.init(PROBLEM.start), PROBLEM.batch)
    damped = PROBLEM.hessian + 45 * np.eye(7)
    expected = -np.linalg.solve(damped, PROBLEM.gradient(np.asarray(PROBLEM.start)))
    np.testing.assert_allclose(params - PROBLEM.start, expected, rtol=1e-2)
    # On a quadratic the undamped model is exact: ρ = 1, and λ falls by 2/3 three times.
    np.testing.assert_allclose(info.rho, 1, rtol=1e-6)
    np.testing.assert_allclose(state.damping, 45 * (2 / 3) ** 3)


@pytest.mark.parametrize("warm_start", [0.95, lambda step: jnp.where(step == 1, 0.95, 0.0)])
def test_the_next_solve_starts_from_a_part_of_the_last_solution(warm_start):
    opt = ng.hessian_free(model, ng.Gaussian(), solver=ng.TruncatedCG(3, progress=None))
    params, state, _ = opt.step(PROBLEM.start, opt.init(PROBLEM.start), PROBLEM.batch)
    last = np.asarray(state.direction.start)
    assert np.linalg.norm(last) > 0
    # A solver of no iterations hands back its start.
    idle = ng.hessian_free(
        model,
        ng.Gaussian(),
        solver=ng.TruncatedCG(1, progress=None),
        preconditioner=ng.Identity(),
        warm_start=warm_start,
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
    np.testing.assert_allclose(metric.diagonal(jax.random.key(0), groups=40), squares, rtol=1e-10)
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


def test_minibatches_take_schedules_and_a_slow_damping():
    """As Kiros (2013) does it: a few iterations, a first length that falls, and λ falls by 1% to 3% per step."""
    opt = ng.hessian_free(
        model,
        ng.Gaussian(),
        solver=ng.TruncatedCG(5, progress=None),
        search=ng.search.Backtrack(ng.search.Armijo(initial=lambda step: jnp.where(step == 0, 0.5, 0.25))),
        damping=ng.LevenbergMarquardt(1.0, bounds=(1e-2, 1e12), lower_by=0.99),
    )
    params, state, info = opt.step(PROBLEM.start, opt.init(PROBLEM.start), PROBLEM.batch)
    assert int(info.solver.iterations) == 5
    assert np.max(info.step_size) == 0.5
    # ρ is above 0.9, so 0.99 counts three times.
    assert info.rho > 0.9
    np.testing.assert_allclose(state.damping, 0.99**3)
    assert np.max(opt.step(params, state, PROBLEM.batch)[2].step_size) == 0.25


def test_a_solver_without_snapshots_is_refused():
    with pytest.raises(ValueError, match="TruncatedCG"):
        ng.hessian_free(model, ng.Gaussian(), solver=ng.CG(10))


def test_rows_are_the_stored_iterates_newest_first_and_zero_where_none_was_stored():
    iterates = {"w": jnp.arange(1.0, 9.0).reshape(4, 2), "b": jnp.arange(1.0, 5.0)}
    gradient = {"w": jnp.array([1.0, 0.5]), "b": jnp.array(2.0)}
    for stored in (1, 3, 4):
        snapshots = Snapshots(iterates, jnp.arange(4), jnp.array(stored, jnp.int32))
        solution = Solution(None, jnp.array(9), jnp.array(0.1), jnp.array(0.1), jnp.array(2), snapshots)
        inner = SimpleNamespace(solve=lambda here, memory, found=solution: (found, memory))
        here = Here(None, None, None, None, gradient=gradient)
        proposal = TruncatedNewton.propose(SimpleNamespace(inner=inner), here, ())
        for name, leaf in iterates.items():
            wanted = np.zeros_like(leaf)
            wanted[:stored] = -np.asarray(leaf)[:stored][::-1]
            np.testing.assert_array_equal(proposal.rows.leaves[name], wanted)


@pytest.mark.parametrize("maxiter", [3, 5, 12, 250])
def test_there_is_a_row_for_every_iterate_that_may_be_stored(maxiter):
    direction = TruncatedNewton(ng.Natural(ng.TruncatedCG(maxiter)))
    opt = ng.hessian_free(model, ng.Gaussian(), solver=ng.TruncatedCG(maxiter))
    info = jax.eval_shape(opt.step, PROBLEM.start, opt.init(PROBLEM.start), PROBLEM.batch)[2]
    assert info.step_size.shape == (direction.width,)


def test_backtracking_goes_on_to_the_last_row_and_no_further():
    """Every row is worse than θ, the last the least: it is shortened. Beyond it there is no row."""

    def probe(z):
        return jnp.where(z[2] == 0.25, -0.85, z @ jnp.array([3.0, 2.0, 1.0]))

    found = ng.search.Backtrack()(*local(-np.ones(3)), probe)
    np.testing.assert_array_equal(found.z, [0, 0, 0.25])


def test_a_row_whose_slope_is_one_is_a_row():
    found = ng.search.Backtrack()(*local([-1.0, 1.0]), lambda z: -z[0] - 5 * z[1])
    np.testing.assert_array_equal(found.z, [0, 1])
