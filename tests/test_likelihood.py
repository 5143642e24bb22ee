"""Each likelihood keeps the promises of its interface, checked against sums over all targets."""

from functools import cache

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from jax.test_util import check_grads

import natgrad as ng
from natgrad.likelihood import random_signs

pytestmark = pytest.mark.usefixtures("fast_compile")

few = settings(derandomize=True, deadline=None, max_examples=15)

LIKELIHOODS = {
    "gaussian": ng.Gaussian(),
    "bernoulli": ng.Bernoulli(),
    "categorical": ng.Categorical(),
    "poisson": ng.Poisson(),
}
KINDS = list(LIKELIHOODS)
logits = st.lists(st.floats(-3, 1.5), min_size=2, max_size=2)


def each_basis(method, r):
    """The matrix of a linear map at one example's outputs."""
    return jax.vmap(lambda e: method(r[None], e[None])[0])(jnp.eye(len(r))).T


@cache
def compiled(kind):
    """Everything the two tests below compare at outputs r and s, by the library and by enumeration."""
    likelihood = LIKELIHOODS[kind]

    def log_probs(r, targets):
        return jax.vmap(lambda t: oracles.log_prob(kind, r, t))(targets)

    @jax.jit
    def compare(r, s, targets, mass):
        score = jax.vmap(jax.grad(lambda r, t: oracles.log_prob(kind, r, t)), (None, 0))(r, targets)
        gap = log_probs(r, targets) - log_probs(s, targets)
        values = jax.nn.one_hot(targets, 2, dtype=r.dtype) if kind == "categorical" else targets
        truth = (jnp.einsum("t,ti,tj->ij", mass, score, score), gap, mass @ gap, mass @ values)
        nll = [likelihood.nll(jnp.broadcast_to(at, (len(targets), 2)), targets) for at in (r, s)]
        divergence, mean = likelihood.kl(r[None], s[None])[0], likelihood.mean(r[None])[0]
        found = (each_basis(likelihood.fisher, r), nll[1] - nll[0], divergence, mean)
        roots = (
            each_basis(lambda r, e: likelihood.at(r).factor(e), r),
            each_basis(lambda r, u: likelihood.at(r).factor_transpose(u), r),
        )
        return truth, found, *roots

    return compare


@pytest.mark.parametrize("kind", KINDS)
@few
@given(logits, logits)
def test_fisher_its_root_nll_kl_and_mean_are_sums_over_all_targets(kind, r, s):
    """M = E[∇log p ∇log pᵀ] = CCᵀ; nll up to terms free of the outputs, which cancel between two outputs."""
    r, s = jnp.asarray(r), jnp.asarray(s)
    truth, found, C, transposed = compiled(kind)(r, s, *oracles.enumerate_targets(kind, r))
    for a, b in zip(found, truth, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(C @ C.T, truth[0], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(transposed, C.T, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_mean_and_the_covariance_that_fisher_says(kind):
    """Var(∇ log p) = M: for natural parameters the score is t − E[t]."""
    likelihood = LIKELIHOODS[kind]
    r = jnp.array([0.3, -0.8, 0.5])
    draws = likelihood.sample(jax.random.key(0), jnp.broadcast_to(r, (20_000, 3)))
    draws = np.asarray(jax.nn.one_hot(draws, 3) if kind == "categorical" else draws)
    np.testing.assert_allclose(draws.mean(0), likelihood.mean(r[None])[0], atol=0.05)
    np.testing.assert_allclose(np.cov(draws.T), each_basis(likelihood.fisher, r), atol=0.06)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_to_second_order(kind):
    likelihood = LIKELIHOODS[kind]
    r = jnp.array([[0.3, -0.8, 0.5], [1.0, 0.2, -2.0]])
    targets = likelihood.sample(jax.random.key(1), r)
    check_grads(jax.jit(lambda r: likelihood.nll(r, targets)), (r,), order=2)
    check_grads(jax.jit(lambda s: likelihood.kl(r, s)), (0.9 * r,), order=2)


@pytest.mark.parametrize("kind", KINDS)
def test_random_scores_have_fisher_as_their_second_moment(kind):
    likelihood = LIKELIHOODS[kind]
    r = jnp.array([0.3, -0.8, 0.5])
    keys = jax.random.split(jax.random.key(3), 20_000)
    scores = np.asarray(likelihood.score(keys, jnp.broadcast_to(r, (20_000, 3))))
    np.testing.assert_allclose(scores.T @ scores / 20_000, each_basis(likelihood.fisher, r), atol=0.05)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_gaussian_scale_is_a_standard_deviation(scale):
    likelihood, r, t = ng.Gaussian(scale), jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 5.0]])
    np.testing.assert_allclose(likelihood.nll(r, t), [13 / (2 * scale**2)])
    np.testing.assert_allclose(likelihood.fisher(r, t), t / scale**2)
    np.testing.assert_allclose(likelihood.kl(r, t), [13 / (2 * scale**2)])
    draws = likelihood.sample(jax.random.key(0), jnp.zeros((20_000, 1)))
    np.testing.assert_allclose(draws.std(), scale, rtol=0.02)
    key = jax.random.key(1)
    normal = jax.random.normal(key, r.shape, r.dtype)
    np.testing.assert_allclose(likelihood.sample(key, r), r + scale * normal, rtol=1e-12)


def test_targets_of_another_shape_are_refused_with_both_shapes():
    words = r"Gaussian targets have shape \(3,\); the model's outputs have \(3, 2\)\."
    with pytest.raises(ValueError, match=words):
        ng.Gaussian().check(jnp.zeros((3, 2)), jnp.zeros(3))
    with pytest.raises(
        ValueError, match=r"have shape \(3, 2\); the model's outputs have \[\(3, 2\), \(3, 2\)\]"
    ):
        ng.Gaussian().check((jnp.zeros((3, 2)),) * 2, jnp.zeros((3, 2)))


