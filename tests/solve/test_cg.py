"""CG's own, and TruncatedCG's: Martens' stop and the snapshots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad.solve import CG, Reason, TruncatedCG
from natgrad.solve.truncated import snapshot_iterations, stagnates

pytestmark = pytest.mark.usefixtures("fast_compile")

RNG = np.random.default_rng(3)
D = np.geomspace(1, 1e-3, 200)
B = RNG.normal(size=200)


def truncated(x0=None, **options):
    return jax.jit(lambda b, x0: TruncatedCG(**options)(lambda v: D * v, b, x0))(B, x0)


def martens(values, epsilon):
    """The rule, word for word, on a recorded sequence: the first k at which it stops."""
    for k in range(1, len(values)):
        K = max(10, int(np.ceil(0.1 * k)))
        if k > K and values[k] < 0 and (values[k] - values[k - K]) / values[k] < K * epsilon:
            return k
    return None


@pytest.mark.parametrize(("decay", "epsilon"), [(0.9, 5e-4), (0.97, 5e-4), (0.99, 1.45e-3), (0.99, 5e-4)])
def test_stop_rule_on_a_recorded_sequence(decay, epsilon):
    values = jnp.asarray(-1 + decay ** np.arange(600.0))
    stops = jax.vmap(lambda k: stagnates(values, k, epsilon))(jnp.arange(600))
    assert not np.any(stops[:11])
    assert int(np.argmax(stops)) == martens(np.asarray(values), epsilon)


def test_window_grows_by_a_tenth_rounded_up():
    """At k = 101 the rule looks back 11 iterations, not 10."""
    values = jnp.full(102, -1.0).at[90].set(-0.9)
    assert not stagnates(values, jnp.asarray(101), 5e-4)
    assert stagnates(values.at[90].set(-1.0).at[91].set(-0.9), jnp.asarray(101), 5e-4)


def test_a_quadratic_above_its_start_does_not_stagnate():
    """A warm start may begin higher than 0, and has its way down before it."""
    assert not stagnates(jnp.full(30, 0.5), jnp.asarray(20), 5e-4)
    assert stagnates(jnp.full(30, -0.5), jnp.asarray(20), 5e-4)


def textbook(x, steps):
    """Hestenes and Stiefel's iterates x_0 … x_steps, in NumPy."""
    r = B - D * x
    p, iterates = r, [x]
    for _ in range(steps):
        alpha = (r @ r) / (p @ (D * p))
        x, following = x + alpha * p, r - alpha * D * p
        p = following + (following @ following) / (r @ r) * p
        r = following
        iterates.append(x)
    return iterates


@pytest.mark.parametrize("warm", [False, True])
def test_progress_stops_where_the_quadratic_says(warm):
    x0 = 0.95 * RNG.normal(size=200) if warm else None
    solution = truncated(x0, maxiter=150)
    assert Reason.name_of(solution.reason) == "progress"
    iterates = textbook(x0 if warm else np.zeros(200), 150)
    values = [0.5 * x @ (D * x) - B @ x for x in iterates]
    assert martens(values, 5e-4) == solution.iterations


@pytest.mark.parametrize("progress", [2e-3, 1e-3, 7e-4, 4e-4, 3e-4])
def test_progress_is_judged_alike_in_the_last_iteration_of_all(progress):
    wanted = truncated(maxiter=150, progress=progress)
    last = truncated(maxiter=int(wanted.iterations), progress=progress)
    assert (Reason.name_of(last.reason), last.iterations) == ("progress", wanted.iterations)


def test_snapshot_grid():
    assert snapshot_iterations(30) == (5, 7, 9, 11, 15, 19, 25)
    assert len(snapshot_iterations(250)) + 1 == 16


@pytest.mark.parametrize("maxiter", [3, 5, 12, 15])
def test_snapshots_are_the_iterates(maxiter):
    solution = truncated(maxiter=maxiter, progress=None)
    stored = int(solution.snapshots.stored)
    # Room for the grid and the last iterate, and no more: a row costs as much as the parameters.
    assert len(solution.snapshots.iterations) == len(snapshot_iterations(maxiter)) + 1
    grid = list(snapshot_iterations(maxiter))
    expected = grid if grid and grid[-1] == maxiter else [*grid, maxiter]
    assert list(solution.snapshots.iterations[:stored]) == expected
    np.testing.assert_array_equal(solution.snapshots.iterates[stored - 1], solution.x)
    iterates = textbook(np.zeros(200), maxiter)
    for row, k in enumerate(expected):
        np.testing.assert_allclose(solution.snapshots.iterates[row], iterates[k], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("maxiter", [3, 8, 20, 60])
def test_a_truncated_solve_reports_the_true_residual(maxiter, dtype):
    """Without a product for it, as long as the recurrence can be trusted; with one after."""
    d, b = D[::4].astype(dtype), B[::4].astype(dtype)
    solution = jax.jit(lambda b: CG(maxiter, 0.0)(lambda v: d * v, b))(b)
    true = np.linalg.norm(np.float64(b) - np.float64(d) * np.float64(solution.x))
    rounding = 10 * np.finfo(dtype).eps * np.linalg.norm(solution.x)
    np.testing.assert_allclose(solution.residual, true, rtol=1e-3, atol=rounding)


def test_only_a_claim_costs_a_product_of_its_own():
    products = []

    def matvec(v):
        jax.debug.callback(lambda: products.append(1))
        return D * v

    for solver, extra in ((CG(5, 1e-12), 0), (CG(5, 0.0), 0), (TruncatedCG(6, None), 0), (CG(400, 1e-2), 1)):
        products.clear()
        solution = jax.jit(lambda b, solver=solver: solver(matvec, b))(B)
        jax.effects_barrier()
        assert len(products) == int(solution.iterations) + extra


def test_integer_spectrum_ends_in_as_many_steps():
    d = np.tile([1.0, 2.0, 3.0, 4.0], 5)
    solution = jax.jit(lambda b: CG(20, 1e-12)(lambda v: d * v, b))(B[:20])
    assert solution.iterations == 4
    np.testing.assert_allclose(solution.x, B[:20] / d, rtol=1e-11)


def test_a_belied_recurrence_starts_again():
    """float32, where the recurred residual drifts from the true one."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(60, 60)))[0]
    A = ((Q * np.geomspace(1, 1e-2, 60)) @ Q.T).astype(np.float32)
    b = (A @ rng.normal(size=60)).astype(np.float32)
    solution = jax.jit(lambda: CG(500, 3e-7)(lambda v: A @ v, b))()
    r = np.linalg.norm(b - A.astype(np.float64) @ np.asarray(solution.x, np.float64)) / np.linalg.norm(b)
    assert solution.reason != Reason.SOLVED or r <= 1e-6
