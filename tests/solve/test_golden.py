"""The official values of MINRES-QLP (Choi, Paige & Saunders 2011; TOMS algorithm 937), by name."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from natgrad.solve import MinresQLP, Reason
from natgrad.solve.minres_qlp import Earlier, Vectors, _move, _remember, _stay, krylov, rules_for, solution_of
from natgrad.solve.problem import AIM
from natgrad.solve.reflections import reflect

pytestmark = pytest.mark.usefixtures("fast_compile")

HUGE, TINY = float(np.finfo(np.float64).max), float(np.finfo(np.float64).tiny)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (0, 0, (1, 0, 0)),
        (0, 2, (0, 1, 2)),
        (0, -2, (0, -1, 2)),
        (2, 0, (1, 0, 2)),
        (-2, 0, (-1, 0, 2)),
        (6, -8, (0.6, -0.8, 10)),
        (8, 6, (0.8, 0.6, 10)),
        (6 * (HUGE / 100), 8 * (HUGE / 100), (0.6, 0.8, HUGE / 10)),
        (6 * TINY, 8 * TINY, (0.6, 0.8, 10 * TINY)),
        (HUGE / 10, TINY, (1, 0, HUGE / 10)),
    ],
)
def test_symortho(a, b, expected):
    found = reflect(jnp.asarray(a, jnp.float64), jnp.asarray(b, jnp.float64))
    np.testing.assert_allclose(found, expected, rtol=4e-16, atol=1e-300)


class Attempt(NamedTuple):
    """The recurrence alone, without the check and the attempts after it that the official codes do not make."""

    x: Array
    iterations: Array
    norm: Array
    condition: Array
    reason: Array


def condition_of(scalars):
    """Return the estimate of cond(A) that the recurrence stops by."""
    return scalars.norm / jnp.maximum(scalars.least, jnp.finfo(scalars.least.dtype).tiny)


@partial(jax.jit, static_argnums=(0, 1))
def attempt(solver, preconditioned, d, b, M, reduction):
    rules = rules_for(solver, jnp.float64(1), reduction, solver.maxiter)
    state = krylov(rules, lambda v: d * v, (lambda r: r / M) if preconditioned else None, b)
    scalars = state.scalars
    return Attempt(
        solution_of(rules, state), state.iteration, scalars.norm, condition_of(scalars), state.reason
    )


def diagonal_case(n, norm=1.0, shift=0.0, singular=False, inconsistent=False, precondition=None):
    """The official driver: d_j = j/n, x = (n, …, 1), the last two d zero if singular."""
    d, x = np.arange(1, n + 1) / n, np.arange(n, 0, -1.0)
    if singular:
        d[-2:] = x[-2:] = 0
    b = (d - shift) * x
    if inconsistent:
        b[-2:] = 1
    M = np.ones(n)
    if precondition is not None:
        M = np.abs(d - shift)
        M[9::10] += precondition
    # The official test is ‖r‖ ≤ rtol (‖A‖‖x‖ + ‖b‖); its ‖A‖ is the one printed.
    reduction = 1e-12 * (norm * np.sqrt(x @ (M * x)) / np.sqrt(b @ (b / M)) + 1)
    solver = MinresQLP(3 * n, 1e-12, maxxnorm=1e8)
    found = attempt(solver, precondition is not None, d - shift, b, M, reduction / AIM)
    error = np.linalg.norm(found.x - x) / np.linalg.norm(x)
    if precondition is None and not inconsistent:
        # The public solver, asked for the same residual, does the same.
        public = _public(3 * n)(d - shift, b, reduction / AIM)
        assert (public.iterations, public.reason) == (found.iterations, Reason.SOLVED)
        np.testing.assert_array_equal(public.x, found.x)
    return found, error


@cache
def _public(maxiter):
    return jax.jit(lambda d, b, rtol: MinresQLP(maxiter, rtol, maxxnorm=1e8)(lambda v: d * v, b))


NONSINGULAR = {
    "n=2": ({"n": 2}, 2, 0.92195, 1.7000, None),
    "n=3": ({"n": 3}, 3, 0.84686, 2.1087, None),
    "n=4": ({"n": 4}, 4, 0.80139, 2.3113, None),
    "n=4 shift .01": ({"n": 4, "shift": 0.01}, 4, 0.79483, 2.4183, None),
    "n=50": ({"n": 50}, 45, 0.65841, 11.664, 8.9e-13),
    "n=50 shift .01": ({"n": 50, "shift": 0.01}, 46, 0.65195, 23.632, 2.0e-12),
    "n=4 singular consistent": ({"n": 4, "singular": True}, 2, 0.48088, 1.8500, None),
    "n=4 singular shift .3": ({"n": 4, "singular": True, "shift": 0.3}, 2, 0.19935, 3.9741, None),
    "n=50 singular consistent": ({"n": 50, "singular": True}, 44, 0.65701, 11.737, 6.8e-13),
    "n=50 preconditioned, perturbed by 0.1": ({"n": 50, "precondition": 0.1}, 6, 0.99134, 1.3394, None),
}


@pytest.mark.parametrize("name", NONSINGULAR)
def test_diagonal(name):
    case, iterations, norm, condition, printed_error = NONSINGULAR[name]
    solution, error = diagonal_case(**case, norm=norm)
    assert solution.iterations == iterations
    np.testing.assert_allclose(solution.norm, norm, atol=5.1e-6)
    np.testing.assert_allclose(solution.condition, condition, rtol=5e-5)
    assert error <= np.finfo(np.float64).eps * case["n"] * condition * 10 or printed_error
    if printed_error is not None:
        np.testing.assert_allclose(error, printed_error, rtol=0.06)
    assert solution.reason == Reason.SOLVED


def test_diagonal_one_unknown():
    solution, error = diagonal_case(1)
    assert (solution.iterations, solution.reason, error) == (1, Reason.SOLVED, 0)


@pytest.mark.parametrize("n", [2, 50])
def test_exact_preconditioner_needs_one_iteration(n):
    solution, error = diagonal_case(n, precondition=0.0)
    assert solution.iterations == 1
    assert error < 1e-15


def test_singular_inconsistent_4():
    solution, error = diagonal_case(4, singular=True, inconsistent=True)
    assert error < 1e-14
    np.testing.assert_allclose(solution.x, [4, 3, 0, 0], atol=1e-13)
    residual = np.array([1, 1.5, 1, 1]) - np.array([0.25, 0.5, 0, 0]) * solution.x
    np.testing.assert_allclose(np.linalg.norm(residual), 1.4142, atol=5e-5)
    # The official codes report the iteration before the one that found out.
    assert solution.iterations - 1 == 2
    assert solution.reason == Reason.LEAST_SQUARES


def test_singular_inconsistent_50():
    solution, error = diagonal_case(50, singular=True, inconsistent=True)
    np.testing.assert_allclose(np.linalg.norm(solution.x), 207.17, atol=5e-3)
    assert error < 5e-7
    # 47 in the Matlab code, 46 in the Fortran one: x grows a hundredfold per iteration, and rounding decides.
    assert solution.iterations - 1 in (46, 47, 48)
    assert solution.reason == Reason.X_TOO_LARGE


def test_default_parameters_and_single_precision():
    d, x = np.arange(1, 51) / 50, np.arange(50, 0, -1.0)
    for dtype, bound, rtol in ((np.float64, 1e-6, 1e-8), (np.float32, 1e-3, 1e-5)):
        D, b = jnp.asarray(d, dtype), jnp.asarray(d * x, dtype)
        solution = jax.jit(lambda D, b, rtol=rtol: MinresQLP(200, rtol)(lambda v: D * v, b))(D, b)
        assert solution.reason == Reason.SOLVED
        assert np.linalg.norm(np.float64(solution.x) - x) / np.linalg.norm(x) < bound


def test_tridiagonal_100_preconditioned():
    """Matlab example 1: tridiag(−2, 4, −2), M = 4I, b = A·1."""

    def A(v):
        zero = jnp.zeros(1)
        return 4 * v - 2 * jnp.concatenate([v[1:], zero]) - 2 * jnp.concatenate([zero, v[:-1]])

    solver, b = MinresQLP(rtol=1e-10, maxiter=50), A(jnp.ones(100))
    solution = solver(A, b, preconditioner=lambda r: r / 4)
    assert (solution.iterations, solution.reason) == (50, Reason.SOLVED)
    rules = rules_for(solver, jnp.float64(1), jnp.float64(1e-10), 50)
    scalars = jax.jit(lambda: krylov(rules, A, lambda r: r / 4, b).scalars)()
    np.testing.assert_allclose(scalars.norm, 1.4491, atol=5e-5)
    np.testing.assert_allclose(condition_of(scalars), 2974.3, atol=0.06)
    np.testing.assert_allclose(solution.x, 1, rtol=1e-12)


def test_grid_matrix_2500():
    """Matlab example 2: kron(B, B), B = tridiag(1, 1, 1) of 50: singular, indefinite, b = row sums."""

    def B(V):
        zero = jnp.zeros((1, 50))
        return V + jnp.concatenate([V[1:], zero]) + jnp.concatenate([zero, V[:-1]])

    def A(V):
        return B(B(V).T).T

    b = A(jnp.ones((50, 50)))
    solution = MinresQLP(10_000, 1e-5, maxxnorm=1e2)(A, b)
    assert solution.reason == Reason.SOLVED
    T = np.eye(50) + np.eye(50, k=1) + np.eye(50, k=-1)
    lam, Q = np.linalg.eigh(T)
    products = np.outer(lam, lam)
    kept = np.abs(products) > 1e-10
    shortest = Q @ (np.where(kept, Q.T @ np.array(b) @ Q, 0) / np.where(kept, products, 1)) @ Q.T
    # The shortest solution is no longer than the one that made b; what rtol leaves is along small eigenvalues.
    assert np.linalg.norm(solution.x) <= np.linalg.norm(shortest) * (1 + 1e-8)
    assert np.linalg.norm(b - A(solution.x)) <= 1e-5 * np.linalg.norm(b)


def test_singular_diagonal_21():
    """Matlab example 3: diag(−10 … 10), b = 1: x_i = 1/d_i, and 0 where d = 0."""
    d = np.arange(-10.0, 11)
    solution = MinresQLP(84, 1e-10, maxxnorm=1e2)(lambda v: jnp.asarray(d) * v, jnp.ones(21))
    expected = np.where(d == 0, 0, 1 / np.where(d == 0, 1, d))
    np.testing.assert_allclose(solution.x, expected, atol=1e-12)
    assert solution.iterations - 1 == 20
    assert solution.reason == Reason.LEAST_SQUARES


def test_the_bound_on_the_length_is_1e5_in_double_and_1e3_in_single_precision():
    """In units of ‖b‖ / ‖A‖, unless a length is given: then in units of the right-hand side."""
    for dtype, bound in ((jnp.float64, 1e5), (jnp.float32, 1e3)):
        unit = jnp.asarray(4.0, dtype)
        assert rules_for(MinresQLP(), unit, unit, 5).max_length == bound
        assert rules_for(MinresQLP(maxxnorm=10.0), unit, unit, 5).max_length == 2.5


def test_three_vectors_move_by_a_matrix():
    rng = np.random.default_rng(0)
    moves, old = rng.normal(size=(3, 3)), rng.normal(size=(3, 4))
    older, newer, total, v = (*old, rng.normal(size=4))
    moved = jax.jit(_move)(jnp.asarray(moves), jnp.asarray(v), Vectors(*map(jnp.asarray, old)))
    kept = np.stack([older, newer, v])
    wanted = moves @ kept + [0 * v, 0 * v, total]
    np.testing.assert_allclose(np.stack(moved), wanted, rtol=1e-12)
    stayed = jax.jit(lambda v, old: _move(_stay(v.dtype), v, old))(jnp.asarray(v), Vectors(*old))
    np.testing.assert_array_equal(np.stack(stayed), old)


def test_the_latest_vectors_are_remembered():
    rows = np.arange(18.0).reshape(6, 3)
    memory = Earlier(jnp.zeros((4, 3)), jnp.zeros((4, 3)), jnp.array(0, jnp.int32))
    for row in rows:
        memory = _remember(memory, jnp.asarray(row), -jnp.asarray(row))
    np.testing.assert_array_equal(np.sort(memory.v, axis=0), rows[2:])
    np.testing.assert_array_equal(memory.q, -memory.v)


@pytest.mark.parametrize("A", [np.diag([3.0, 1.0]), np.array([[0.0, 2.0], [2.0, 0.0]]), np.diag([-5.0, 4.0])])
@pytest.mark.parametrize("b", [(1.0, 0.0), (1.0, 0.5)])
def test_the_norm_is_estimated_from_below_and_no_less_than_a_product_shows(A, b):
    b = jnp.asarray(b)
    unit, norm = jnp.linalg.norm(b), 0.0
    for budget in (1, 2):
        found = krylov(
            rules_for(MinresQLP(2, 1e-13), unit, jnp.asarray(1e-13), budget), lambda v: A @ v, None, b
        )
        assert norm <= found.scalars.norm <= np.linalg.norm(A, 2) * (1 + 1e-12)
        norm = found.scalars.norm
        if budget == 1:
            np.testing.assert_allclose(norm, np.linalg.norm(A @ b) / unit, rtol=1e-12)
