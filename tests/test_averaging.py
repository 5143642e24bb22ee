"""Averaged iterates against the plain weighted mean of the path."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

X = jnp.asarray(np.random.default_rng(0).normal(size=(20, 3)))
T = jnp.sin(X @ jnp.ones((3, 2)))


def model(params, inputs):
    return jnp.tanh(inputs @ params["w"]) @ params["v"]


def start():
    return {"w": jnp.ones((3, 4)) / 3 + jnp.eye(3, 4), "v": jnp.ones((4, 2)) / 4}


def test_the_average_of_the_path_and_the_path_itself():
    plain = ng.kncg(model, ng.Gaussian(), average=None)
    averaged = ng.Averaged(plain, decay=0.8)
    p = q = start()
    s, a = plain.init(p), averaged.init(q)
    one, other, path = jax.jit(plain.step), jax.jit(averaged.step), []
    for number in range(60):
        batch = X, T * (1 + 0.1 * (number % 2))
        p, s, _ = one(p, s, batch)
        q, a, _ = other(q, a, batch)
        path.append(q)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9), p, q)
    shares = np.array(
        [max(0.2, 10 / (t + 9)) for t in range(1, 61)]
    )  # all of the first; from the 41st on a fifth
    weights = [shares[t] * np.prod(1 - shares[t + 1 :]) for t in range(60)]
    assert np.isclose(sum(weights), 1)
    for name in p:
        wanted = np.average([np.asarray(each[name]) for each in path], axis=0, weights=weights)
        np.testing.assert_allclose(a.average[name], wanted, rtol=1e-6)


def test_a_refused_step_leaves_a_finite_average():
    opt = ng.kncg(model, ng.Gaussian())
    params = start()
    params, state, info = opt.step(params, opt.init(params), (X.at[0, 0].set(jnp.nan), T))
    assert not info.accepted
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old), state.average, start())


def test_frozen_leaves_half_precision_and_donation():
    """What is not trained stays as it is, masks of infinities included; half precision is averaged in single."""
    params = {
        "w": start()["w"].astype(jnp.bfloat16),
        "v": start()["v"],
        "mask": jnp.full(2, -jnp.inf),
        "counter": jnp.asarray(3),
    }
    trained = {"w": True, "v": True, "mask": False, "counter": False}

    def mixed(params, inputs):
        return model({"w": params["w"].astype(inputs.dtype), "v": params["v"]}, inputs)

    opt = ng.kncg(mixed, ng.Gaussian(), trainable=trained, average=0.5)
    state, step = opt.init(params), jax.jit(opt.step, donate_argnums=(0, 1))
    wanted = 0
    for number, share in enumerate((1, 10 / 11, 10 / 12)):
        params, state, _ = step(params, state, (X, T * (1 + number)))
        wanted += share * (np.asarray(params["w"].astype(jnp.float32)) - wanted)
    assert state.average["w"].dtype == jnp.float32
    np.testing.assert_allclose(state.average["w"], wanted, rtol=1e-5)
    assert np.all(np.isneginf(state.average["mask"]))
    assert state.average["counter"] == 3


def test_an_eager_step_is_one_program_and_the_decay_a_number(compilations):
    plain = ng.sgd(model, ng.Gaussian())
    params = start()
    state = ng.Averaged(plain).init(params)
    with compilations() as count:
        params, state, _ = ng.Averaged(plain).step(params, state, (X, T))
    assert count() == 1
    with compilations() as count:
        for decay in (0.5, 0.9):
            params, state, _ = ng.Averaged(plain, decay=decay).step(params, state, (X, T))
    assert count() == 0

    def averages(decay):
        opt, p = ng.Averaged(plain, decay=decay), start()
        s = opt.init(p)
        for _ in range(12):
            p, s, _ = opt.step(p, s, (X, T))
        return s.average

    many = jax.jit(jax.vmap(averages))(jnp.array([0.1, 0.9]))
    for k, decay in enumerate((0.1, 0.9)):
        jax.tree.map(
            lambda a, b, k=k: np.testing.assert_allclose(a[k], b, rtol=1e-6, atol=1e-9), many, averages(decay)
        )


def test_the_arguments_of_a_step_are_the_optimizers_own():
    own, other = (inspect.signature(kind.step).parameters for kind in (ng.Optimizer, ng.Averaged))
    assert list(own) == list(other)
    assert [p.kind for p in own.values()] == [p.kind for p in other.values()]


def test_mistakes_are_named():
    opt = ng.Averaged(ng.sgd(model, ng.Gaussian()))
    with pytest.raises(TypeError, match=r"does not belong to ng\.Averaged"):
        opt.step(start(), opt.optimizer.init(start()), (X, T))
    with pytest.raises(ValueError, match="decay=1"):
        ng.kncg(model, ng.Gaussian(), average=1.0)
    with pytest.raises(ValueError, match="not both"):
        ng.kncg(model, ng.Gaussian(), damping=ng.Constant(1.0), floor=1e-3)


def test_the_first_thing_to_try_trains():
    opt = ng.kncg(model, ng.Gaussian())
    params = start()
    state, step = opt.init(params), jax.jit(opt.step)
    losses = []
    for _ in range(60):
        params, state, info = step(params, state, (X, T))
        losses.append(float(info.loss))
    assert losses[-1] < 0.1 * losses[0]
    assert float(state.inner.damping) >= 1e-4


def test_on_one_batch_there_is_nothing_to_average():
    """After four steps in a row with the loss that the last one left, the average is the parameters themselves."""
    steady = ng.LevenbergMarquardt(10.0, bounds=(10.0, 1e12))
    opt = ng.Averaged(ng.natural_gradient(model, ng.Gaussian(), damping=steady), decay=0.5)
    params = start()
    state, step = opt.init(params), jax.jit(opt.step)
    alike = []
    for number in range(14):
        params, state, info = step(params, state, (X, T * (2 if number == 10 else 1)))
        assert info.accepted
        alike.append(int(state.alike))
        gap = max(float(jnp.max(jnp.abs(params[name] - state.average[name]))) for name in params)
        assert (gap < 1e-12) == (alike[-1] == 4 or number == 0)
    # The first step has none before it; the eleventh sees another batch, and so does the one after it.
    assert alike == [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 0, 0, 1, 2]


def test_an_average_of_an_average_is_refused():
    with pytest.raises(TypeError, match="give the recipe average="):
        ng.Averaged(ng.kncg(model, ng.Gaussian()))


def test_parameters_that_are_no_arrays_are_named():
    with pytest.raises(TypeError, match="params holds function"):
        ng.kncg(lambda p, x: x, ng.Gaussian()).init({"a": jnp.ones(2), "b": lambda x: x})
