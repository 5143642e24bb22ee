"""Every metric equals the dense matrix its definition writes down."""

from copy import copy
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, WEIGHTS, targets_for

import natgrad as ng
from natgrad import tree
from natgrad.likelihood import random_signs
from natgrad.metric import Metric
from natgrad.metric.here import Here
from natgrad.metric.operator import Operator
from natgrad.part import is_built_in

pytestmark = pytest.mark.usefixtures("fast_compile")

SCALE = 0.7


def split(model):
    """The same model with its outputs in two parts, for `Product`."""

    def outputs(params, inputs):
        r = model(params, inputs)
        return r[..., :1], r[..., 1:]

    return outputs


def heteroscedastic_kl(r, s):
    """KL between normals with outputs (mean, log of the standard deviation), summed over pairs of outputs."""
    (m, a), (n, b) = (jnp.split(x[..., :2], 2, -1) for x in (r, s))
    gap = b - a + (jnp.exp(2 * a) + (m - n) ** 2) / (2 * jnp.exp(2 * b)) - 0.5
    return jnp.sum(gap, axis=tuple(range(1, gap.ndim)))


def heteroscedastic_log_prob(r, t):
    m, a = jnp.split(r[..., :2], 2, -1)
    value = -((t[..., :1] - m) ** 2) / (2 * jnp.exp(2 * a)) - a
    return jnp.sum(value, axis=tuple(range(1, value.ndim)))


def heteroscedastic_matrix(r):
    """diag(1/σ², 2) on (mean, log σ), 0 on the outputs the likelihood ignores."""
    rows = r.reshape(-1, r.shape[-1])
    diagonal = np.zeros_like(rows)
    diagonal[:, 0], diagonal[:, 1] = np.exp(-2 * rows[:, 1]), 2
    return np.diag(diagonal.ravel())


LIKELIHOODS = {
    "gaussian": (ng.Gaussian(SCALE), lambda r: oracles.gaussian_matrix(r, SCALE)),
    "bernoulli": (ng.Bernoulli(), oracles.bernoulli_matrix),
    "categorical": (ng.Categorical(), oracles.categorical_matrix),
    "poisson": (ng.Poisson(), oracles.poisson_matrix),
    "from_log_prob": (
        ng.Likelihood.from_log_prob(heteroscedastic_log_prob, kl=heteroscedastic_kl),
        heteroscedastic_matrix,
    ),
}


@cache
def jacobians(name):
    case = MODELS[name]
    outputs = np.asarray(jax.jit(case.model)(case.params, case.inputs))
    return oracles.jacobians(case.model, case.params, case.inputs), outputs


def truth(name, kind, weights=None):
    J, outputs = jacobians(name)
    return oracles.metric(J, [LIKELIHOODS[kind][1](r) for r in outputs], weights)


def dense(name, likelihood, metric=None, weights=None, **options):
    """The library's matrix, in one jitted function."""
    case = MODELS[name]

    @jax.jit
    def build(params, inputs, weights, options):
        operator = ng.metric_product(case.model, likelihood, params, inputs, weights, metric, **options)
        return oracles.matrix(operator, params)

    return np.asarray(build(case.params, case.inputs, weights, options))


def close(found, expected, tolerance=1e-10):
    error = np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()
    assert error <= tolerance, error


@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("name", MODELS)
def test_fisher_is_the_dense_sum_with_its_factor_and_quadratic_form(name, kind):
    case, (likelihood, _) = MODELS[name], LIKELIHOODS[kind]

    @jax.jit
    def build(params, inputs, weights):
        F = ng.metric_product(case.model, likelihood, params, inputs, weights)
        A = oracles.matrix(F.factor, params)
        _, rows = jax.linearize(F.factor, params)
        transposed = oracles.matrix(F.factor_transpose, rows(params))
        flat, unravel = ravel_pytree(params)
        return oracles.matrix(F, params), A, transposed, F.quadratic(unravel(flat + 1)), flat + 1

    F, A, transposed, quadratic, v = (np.asarray(x) for x in build(case.params, case.inputs, WEIGHTS))
    expected = truth(name, kind, WEIGHTS)
    size = np.linalg.norm(expected, 2)
    close(F, expected)
    assert np.abs(F - F.T).max() <= 1e-12 * size
    assert np.linalg.eigvalsh((F + F.T) / 2).min() >= -1e-12 * size
    close(A.T @ A, expected)
    close(transposed, A.T, 1e-12)
    close(quadratic, v @ expected @ v)


