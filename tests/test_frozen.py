"""Frozen parameters: bit-identical after any step, and no part of the metric."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.flatten_util import ravel_pytree
from models import MODELS, targets_for

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

MODEL, PARAMS, X = MODELS["mlp"]
T = targets_for(ng.Bernoulli(), MODEL(PARAMS, X))


def only_last(path, leaf):
    return path.startswith("1/")


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def same_bits(new, old):
    for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("trainable", [only_last, [False, True], [{"w": False, "b": False}, True]])
def test_the_step_is_the_natural_gradient_of_the_trained_block(trainable):
    opt = ng.natural_gradient(
        MODEL,
        ng.Bernoulli(),
        solver=ng.CG(maxiter=60, rtol=1e-12),
        damping=ng.Constant(0.1),
        trainable=trainable,
    )
    new, _, _ = opt.step(PARAMS, opt.init(PARAMS), (X, T))
    same_bits(new[0], PARAMS[0])
    J = oracles.jacobians(MODEL, PARAMS, X)
    F = oracles.metric(J, [oracles.bernoulli_matrix(np.asarray(r)) for r in MODEL(PARAMS, X)])
    g = flat(jax.grad(lambda p: jnp.mean(ng.Bernoulli().nll(MODEL(p, X), T)))(PARAMS))
    own = slice(flat(PARAMS[0]).size, None)
    expected = -oracles.solve(F[own, own], g[own], 0.1)
    np.testing.assert_allclose(flat(new[1]) - flat(PARAMS[1]), expected, rtol=1e-7)


RECIPES = {
    "sgd": ng.sgd,
    "natural gradient": ng.natural_gradient,
    "conjugate, on the host": lambda *a, **k: ng.natural_conjugate_gradient(*a, search=ng.Cobyla(), **k),
    "hessian-free": ng.hessian_free,
    "krylov": lambda *a, **k: ng.krylov_subspace_descent(*a, size=3, **k),
    "tonga": ng.tonga,
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_recipe_leaves_the_frozen_leaves_alone(recipe):
    """An integer table and a constant are frozen; the others move and the loss falls."""
    params = {"own": PARAMS, "order": jnp.array([2, 0, 1]), "scale": jnp.array([1.0, 0.5, 2.0])}

    def model(params, x):
        return MODEL(params["own"], x[:, params["order"]]) * params["scale"]

    opt = recipe(model, ng.Bernoulli(), trainable={"own": True, "order": False, "scale": False})
    state, new = opt.init(params), params
    for _ in range(2):
        new, state, info = opt.step(new, state, (X, T))
    same_bits((new["order"], new["scale"]), (params["order"], params["scale"]))
    assert bool(info.accepted)
    assert (flat(new["own"]) != flat(params["own"])).all()


def test_structural_damping_context_and_chunks_see_whole_parameters():
    def hidden(params, x, c):
        return c * (x @ params[0]["w"] + params[0]["b"])

    def model(params, x, c):
        return MODEL(params, x), c + 1

    def step(microbatch):
        opt = ng.natural_gradient(
            ng.Stateful(model),
            ng.Bernoulli(),
            metric=ng.Fisher() + ng.StructuralDamping(hidden, 0.5),
            microbatch=microbatch,
            trainable=lambda path, leaf: path == "0/w",
        )
        return opt.step(PARAMS, opt.init(PARAMS), (X, T), context=jnp.array(3.0))

    whole, _, info = step(None)
    chunked, _, _ = step(3)
    assert info.context == 4.0
    np.testing.assert_allclose(flat(whole), flat(chunked), rtol=1e-6)
    same_bits((whole[0]["b"], whole[1]), (PARAMS[0]["b"], PARAMS[1]))


def test_a_given_gradient_may_cover_all_parameters_and_the_step_can_be_jitted():
    opt = ng.natural_gradient(MODEL, ng.Bernoulli(), trainable=only_last)
    g = jax.grad(lambda p: jnp.mean(ng.Bernoulli().nll(MODEL(p, X), T)))(PARAMS)
    state = opt.init(PARAMS)
    own, _, _ = opt.step(PARAMS, state, (X, T))
    given, _, _ = jax.jit(lambda p, s, g: opt.step(p, s, (X, T), gradient=g))(PARAMS, state, g)
    np.testing.assert_allclose(flat(own), flat(given), rtol=1e-7)
    same_bits(given[0], PARAMS[0])


def test_an_optimizer_with_a_mask_is_static():
    def build():
        return ng.natural_gradient(MODEL, ng.Bernoulli(), trainable=[False, True])

    assert build() == build()
    assert hash(build()) == hash(build())


def test_refusals():
    with pytest.raises(TypeError, match="tree of True and False"):
        ng.sgd(MODEL, ng.Bernoulli(), trainable=[1.0])
    with pytest.raises(ValueError, match="chose no parameter"):
        ng.sgd(MODEL, ng.Bernoulli(), trainable=lambda path, leaf: False).init(PARAMS)
    with pytest.raises(TypeError, match=r"params\['act'\] is function: a frozen leaf must be an array"):
        ng.sgd(MODEL, ng.Bernoulli(), trainable={"w": True, "act": False}).init(
            {"w": jnp.ones(2), "act": same_bits}
        )
    with pytest.raises(TypeError, match="every leaf must be a floating array"):
        ng.sgd(MODEL, ng.Bernoulli(), trainable={"i": True}).init({"i": jnp.arange(3)})
