"""The direct solve: the factor formed and decomposed, against dense float64 and the Krylov solvers."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, WEIGHTS, targets_for

import natgrad as ng
from natgrad import tree
from natgrad.solve import Reason
from natgrad.solve.direct import decomposed, decomposed_dual

pytestmark = pytest.mark.usefixtures("fast_compile")

CASE = MODELS["mlp"]
LIKELIHOODS = {
    "gaussian": ng.Gaussian(0.7),
    "bernoulli": ng.Bernoulli(),
    "categorical": ng.Categorical(),
    "log_partition": ng.Likelihood.from_log_prob(
        lambda r, t: jnp.sum(t * r - jax.nn.softplus(r), -1),
        log_partition=lambda r: jnp.sum(jax.nn.softplus(r), -1),
    ),
}


def close(found, wanted, rtol=1e-8):
    """Compare in the norm, not number by number."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert np.linalg.norm(found - wanted) <= rtol * np.linalg.norm(wanted)


def twice(params, x):
    return CASE.model(params, x[0]), jnp.tanh(CASE.model(params, x[1])[:, :2])


def operators():
    """Every kind of metric that has a factor, whole, weighted, in chunks and in a product with unequal axes."""
    for name, likelihood in LIKELIHOODS.items():
        for options in ({}, {"weights": WEIGHTS}, {"microbatch": 3}):
            yield f"{name} {options.keys()}", (CASE.model, likelihood, CASE.params, CASE.inputs), options
    product = ng.Product(ng.Gaussian(), ng.Bernoulli(), weights=(1.0, 5.0))
    inputs = (CASE.inputs, CASE.inputs[:4] + 0.3)
    for options in ({}, {"microbatch": 2}, {"weights": (WEIGHTS, jnp.ones(4))}):
        yield f"product {options.keys()}", (twice, product, CASE.params, inputs), options
    recurrent = MODELS["recurrent"]
    masked = {"weights": jnp.ones((7, 4)).at[2, 1:].set(0.0)}
    yield "positions", (recurrent.model, ng.Categorical(), recurrent.params, recurrent.inputs), masked
    stateful = ng.Stateful(lambda p, x: (CASE.model(p, x - jnp.mean(x, 0)), None))
    yield "coupled", (stateful, ng.Bernoulli(), CASE.params, CASE.inputs), {}
    for metric in (ng.MonteCarloFisher(2), ng.EmpiricalFisher(), ng.Fisher() + ng.MonteCarloFisher()):
        t = jnp.ones((7, 3)) if isinstance(metric, ng.EmpiricalFisher) else None
        yield (
            type(metric).__name__,
            (CASE.model, ng.Bernoulli(), CASE.params, CASE.inputs),
            {
                "metric": metric,
                "targets": t,
            },
        )


OPERATORS = {name: (arguments, options) for name, arguments, options in operators()}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_formed_matrix_is_the_metrics_factor(name):
    arguments, options = OPERATORS[name]
    params = arguments[2]

    def both():
        F = ng.metric_product(*arguments, **options)
        return F.matrix(params), oracles.matrix(F, params)

    A, F = jax.jit(both)()
    assert A.shape[0] == ng.metric_product(*arguments, **options).height(params)
    np.testing.assert_allclose(A.T @ A, F, atol=1e-12 * np.abs(F).max())


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "categorical"])
@pytest.mark.parametrize("shift", [1.0, 1e-3, 1e-6])
def test_direct_is_the_dense_solve_and_what_krylov_solvers_converge_to(name, shift):
    b = jax.tree.map(lambda leaf: jnp.cos(7 * leaf), CASE.params)
    flat, _ = ravel_pytree(b)

    def solved(solver):
        F = ng.metric_product(CASE.model, LIKELIHOODS[name], CASE.params, CASE.inputs)
        return solver(F, b, shift=shift)

    found = jax.jit(lambda: solved(ng.Direct()))()
    F = jax.jit(
        lambda: oracles.matrix(
            ng.metric_product(CASE.model, LIKELIHOODS[name], CASE.params, CASE.inputs), CASE.params
        )
    )()
    close(ravel_pytree(found.x)[0], oracles.solve(np.asarray(F), flat, shift))
    assert Reason(int(found.reason)) == Reason.SOLVED
    for solver in (ng.CG(400, 1e-13), ng.MinresQLP(100, 1e-14, 1e12, reorthogonalize=60)):
        close(ravel_pytree(jax.jit(lambda s=solver: solved(s))().x)[0], ravel_pytree(found.x)[0])