def test_uniform_weights_are_no_weights():
    case = MODELS["mlp"]
    close(dense("mlp", ng.Bernoulli()), truth("mlp", "bernoulli"))
    close(dense("mlp", ng.Bernoulli(), weights=jnp.full(len(case.inputs), 3.0)), truth("mlp", "bernoulli"))


@pytest.mark.parametrize("name", MODELS)
def test_product_is_the_weighted_sum_of_its_factors(name):
    case = MODELS[name]
    likelihood = ng.Product(ng.Bernoulli(), ng.Categorical(), weights=(0.3, 2.0))
    J, outputs = jacobians(name)
    expected = 0
    for part, shape_of, c in (
        (slice(0, 1), oracles.bernoulli_matrix, 0.3),
        (slice(1, None), oracles.categorical_matrix, 2.0),
    ):
        own = J.reshape(*outputs.shape, -1)[..., part, :]
        own = own.reshape(len(outputs), -1, J.shape[-1])
        expected = expected + c * oracles.metric(own, [shape_of(r[..., part]) for r in outputs], WEIGHTS)

    @jax.jit
    def build(params, inputs, weights):
        F = ng.metric_product(split(case.model), likelihood, params, inputs, weights)
        return oracles.matrix(F, params), oracles.matrix(F.factor, params)

    F, A = build(case.params, case.inputs, WEIGHTS)
    close(F, expected)
    close(A.T @ A, expected)


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical", "poisson"])
def test_gauss_newton_is_fisher_for_matching_likelihoods_whatever_the_targets(kind):
    likelihood, _ = LIKELIHOODS[kind]
    _, outputs = jacobians("mlp")
    for seed in (0, 1):
        targets = targets_for(likelihood, jnp.asarray(outputs), seed)
        close(
            dense("mlp", likelihood, ng.GaussNewton(), WEIGHTS, targets=targets),
            truth("mlp", kind, WEIGHTS),
            1e-12,
        )
    close(dense("mlp", likelihood, ng.GaussNewton(), WEIGHTS), truth("mlp", kind, WEIGHTS), 1e-12)


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical", "poisson"])
def test_gauss_newton_in_closed_form_is_the_one_by_differentiation(kind):
    """The same loss as an objective leaves the closed form no room."""
    likelihood, _ = LIKELIHOODS[kind]
    _, outputs = jacobians("mlp")
    targets = targets_for(likelihood, jnp.asarray(outputs), 0)
    case = MODELS["mlp"]

    def found(objective):
        F = ng.metric_product(
            case.model,
            likelihood,
            case.params,
            case.inputs,
            WEIGHTS,
            ng.GaussNewton(),
            targets=targets,
            objective=objective,
        )
        return oracles.matrix(F, case.params)

    close(found(None), found(likelihood.nll), 1e-12)


@pytest.mark.parametrize(
    ("likelihood", "logits", "targets"),
    [(ng.Categorical(), (1.0, 0.0, -1.0), 0.9), (ng.Bernoulli(), (18.0, 0.0, -18.0), 1.0)],
    ids=["rows that do not sum to 1", "saturated units"],
)
def test_gauss_newton_is_one_matrix_to_its_product_and_to_its_factor(likelihood, logits, targets):
    x, w = jnp.ones((2, 1), jnp.float32), jnp.array([logits], jnp.float32)
    t = jnp.full((2, 3), targets, jnp.float32)
    F = ng.metric_product(lambda w, x: x @ w, likelihood, w, x, None, ng.GaussNewton(), targets=t)
    A = oracles.matrix(F.factor, w)
    np.testing.assert_allclose(oracles.matrix(F, w), A.T @ A, rtol=1e-5, atol=1e-12)


def test_gauss_newton_is_not_fisher_where_the_pair_does_not_match():
    likelihood, _ = LIKELIHOODS["from_log_prob"]
    J, outputs = jacobians("mlp")
    targets = jnp.asarray(outputs) + 1.5

    def nll(r, t):
        return -heteroscedastic_log_prob(r[None], t[None])[0]

    M = np.asarray(jax.vmap(jax.hessian(nll))(jnp.asarray(outputs), targets))
    found = dense("mlp", likelihood, ng.GaussNewton(), WEIGHTS, targets=targets)
    close(found, oracles.metric(J, M, WEIGHTS))
    assert np.abs(found - truth("mlp", "from_log_prob", WEIGHTS)).max() > 0.1


