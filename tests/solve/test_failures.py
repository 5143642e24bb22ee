"""Every way to fail has its name, x stays finite, and the solver works again afterwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from natgrad.solve import CG, MINRES, MinresQLP, Reason, Space
from natgrad.solve.problem import meets, verdict

pytestmark = pytest.mark.usefixtures("fast_compile")

SOLVERS = {"cg": CG(25, 1e-10), "minres": MINRES(25, 1e-10), "minres-qlp": MinresQLP(25, 1e-10)}
by_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
N = 12


def system(seed=0):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(N, N)))[0]
    return (Q * np.geomspace(1, 0.05, N)) @ Q.T, rng.normal(size=N)


class Saboteur:
    """Puts a bad number into the k-th application of a map, counted across the whole solve."""

    def __init__(self):
        self.calls, self.at, self.value = 0, -1, np.nan

    def arm(self, at, value):
        self.calls, self.at, self.value = 0, at, value

    def __call__(self, v):
        self.calls += 1
        if self.calls == self.at:
            v = v.copy()
            v[self.calls % v.size] = self.value
        return v


@by_solver
def test_injections_at_any_iteration(solver):
    """A and the preconditioner go bad at any of their applications, the final check included."""
    A, b = system()
    product, inverse = Saboteur(), Saboteur()
    like = jax.ShapeDtypeStruct((N,), jnp.float64)

    def through(saboteur, v):
        return jax.pure_callback(lambda u: saboteur(np.asarray(u)), like, v, vmap_method="sequential")

    run = jax.jit(
        lambda b: solver(lambda v: through(product, A @ v), b, None, lambda r: through(inverse, r / 2))
    )
    product.arm(-1, 0.0)
    inverse.arm(-1, 0.0)
    healthy = jax.block_until_ready(run(b))
    assert healthy.reason == Reason.SOLVED
    applications = product.calls
    done = 0
    for value in (np.nan, np.inf, -np.inf):
        for saboteur, other in ((product, inverse), (inverse, product)):
            for at in range(1, int(healthy.iterations) + 1 + (saboteur is product)):
                saboteur.arm(at, value)
                other.arm(-1, 0.0)
                solution = jax.block_until_ready(run(b))
                assert saboteur.calls >= at
                assert Reason.name_of(solution.reason) == "nonfinite", (value, at)
                assert np.isfinite(solution.x).all()
                done += 1
    assert done >= 6 * 11
    assert applications >= int(healthy.iterations) + 1
    # Reusable: the same compiled solver, healthy again, gives the same bits.
    product.arm(-1, 0.0)
    inverse.arm(-1, 0.0)
    np.testing.assert_array_equal(run(b).x, healthy.x)


@by_solver
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_injections_into_the_data(solver, dtype):
    """200 bad numbers a case in A, b, x0 and the preconditioner: 1,200 in the six cases."""
    rng = np.random.default_rng(1)
    A, b = system()
    count = 200
    As, bs = np.repeat(A[None], count, 0), np.repeat(b[None], count, 0)
    x0s, Ms = np.zeros((count, N)), np.ones((count, N))
    for i in range(count):
        bad = rng.choice([np.nan, np.inf, -np.inf])
        j, k = rng.integers(N, size=2)
        target = (As, bs, x0s, Ms)[i % 4]
        if i % 4 == 0:
            As[i, j, k] = As[i, k, j] = bad
        else:
            target[i, j] = bad

    @jax.jit
    @jax.vmap
    def run(A, b, x0, M):
        return solver(lambda v: A @ v, b, x0, lambda r: M * r)

    solution = run(*(v.astype(dtype) for v in (As, bs, x0s, Ms)))
    assert {Reason.name_of(reason) for reason in solution.reason} == {"nonfinite"}
    assert np.isfinite(solution.x).all()


@by_solver
def test_zero_right_hand_side(solver):
    A, _ = system()
    solution = jax.jit(lambda x0: solver(lambda v: A @ v, jnp.zeros(N), x0))(jnp.ones(N))
    assert Reason.name_of(solution.reason) == "zero rhs"
    assert not np.any(solution.x)
    assert solution.residual == 0


@by_solver
def test_maxiter(solver):
    A, b = system()
    solution = jax.jit(lambda: type(solver)(maxiter=2, rtol=1e-10)(lambda v: A @ v, b))()
    assert Reason.name_of(solution.reason) == "maxiter"
    np.testing.assert_allclose(solution.residual, np.linalg.norm(b - A @ solution.x), rtol=1e-12)


def test_cg_names_an_indefinite_operator_and_keeps_the_last_good_iterate():
    d = np.array([1.0, 2.0, 3.0, -1.0])
    solution = jax.jit(lambda: CG(20, 1e-8)(lambda v: d * v, jnp.array([1.0, 1.0, 1.0, 1e-3])))()
    assert Reason.name_of(solution.reason) == "indefinite"
    assert solution.residual < np.sqrt(3)


@pytest.mark.parametrize("kind", [MINRES, MinresQLP])
def test_indefinite_preconditioner(kind):
    A, b = system()
    M = np.where(np.arange(N) % 2, 1.0, -1.0)
    solution = jax.jit(lambda: kind(20, 1e-8)(lambda v: A @ v, b, preconditioner=lambda r: M * r))()
    assert Reason.name_of(solution.reason) == "indefinite"
    assert np.isfinite(solution.x).all()


def test_x_too_large():
    d = np.array([1.0, 2.0, 3.0, 1e-9])
    solution = jax.jit(lambda: MinresQLP(20, 1e-14, maxxnorm=1e3)(lambda v: d * v, jnp.ones(4)))()
    assert Reason.name_of(solution.reason) == "x too large"
    assert np.linalg.norm(solution.x) <= 1e3


@pytest.mark.parametrize("kind", [MINRES, MinresQLP])
def test_ill_conditioned(kind):
    """With the tests switched off, the end of what the precision can resolve."""
    d = jnp.array([1.0, 2.0, 3.0, 0.0])
    solution = jax.jit(lambda: kind(20, 0.0)(lambda v: d * v, jnp.ones(4)))()
    assert Reason.name_of(solution.reason) == "ill conditioned"
    assert np.isfinite(solution.x).all()


@by_solver
def test_stalled_when_rounding_forbids_the_tolerance(solver):
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    A = (Q * np.geomspace(1, 1e-8, 30)) @ Q.T
    b = rng.normal(size=30)
    tight = type(solver)(maxiter=3000, rtol=1e-13)
    solution = jax.jit(lambda: tight(lambda v: A @ v, b))()
    assert Reason.name_of(solution.reason) == "stalled"
    assert solution.residual > 1e-13 * np.linalg.norm(b)


def test_dead_pixel():
    """A zero row with a zero in b: where an elementwise test divides 0 by 0."""
    A, b = system()
    A[3] = A[:, 3] = b[3] = 0
    for solver in SOLVERS.values():
        solution = jax.jit(lambda solver=solver: solver(lambda v: A @ v, b))()
        assert solution.reason == Reason.SOLVED
        assert solution.x[3] == 0


def test_scipy_minres_failure_is_least_squares_here():
    """diag(1, 2, 3, 0), b = 1: SciPy's minres says info 0 with an entry of 7·10¹⁵."""
    d = jnp.array([1.0, 2.0, 3.0, 0.0])
    solution = jax.jit(lambda: MinresQLP(rtol=1e-10)(lambda v: d * v, jnp.ones(4)))()
    assert Reason.name_of(solution.reason) == "least squares"
    np.testing.assert_allclose(solution.x, [1, 1 / 2, 1 / 3, 0], atol=1e-12)
    np.testing.assert_allclose(solution.residual, 1, rtol=1e-12)


