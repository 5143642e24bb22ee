"""Mixed precision: a bfloat16 model, or bfloat16 parameters, with factors, λ and average in float32."""

import jax
import jax.numpy as jnp
import pytest

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

K = jax.random.split(jax.random.key(0), 4)
X = jax.random.normal(K[0], (600, 12), jnp.float32)
T = jnp.sin(X @ jax.random.normal(K[1], (12, 3), jnp.float32))
PARAMS = {
    "w": jax.random.normal(K[2], (12, 24), jnp.float32) / 4,
    "v": jax.random.normal(K[3], (24, 3), jnp.float32) / 5,
}


def to(dtype, values):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), values)


def model(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def half(params, x):
    return to(jnp.float32, model(*to(jnp.bfloat16, (params, x))))


def trained(model, params, count=20):
    """Return the parameters, the state and the loss of the average, in float32, on all examples."""
    opt = ng.kncg(model, ng.Gaussian())
    state, step = opt.init(params), jax.jit(opt.step)
    for number in range(count):
        rows = jax.random.permutation(jax.random.key(number), len(X))[:200]
        params, state, info = step(params, state, (X[rows], T[rows]))
        assert info.accepted
    loss = jnp.mean(ng.Gaussian().nll(globals()["model"](state.average, X), T))
    return params, state, float(loss)


@pytest.fixture(scope="module")
def single():
    return trained(model, PARAMS)[2]


@pytest.mark.parametrize("params", ["float32", "bfloat16"])
def test_a_bfloat16_model_trains_like_one_in_float32(params, single):
    after, state, loss = trained(half, to(params, PARAMS))
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {jnp.dtype(params)}
    # Factors, bases, λ, the last step and the average: none of what is remembered is rounded to bfloat16.
    kinds = {leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    assert kinds == {jnp.dtype(jnp.float32)}
    start = float(jnp.mean(ng.Gaussian().nll(model(PARAMS, X), T)))
    assert loss < 0.8 * start
    assert loss == pytest.approx(single, rel=0.05)