def test_gauss_newton_of_an_objective_is_the_objectives_and_has_a_factor_where_convex():
    case = MODELS["mlp"]

    def quartic(r, t):
        return jnp.sum((r - t) ** 4 + (r - t) ** 2 + r[:, :1] * r[:, 1:2], axis=1)

    J, outputs = jacobians("mlp")
    targets = jnp.asarray(outputs) + 0.5
    M = np.asarray(jax.vmap(jax.hessian(lambda r, t: quartic(r[None], t[None])[0]))(outputs, targets))

    @jax.jit
    def build(params, inputs, targets, weights):
        F = ng.metric_product(
            case.model,
            ng.Gaussian(),
            params,
            inputs,
            weights,
            ng.GaussNewton(),
            targets=targets,
            objective=quartic,
        )
        return oracles.matrix(F, params), oracles.matrix(F.factor, params)

    F, A = build(case.params, case.inputs, targets, WEIGHTS)
    expected = oracles.metric(J, M, WEIGHTS)
    assert np.linalg.eigvalsh(M).min() > 0
    close(F, expected)
    close(A.T @ A, expected)


@pytest.mark.parametrize("name", ["mlp", "conv", "autoencoder"])
def test_fisher_is_the_papers_form_where_no_unit_saturates(name):
    """J_yᵀ diag(1/y) J_y (softmax) and J_yᵀ diag(1/(y(1−y))) J_y (sigmoid), with y the probabilities."""
    case = MODELS[name]
    for likelihood, activation, inverse in (
        (ng.Categorical(), jax.nn.softmax, lambda y: 1 / y),
        (ng.Bernoulli(), jax.nn.sigmoid, lambda y: 1 / (y * (1 - y))),
    ):

        def probabilities(params, inputs, activation=activation):
            return activation(case.model(params, inputs))

        Jy = oracles.jacobians(probabilities, case.params, case.inputs)
        y = np.asarray(probabilities(case.params, case.inputs)).reshape(len(Jy), -1)
        close(dense(name, likelihood), oracles.metric(Jy, [np.diag(inverse(row)) for row in y]))


@pytest.mark.parametrize("kind", ["bernoulli", "categorical", "gaussian"])
def test_the_score_has_mean_zero_and_its_negative_derivative_has_mean_fisher(kind):
    """E_t[∇_θ log p] = 0 and E_t[−∇²_θ log p] = F, t enumerated under the model, for one example."""
    case = MODELS["mlp"]
    likelihood = {"bernoulli": ng.Bernoulli(), "categorical": ng.Categorical(), "gaussian": ng.Gaussian()}[
        kind
    ]
    flat, unravel = ravel_pytree(case.params)
    x = case.inputs[:1]

    @jax.jit
    def moments(flat):
        def log_prob(p, t):
            return oracles.log_prob(kind, case.model(unravel(p), x)[0], t)

        score = jax.vmap(jax.grad(log_prob), (None, 0))(flat, targets)
        curvature = jax.vmap(jax.hessian(log_prob), (None, 0))(flat, targets)
        outer = jnp.einsum("t,tp,tq->pq", mass, score, score)
        return mass @ score, -jnp.einsum("t,tpq->pq", mass, curvature), outer

    targets, mass = oracles.enumerate_targets(kind, case.model(case.params, x)[0])
    mean, curvature, outer = moments(flat)
    found = oracles.matrix(ng.metric_product(case.model, likelihood, case.params, x), case.params)
    assert np.abs(mean).max() < 1e-12
    close(found, curvature, 1e-10)
    close(found, outer, 1e-10)


def estimate(likelihood, metric):
    """One jitted function of a key, for the averages below."""
    case = MODELS["mlp"]

    @jax.jit
    def build(key):
        operator = ng.metric_product(
            case.model, likelihood, case.params, case.inputs, WEIGHTS, metric, key=key
        )
        return oracles.matrix(operator, case.params)

    return build