def laplacian(size):
    """A path's: singular, and with a general right-hand side inconsistent."""
    ends = np.r_[1, 2 * np.ones(size - 2), 1]
    return np.diag(ends) - np.eye(size, k=1) - np.eye(size, k=-1)


SINGULAR = [laplacian(60), 1e-4 * laplacian(60), 1e-8 * laplacian(60)]
CLAIMS = {
    "hilbert": [
        (scipy.linalg.hilbert(n).astype(np.float32), c * np.ones(n, np.float32), 1e-4)
        for n in (4, 8)
        for c in (1e-6, 1.0, 1e3, 1e6)
    ],
    "scaled": [(laplacian(60), c * np.ones(60), 1e-8) for c in (1.0, 1e3, 1e6, 1e9)],
    "jacobi": [(A, 1 / np.diag(A), 1e-6) for A in SINGULAR],
}


@pytest.mark.parametrize("kind", [MINRES, MinresQLP])
@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_with_a_preconditioner_is_about_the_system_itself(kind, name):
    """Not about the preconditioned one, whose norm may be larger by any factor."""
    for A, M, rtol in CLAIMS[name]:
        b = (np.random.default_rng(0).normal(size=len(A)) + 0.3).astype(A.dtype)
        solution = jax.jit(
            lambda A, b, M, rtol=rtol: kind(240, rtol)(lambda v: A @ v, b, preconditioner=lambda q: M * q)
        )(A, b, M)
        A, x = A.astype(np.float64), np.asarray(solution.x, np.float64)
        r = b - A @ x
        if solution.reason == Reason.LEAST_SQUARES:
            assert np.linalg.norm(A @ r) <= 1.01 * rtol * np.linalg.norm(A, 2) * np.linalg.norm(r)
        if solution.reason == Reason.SOLVED:
            assert np.linalg.norm(r) <= 1.5 * rtol * np.linalg.norm(b)