def test_primal_and_dual_are_one_solution():
    rng = np.random.default_rng(0)
    for height, width in ((30, 12), (12, 30), (12, 12), (1, 5), (5, 1)):
        A, r = rng.normal(size=(height, width)), rng.normal(size=height)
        found = decomposed(jnp.asarray(A), jnp.asarray(r))
        other = np.linalg.svd(A, compute_uv=False)
        np.testing.assert_allclose(found.singular, other, rtol=1e-12)
        # Aᵀr two ways, and A's own rows.
        close((found.singular * found.heights) @ found.rows, A.T @ r, 1e-12)
        close(found.rows.T * found.singular**2 @ found.rows, A.T @ A, 1e-12)
        np.testing.assert_allclose(found.rows @ found.rows.T, np.eye(len(other)), atol=1e-13)
    # The same system with and without rows of zeros, which turn the dual into the primal.
    A = jnp.asarray(rng.normal(size=(12, 30)))
    padded = jnp.concatenate([A, jnp.zeros((40, 30))])
    b = jnp.asarray(rng.normal(size=30))
    close(*(ng.Direct()(Plain(each), b, 1e-3).x for each in (A, padded)))


@pytest.mark.parametrize("shape", [(20, 8), (8, 20)])
def test_least_squares_keep_twice_the_digits_of_the_normal_equations(shape):
    """σ from 1 to 1e-10: their squares are beyond float64, and the solution is right all the same."""
    rng = np.random.default_rng(3)
    U, V = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in shape)
    A = U[:, :8] * np.logspace(0, -10, 8) @ V[:8]
    x = V[:8].T @ rng.normal(size=8)
    found = decomposed(jnp.asarray(A), jnp.asarray(A @ x))
    close(found.rows.T @ (found.heights / found.singular), x, 1e-5)
    # With g = Aᵀr in place of Uᵀr half of the digits are gone; with AᵀA in place of A, too.
    squared = found.rows.T @ ((found.rows @ (A.T @ (A @ x))) / found.singular**2)
    values, vectors = np.linalg.eigh(A.T @ A)
    gram = vectors[:, -8:] @ ((vectors[:, -8:].T @ (A.T @ (A @ x))) / values[-8:])
    for other in (squared, gram):
        assert np.linalg.norm(other - x) > 1e-2 * np.linalg.norm(x)


def test_the_dual_forms_no_right_vectors_and_keeps_the_digits():
    rng = np.random.default_rng(5)
    U, V = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (8, 20))
    A = U * np.logspace(0, -10, 8) @ V[:8]
    x = V[:8].T @ rng.normal(size=8)
    found = decomposed_dual(jnp.asarray(A), jnp.asarray(A @ x))
    np.testing.assert_allclose(found.singular, np.logspace(0, -10, 8), rtol=1e-5)
    # d = AᵀU (σ² + λ)⁻¹ Uᵀr, λ = 0.
    close(A.T @ (found.left @ (found.heights / found.singular**2)), x, 1e-4)
    names = [
        each.primitive.name for each in oracles.primitives(jax.make_jaxpr(decomposed_dual)(A, A[:, 0]).jaxpr)
    ]
    assert "householder_product" not in names
    nan = decomposed_dual(jnp.asarray(A).at[0, 0].set(jnp.nan), jnp.asarray(A @ x))
    assert np.isnan(nan.singular).all()
    assert np.isnan(nan.heights).all()


class Plain:
    """AᵀA of a matrix."""

    def __init__(self, A):
        self.A = A

    def __call__(self, v):
        return self.A.T @ (self.A @ v)

    def height(self, like):
        return len(self.A)

    def matrix(self, like):
        return self.A


@pytest.mark.parametrize("shape", [(40, 10), (10, 40)])
def test_a_singular_system_has_its_shortest_solution(shape):
    rng = np.random.default_rng(1)
    A = rng.normal(size=(shape[0], 4)) @ rng.normal(size=(4, shape[1]))
    inside, outside = A.T @ rng.normal(size=shape[0]), rng.normal(size=shape[1])
    run = jax.jit(lambda b, shift: ng.Direct()(Plain(jnp.asarray(A)), b, shift))
    for b, reason in ((inside, Reason.SOLVED), (outside, Reason.LEAST_SQUARES)):
        found = run(jnp.asarray(b), 0.0)
        close(found.x, np.linalg.pinv(A.T @ A, rcond=1e-10) @ b)
        assert Reason(int(found.reason)) == reason
        close(run(jnp.asarray(b), 0.1).x, oracles.solve(A.T @ A, b, 0.1))


def test_a_zero_matrix_leaves_the_right_hand_side_over_the_shift():
    run = jax.jit(lambda b, shift: ng.Direct()(Plain(jnp.zeros((3, 5))), b, shift))
    b = jnp.arange(5.0)
    np.testing.assert_allclose(run(b, 0.5).x, 2 * b)
    np.testing.assert_array_equal(run(b, 0.0).x, 0)
    assert Reason(int(run(0 * b, 0.5).reason)) == Reason.ZERO_RHS