def standard_scores(draw, keys, expected):
    """How many standard errors the mean over keys lies from the truth, where there is any noise."""
    values = np.asarray(jax.lax.map(draw, keys))
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    noisy = error > 1e-9 * np.abs(expected).max()
    assert np.allclose(values.mean(axis=0)[~noisy], expected[~noisy], atol=1e-8)
    return np.abs(values.mean(axis=0) - expected)[noisy] / error[noisy]


SAMPLER = ng.Likelihood.from_log_prob(
    lambda r, t: jnp.sum(t * r - jnp.logaddexp(r, jnp.zeros_like(r)), axis=1),
    sample=lambda key, r: jax.random.bernoulli(key, jax.nn.sigmoid(r)).astype(r.dtype),
)


@pytest.mark.parametrize(
    ("likelihood", "kind"),
    [(ng.Categorical(), "categorical"), (ng.Bernoulli(), "bernoulli"), (SAMPLER, "bernoulli")],
    ids=["categorical", "bernoulli", "sampler"],
)
def test_monte_carlo_fisher_converges_to_fisher(likelihood, kind):
    expected = truth("mlp", kind, WEIGHTS)
    draw = estimate(likelihood, ng.MonteCarloFisher(100))
    keys = jax.random.split(jax.random.key(5), 40)
    assert standard_scores(draw, keys, expected).max() < 6

    # The error falls as 1/√samples: 36 times the samples, a sixth of the error, in the mean square over keys. Of two
    # single draws the ratio is outside 3 to 15 once in ten.
    def error(draw, keys):
        return np.sqrt(np.mean((np.asarray(jax.lax.map(draw, keys)) - expected) ** 2))

    few = error(draw, keys[:20])
    many = error(estimate(likelihood, ng.MonteCarloFisher(3600)), keys[20:])
    assert few / 9 < many < few / 4


def test_monte_carlo_fisher_of_one_sample_is_a_sum_of_outer_products():
    """Rank at most one an example; its factor is its own square root; the key alone decides it."""
    case = MODELS["mlp"]

    @jax.jit
    def build(key):
        F = ng.metric_product(
            case.model, ng.Categorical(), case.params, case.inputs, metric=ng.MonteCarloFisher(), key=key
        )
        return oracles.matrix(F, case.params), oracles.matrix(F.factor, case.params)

    F, A = build(jax.random.key(0))
    assert np.linalg.matrix_rank(np.asarray(F), tol=1e-10) <= len(case.inputs)
    close(A.T @ A, np.asarray(F), 1e-12)
    assert not np.allclose(F, build(jax.random.key(1))[0])


@pytest.mark.parametrize("centered", [False, True])
def test_empirical_fisher_is_the_covariance_of_the_datas_gradients(centered):
    case = MODELS["autoencoder"]
    J, outputs = jacobians("autoencoder")
    targets = targets_for(ng.Bernoulli(), jnp.asarray(outputs))
    scores = np.einsum("iop,io->ip", J, 1 / (1 + np.exp(-outputs)) - np.asarray(targets))
    c = np.asarray(WEIGHTS / WEIGHTS.sum())
    mean = c @ scores
    expected = scores.T @ (c[:, None] * scores) - centered * np.outer(mean, mean)
    assert len(case.inputs) == len(c)
    found = dense("autoencoder", ng.Bernoulli(), ng.EmpiricalFisher(centered), WEIGHTS, targets=targets)
    close(found, expected)


def test_hessian_is_the_hessian():
    case = MODELS["recurrent"]
    _, outputs = jacobians("recurrent")
    targets = targets_for(ng.Poisson(), jnp.asarray(outputs))
    flat, unravel = ravel_pytree(case.params)

    def loss(p):
        r = case.model(unravel(p), case.inputs)
        return jnp.sum(WEIGHTS / WEIGHTS.sum() * jnp.sum(jnp.exp(r) - targets * r, axis=(1, 2)))

    expected = np.asarray(jax.jit(jax.hessian(loss))(flat))
    found = dense("recurrent", ng.Poisson(), ng.Hessian(), WEIGHTS, targets=targets)
    close(found, expected)
    assert np.linalg.eigvalsh(found).min() < 0


