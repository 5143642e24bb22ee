"""`initial="calibrate"`: the first λ need not be guessed."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
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
    # Trusted above ¾, so Levenberg–Marquardt goes on from there; above 0.9 a fall counts three times.
    factor = (2 / 3) ** 3 if info.rho > 0.9 else 2 / 3
    np.testing.assert_allclose(state.damping, info.damping * factor)
    assert state.record.sure == info.damping


def test_a_search_on_the_host_is_calibrated_too():
    """Where λ = 1 is not trusted, another one is found; which cases those are depends on SciPy's COBYLA."""
    params, moved = start(3.0), 0
    for scale in (0.01, 0.1, 100.0):
        given = net, ng.Gaussian(scale)
        opt, plain = (
            ng.natural_conjugate_gradient(*given, search=ng.Cobyla(), damping=ng.LevenbergMarquardt(first))
            for first in ("calibrate", 1.0)
        )
        after, state, info = opt.step(params, opt.init(params), (X, T))
        assert 0.75 <= float(info.rho) <= 0.95
        trusted = 0.75 <= float(plain.step(params, plain.init(params), (X, T))[2].rho) <= 0.95
        assert (info.damping == 1) == trusted
        moved += not trusted
        assert opt.step(after, state, (X, T))[2].damping == state.damping
    assert moved


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
    assert state.damping == info.damping == 1
    assert ng.Answer.name_of(info.answer) == "kept refused"
    # No step was taken: the next one is calibrated as the first would have been.
    found, _, info = opt.step(params, state, (X, T))
    expected, _, first = opt.step(params, opt.init(params), (X, T))
    assert 0.75 <= info.rho <= 0.95
    assert info.damping == first.damping
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("bounds", [(1e-8, 1e-6), (1e-8, 1e8), (1e5, 1e6)], ids=["low", "wide", "high"])
def test_calibration_stays_within_the_bounds(bounds):
    """A λ that is too small or too large for [0.75, 0.95] is as near as they allow."""
    rule = ng.LevenbergMarquardt("calibrate", bounds=bounds, reduction="quadratic")
    opt = ng.natural_gradient(net, ng.Gaussian(), damping=rule, solver=ng.CG(50, 1e-6), reject=-1e9)
    params = start(1.0)
    _, state, info = opt.step(params, opt.init(params), (X, T))
    assert bounds[0] <= info.damping <= bounds[1]
    assert bounds[0] <= state.damping <= bounds[1]
    wide = bounds == (1e-8, 1e8)
    assert (0.75 <= info.rho <= 0.95) == wide
    if not wide:
        assert info.damping == (bounds[1] if info.rho < 0.75 else bounds[0])


def test_calibration_holds_one_step_in_its_loop_and_compiles_it_once(compilations):
    rule = ng.LevenbergMarquardt("calibrate")

    def make(damping):
        return ng.natural_gradient(net, ng.Gaussian(), damping=damping, solver=ng.CG(7))

    params = start(1.0)

    def count(opt, name):
        jaxpr = jax.make_jaxpr(opt.step)(params, opt.init(params), (X, T)).jaxpr
        return sum(equation.primitive.name == name for equation in oracles.primitives(jaxpr))

    opt, plain = make(rule), make(ng.LevenbergMarquardt(1.0))
    for name in ("tanh", "dot_general"):
        assert count(opt, name) == count(plain, name) > 0
    assert count(opt, "while") == count(plain, "while") + 1

    state = opt.init(params)
    params, state, _ = opt.step(params, state, (X, T))
    with compilations() as compiled:
        params, state, _ = opt.step(params, state, (X, T))
        make(ng.LevenbergMarquardt("calibrate")).step(params, state, (X, T))
    assert compiled() == 0


def test_only_calibrate_is_a_word_for_it():
    with pytest.raises(ValueError, match="calibrate"):
        ng.LevenbergMarquardt("guess")
