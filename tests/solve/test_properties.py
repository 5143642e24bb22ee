"""What holds for every system: exact scaling, monotone residuals, agreement with SciPy, loops and derivatives."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
from corpus import batch

from natgrad.solve import CG, MINRES, MinresQLP, Reason

pytestmark = pytest.mark.usefixtures("fast_compile")

SOLVERS = {
    "cg": CG(60, 1e-8),
    "minres": MINRES(60, 1e-8),
    "minres-qlp": MinresQLP(60, 1e-8),
}
by_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


def spd(n=20, condition=50.0, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    A = (Q * np.geomspace(1, 1 / condition, n)) @ Q.T
    return ((A + A.T) / 2).astype(dtype), rng.normal(size=n).astype(dtype)


def runner(solver, preconditioned=False):
    def run(A, b, x0=None):
        inverse = (lambda r: r / jnp.diag(A)) if preconditioned else None
        return solver(lambda v: A @ v, b, x0, inverse)

    return jax.jit(run)


@by_solver
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_powers_of_two_scale_exactly(solver, dtype):
    A, b = spd(dtype=dtype)
    run = runner(solver)
    one = run(A, b)
    for power in (-37, -1, 1, 40):
        scaled = run(A, b * dtype(2.0**power))
        np.testing.assert_array_equal(scaled.x, one.x * dtype(2.0**power))
        assert scaled.reason == one.reason


@by_solver
def test_extreme_scales_are_solved(solver):
    for dtype, power in ((np.float64, 18), (np.float32, 12)):
        A, b = spd(condition=10.0, dtype=dtype)
        run = runner(replace(solver, maxiter=60, rtol=1e-4))
        for scale in (10.0**-power, 10.0**power):
            solution = run(A, b * dtype(scale))
            assert Reason.name_of(solution.reason) == "solved"
            expected = np.linalg.solve(A.astype(np.float64), b.astype(np.float64) * scale)
            np.testing.assert_allclose(solution.x, expected, rtol=0, atol=3e-3 * np.linalg.norm(expected))


@pytest.mark.parametrize("kind", [MINRES, MinresQLP])
def test_residuals_do_not_increase(kind):
    drawn = batch(0, 21, 20, np.float64)
    chosen = np.isin(drawn.kind, ("definite", "indefinite", "singular consistent", "clustered"))
    A = drawn.A[chosen]
    b = drawn.b[chosen] / np.linalg.norm(drawn.b[chosen], axis=1, keepdims=True)

    @jax.jit
    def residuals(maxiter):
        solver = kind(maxiter=maxiter, rtol=0.0)
        return jax.vmap(lambda A, b: solver(lambda v: A @ v, b).residual)(A, b)

    history = np.stack([residuals(maxiter) for maxiter in (1, 3, 8, 13)])
    assert np.all(np.diff(history, axis=0) <= 10 * np.finfo(np.float64).eps)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_first_cg_iterates_are_scipys(preconditioned, warm):
    A, b = spd(30)
    x0 = np.linspace(-1, 1, 30) if warm else None
    M = scipy.sparse.linalg.LinearOperator(A.shape, lambda r: r / np.diag(A)) if preconditioned else None
    for k in (1, 2, 3):
        theirs, _ = scipy.sparse.linalg.cg(A, b, x0=x0, rtol=0, atol=0, maxiter=k, M=M)
        ours = runner(CG(k, 0.0), preconditioned)(A, b, x0)
        np.testing.assert_allclose(ours.x, theirs, rtol=1e-12, atol=1e-13)
        assert ours.iterations == k


@by_solver
def test_vmap_is_a_loop(solver):
    systems = [spd(seed=seed, condition=10.0 ** (seed + 1)) for seed in range(3)]
    A, b = (np.stack(part) for part in zip(*systems, strict=True))
    run = runner(solver)
    together = jax.vmap(run)(A, b)
    for i in range(3):
        alone = run(A[i], b[i])
        np.testing.assert_allclose(together.x[i], alone.x, rtol=1e-6, atol=1e-8)
        assert together.reason[i] == alone.reason
        assert abs(int(together.iterations[i]) - int(alone.iterations)) <= 2


@by_solver
def test_pytrees_of_mixed_shapes(solver):
    A, b = spd(12)
    to_tree = lambda v: {"w": v[:8].reshape(2, 4), "b": (v[8:11], v[11])}  # noqa: E731
    to_vector = lambda t: jnp.concatenate([t["w"].ravel(), t["b"][0], t["b"][1][None]])  # noqa: E731
    solution = jax.jit(lambda A, b: solver(lambda t: to_tree(A @ to_vector(t)), to_tree(b)))(
        A, jnp.asarray(b)
    )
    np.testing.assert_allclose(to_vector(solution.x), np.linalg.solve(A, b), rtol=1e-6)
    assert jax.tree.structure(solution.x) == jax.tree.structure(to_tree(b))


@by_solver
def test_derivatives_are_those_of_the_solution(solver):
    A, b = spd(8, 5.0)
    direction = np.diag(np.arange(1.0, 9)) / 8
    weights = np.linspace(-1, 1, 8)
    accurate = replace(solver, maxiter=60, rtol=1e-12)

    def value(t, s):
        # x0 and the preconditioner depend on t as well, and must not matter.
        shifted = A + t * direction
        x = accurate(lambda v: shifted @ v, b * s, b * t, lambda r: r / (2 + t), shift=0.1 * s).x
        return jnp.dot(weights, x)

    value = jax.jit(value)
    both_ways = jax.jit(lambda *at: [way(value, argnums=(0, 1))(*at) for way in (jax.jacfwd, jax.grad)])
    forward, backward = both_ways(0.3, 1.2)
    h = 1e-5
    differences = [
        (value(0.3 + h, 1.2) - value(0.3 - h, 1.2)) / (2 * h),
        (value(0.3, 1.2 + h) - value(0.3, 1.2 - h)) / (2 * h),
    ]
    np.testing.assert_allclose(forward, differences, rtol=1e-7)
    np.testing.assert_allclose(backward, differences, rtol=1e-7)


@by_solver
def test_the_product_is_traced_once(solver):
    A, b = spd(6)
    calls = []

    def matvec(v):
        calls.append(1)
        return jnp.asarray(A) @ v

    jax.make_jaxpr(lambda b: solver(matvec, b))(b)
    assert len(calls) == 1


@by_solver
def test_zero_tolerance_runs_exactly_maxiter(solver):
    A, b = spd(6)
    for maxiter in (4, 40):
        solution = runner(replace(solver, maxiter=maxiter, rtol=0.0))(A, b)
        assert solution.iterations == maxiter
        assert solution.reason in (Reason.MAXITER, Reason.SOLVED)


@by_solver
def test_warm_start_at_the_solution_costs_nothing(solver):
    A, b = spd(20)
    solution = runner(solver)(A, b, np.linalg.solve(A, b))
    assert (solution.iterations, solution.reason) == (0, Reason.SOLVED)
    started = runner(solver)(A, b, np.ones(20))
    np.testing.assert_allclose(started.x, np.linalg.solve(A, b), rtol=1e-6)


@by_solver
def test_change_of_basis(solver):
    A, b = spd(20)
    Q = np.linalg.qr(np.random.default_rng(5).normal(size=(20, 20)))[0]
    accurate = runner(replace(solver, maxiter=60, rtol=1e-11))
    turned = accurate(Q @ A @ Q.T, Q @ b)
    np.testing.assert_allclose(Q.T @ turned.x, accurate(A, b).x, atol=1e-8)


def test_minres_qlp_is_cg_on_definite_systems():
    A, b = spd(20)
    x = [runner(kind(maxiter=100, rtol=1e-12))(A, b).x for kind in (CG, MINRES, MinresQLP)]
    np.testing.assert_allclose(x[1], x[0], atol=1e-9)
    np.testing.assert_allclose(x[2], x[0], atol=1e-9)


def test_preconditioned_is_the_transformed_system():
    A, b = spd(15)
    d = np.linspace(0.5, 2, 15)
    inside = jax.jit(lambda: MinresQLP(5, 0.0)(lambda v: A @ v, b, preconditioner=lambda r: r / d**2))()
    outside = jax.jit(lambda: MinresQLP(5, 0.0)(lambda v: (A @ (v / d)) / d, b / d))()
    np.testing.assert_allclose(inside.x, outside.x / d, rtol=1e-10)


def test_reorthogonalization_restores_finite_termination():
    rng = np.random.default_rng(0)
    d = np.geomspace(1, 1e-4, 60) * rng.choice([-1, 1], 60)
    A, b = np.diag(d), d * rng.normal(size=60)
    short, full = (runner(MinresQLP(300, 1e-8, reorthogonalize=m))(A, b) for m in (0, 60))
    assert full.reason == Reason.SOLVED
    assert full.iterations <= 61 < short.iterations