@pytest.mark.parametrize("blocks", [100, 3])
def test_diagonal_fisher_estimates_the_diagonal(blocks):
    expected = np.diag(np.diag(truth("mlp", "categorical", WEIGHTS)))
    draw = estimate(ng.Categorical(), ng.DiagonalFisher(blocks))
    keys = jax.random.split(jax.random.key(2), 60)
    assert standard_scores(draw, keys, expected).max() < 6


def test_diagonal_fisher_is_exact_with_one_output_and_one_example_a_block():
    case = MODELS["mlp"]

    def model(params, inputs):
        return case.model(params, inputs)[:, :1]

    J = oracles.jacobians(model, case.params, case.inputs)
    r = np.asarray(model(case.params, case.inputs))
    expected = np.diag(oracles.metric(J, [oracles.bernoulli_matrix(row) for row in r], WEIGHTS))
    for metric in (ng.DiagonalFisher(), ng.Fisher()):
        operator = ng.metric_product(model, ng.Bernoulli(), case.params, case.inputs, WEIGHTS, metric)
        close(ravel_pytree(operator.diagonal(jax.random.key(0)))[0], expected)


def test_metrics_add():
    targets = targets_for(ng.Bernoulli(), jnp.asarray(jacobians("mlp")[1]))
    case = MODELS["mlp"]

    @jax.jit
    def build(params, targets):
        F, U, both = (
            ng.metric_product(
                case.model,
                ng.Bernoulli(),
                params,
                case.inputs,
                metric=metric,
                targets=None if metric == ng.Fisher() else targets,
            )
            for metric in (ng.Fisher(), ng.EmpiricalFisher(), ng.Fisher() + ng.EmpiricalFisher())
        )
        dense = [oracles.matrix(operator, params) for operator in (F, U, both)]
        A = oracles.matrix(both.factor, params)
        ones = jax.tree.map(jnp.ones_like, params)
        return *dense, A, both.quadratic(ones), both.factor_transpose(both.factor(ones)), both(ones)

    F, U, both, A, quadratic, through, product = build(case.params, targets)
    close(both, np.asarray(F + U), 1e-12)
    close(A.T @ A, np.asarray(both), 1e-12)
    close(quadratic, np.asarray(both.sum()), 1e-12)
    close(ravel_pytree(through)[0], np.asarray(ravel_pytree(product)[0]), 1e-12)


@pytest.mark.parametrize(
    ("metric", "solver"),
    [(ng.MonteCarloFisher(2), ng.CG()), (ng.MonteCarloFisher(2), ng.MinresQLP(5))],
    ids=["CG", "MINRES-QLP"],
)
def test_a_sampled_metric_is_sampled_once_a_step(metric, solver):
    """Not in each of the solver's products."""
    case = MODELS["mlp"]
    opt = ng.natural_gradient(case.model, ng.Bernoulli(), metric=metric, solver=solver)
    jaxpr = jax.make_jaxpr(opt.step)(case.params, opt.init(case.params), (case.inputs, jnp.ones((7, 3))))
    drawn = ("random_bits", "threefry2x32")
    assert any(each.primitive.name in drawn for each in oracles.primitives(jaxpr.jaxpr))
    assert not [each for each in oracles.primitives(jaxpr.jaxpr, looped=True) if each.primitive.name in drawn]


def test_gauss_newton_of_a_product_has_a_factor_for_each_part():
    """One part's loss is a bare one, and the parts have different numbers of examples."""
    likelihood = ng.Product(
        ng.Categorical(), ng.Likelihood.from_loss(lambda r, t: jnp.sum((r - t) ** 4, axis=1))
    )

    def model(params, inputs):
        return inputs[0] @ params["a"], jnp.tanh(inputs[1] @ params["b"])

    keys = jax.random.split(jax.random.key(0), 5)
    params = {"a": jax.random.normal(keys[0], (3, 4)), "b": jax.random.normal(keys[1], (3, 2))}
    inputs = jax.random.normal(keys[2], (6, 3)), jax.random.normal(keys[3], (5, 3))
    targets = jnp.array([0, 1, 2, 3, 0, 1]), jax.random.normal(keys[4], (5, 2))
    steps = []
    for solver in (ng.CG(200, 1e-12), ng.Direct()):
        opt = ng.natural_gradient(
            model, likelihood, metric=ng.GaussNewton(), solver=solver, damping=ng.Constant(0.1)
        )
        steps.append(opt.step(params, opt.init(params), (inputs, targets))[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7), *steps)
    opt = ng.kncg(model, likelihood, metric=ng.GaussNewton())
    assert opt.step(params, opt.init(params), (inputs, targets))[2].accepted


