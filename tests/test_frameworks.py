"""The same network in flax.nnx, flax.linen, equinox and haiku takes the same steps from the same weights."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("fast_compile")

FRAMEWORKS = ("with_nnx", "with_linen", "with_equinox", "with_haiku")
EXAMPLES = Path(__file__).parents[1] / "examples" / "frameworks"
WEIGHTS = [
    np.random.default_rng(0).normal(scale=0.5, size=shape).astype(np.float32)
    for shape in ((2, 20), (20,), (20, 1), (1,))
]
"""The four arrays of the network; their shapes tell them apart, transposed (equinox) or not."""


@pytest.fixture(autouse=True)
def as_a_user_runs_it():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def which(leaf):
    return next(i for i, w in enumerate(WEIGHTS) if sorted(w.shape) == sorted(leaf.shape))


def fill(params):
    """Put the common weights into a framework's own tree."""

    def common(leaf):
        w = WEIGHTS[which(leaf)]
        return jnp.asarray(w if w.shape == leaf.shape else w.T)

    return jax.tree.map(common, params)


def read(params):
    """Return the four arrays in the common order and orientation."""
    found = {which(leaf): np.asarray(leaf) for leaf in jax.tree.leaves(params)}
    return [found[i] if found[i].shape == w.shape else found[i].T for i, w in enumerate(WEIGHTS)]


def plain(params, x):
    w, b, v, c = params
    return jnp.tanh(x @ w + b) @ v + c


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_takes_the_steps_of_plain_jax(name):
    example = load(name)
    model, params = example.build()
    assert len(jax.tree.leaves(params)) == 4
    batch = example.data()
    trained, info = example.train(model, fill(params), batch, steps=2)
    expected, own = example.train(plain, [jnp.asarray(w) for w in WEIGHTS], batch, steps=2)
    for found, want, start in zip(read(trained), expected, WEIGHTS, strict=True):
        np.testing.assert_allclose(found - start, np.asarray(want) - start, atol=1e-6)
        assert np.abs(found - start).max() > 1e-2
    np.testing.assert_allclose(info.new_loss, own.new_loss, rtol=1e-5)
