"""The numbers of parts are leaves: another one compiles nothing, and they can be mapped over and scheduled."""

import equinox as eqx
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


def pair(params, x):
    return MODEL(params, x), MODEL(params, x)


def natural(**options):
    return ng.natural_gradient(MODEL, B, **{"solver": ng.CG(5)} | options)


def rule(**options):
    return natural(damping=ng.LevenbergMarquardt(**options))


NUMBERS = {
    "floor": lambda a: ng.kncg(MODEL, B, preconditioner=ng.Jacobi(), floor=1e-4 * a, average=None),
    "bounds": lambda a: rule(bounds=(1e-3 * a, 1e3 * a)),
    "initial": lambda a: rule(initial=a),
    "thresholds": lambda a: rule(low=0.1 * a, high=0.5 * a, raise_by=1.5 * a, lower_by=0.3 * a),
    "stretch": lambda a: rule(stretch=2 * a),
    "l2": lambda a: natural(l2=0.1 * a),
    "least": lambda a: rule(least=0.1 * a),
    "shrink": lambda a: rule(least=0.1, shrink=0.5 * a),
    "weight_decay": lambda a: natural(weight_decay=0.1 * a),
    "reject": lambda a: natural(reject=-a),
    "max_norm": lambda a: natural(max_norm=a),
    "rate": lambda a: natural(learning_rate=0.1 * a),
    "rate of sgd": lambda a: ng.sgd(MODEL, B, learning_rate=0.1 * a),
    "constant": lambda a: natural(damping=ng.Constant(a)),
    "scale": lambda a: ng.natural_gradient(MODEL, ng.Gaussian(a), solver=ng.CG(5)),
    "weights of a product": lambda a: ng.natural_gradient(
        pair, ng.Product(B, ng.Gaussian(), weights=(a, 0.5)), solver=ng.CG(5)
    ),
    "rtol of CG": lambda a: natural(solver=ng.CG(5, 1e-3 * a)),
    "rtol of MINRES": lambda a: natural(solver=ng.MINRES(5, 1e-3 * a)),
    "rtol of MINRES-QLP": lambda a: natural(solver=ng.MinresQLP(5, 1e-3 * a)),
    "progress": lambda a: ng.hessian_free(MODEL, B, solver=ng.TruncatedCG(4, 1e-4 * a)),
    "warm start": lambda a: ng.hessian_free(MODEL, B, solver=ng.TruncatedCG(4), warm_start=0.5 * a),
    "exponent": lambda a: natural(preconditioner=ng.Diagonal(0.5 * a, floor=1e-4 * a)),
    "radius": lambda a: natural(search=ng.KLRadius(0.1 * a, a)),
    "first length": lambda a: natural(search=ng.LineSearch(initial=a)),
    "Armijo": lambda a: natural(search=ng.search.Armijo(1e-2 * a, 0.5 * a)),
    "Kronecker factors": lambda a: ng.kncg(
        MODEL, B, preconditioner=ng.Kronecker(decay=0.5 * a, uneven=200 * a), average=None
    ),
    "decay": lambda a: ng.tonga(MODEL, B, direction=ng.directions.Tonga(2, 3, decay=0.5 * a)),
    "floor of a Krylov basis": lambda a: ng.Optimizer(
        MODEL, B, ng.directions.Krylov(3, floor=1e-4 * a), ng.search.SubspaceBFGS(3)
    ),
    "ratio of many rows": lambda a: ng.gauss_newton(MODEL, B, count=5, ratio=0.1 * a),
    "floor and bend of many rows": lambda a: ng.Optimizer(
        MODEL, B, ng.directions.Fan(5, floor=1e-2 * a, bend=0.5 * a), ng.search.Pick()
    ),
    "momentum": lambda a: ng.Optimizer(
        MODEL, B, ng.directions.Spring(0.5 * a), ng.FixedRate(0.3), damping=ng.Constant(0.1)
    ),
    "structural damping": lambda a: natural(metric=ng.Fisher() + ng.StructuralDamping(MODEL, 0.1 * a)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_another_number_compiles_nothing(name, compilations):
    batch = (X, (T, T)) if name == "weights of a product" else (X, T)
    first, second = NUMBERS[name](1.0), NUMBERS[name](1.3)
    _, state, _ = first.step(PARAMS, first.init(PARAMS), batch)
    with compilations() as count:
        second.step(PARAMS, state, batch)
    assert count() == 0
    assert jax.tree.leaves(first) != jax.tree.leaves(second), "the number is no leaf"


def by_steps(opt, count=3):
    params, state = PARAMS, opt.init(PARAMS)
    for _ in range(count):
        params, state, info = opt.step(params, state, (X, T))
    return params, info


@pytest.mark.parametrize("name", ["floor", "constant", "l2", "rate", "reject", "scale", "bounds", "max_norm"])
def test_a_number_can_be_mapped_over(name):
    values = jnp.array([0.5, 1.0, 1.4])
    many, infos = jax.jit(jax.vmap(lambda a: by_steps(NUMBERS[name](a))))(values)
    for k, a in enumerate(values):
        one, info = by_steps(NUMBERS[name](float(a)))
        for own, wanted in zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True):
            np.testing.assert_allclose(own[k], wanted, rtol=1e-6, atol=1e-9)
        assert infos.outcome[k] == info.outcome


def test_a_part_is_a_tree_whatever_is_in_it():
    """Axes, specifications, None: a part holds what a transformation puts in the place of its numbers."""
    for make in (NUMBERS["floor"], NUMBERS["weights of a product"], NUMBERS["l2"]):
        opt = make(1.0)
        count = len(jax.tree.leaves(opt))
        for other in (0, True, "leaf", object(), jax.ShapeDtypeStruct((), jnp.float64)):
            again = jax.tree.map(lambda _, other=other: other, opt)
            assert jax.tree.structure(again) == jax.tree.structure(opt)
            assert jax.tree.leaves(again) == [other] * count
        mine, rest = eqx.partition(opt, eqx.is_inexact_array_like)
        assert jax.tree.leaves(eqx.combine(mine, rest)) == jax.tree.leaves(opt)

    opts = jax.tree.map(
        lambda *numbers: jnp.stack(numbers),
        *map(jax.tree.map, [jnp.asarray] * 2, map(NUMBERS["l2"], (0.5, 1.0))),
    )
    many, _ = jax.vmap(by_steps, in_axes=(jax.tree.map(lambda _: 0, opts),))(opts)
    for k, a in enumerate((0.5, 1.0)):
        one, _ = by_steps(NUMBERS["l2"](a))
        jax.tree.map(
            lambda own, wanted, k=k: np.testing.assert_allclose(own[k], wanted, rtol=1e-6), many, one
        )


def test_a_floor_can_be_scheduled_inside_a_scan():
    """λ obeys the floor of its own step, not of the last."""
    floors = jnp.array([1e-4, 0.5, 0.01, 0.2, 3.0])

    def step(carry, floor):
        opt = ng.kncg(MODEL, B, preconditioner=ng.Jacobi(), floor=floor, average=None)
        params, state, info = opt.step(*carry, (X, T))
        return (params, state), info.damping

    start = ng.kncg(MODEL, B, preconditioner=ng.Jacobi(), average=None)
    _, damping = jax.lax.scan(step, (PARAMS, start.init(PARAMS)), floors)
    assert (damping >= floors).all()
    assert damping[1] == 0.5
    assert damping[4] == 3.0


def test_a_constant_speaks_at_once():
    """Whatever λ the state brings along."""
    one, other = (natural(damping=ng.Constant(a)) for a in (1.0, 2.0))
    _, _, info = other.step(PARAMS, one.init(PARAMS), (X, T))
    assert info.damping == 2.0


def test_what_is_traced_is_not_refused_and_what_is_known_is():
    """Nobody can tell whether a traced number is negative; a number is refused as ever."""
    assert jax.jit(lambda a: ng.Constant(a).init(jnp.float32))(-1.0) == -1.0
    for bad in (-1.0, np.float32(-1.0), jnp.asarray(-1.0)):
        with pytest.raises(ValueError, match="cannot be negative"):
            ng.Constant(bad)
        with pytest.raises(ValueError, match="a penalty cannot be negative"):
            ng.sgd(MODEL, B, l2=bad)