def test_random_signs_of_several_leaves_are_independent():
    keys = jax.random.split(jax.random.key(0), 500)
    one, other = random_signs(keys, (jnp.zeros((500, 2)), jnp.zeros((500, 2))))
    assert abs(float(jnp.mean(one * other))) < 0.15


def test_a_sum_with_a_users_metric_is_not_built_in():
    class Own(ng.DiagonalFisher):
        pass

    assert is_built_in(ng.Fisher() + ng.GaussNewton())
    assert not is_built_in(ng.Fisher() + Own())


class Listener:
    """In a metric's place: keeps the keys it is called with."""

    def __init__(self):
        self.keys = []

    def diagonal(self, key, blocks):
        self.keys.append(key)
        return MODELS["mlp"].params

    def scores(self, key, blocks, measure, size):
        self.keys.append(key)
        total, kept = measure(key, MODELS["mlp"].params)
        return total, jax.tree.map(lambda leaf: leaf[None], kept)


def test_a_metric_and_the_preconditioners_share_no_random_bits():
    """Of one key, halves and thirds have keys in common: each use must split one of its own."""
    case, found = MODELS["mlp"], Listener()
    opt = ng.natural_gradient(case.model, ng.Bernoulli())
    examples = opt.problem.examples(case.params, case.inputs, jnp.ones((7, 3)))
    here = Here(
        opt.problem,
        case.params,
        examples,
        jax.random.key(3),
        gradient=case.params,
        metric=found,
        shift=jnp.asarray(0.1),
        steps=jnp.int32(0),
    )
    linear = opt.problem.linearize(case.params, examples)

    class Sampled(Metric):
        def at(self, problem, seen, key):
            found.keys.append(key)
            return problem.likelihood.at(seen.outputs)

    (Sampled() + Sampled()).operator(here, linear)
    Sampled().operator(here, linear)
    ng.Jacobi().inverse(here, ())
    kind = ng.Kronecker()
    with jax.disable_jit():
        kind._measured(here, kind.init(case.params))
    split = [jax.random.key_data(jax.random.split(key, 4)) for key in found.keys]
    drawn = [tuple(map(int, row)) for rows in split for row in np.asarray(rows)]
    assert len(found.keys) == 5
    assert len(set(drawn)) == len(drawn)


def softplus_loss(r, t):
    return jnp.sum(jax.nn.softplus(r) - r * t, axis=-1)


ROOTS = {
    "loss": (ng.Likelihood.from_loss(softplus_loss), ng.GaussNewton()),
    "kl": (LIKELIHOODS["from_log_prob"][0], ng.Fisher()),
    "sum": (LIKELIHOODS["from_log_prob"][0], ng.Fisher() + ng.Fisher()),
    "product": (ng.Product(LIKELIHOODS["from_log_prob"][0], ng.Bernoulli()), ng.Fisher()),
}


@pytest.mark.parametrize("kind", ROOTS)
def test_a_dense_square_root_is_taken_once_for_all_rows_of_a_direct_solve(kind):
    likelihood, metric = ROOTS[kind]
    case = MODELS["mlp"]
    targets, model = jnp.ones((7, 3)), case.model
    if kind == "product":
        model, targets = (lambda p, x: (case.model(p, x), case.model(p, x))), (targets, targets)
    options = {"metric": metric, "damping": ng.Constant(0.1)}
    opt = ng.natural_gradient(model, likelihood, solver=ng.Direct(), **options)
    batch = (case.inputs, targets)
    jaxpr = jax.make_jaxpr(opt.step)(case.params, opt.init(case.params), batch)
    roots = [e for e in oracles.primitives(jaxpr.jaxpr) if e.primitive.name == "eigh"]
    # One 3 × 3 matrix for each of the seven examples, though each has three rows.
    assert {each.invars[0].aval.shape for each in roots} == {(7, 1, 3, 3)}
    found, _, _ = opt.step(case.params, opt.init(case.params), batch)
    other = ng.natural_gradient(model, likelihood, solver=ng.CG(200, 1e-12), **options)
    wanted, _, _ = other.step(case.params, other.init(case.params), batch)
    close(ravel_pytree(found)[0], ravel_pytree(wanted)[0], 1e-8)


