"""The step is a pure function: every way of running it gives the same numbers, and it compiles once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import MODELS, WEIGHTS, mlp

import natgrad as ng

CASE = MODELS["mlp"]
BATCH = (CASE.inputs, jax.random.bernoulli(jax.random.key(1), 0.4, (7, 3)).astype(jnp.float64), WEIGHTS)
OPT = ng.natural_gradient(mlp, ng.Bernoulli(), learning_rate=0.5, metric=ng.MonteCarloFisher(3))
STEPS = 4


def same(x, y, tolerance=1e-12):
    pairs = zip(jax.tree.leaves(numbers(x)), jax.tree.leaves(numbers(y)), strict=True)
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True) for a, b in pairs)


def numbers(x):
    return jax.tree.map(
        lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf, x
    )


def eager(params, key, steps=STEPS):
    state = OPT.init(params, key)
    for _ in range(steps):
        params, state, info = OPT.step(params, state, BATCH)
    return params, state, info


@pytest.fixture(scope="module")
def expected():
    return eager(CASE.params, jax.random.key(3))


def test_jit(expected):
    step = jax.jit(OPT.step)
    params, state = CASE.params, OPT.init(CASE.params, jax.random.key(3))
    for _ in range(STEPS):
        params, state, info = step(params, state, BATCH)
    assert same((params, state, info), expected)


def test_scan(expected):
    def body(carry, _):
        params, state, info = OPT.step(*carry, BATCH)
        return (params, state), info

    start = (CASE.params, OPT.init(CASE.params, jax.random.key(3)))
    (params, state), infos = jax.jit(lambda s: jax.lax.scan(body, s, None, STEPS))(start)
    assert same((params, state, jax.tree.map(lambda leaf: leaf[-1], infos)), expected)


def test_vmap_over_seeds(expected):
    keys = jnp.stack([jax.random.key(3), jax.random.key(4)])

    def run(key):
        params, state = CASE.params, OPT.init(CASE.params, key)
        for _ in range(2):
            params, state, info = OPT.step(params, state, BATCH)
        return params, state, info

    together = jax.jit(jax.vmap(run))(keys)
    for i, key in enumerate(keys):
        assert same(jax.tree.map(lambda leaf, i=i: leaf[i], together), eager(CASE.params, key, 2), 1e-10)
    assert not np.allclose(*jax.tree.leaves(together[0])[0])


def test_donated_buffers(expected):
    step = jax.jit(OPT.step, donate_argnums=(0, 1))
    params = jax.tree.map(jnp.array, CASE.params)
    state = OPT.init(params, jax.random.wrap_key_data(jnp.array(jax.random.key_data(jax.random.key(3)))))
    for _ in range(STEPS):
        params, state, info = step(params, state, BATCH)
    assert same((params, state, info), expected)


def test_every_array_of_a_fresh_state_has_a_buffer_of_its_own():
    """So that all of them can be donated."""
    long = ng.kncg(mlp, ng.Bernoulli(), preconditioner=ng.Kronecker(limit=3, uneven=200.0))
    link = ng.optax.scale_by_natural_gradient(mlp, ng.Bernoulli())
    states = [
        long.init(CASE.params),
        link.init(CASE.params),
        ng.optax.kncg(mlp, ng.Bernoulli()).init(CASE.params),
    ]
    for state in states:
        places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
        assert len(set(places)) == len(places)
    params = jax.tree.map(jnp.array, CASE.params)
    jax.jit(long.step, donate_argnums=(0, 1))(params, long.init(params), BATCH)
    (_, *_), *_ = ng.loop(long, CASE.params, [BATCH])


def test_state_keeps_its_structure_shapes_and_dtypes(expected):
    def kinds(x):
        return jax.tree.structure(x), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(x)]

    params, state, _ = expected
    assert kinds(state) == kinds(OPT.init(CASE.params))
    assert kinds(params) == kinds(CASE.params)


def test_a_second_eager_step_compiles_nothing(compilations):
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), learning_rate=0.3)
    params, state = CASE.params, opt.init(CASE.params)
    with compilations() as first:
        params, state, _ = opt.step(params, state, BATCH, learning_rate=0.2)
    with compilations() as second:
        params, state, _ = opt.step(params, state, BATCH, learning_rate=0.1)
    assert first() > 0
    assert second() == 0
    # An optimizer built alike is the same optimizer.
    again = ng.natural_gradient(mlp, ng.Bernoulli(), learning_rate=0.3)
    with compilations() as third:
        again.step(params, state, BATCH, learning_rate=0.1)
    assert third() == 0


def test_two_hundred_steps_with_changing_damping_and_rate_compile_once(compilations):
    opt = ng.natural_gradient(mlp, ng.Bernoulli(), damping=ng.LevenbergMarquardt(30.0))
    step = jax.jit(opt.step)
    params, state = CASE.params, opt.init(CASE.params)
    rates = [jnp.asarray(0.5 / (1 + k)) for k in range(200)]
    dampings = set()
    params, state, _ = step(params, state, BATCH, learning_rate=rates[0])
    with compilations() as count:
        for rate in rates[1:]:
            params, state, info = step(params, state, BATCH, learning_rate=rate)
            dampings.add(float(info.damping))
    assert count() == 0
    assert len(dampings) > 5
