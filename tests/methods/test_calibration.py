"""`initial="calibrate"`: the first λ need not be guessed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")


def net(params, inputs):
    return jnp.tanh(inputs @ params["a"]) @ params["b"]


KEYS = jax.random.split(jax.random.key(3), 4)
X = jax.random.normal(KEYS[0], (60, 4))
T = jnp.sin(3 * X[:, :1]) * 5


def start(scale):
    return {
        "a": scale * jax.random.normal(KEYS[1], (4, 12)),
        "b": jax.random.normal(KEYS[2], (12, 1)),
    }


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_the_first_step_is_trusted_and_not_idle(scale):
    opt = ng.natural_gradient(
        net, ng.Gaussian(), damping=ng.LevenbergMarquardt("calibrate"), solver=ng.CG(50, 1e-6)
    )
    params = start(scale)
    _, state, info = opt.step(params, opt.init(params), (X, T))
    assert 0.75 <= float(info.rho) <= 0.95
    # Trusted above ¾, so Levenberg–Marquardt goes on from there.
    np.testing.assert_allclose(state.damping, info.damping * 2 / 3)


def test_later_steps_are_not_calibrated():
    opt = ng.natural_gradient(net, ng.Gaussian(), damping=ng.LevenbergMarquardt("calibrate"))
    plain = ng.natural_gradient(net, ng.Gaussian(), damping=ng.LevenbergMarquardt(1.0))
    params = start(1.0)
    params, state, _ = opt.step(params, opt.init(params), (X, T))
    one, _, _ = opt.step(params, state, (X, T))
    other, _, _ = plain.step(params, state, (X, T))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), one, other)


def test_a_nan_in_the_first_batch_ends_the_search_and_refuses_the_step():
    opt = ng.natural_gradient(net, ng.Gaussian(), damping=ng.LevenbergMarquardt("calibrate"))
    params = start(1.0)
    same, state, info = opt.step(params, opt.init(params), (X.at[0, 0].set(jnp.nan), T))
    assert not info.accepted
    jax.tree.map(np.testing.assert_array_equal, same, params)
    assert np.isfinite(state.damping)
    assert state.damping <= 1e8


def test_only_calibrate_is_a_word_for_it():
    with pytest.raises(ValueError, match="calibrate"):
        ng.LevenbergMarquardt("guess")
