"""Likelihoods from a user's functions agree with the built-in ones, and with dense matrices where there are none."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from models import MODELS, WEIGHTS

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

R = jax.random.normal(jax.random.key(0), (5, 3), jnp.float64)
S = R + 0.3 * jax.random.normal(jax.random.key(1), (5, 3), jnp.float64)
U = jax.random.normal(jax.random.key(2), (5, 3), jnp.float64)


def categorical(r, t):
    return jnp.take_along_axis(jax.nn.log_softmax(r), t[:, None], axis=1)[:, 0]


def bernoulli(r, t):
    return jnp.sum(t * r - jnp.logaddexp(r, jnp.zeros_like(r)), axis=1)


def normal(r, t):
    return -jnp.sum((t - r) ** 2, axis=1) / 2


CUSTOM = {
    "support": (ng.Categorical(), ng.Likelihood.from_log_prob(categorical, support=jnp.arange(3))),
    "vector support": (
        ng.Bernoulli(),
        ng.Likelihood.from_log_prob(
            bernoulli, support=[[a, b, c] for a in (0.0, 1.0) for b in (0.0, 1.0) for c in (0.0, 1.0)]
        ),
    ),
    "log_partition": (
        ng.Poisson(),
        ng.Likelihood.from_log_prob(
            lambda r, t: jnp.sum(t * r - jnp.exp(r), axis=1),
            log_partition=lambda r: jnp.sum(jnp.exp(r), axis=1),
        ),
    ),
    "kl": (
        ng.Gaussian(),
        ng.Likelihood.from_log_prob(normal, kl=lambda r, s: jnp.sum((r - s) ** 2, axis=1) / 2),
    ),
}


def each_basis(method, r, size):
    """The matrices of a linear map, one an example."""
    columns = [method(r, jnp.broadcast_to(e, (len(r), size))) for e in jnp.eye(size, dtype=r.dtype)]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("how", CUSTOM)
def test_a_likelihood_by_automatic_differentiation_is_the_built_in_one(how):
    built_in, custom = CUSTOM[how]
    targets = built_in.sample(jax.random.key(3), R)
    np.testing.assert_allclose(
        custom.nll(R, targets) - custom.nll(S, targets),
        built_in.nll(R, targets) - built_in.nll(S, targets),
        rtol=1e-10,
    )
    np.testing.assert_allclose(custom.fisher(R, U), built_in.fisher(R, U), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(custom.kl(R, S), built_in.kl(R, S), rtol=1e-9, atol=1e-12)
    size = custom.at(R).factor_transpose(R).shape[1]
    C = each_basis(lambda r, e: custom.at(r).factor(e), R, size)
    M = each_basis(built_in.fisher, R, 3)
    np.testing.assert_allclose(C @ np.swapaxes(C, 1, 2), M, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(
        each_basis(lambda r, u: custom.at(r).factor_transpose(u), R, 3),
        np.swapaxes(C, 1, 2),
        rtol=1e-9,
        atol=1e-10,
    )
    keys = jax.random.split(jax.random.key(4), 5)
    assert custom.score(keys, R).shape == R.shape


def test_only_natural_parameters_match():
    assert CUSTOM["log_partition"][1].matching
    assert not CUSTOM["support"][1].matching
    assert not CUSTOM["kl"][1].matching


@pytest.mark.parametrize("how", CUSTOM)
def test_float32_outputs_stay_float32(how):
    custom = CUSTOM[how][1]
    r, u = R.astype(jnp.float32), U.astype(jnp.float32)
    here = custom.at(r)
    e = here.factor_transpose(u)
    results = (here.product(u), custom.kl(r, u), here.factor(e), e)
    assert all(x.dtype == jnp.float32 for x in results)


def test_outputs_may_be_a_tree():
    """A normal with outputs {mean, log_scale}: M = diag(1/σ², 2)."""

    def log_prob(r, t):
        return jnp.sum(-((t - r["mean"]) ** 2) / (2 * jnp.exp(2 * r["log"])) - r["log"], axis=1)

    def kl(r, s):
        spread = jnp.exp(2 * r["log"]) + (r["mean"] - s["mean"]) ** 2
        return jnp.sum(s["log"] - r["log"] + spread / (2 * jnp.exp(2 * s["log"])) - 0.5, axis=1)

    likelihood = ng.Likelihood.from_log_prob(log_prob, kl=kl)
    r, u = {"mean": R, "log": S}, {"mean": U, "log": U}
    found = likelihood.fisher(r, u)
    np.testing.assert_allclose(found["mean"], U / np.exp(2 * S), rtol=1e-10)
    np.testing.assert_allclose(found["log"], 2 * U, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        likelihood.at(r).factor(likelihood.at(r).factor_transpose(u))["mean"], found["mean"], rtol=1e-9
    )

    case = MODELS["mlp"]

    def model(params, inputs):
        outputs = case.model(params, inputs)
        return {"mean": outputs[:, :1], "log": outputs[:, 1:2]}

    J = oracles.jacobians(lambda p, x: case.model(p, x)[:, :2], case.params, case.inputs)
    logs = np.asarray(case.model(case.params, case.inputs))[:, 1]
    expected = oracles.metric(J, [np.diag([np.exp(-2 * a), 2.0]) for a in logs], WEIGHTS)

    @jax.jit
    def dense(params):
        F = ng.metric_product(model, likelihood, params, case.inputs, WEIGHTS)
        return oracles.matrix(F, params), oracles.matrix(F.factor, params)

    F, A = dense(case.params)
    np.testing.assert_allclose(F, expected, atol=1e-10 * np.abs(expected).max())
    np.testing.assert_allclose(A.T @ A, expected, atol=1e-10 * np.abs(expected).max())


def test_a_sampler_alone_gives_a_monte_carlo_fisher_and_no_exact_one():
    likelihood = ng.Likelihood.from_log_prob(
        bernoulli, sample=lambda key, r: jax.random.bernoulli(key, jax.nn.sigmoid(r)).astype(r.dtype)
    )
    keys = jax.random.split(jax.random.key(0), 20_000)
    scores = np.asarray(likelihood.score(keys, jnp.broadcast_to(R[0], (20_000, 3))))
    y = np.asarray(jax.nn.sigmoid(R[0]))
    np.testing.assert_allclose(scores.T @ scores / 20_000, np.diag(y * (1 - y)), atol=0.02)
    with pytest.raises(TypeError, match=r"only a sampler.*MonteCarloFisher"):
        likelihood.fisher(R, U)
    with pytest.raises(TypeError, match="its KL is not known"):
        likelihood.kl(R, S)
    with pytest.raises(TypeError, match="without mean="):
        likelihood.mean(R)
    assert likelihood.sample(jax.random.key(0), R).shape == R.shape


def test_from_loss_is_for_gauss_newton_alone():
    case = MODELS["mlp"]

    def loss(r, t):
        return jnp.sum(jnp.logaddexp(r - t, t - r), axis=1)

    likelihood = ng.Likelihood.from_loss(loss)
    targets = jnp.zeros((7, 3))
    J = oracles.jacobians(case.model, case.params, case.inputs)
    r = np.asarray(case.model(case.params, case.inputs))
    expected = oracles.metric(J, [np.diag(1 / np.cosh(row) ** 2) for row in r], WEIGHTS)

    @jax.jit
    def dense(params):
        F = ng.metric_product(
            case.model, likelihood, params, case.inputs, WEIGHTS, ng.GaussNewton(), targets=targets
        )
        return oracles.matrix(F, params), oracles.matrix(F.factor, params)

    F, A = dense(case.params)
    np.testing.assert_allclose(F, expected, atol=1e-10 * np.abs(expected).max())
    np.testing.assert_allclose(A.T @ A, expected, atol=1e-10 * np.abs(expected).max())
    for metric in (ng.Fisher(), ng.MonteCarloFisher(), ng.DiagonalFisher()):
        with pytest.raises(TypeError, match=r"no distribution.*GaussNewton"):
            ng.metric_product(case.model, likelihood, case.params, case.inputs, metric=metric)(case.params)
    for word, call in (
        ("KL", lambda: likelihood.kl(R, S)),
        ("mean", lambda: likelihood.mean(R)),
        ("sample", lambda: likelihood.sample(jax.random.key(0), R)),
    ):
        with pytest.raises(TypeError, match=f"no distribution, so it has no {word}: .*from_log_prob"):
            call()


def test_equal_arguments_make_equal_likelihoods():
    """So that a second optimizer built alike does not compile again."""
    one, two = (ng.Likelihood.from_log_prob(categorical, support=jnp.arange(3)) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != ng.Likelihood.from_log_prob(categorical, support=jnp.arange(4))


def test_from_log_prob_asks_for_what_it_needs():
    with pytest.raises(ValueError, match=r"needs one of kl=, log_partition=, support=.*or sample="):
        ng.Likelihood.from_log_prob(bernoulli)