@pytest.mark.parametrize("kind", [MINRES, MinresQLP])
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e6, 1e9])
def test_a_multiple_of_the_identity_as_preconditioner_changes_nothing(kind, scale):
    A = laplacian(60)
    b = np.random.default_rng(0).normal(size=60) + 0.3
    plain = jax.jit(lambda: kind(240, 1e-8)(lambda v: A @ v, b))()
    scaled = jax.jit(lambda: kind(240, 1e-8)(lambda v: A @ v, b, preconditioner=lambda r: scale * r))()
    assert Reason.name_of(plain.reason) == Reason.name_of(scaled.reason) == "least squares"
    np.testing.assert_allclose(b - A @ scaled.x, b - A @ plain.x, atol=1e-6)


@by_solver
def test_a_right_hand_side_of_length_one_is_like_any_other(solver):
    A, _ = system()
    b = jnp.eye(N)[0]
    solution = jax.jit(lambda: solver(lambda v: A @ v, b))()
    assert Reason.name_of(solution.reason) == "solved"
    np.testing.assert_allclose(solution.x, np.linalg.inv(A)[0], rtol=1e-6)
    assert 0 < solution.residual < 1e-10


@by_solver
def test_a_first_product_that_is_not_finite_leaves_the_start(solver):
    solution = jax.jit(lambda b: solver(lambda v: jnp.nan * v, b))(jnp.arange(1.0, 4.0))
    assert Reason.name_of(solution.reason) == "nonfinite"
    assert not np.any(solution.x)


def test_only_a_residual_that_is_small_enough_meets_a_target():
    found = [bool(meets(jnp.asarray(r), jnp.asarray(t))) for r, t in ((1e-3, 1e-3), (2e-3, 1e-3), (0, 1e-3))]
    assert found == [True, False, True]
    # A target of 0 asks for exactly nothing.
    assert [bool(meets(jnp.asarray(r), jnp.asarray(0.0))) for r in (0.0, 1.0, 1e-9)] == [True, False, False]


@pytest.mark.parametrize(
    ("reason", "met", "length", "finite", "named"),
    [
        (Reason.SOLVED, True, 1.0, True, "solved"),
        (Reason.SOLVED, False, 1.0, True, "stalled"),
        (Reason.MAXITER, True, 1.0, True, "solved"),
        (Reason.MAXITER, False, 0.3, True, "maxiter"),
        (Reason.MAXITER, False, 0.0, True, "zero rhs"),
        (Reason.SOLVED, True, 0.0, False, "nonfinite"),
    ],
)
def test_the_residual_overrules_the_loop(reason, met, length, finite, named):
    found = verdict(jnp.asarray(int(reason)), jnp.array(met), jnp.asarray(length), jnp.array(finite))
    assert Reason.name_of(found) == named


def test_the_smaller_side_is_the_space_of_a_solve():
    sides = [Space(int(Space.smaller(height, width))) for height, width in ((5, 3), (3, 3), (2, 3))]
    assert sides == [Space.PARAMETERS, Space.PARAMETERS, Space.RESIDUALS]


@pytest.mark.parametrize("kind", [MINRES, MinresQLP])
def test_attempts_together_take_no_more_iterations_than_one_may(kind):
    """float32 and a tolerance below its rounding: claims are denied, and what is left of maxiter is all there is."""
    A, b = (x.astype(np.float32) for x in system(3))
    for maxiter in (13, 16, 19, 25):
        assert jax.jit(lambda n=maxiter: kind(n, 1e-7)(lambda v: A @ v, b))().iterations <= maxiter
