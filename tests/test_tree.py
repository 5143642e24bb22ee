"""Pytrees are the vector space their raveled numbers are."""

from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from jax.flatten_util import ravel_pytree

import natgrad as ng
from natgrad import tree
from natgrad.directions import Proposal
from natgrad.metric.here import Here
from natgrad.optimizer import propose
from natgrad.state import Batches, Data

few = settings(derandomize=True, deadline=None, max_examples=25)
# XLA takes a subnormal number for 0.
numbers = st.floats(-1e3, 1e3, allow_nan=False, allow_subnormal=False)
vectors = st.lists(numbers, min_size=6, max_size=6)


def stack(*trees):
    return tree.Stack(jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees))


def build(values, dtype=jnp.float64):
    values = np.asarray(values)
    return {"a": jnp.asarray(values[:4].reshape(2, 2), dtype), "b": (jnp.asarray(values[4:], dtype),)}


def flat(x):
    return np.asarray(ravel_pytree(x)[0])


@few
@given(vectors, vectors, numbers)
def test_vector_space(u, v, a):
    x, y = build(u), build(v)
    u, v = np.asarray(u), np.asarray(v)
    np.testing.assert_allclose(flat(tree.add(x, y)), u + v)
    np.testing.assert_allclose(flat(tree.sub(x, y)), u - v)
    np.testing.assert_allclose(flat(tree.scale(a, x)), a * u)
    np.testing.assert_allclose(flat(tree.axpy(a, x, y)), a * u + v, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(tree.vdot(x, y), u @ v, rtol=1e-12, atol=1e-8)
    np.testing.assert_allclose(tree.norm(x), np.linalg.norm(u), rtol=1e-14)
    np.testing.assert_allclose(tree.max_abs(x), np.abs(u).max())
    np.testing.assert_allclose(tree.total(x), u.sum(), rtol=1e-12, atol=1e-9)
    for rows in ((x, y), stack(x, y)):
        combined = flat(tree.combine(jnp.array([2.0, a]), rows))
        np.testing.assert_allclose(combined, 2 * u + a * v, rtol=1e-12, atol=1e-9)


@few
@given(st.integers(-900, 900), vectors)
def test_norm_scales_with_a_power_of_two_to_the_bit(exponent, u):
    x = build(np.asarray(u) / 1e3)
    factor = 2.0**exponent
    assert tree.norm(tree.scale(factor, x)) == factor * tree.norm(x)


@pytest.mark.parametrize(
    ("value", "dtype"), [(1e30, jnp.float32), (1e-30, jnp.float32), (1e300, jnp.float64)]
)
def test_norm_neither_overflows_nor_underflows(value, dtype):
    x = build(np.full(6, value), dtype)
    np.testing.assert_allclose(tree.norm(x), value * np.sqrt(6), rtol=1e-6)
    assert tree.norm(x).dtype == dtype


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_numbers_are_seen(bad):
    x = build([1, 2, 3, 4, 5, bad])
    clean = build(range(6))
    assert not tree.is_finite(x)
    assert tree.is_finite(clean, jnp.arange(3), None, ())
    assert not jnp.isfinite(tree.norm(x))
    assert not jnp.isfinite(tree.max_abs(x))
    chosen = tree.where(jnp.array(False), x, clean)
    assert np.array_equal(flat(chosen), flat(clean))


@few
@given(st.floats(1e-300, 1e300))
def test_power_of_two_is_one_and_is_near(x):
    p = float(tree.power_of_two(jnp.asarray(x)))
    mantissa, _ = np.frexp(p)
    assert mantissa == 0.5
    assert 0.7 <= x / p <= 1.4143


@pytest.mark.parametrize("x", [0.0, np.inf, np.nan])
def test_power_of_two_of_what_has_none_is_one(x):
    assert tree.power_of_two(jnp.asarray(x)) == 1


def test_dtypes_are_kept_and_the_widest_carries_scalars():
    x = {"half": jnp.ones(2, jnp.bfloat16), "single": jnp.ones(3, jnp.float32)}
    assert tree.dtype(x) == jnp.float32
    assert tree.vdot(x, x).dtype == jnp.float32
    scaled = tree.axpy(0.5, x, x)
    assert jax.tree.map(lambda leaf: leaf.dtype, scaled) == jax.tree.map(lambda leaf: leaf.dtype, x)
    assert tree.at_least_single(jnp.dtype(jnp.bfloat16)) == jnp.float32
    assert tree.at_least_single(jnp.dtype(jnp.float64)) == jnp.float64
    wide = tree.cast_like(x, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), x))
    assert tree.dtype(wide) == jnp.float32