def test_a_metric_without_labels_refuses_them_also_in_a_sum_and_if_it_is_the_users_own():
    class Own(Metric):
        def at(self, problem, seen, key):
            return problem.likelihood.at(seen.outputs)

    case = MODELS["mlp"]
    targets = jnp.ones((7, 3))

    def product(metric):
        return ng.metric_product(
            case.model, ng.Bernoulli(), case.params, case.inputs, metric=metric, targets=targets
        )

    for metric in (Own(), ng.Fisher() + Own(), ng.Fisher() + ng.StructuralDamping(case.model, tied=False)):
        with pytest.raises(ValueError, match="takes no targets"):
            product(metric)
    for metric in (ng.GaussNewton(), ng.Fisher() + ng.EmpiricalFisher(), ng.Fisher() + ng.GaussNewton()):
        product(metric)


@pytest.mark.parametrize("metric", [ng.Fisher(), ng.MonteCarloFisher(2), ng.DiagonalFisher()])
def test_labels_cannot_reach_the_models_own_metrics(metric):
    """With the gradient given, NaN targets in the batch leave the step bit-identical."""
    case = MODELS["mlp"]
    opt = ng.natural_gradient(case.model, ng.Bernoulli(), metric=metric, damping=ng.Constant(0.1))
    gradient = jax.tree.map(jnp.ones_like, case.params)
    targets = jnp.ones((7, 3))

    def step(targets):
        return opt.step(case.params, opt.init(case.params), (case.inputs, targets), gradient=gradient)

    (clean, _, info), (dirty, _, dirty_info) = step(targets), step(targets * jnp.nan)
    assert info.accepted
    assert dirty_info.accepted
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True)
    )
    assert info.kl == dirty_info.kl


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical", "poisson"])
def test_float32_outputs_of_ten_thousand_give_no_nan(kind):
    likelihood, _ = LIKELIHOODS[kind]
    case = MODELS["mlp"].cast(jnp.float32)
    steep = [*case.params[:-1], jax.tree.map(lambda leaf: 1e4 * leaf, case.params[-1])]
    outputs = case.model(steep, case.inputs)
    targets = likelihood.mean(0 * outputs)
    assert jnp.abs(outputs).max() > 5e3

    @jax.jit
    def everything(params, targets):
        F = ng.metric_product(case.model, likelihood, params, case.inputs)
        v = jax.tree.map(jnp.ones_like, params)
        r = case.model(params, case.inputs)
        slope = jax.grad(lambda p: jnp.mean(likelihood.nll(case.model(p, case.inputs), targets)))(params)
        products = (F(v), F.quadratic(v), F.factor(v), F.diagonal(jax.random.key(0)))
        return likelihood.nll(r, targets), likelihood.kl(r, -r), slope, products

    results = jax.tree.leaves(everything(steep, targets))
    assert all(jnp.isfinite(leaf).all() for leaf in results)
    assert all(leaf.dtype == jnp.float32 for leaf in results)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("microbatch", [None, 3])
def test_the_metric_on_a_few_rows_and_on_many(count, microbatch):
    case = MODELS["mlp"]
    F = ng.metric_product(case.model, ng.Bernoulli(), case.params, case.inputs, microbatch=microbatch)
    flat, unravel = ravel_pytree(case.params)
    B = np.random.default_rng(count).normal(size=(count, flat.size))
    few = tuple(unravel(jnp.asarray(row, flat.dtype)) for row in B)
    many = tree.Stack(jax.vmap(unravel)(jnp.asarray(B, flat.dtype)))
    for rows in (few, many):
        np.testing.assert_allclose(F.gram(rows), B @ truth("mlp", "bernoulli") @ B.T, rtol=1e-9)


