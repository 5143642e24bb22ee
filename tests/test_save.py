"""The state of every recipe is saved by any tool, and training goes on from it to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from models import MODELS, targets_for

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

MODEL, PARAMS, X = MODELS["mlp"]
B = ng.Bernoulli()
T = targets_for(B, MODEL(PARAMS, X))
SOLVER = ng.CG(4)

RECIPES = {
    "sgd": ng.sgd(MODEL, B),
    "natural_gradient": ng.natural_gradient(MODEL, B, solver=SOLVER, metric=ng.MonteCarloFisher()),
    "NCG-L": ng.natural_conjugate_gradient(MODEL, B, direction=ng.Natural(SOLVER)),
    "NCG-F": ng.natural_conjugate_gradient(MODEL, B, direction=ng.Natural(SOLVER), beta=ng.PolakRibiere()),
    "kncg": ng.kncg(MODEL, B, average=None),
    "hessian_free": ng.hessian_free(MODEL, B, solver=ng.TruncatedCG(4)),
    "krylov_subspace_descent": ng.krylov_subspace_descent(MODEL, B, size=3),
    "tonga": ng.tonga(MODEL, B, direction=ng.directions.Tonga(2, 3, centered=True)),
    "averaged": ng.kncg(MODEL, B),
    "gauss_newton": ng.gauss_newton(MODEL, B, count=5),
}


def run(opt, params, state, steps=3):
    for _ in range(steps):
        params, state, info = opt.step(params, state, (X, T))
    return params, state, info


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


def with_orbax(values, path):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "state", values)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path / "state", jax.eval_shape(lambda: values))


def with_numpy(values, path):
    leaves, structure = jax.tree.flatten(values)
    np.savez(path / "state.npz", *leaves)
    with np.load(path / "state.npz", allow_pickle=False) as file:
        return jax.tree.unflatten(structure, [file[f"arr_{k}"] for k in range(len(leaves))])


@pytest.mark.parametrize("name", RECIPES)
def test_the_state_is_plain_finite_arrays_none_of_them_empty(name):
    opt = RECIPES[name]
    _, state, _ = run(opt, PARAMS, opt.init(PARAMS, jax.random.key(3)))
    for at in (opt.init(PARAMS), state):
        for path, leaf in jax.tree_util.tree_leaves_with_path(at):
            where = jax.tree_util.keystr(path)
            assert isinstance(leaf, jax.Array), where
            assert leaf.size, f"{where} is empty"
            assert not jnp.issubdtype(leaf.dtype, jax.dtypes.extended), where
            assert np.isfinite(np.asarray(leaf)).all(), where


@pytest.mark.parametrize("tool", [with_orbax, with_numpy])
@pytest.mark.parametrize("name", RECIPES)
def test_training_goes_on_to_the_bit(name, tool, tmp_path):
    opt = RECIPES[name]
    params, state, _ = run(opt, PARAMS, opt.init(PARAMS, jax.random.key(3)))
    saved = tool((params, state), tmp_path)
    same(saved, (params, state))
    same(run(opt, *saved)[:2], run(opt, params, state)[:2])


def loss(params):
    return jnp.mean(B.nll(MODEL(params, X), T))


TRANSFORMATIONS = {
    "natural_gradient": lambda model: ng.optax.natural_gradient(0.5, model, B, solver=SOLVER),
    "kncg": lambda model: ng.optax.kncg(model, B),
    "sgd": lambda model: ng.optax.from_optimizer(ng.sgd(model, B)),
    "tonga": lambda model: ng.optax.from_optimizer(
        ng.tonga(model, B, direction=ng.directions.Tonga(2, 3, centered=True))
    ),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_train_state_is_saved_and_goes_on(name, tmp_path):
    @jax.jit
    def step(state):
        gradient = jax.grad(loss)(state.params)
        updates, opt_state = state.tx.update(gradient, state.opt_state, state.params, inputs=X, value_fn=loss)
        params = optax.apply_updates(state.params, updates)
        return state.replace(step=state.step + 1, params=params, opt_state=opt_state)

    def steps(state, count):
        for _ in range(count):
            state = step(state)
        return state

    new = TrainState.create(apply_fn=None, params=PARAMS, tx=TRANSFORMATIONS[name](MODEL))
    state = steps(new.replace(step=jnp.zeros((), jnp.int32)), 2)
    saved = with_orbax(state, tmp_path)
    same(steps(saved, 2), steps(state, 2))
    assert loss(steps(saved, 2).params) < loss(PARAMS)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_an_nnx_optimizer_is_saved_and_goes_on(name, tmp_path):
    graph, start = nnx.split(nnx.Linear(3, 3, rngs=nnx.Rngs(0), param_dtype=jnp.float64))

    def model(params, x):
        return nnx.merge(graph, params)(x)

    def loss(params):
        return jnp.mean(B.nll(model(params, X), T))

    tx = TRANSFORMATIONS[name](model)

    def fresh():
        linear = nnx.merge(graph, jax.tree.map(jnp.copy, start))
        return linear, nnx.Optimizer(linear, tx, wrt=nnx.Param)

    def steps(linear, optimizer, count):
        for _ in range(count):
            gradient = jax.grad(loss)(nnx.state(linear, nnx.Param))
            optimizer.update(linear, gradient, inputs=X, value_fn=loss)
        return nnx.state((linear, optimizer))

    one = fresh()
    state = steps(*one, 2)
    saved = with_orbax(jax.tree.map(jnp.copy, state), tmp_path)
    other = fresh()
    nnx.update(other, saved)
    after = steps(*other, 2)
    same(jax.tree.leaves(after), jax.tree.leaves(steps(*one, 2)))
    assert loss(nnx.state(other[0], nnx.Param)) < loss(start)