@pytest.mark.parametrize("rows", ["tuple", "stack"])
@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_inner_products_of_few_and_of_many_rows(rows, count, dtype):
    rng = np.random.default_rng(count)
    u, v = rng.normal(size=(2, count, 6))

    def made(row):
        x = build(row)
        return x | {"a": x["a"].astype(dtype)}

    x, y = (tuple(map(made, each)) for each in (u, v))
    one = y[0]
    if rows == "stack":
        x, y = stack(*x), stack(*y)
    tolerance = 1e-12 if dtype == jnp.float64 else 1e-5
    assert tree.count(x) == count
    np.testing.assert_allclose(tree.inner(x, y), u @ v.T, rtol=tolerance, atol=tolerance)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), tree.first(x))
    np.testing.assert_allclose(flat(wide), u[0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(tree.along(x, one), u @ v[0], rtol=tolerance, atol=tolerance)
    assert tree.inner(x, y).dtype == tree.along(x, one).dtype == jnp.float64


def fully_precise(function, *args):
    """Tell whether there is a product of matrices in a function, and none in an accelerator's default precision."""
    found = [
        equation.params["precision"]
        for equation in oracles.primitives(jax.make_jaxpr(function)(*args).jaxpr)
        if equation.primitive.name == "dot_general"
    ]
    highest = jax.lax.Precision.HIGHEST
    return bool(found) and all(precision == (highest, highest) for precision in found)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, rows: tree.vdot(x, x),
        lambda x, rows: tree.norm(x),
        lambda x, rows: tree.length(x),
        lambda x, rows: tree.combine(jnp.ones(5), rows),
        lambda x, rows: tree.onto(rows, x),
        lambda x, rows: tree.inner((x,), (x,)),
        lambda x, rows: tree.gram(rows),
        lambda x, rows: tree.along(rows, x),
    ],
    ids=["vdot", "norm", "length", "combine", "inner", "few", "gram", "along"],
)
def test_sums_and_products_are_in_full_precision(function):
    x = build(range(6))
    assert fully_precise(function, x, stack(x, x, x, x, x))


def without_products(params, inputs):
    """A model without a product of matrices: those that are left in a step are the library's."""
    return jnp.tanh(inputs[:, :, None] * params["w"]).sum(1) + params["b"]


@pytest.mark.parametrize(
    "recipe",
    [
        partial(ng.natural_gradient, solver=ng.CG(3)),
        partial(ng.natural_gradient, solver=ng.MinresQLP(3, reorthogonalize=5)),
        partial(ng.natural_gradient, metric=ng.MonteCarloFisher(2)),
        partial(ng.natural_gradient, solver=ng.Direct(), metric=ng.EmpiricalFisher()),
        ng.hessian_free,
        ng.krylov_subspace_descent,
        ng.tonga,
        partial(ng.kncg, average=None),
    ],
    ids=["CG", "QLP", "sampled", "dual", "hf", "ksd", "tonga", "kncg"],
)
def test_directions_are_in_full_precision(recipe):
    opt = recipe(without_products, ng.Bernoulli())
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    data = Data(Batches((jnp.ones((5, 3)), jnp.ones((5, 2)), None)))

    def rows(params, state):
        return propose(opt, params, state, data)[1].rows

    assert fully_precise(rows, params, opt.init(params))


def test_the_quadratic_model_is_in_full_precision():
    class Metric:
        damps = False

        def gram(self, rows):
            return tree.gram(rows)

    def found(rows, slopes):
        here = Here(None, None, None, None, shift=jnp.ones(()), metric=Metric())
        return ng.QuadraticModel()(here, Proposal(rows, slopes), None)

    x = build(range(6))
    assert fully_precise(found, (x, x), jnp.ones(2))