def test_the_signs_of_one_array_come_from_the_keys_themselves():
    """Further arrays fold their number into the keys."""
    keys, space = jax.random.split(jax.random.key(0), 4), jax.ShapeDtypeStruct((4, 3), jnp.float64)

    def drawn(keys):
        return jax.vmap(lambda key: jax.random.rademacher(key, (3,), jnp.float64))(keys)

    first, second = random_signs(keys, (space, space))
    np.testing.assert_array_equal(first, drawn(keys))
    np.testing.assert_array_equal(random_signs(keys, space), drawn(keys))
    np.testing.assert_array_equal(second, drawn(jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)))


def test_positions_are_the_axes_of_independent_targets():
    r = jnp.zeros((5, 4, 3))
    assert ng.Gaussian().positions(r) == 3
    assert ng.Categorical().positions(r) == 2
    # Of several arrays each example is one target.
    assert ng.Gaussian().positions((r, r)) == 1


def test_categorical_classes_one_hot_rows_and_time_axes_agree():
    likelihood = ng.Categorical()
    r = jax.random.normal(jax.random.key(0), (5, 4, 3), jnp.float64)
    classes = jax.random.randint(jax.random.key(1), (5, 4), 0, 3)
    by_class = likelihood.nll(r, classes)
    assert by_class.shape == (5,)
    np.testing.assert_allclose(by_class, likelihood.nll(r, jax.nn.one_hot(classes, 3)), rtol=1e-12)
    by_time = sum(likelihood.nll(r[:, k], classes[:, k]) for k in range(4))
    np.testing.assert_allclose(by_class, by_time, rtol=1e-12)
    u = jax.random.normal(jax.random.key(2), r.shape, jnp.float64)
    np.testing.assert_allclose(
        likelihood.fisher(r, u)[:, 1], likelihood.fisher(r[:, 1], u[:, 1]), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("value", [1e4, -1e4, 100.0, -100.0])
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_float32_outputs_stay_finite_and_float32(kind, value):
    likelihood = LIKELIHOODS[kind]
    r = jnp.array([[value, 0.0, -value]], jnp.float32)
    targets = likelihood.mean(jnp.zeros_like(r))
    numbers = (
        likelihood.nll(r, targets),
        jax.grad(lambda r: likelihood.nll(r, targets).sum())(r),
        likelihood.fisher(r, jnp.ones_like(r)),
        likelihood.at(r).factor(jnp.ones_like(r)),
        likelihood.at(r).factor_transpose(jnp.ones_like(r)),
        likelihood.kl(r, -r),
        likelihood.mean(r),
    )
    assert all(x.dtype == jnp.float32 for x in numbers)
    assert all(jnp.isfinite(x).all() for x in numbers)


def test_bernoulli_fisher_survives_where_the_probability_rounds_to_one():
    r = jnp.full((1, 1), 30.0, jnp.float32)
    assert jax.nn.sigmoid(r)[0, 0] == 1
    np.testing.assert_allclose(ng.Bernoulli().fisher(r, jnp.ones_like(r))[0, 0], np.exp(-30), rtol=1e-5)


def test_poisson_goes_on_as_its_tangent():
    """Value and slope are continuous at the limit; below it nothing is changed."""
    limit = 0.5 * np.log(float(jnp.finfo(jnp.float64).max))
    likelihood = ng.Poisson()

    def nll(r):
        return likelihood.nll(r[None, None], jnp.zeros((1, 1)))[0]

    for r in (-5.0, 0.0, 10.0):
        np.testing.assert_allclose(nll(jnp.asarray(r)), np.exp(r))
    slope = jax.grad(nll)(jnp.asarray(limit * 1.5))
    np.testing.assert_allclose(slope, np.exp(limit), rtol=1e-10)
    np.testing.assert_allclose(nll(jnp.asarray(limit + 2)), 3 * np.exp(limit), rtol=1e-10)


def test_integer_targets_are_taken_in_the_outputs_precision():
    r = jnp.ones((2, 3), jnp.float32)
    t = jnp.ones((2, 3), jnp.int32)
    for kind in ("gaussian", "bernoulli", "poisson"):
        assert LIKELIHOODS[kind].nll(r, t).dtype == jnp.float32


def test_product_averages_each_factor_over_its_own_examples():
    product = ng.Product(ng.Gaussian(), ng.Bernoulli(), weights=(1.0, 0.5))
    r = (jnp.ones((4, 2)), jnp.zeros((3, 1)))
    t = (jnp.zeros((4, 2)), jnp.ones((3, 1)))
    nll = product.nll(r, t)
    c = product.coefficients(r, None)
    assert [x.shape for x in nll] == [(4,), (3,)]
    np.testing.assert_allclose(c[0], np.full(4, 1 / 4))
    np.testing.assert_allclose(c[1], np.full(3, 0.5 / 3))
    own = product.coefficients(r, (None, jnp.array([1.0, 0.0, 3.0])))
    np.testing.assert_allclose(own[1], [0.125, 0, 0.375])
    np.testing.assert_allclose(product.kl(r, t)[0], ng.Gaussian().kl(r[0], t[0]))
    assert product.mean(r)[1].shape == (3, 1)
    assert product.sample(jax.random.key(0), r)[0].shape == (4, 2)
    assert ng.Product(ng.Gaussian(), ng.Bernoulli()).weights == (1, 1)
    assert product.matching
    assert not ng.Product(ng.Likelihood.from_loss(lambda r, t: r[:, 0])).matching