def test_a_formed_matrix_takes_a_pass_per_parameter_or_per_output_whichever_are_fewer():
    """An identity of the larger size would stand in the program."""
    for outputs, size in ((5, 2), (2, 5)):
        mixing = jnp.arange(1.0, outputs * size + 1).reshape(outputs, size)

        def formed(params, x, mixing=mixing):
            F = ng.metric_product(lambda p, x: x[:, None] * jnp.sin(mixing @ p), ng.Gaussian(), params, x)
            return F.matrix(params)

        params, x = jnp.linspace(0.1, 0.5, size), jnp.array([1.0, 2.0, 3.0])
        assert "f64[5,5]" not in str(jax.make_jaxpr(formed)(params, x))
        J = np.asarray(jnp.cos(mixing @ params)[:, None] * mixing)
        wanted = np.concatenate([row * J for row in (1, 2, 3)]) / np.sqrt(3)
        np.testing.assert_allclose(formed(params, x), wanted, rtol=1e-12)


def test_one_term_draws_what_it_would_alone_and_two_draw_for_themselves():
    case, key = MODELS["mlp"], jax.random.key(3)

    def measure(own, score):
        flat = ravel_pytree(score)[0]
        return flat**2, flat

    @jax.jit
    def drawn():
        (term,) = ng.metric_product(case.model, ng.Bernoulli(), case.params, case.inputs).terms
        keys = (key, *jax.random.split(key))
        alone = [term.scores(own, 3, measure, None) for own in keys]
        diagonals = [ravel_pytree(term.diagonal(own, 3))[0] for own in keys]
        one, two = Operator((term,)), Operator((term, term))
        return alone, diagonals, [(F.scores(key, 3, measure), F.diagonal(key, 3)) for F in (one, two)]

    alone, diagonals, ((one, diagonal), (two, both)) = drawn()
    np.testing.assert_allclose(one[0], alone[0][0], rtol=1e-12)
    np.testing.assert_allclose(one[1], alone[0][1], rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(diagonal)[0], diagonals[0], rtol=1e-12)
    np.testing.assert_allclose(two[0], alone[1][0] + alone[2][0], rtol=1e-12)
    np.testing.assert_allclose(two[1], np.concatenate([alone[1][1], alone[2][1]]), rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(both)[0], diagonals[1] + diagonals[2], rtol=1e-12)


def test_two_terms_have_the_factors_of_both_one_below_the_other():
    case = MODELS["mlp"]
    (term,) = ng.metric_product(case.model, ng.Gaussian(), case.params, case.inputs).terms
    one, two = Operator((term,)), Operator((term, term))
    A = np.asarray(one.matrix(case.params))
    np.testing.assert_array_equal(two.matrix(case.params), np.concatenate([A, A]))
    assert (one.height(case.params), two.height(case.params)) == (len(A), 2 * len(A))
    rows = one.factor(case.params)
    below, above = two.factor(case.params)
    np.testing.assert_array_equal(below, rows)
    np.testing.assert_array_equal(above, rows)
    for found, own in zip(
        *(jax.tree.leaves(F.factor_transpose(e)) for F, e in ((two, (rows, rows)), (one, rows))), strict=True
    ):
        np.testing.assert_allclose(found, 2 * own, rtol=1e-12)
    # A residual belongs to one term alone.
    known = copy(term)
    known.residual = lambda: rows
    assert Operator((known,)).residual() is rows
    assert Operator((known, known)).residual() is None


def test_a_diagonal_metric_has_a_root_and_no_examples():
    case = MODELS["mlp"]
    F = ng.metric_product(
        case.model,
        ng.Bernoulli(),
        case.params,
        case.inputs,
        metric=ng.DiagonalFisher(),
        key=jax.random.key(3),
    )
    d = ravel_pytree(F.diagonal(jax.random.key(0)))[0]
    assert d.min() >= 0 < d.max()
    v = jax.tree.map(jnp.cos, case.params)
    flat = ravel_pytree(v)[0]
    np.testing.assert_allclose(ravel_pytree(F(v))[0], d * flat, rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(F.factor_transpose(F.factor(v)))[0], d * flat, rtol=1e-12)
    A = np.asarray(F.matrix(v))
    assert F.height(v) == len(A) == len(flat)
    np.testing.assert_allclose(A.T @ A, np.diag(d), rtol=1e-12)
    solved = ng.Direct()(F, v, 0.1)
    np.testing.assert_allclose(ravel_pytree(solved.x)[0], flat / (d + 0.1), rtol=1e-10)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((F.bend(v), F.second(v))))
    with pytest.raises(TypeError, match="diagonal metric has no examples"):
        F.scores(jax.random.key(0), 2, lambda key, score: (score, None))
