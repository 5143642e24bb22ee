"""What holds for every method: losses that never rise, NaN refused, a state that keeps its shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")


def net(params, inputs):
    return jnp.tanh(inputs @ params["a"] + params["c"]) @ params["b"]


def draw(key, scale=1.0, dtype=jnp.float32):
    keys = jax.random.split(key, 5)
    params = {
        "a": scale * jax.random.normal(keys[0], (3, 4), dtype),
        "b": scale * jax.random.normal(keys[1], (4, 2), dtype),
        "c": jnp.zeros(4, dtype),
    }
    x = jax.random.normal(keys[2], (16, 3), dtype)
    t = (jax.random.normal(keys[3], (16, 2), dtype) > 0).astype(dtype)
    return params, (x, t)


B = ng.Bernoulli()
CG = ng.CG(maxiter=6)
METHODS = {
    "sgd": ng.sgd(net, B),
    "ngd": ng.natural_gradient(net, B, solver=CG),
    "ngd-l": ng.natural_gradient(net, B, solver=CG, search=ng.LineSearch()),
    "ncg-l": ng.natural_conjugate_gradient(net, B, direction=ng.Natural(CG)),
    "ncg-f": ng.natural_conjugate_gradient(net, B, direction=ng.Natural(CG), beta=ng.PolakRibiere()),
    "ncg-q": ng.natural_conjugate_gradient(net, B, direction=ng.Preconditioned(ng.Jacobi(blocks=4))),
    "hf": ng.hessian_free(
        net, B, solver=ng.TruncatedCG(6, progress=None), preconditioner=ng.Diagonal(blocks=4)
    ),
    "ksd": ng.krylov_subspace_descent(net, B, size=4, search=ng.search.SubspaceBFGS(5, 6)),
    "tonga": ng.tonga(net, B, direction=ng.directions.Tonga(2, 3)),
}
COBYLA = ng.natural_conjugate_gradient(net, B, direction=ng.Natural(CG), search=ng.Cobyla(maxprobes=15))
MEASURING = [name for name, opt in METHODS.items() if opt.search.measures]


@pytest.mark.parametrize("name", MEASURING)
def test_a_search_that_measures_the_loss_never_raises_it(name):
    """10,500 random problems and steps in all: wild initial weights, λ from 1e-6 to 1e3."""
    opt, count = METHODS[name], 2500 if name != "ksd" else 500
    keys = jax.random.split(jax.random.key(7), count)
    scales = jnp.logspace(-1, 1.3, count, dtype=jnp.float32)

    def one(key, scale):
        params, batch = draw(key, scale)
        state = opt.init(params)
        damping = 10 ** jax.random.uniform(key, (), jnp.float32, -6.0, 3.0)
        state = state._replace(damping=jnp.where(state.damping == 0, 0, damping))
        moved, state, info = opt.step(params, state, batch)
        before = jnp.mean(B.nll(net(params, batch[0]), batch[1]))
        after = jnp.mean(B.nll(net(moved, batch[0]), batch[1]))
        return before, after, info.accepted

    before, after, accepted = jax.jit(jax.vmap(one))(keys, scales)
    assert np.all(np.isfinite(after))
    # The measured losses agree to rounding: a rise beyond it would be a lie.
    rise = np.asarray(after - before) / np.asarray(before)
    assert rise.max() <= 2e-6
    assert np.mean(accepted) > 0.9


def test_cobyla_never_raises_the_loss_either():
    params, batch = draw(jax.random.key(1))
    state = COBYLA.init(params)
    for _ in range(20):
        params, state, info = COBYLA.step(params, state, batch)
        assert info.new_loss <= info.loss


def spoil(batch, value):
    x, t = batch
    # A tanh swallows an infinite input; no loss swallows an infinite target.
    return x.at[3, 1].set(value), t.at[3, 1].set(value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", [*METHODS, "cobyla"])
def test_nan_is_refused_wherever_the_method_looks(name, value):
    opt = METHODS.get(name, COBYLA)
    params, batch = draw(jax.random.key(2))
    # Every batch is given apart, so that one compilation serves all cases.
    good = {"batch": batch, "metric_inputs": batch[0], "search_batch": batch, "ratio_batch": batch}
    params, state, info = opt.step(params, opt.init(params), **good)
    assert info.accepted
    bad = spoil(batch, value)
    looks = {
        "batch": True,
        "metric_inputs": opt.direction.needs_metric,
        "search_batch": opt.search.measures,
        "ratio_batch": opt.damping.needs_ratio,
    }
    for where, matters in looks.items():
        spoiled = good | {where: bad[0] if where == "metric_inputs" else bad}
        same, after, info = opt.step(params, state, **spoiled)
        if not matters:
            assert info.accepted, where
            continue
        assert not info.accepted, where
        assert "nonfinite" in ng.Outcome.name_of(info.outcome), where
        jax.tree.map(np.testing.assert_array_equal, same, params)
        floats = [leaf for leaf in jax.tree.leaves(after) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        assert all(np.all(np.isfinite(leaf)) for leaf in floats), where
        # What is not finite at θ itself is no fault of λ's; of the metric's numbers nobody can tell.
        suspect = where == "metric_inputs" and opt.damping.needs_ratio
        assert (after.damping > state.damping) if suspect else (after.damping == state.damping), where
        moved, _, info = opt.step(same, after, **good)
        assert info.accepted or ng.Outcome.name_of(info.outcome) == "no decrease", where
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(moved))


@pytest.mark.parametrize("name", METHODS)
def test_the_state_keeps_its_shape_and_one_compilation_serves(name, compilations):
    opt = METHODS[name]
    params, batch = draw(jax.random.key(4))
    state = opt.init(params)

    def spec(tree):
        return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", None)), tree)

    params, state, _ = opt.step(params, state, batch)
    before = spec((params, state))
    assert before == spec((draw(jax.random.key(4))[0], opt.init(params)))
    with compilations() as count:
        for _ in range(10):
            params, state, _ = opt.step(params, state, batch)
    assert count() == 0
    assert spec((params, state)) == before


def test_every_recipe_trains_with_its_defaults():
    params, batch = draw(jax.random.key(5))
    recipes = [
        ng.sgd,
        ng.natural_gradient,
        ng.natural_conjugate_gradient,
        ng.krylov_subspace_descent,
        ng.tonga,
    ]
    for recipe in recipes:
        opt = recipe(net, B)
        theta, state = params, opt.init(params)
        losses = []
        for _ in range(10):
            theta, state, _ = opt.step(theta, state, batch)
            losses.append(float(jnp.mean(B.nll(net(theta, batch[0]), batch[1]))))
        assert losses[-1] < losses[0], recipe.__name__
