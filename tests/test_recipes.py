"""Recipes list every argument by name, and hand each to the place of that name."""

import inspect
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import MODELS, targets_for

import natgrad as ng

MODEL, PARAMS, X = MODELS["mlp"]
COMMON = {
    "objective": lambda outputs, targets: jnp.sum(outputs, axis=-1),
    "l2": 0.1,
    "weight_decay": 0.2,
    "microbatch": 3,
    "reject": 0.3,
    "max_norm": 0.4,
    "trainable": lambda path, leaf: "w" in path,
    "decayed": lambda path, leaf: "b" in path,
    "has_aux": True,
}
RECIPES = {
    "sgd": {"damping"},
    "natural_gradient": {"metric", "damping"},
    "natural_conjugate_gradient": {"metric", "damping"},
    "kncg": {"metric", "damping"},
    "gauss_newton": {"metric"},
    "hessian_free": {"metric", "damping"},
    "krylov_subspace_descent": {"metric"},
    "tonga": {"damping"},
}
PARTS = {"metric": ng.MonteCarloFisher(3), "damping": ng.Constant(7.0)}


@pytest.mark.parametrize("name", RECIPES)
def test_every_argument_is_named_and_reaches_its_place(name):
    recipe, parts = getattr(ng, name), RECIPES[name]
    parameters = inspect.signature(recipe).parameters
    assert list(parameters)[:2] == ["model", "likelihood"]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[2:] if p.name != "unknown")
    assert [p for p in parameters if p in PARTS] == [p for p in PARTS if p in parts]
    assert all(f"{word}:" in recipe.__doc__ or f"{word}," in recipe.__doc__ for word in parameters)
    given = COMMON | {part: PARTS[part] for part in parts}
    opt = recipe(MODEL, ng.Bernoulli(), **given)
    opt = opt.optimizer if isinstance(opt, ng.Averaged) else opt
    for field, value in given.items():
        assert getattr(opt, field) == value, field


def test_the_recommended_call_is_the_default_call():
    """Averaged, and of a large batch only a part serves the metric and ρ."""
    opt = ng.kncg(MODEL, ng.Bernoulli())
    assert (opt.decay, opt.optimizer.probe) == (0.99, 512)
    assert ng.kncg(MODEL, ng.Bernoulli(), average=None, probe=100) == replace(opt.optimizer, probe=100)


def test_what_a_recipe_does_not_take_is_a_type_error():
    for name in set(RECIPES) - {"kncg"}:
        assert all(
            p.kind is not p.VAR_KEYWORD for p in inspect.signature(getattr(ng, name)).parameters.values()
        )
    with pytest.raises(TypeError, match=r"krylov_subspace_descent\(\) got an unexpected .* 'damping'"):
        ng.krylov_subspace_descent(MODEL, ng.Bernoulli(), damping=ng.Constant(1.0))
    with pytest.raises(TypeError, match=r"kncg\(\) got an unexpected keyword argument 'flor'"):
        ng.kncg(MODEL, ng.Bernoulli(), flor=1e-3)
    with pytest.raises(TypeError, match="positional"):
        ng.natural_gradient(MODEL, ng.Bernoulli(), 0.1)


@pytest.mark.parametrize("word", ["learning_rate", "lr"])
def test_the_recipe_without_a_rate_says_what_to_do_instead(word):
    with pytest.raises(TypeError, match=r"ng.kncg has no learning rate: .*floor=.*max_norm=") as caught:
        ng.kncg(MODEL, ng.Bernoulli(), **{word: 0.1})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("place", [ng, ng.optax], ids=["ng", "optax"])
def test_the_old_name_warns_and_makes_the_same_step(place):
    name = place.__name__.replace("natgrad", "ng")
    said = rf"^{name}\.fast is now called {name}\.kncg: natgrad 0\.3 drops the old name\.$"
    with pytest.warns(DeprecationWarning, match=said) as caught:
        old = place.fast(MODEL, ng.Bernoulli(), preconditioner=ng.Jacobi(), floor=0.01)
    assert [warning.filename for warning in caught] == [__file__]
    assert "fast" not in dir(place)
    plain = {"average": None} if place is ng else {}
    new = place.kncg(MODEL, ng.Bernoulli(), preconditioner=ng.Jacobi(), floor=0.01, **plain)
    targets = targets_for(ng.Bernoulli(), MODEL(PARAMS, X), 1)

    def step(opt):
        if place is ng:
            return opt.step(PARAMS, opt.init(PARAMS), (X, targets))

        def loss(params, inputs, targets):
            return jnp.mean(ng.Bernoulli().nll(MODEL(params, inputs), targets))

        value, gradient = jax.value_and_grad(loss)(PARAMS, X, targets)
        extra = {"inputs": X, "targets": targets, "value": value, "value_fn": loss}
        return opt.update(gradient, opt.init(PARAMS), PARAMS, **extra)

    jax.tree.map(np.testing.assert_array_equal, step(old), step(new))
    with pytest.raises(AttributeError, match=rf"module '{place.__name__}' has no attribute 'fastest'"):
        place.fastest  # noqa: B018


def test_the_first_damping_is_no_less_than_the_floor():
    assert ng.kncg(MODEL, ng.Bernoulli()).optimizer.damping.initial == 3e-3
    assert ng.kncg(MODEL, ng.Bernoulli(), floor=0.01).optimizer.damping.initial == 0.01
    traced = jax.jit(lambda floor: ng.kncg(MODEL, ng.Bernoulli(), floor=floor).optimizer.damping.initial)
    assert traced(0.01) == 0.01
    assert traced(1e-5) == 3e-3
