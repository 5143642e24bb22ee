"""The network of docs/train.md, in plain JAX, flax.nnx, flax.linen, equinox and haiku, takes the same steps."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

PAGE = (Path(__file__).parents[1] / "docs" / "train.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n.*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
FRAMEWORKS = ("Plain JAX", "flax.nnx", "flax.linen", "equinox", "haiku")
WEIGHTS = [
    np.random.default_rng(0).normal(scale=0.5, size=shape).astype(np.float32)
    for shape in ((2, 20), (20,), (20, 1), (1,))
]
"""The four arrays of the network; their shapes tell them apart, transposed (equinox) or not."""


@pytest.fixture(autouse=True)
def as_a_user_runs_it():
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def build(name):
    """Return a framework's model and parameters, without training, and the data."""
    scope: dict = {}
    exec(SECTIONS["What is common"], scope)
    train = scope["train"]
    scope["train"] = lambda model, params: (params, None)
    exec(SECTIONS[name], scope)
    assert callable(train)
    return scope["model"], scope["params"], (scope["x"], scope["t"])


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


def steps(model, params, batch, count=2):
    """NGD, whose steps do not depend on the orientation or the order of the arrays."""
    opt = ng.natural_gradient(model, ng.Bernoulli())
    state = opt.init(params)
    for _ in range(count):
        params, state, info = opt.step(params, state, batch)
    return params, info


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_takes_the_steps_of_plain_jax(name):
    model, params, batch = build(name)
    assert len(jax.tree.leaves(params)) == 4
    trained, info = steps(model, fill(params), batch)
    expected, own = steps(plain, [jnp.asarray(w) for w in WEIGHTS], batch)
    for found, want, start in zip(read(trained), expected, WEIGHTS, strict=True):
        np.testing.assert_allclose(found - start, np.asarray(want) - start, atol=1e-6)
        assert np.abs(found - start).max() > 1e-2
    np.testing.assert_allclose(info.new_loss, own.new_loss, rtol=1e-5)