def test_single_precision_keeps_its_digits():
    case = CASE.cast(jnp.float32)
    b = jax.tree.map(lambda leaf: jnp.cos(7 * leaf), case.params)

    def solved():
        return ng.Direct()(ng.metric_product(case.model, ng.Bernoulli(), case.params, case.inputs), b, 1e-3)

    found = jax.jit(solved)()
    assert tree.dtype(found.x) == jnp.float32
    F = jax.jit(
        lambda: oracles.matrix(
            ng.metric_product(CASE.model, ng.Bernoulli(), CASE.params, CASE.inputs), CASE.params
        )
    )()
    wanted = oracles.solve(np.asarray(F), np.float64(ravel_pytree(b)[0]), 1e-3)
    close(ravel_pytree(found.x)[0], wanted, 1e-3)
    assert Reason(int(found.reason)) == Reason.SOLVED


def test_what_is_not_finite_is_named_and_x_is_finite():
    run = jax.jit(lambda A, b: ng.Direct()(Plain(A), b, 0.1))
    A, b = jnp.ones((6, 3)), jnp.ones(3)
    for bad in (run(A.at[2, 1].set(jnp.nan), b), run(A, b.at[0].set(jnp.inf))):
        assert Reason(int(bad.reason)) == Reason.NONFINITE
        assert np.isfinite(bad.x).all()


def test_what_is_too_large_is_refused_before_anything_is_allocated():
    def model(params, x):
        return x @ params["w"]

    params, x = (
        jax.ShapeDtypeStruct((20_000, 10), jnp.float32),
        jax.ShapeDtypeStruct((5000, 20_000), jnp.float32),
    )
    t = jax.ShapeDtypeStruct((5000, 10), jnp.float32)
    opt = ng.natural_gradient(model, ng.Gaussian(), solver=ng.Direct())
    state = jax.eval_shape(opt.init, {"w": params})
    with pytest.raises(ValueError, match=r"50000 examples × outputs and 200000 parameters.*solver=ng.CG\(\)"):
        jax.eval_shape(opt.step, {"w": params}, state, (x, t))


def test_a_metric_without_a_factor_is_refused():
    t = targets_for(ng.Bernoulli(), CASE.model(CASE.params, CASE.inputs))
    F = ng.metric_product(
        CASE.model, ng.Bernoulli(), CASE.params, CASE.inputs, metric=ng.Hessian(), targets=t
    )
    with pytest.raises(TypeError, match="Hessian has no factor"):
        ng.Direct()(F, CASE.params, 0.1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"l2": 0.1},
        {"l2": 0.1, "decayed": lambda path, leaf: leaf.ndim > 1},
        {"microbatch": 3},
        {"trainable": lambda path, leaf: not path.startswith("0/b")},
        {"metric": ng.Fisher() + ng.StructuralDamping(lambda p, x: x @ p[0]["w"] + p[0]["b"])},
    ],
    ids=["plain", "l2", "decayed", "chunks", "trainable", "structural"],
)
def test_a_step_is_that_of_cg_at_convergence(options):
    batch = (CASE.inputs, jnp.round(jax.nn.sigmoid(CASE.inputs)), WEIGHTS)
    steps = []
    for solver in (ng.Direct(), ng.CG(500, 1e-13)):
        opt = ng.natural_gradient(
            CASE.model, ng.Bernoulli(), solver=solver, damping=ng.Constant(0.01), **options
        )
        params, _, info = opt.step(CASE.params, opt.init(CASE.params), batch)
        assert info.accepted
        steps.append(ravel_pytree(jax.tree.map(jnp.subtract, params, CASE.params))[0])
    close(*steps)


def test_a_shift_below_rounding_is_a_shift():
    """diag(1, 0) + λ: no value of F + λ is taken for 0, however small."""
    A = Plain(jnp.diag(jnp.array([1.0, 0.0])))
    found = ng.Direct()(A, jnp.ones(2), 1e-20)
    np.testing.assert_allclose(found.x, [1, 1e20])
    alone = ng.Direct()(A, jnp.ones(2), None)
    np.testing.assert_allclose(alone.x, [1, 0])


def test_a_matrix_of_rank_one_has_a_least_squares_solution():
    A = np.outer([3.0, 1.0, 2.0], [0.6, 0.8])
    found = ng.Direct()(Plain(jnp.asarray(A)), jnp.array([1.0, 1.0]))
    np.testing.assert_allclose(found.x, np.linalg.pinv(A.T @ A, rcond=1e-10) @ [1.0, 1.0], rtol=1e-10)
    assert Reason(int(found.reason)) == Reason.LEAST_SQUARES


def test_memory_is_that_of_the_matrix_and_its_smaller_side_squared():
    A = Plain(jnp.zeros((3, 5)))
    assert ng.Direct().bytes_for(A, jnp.zeros(5)) == 4 * (3 * 5 + 9) * 8
    assert ng.Direct().bytes_for(A, jnp.zeros(5), more=5) == 4 * (8 * 5 + 25) * 8
    like = jnp.zeros(5, jnp.float32)
    assert ng.Direct().bytes_for(A, like) == 4 * (3 * 5 + 9) * 4
