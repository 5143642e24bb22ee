"""What a model returns beside its outputs, and weights that decay beside the step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import MODELS, targets_for

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

MODEL, PARAMS, X = MODELS["mlp"]
B = ng.Bernoulli()
T = targets_for(B, MODEL(PARAMS, X))
SOLVER = ng.CG(4)


def talkative(params, x):
    return MODEL(params, x), {"mean": jnp.mean(x), "count": jnp.asarray(x.shape[0])}


def natural(model, **options):
    return ng.natural_gradient(model, B, solver=SOLVER, **options)


def step(opt, **extra):
    return opt.step(PARAMS, opt.init(PARAMS), (X, T), **extra)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("microbatch", [None, 7, 3])
def test_aux_is_shown_and_changes_nothing(microbatch):
    after, _, info = step(natural(talkative, has_aux=True, microbatch=microbatch))
    plain, _, silent = step(natural(MODEL, microbatch=microbatch))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), after, plain)
    assert silent.aux is None
    if microbatch == 3:  # The mean over the chunks; of what cannot be averaged, the last.
        assert np.isfinite(info.aux["mean"])
        assert info.aux["count"] <= 3
    else:
        np.testing.assert_allclose(info.aux["mean"], jnp.mean(X))
        assert info.aux["count"] == 7


@pytest.mark.parametrize("microbatch", [None, 3])
def test_a_stateful_model_returns_outputs_context_and_aux(microbatch):
    def model(params, x, context):
        return MODEL(params, x), context + 1, jnp.sum(jnp.ones(2))

    opt = natural(ng.Stateful(model), has_aux=True, microbatch=microbatch)
    _, _, info = step(opt, context=jnp.array(3.0))
    assert info.context == 4.0
    assert info.aux == 2.0


def test_aux_goes_through_searches_other_batches_loops_and_checks():
    opt = natural(talkative, has_aux=True, search=ng.LineSearch())
    _, _, info = jax.jit(opt.step)(
        PARAMS, opt.init(PARAMS), (X, T), metric_inputs=X[:4], search_batch=(X[:5], T[:5])
    )
    assert info.aux["count"] == 7
    (*_, info), *_ = ng.loop(opt, PARAMS, [(X, T)])
    assert info.aux["count"] == 7
    assert not any("aux" in name for name in ng.scalars(info))
    assert ng.check(talkative, B, PARAMS, (X, T), has_aux=True)
    assert ng.metric_product(talkative, B, PARAMS, X, has_aux=True).quadratic(PARAMS) > 0


def test_a_model_that_returns_something_else_is_named():
    with pytest.raises(ValueError, match=r"must return a tuple \(outputs, aux\)"):
        step(natural(MODEL, has_aux=True))
    with pytest.raises(ValueError, match=r"must return a tuple \(outputs, context, aux\)"):
        step(natural(ng.Stateful(lambda p, x, c: (MODEL(p, x), c)), has_aux=True), context=jnp.ones(()))
    with pytest.raises(ValueError, match=r"must return a tuple \(outputs, context\)"):
        step(natural(ng.Stateful(lambda p, x, c: MODEL(p, x))), context=jnp.ones(()))


@pytest.mark.parametrize(
    "decayed", [None, lambda path, leaf: path.endswith("w"), [{"w": True, "b": False}] * 2]
)
def test_weights_decay_beside_the_step(decayed):
    plain, state, info = step(natural(MODEL))
    after, new_state, new_info = step(natural(MODEL, weight_decay=0.1, decayed=decayed))
    for old, moved, found in zip(PARAMS, plain, after, strict=True):
        np.testing.assert_allclose(found["w"], moved["w"] - 0.1 * old["w"], rtol=1e-12)
        factor = 0.1 if decayed is None else 0.0
        np.testing.assert_allclose(found["b"], moved["b"] - factor * old["b"], rtol=1e-12)
    # λ, ρ and the state know the step alone.
    np.testing.assert_allclose(new_info.rho, info.rho, rtol=1e-9)
    np.testing.assert_allclose(new_state.damping, state.damping)


def test_a_refused_step_decays_nothing():
    for opt in (natural(MODEL, weight_decay=0.1, reject=1e9), natural(MODEL, weight_decay=0.1)):
        bad = T if opt.reject is not None else T.at[0, 0].set(jnp.nan)
        after, _, info = opt.step(PARAMS, opt.init(PARAMS), (X, bad))
        assert not info.accepted
        same(after, PARAMS)


def test_what_is_frozen_does_not_decay():
    def first(path, leaf):
        return path.startswith("0")

    after, _, _ = step(natural(MODEL, weight_decay=0.1, trainable=first))
    same(after[1], PARAMS[1])
    plain, _, _ = step(natural(MODEL, trainable=first))
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(a, b - 0.1 * c, rtol=1e-12), after[0], plain[0], PARAMS[0]
    )


def test_decay_keeps_half_precision():
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    opt = ng.sgd(MODEL, B, weight_decay=0.1)
    after, _, _ = opt.step(half, opt.init(half), (X.astype(jnp.bfloat16), T.astype(jnp.bfloat16)))
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {jnp.dtype(jnp.bfloat16)}


class Callable_(dict):
    """A tree of booleans that can be called, as a module of Equinox can."""

    def __call__(self, x):
        return x


jax.tree_util.register_pytree_with_keys(
    Callable_,
    lambda d: ([(jax.tree_util.DictKey(key), d[key]) for key in sorted(d)], tuple(sorted(d))),
    lambda keys, leaves: Callable_(zip(keys, leaves, strict=True)),
)


def test_a_mask_may_be_callable():
    from natgrad import frozen

    mask = frozen.predicate("trainable", Callable_(a=True, b=False))
    assert mask((jax.tree_util.DictKey("a"),), None)
    assert not mask((jax.tree_util.DictKey("b"),), None)


def test_bad_decays_are_named():
    with pytest.raises(ValueError, match=r"weight_decay=1.5: give a part of the weights"):
        natural(MODEL, weight_decay=1.5)
    with pytest.raises(TypeError, match="decayed must be a function"):
        natural(MODEL, weight_decay=0.1, decayed=[1.0])
