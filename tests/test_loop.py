"""The iterator over steps and the numbers for a logger."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import MODELS, targets_for

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

MODEL, PARAMS, X = MODELS["mlp"]
T = targets_for(ng.Bernoulli(), MODEL(PARAMS, X))
OPT = ng.natural_gradient(MODEL, ng.Bernoulli())


def kept(values):
    return jax.tree.map(jnp.copy, values)


@pytest.mark.parametrize("opt", [OPT, ng.Averaged(OPT, decay=0.5)], ids=["plain", "averaged"])
def test_the_loop_takes_the_same_steps_as_a_hand_written_one(opt):
    batches = [(X, T), {"batch": (X, T), "metric_inputs": X[:4]}, (X, T)]
    seen = [kept(turn) for turn in ng.loop(opt, PARAMS, batches)]
    params, state = PARAMS, opt.init(PARAMS)
    for batch, turn in zip(batches, seen, strict=True):
        extra = {"metric_inputs": X[:4]} if isinstance(batch, dict) else {}
        params, state, info = opt.step(params, state, (X, T), **extra)
        np.testing.assert_allclose(info.loss, turn[2].loss, rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), seen[-1][:2], (params, state))
    resumed = [kept(turn) for turn in ng.loop(opt, seen[0][0], batches[1:], state=seen[0][1])]
    jax.tree.map(np.testing.assert_array_equal, resumed[-1][:2], seen[-1][:2])


def test_the_loop_gives_its_own_buffers_away_and_leaves_the_callers_alone():
    params, state = kept(PARAMS), OPT.init(PARAMS)
    turns = ng.loop(OPT, params, [(X, T)] * 2, state=state)
    first = next(turns)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((params, state)))
    second = next(turns)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first[0]))
    assert any(leaf.is_deleted() for leaf in jax.tree.leaves(first[1]))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(second))


def test_a_search_on_the_host_goes_through_the_loop():
    opt = ng.natural_conjugate_gradient(MODEL, ng.Bernoulli(), search=ng.Cobyla(maxprobes=8))
    for each in (opt, ng.Averaged(opt)):
        losses = [float(info.loss) for *_, info in ng.loop(each, PARAMS, [(X, T)] * 3)]
        assert losses[2] < losses[1] < losses[0]


def test_a_stateful_models_context_goes_from_step_to_step():
    opt = ng.sgd(ng.Stateful(lambda p, x, c: (MODEL(p, x), c + 1)), ng.Bernoulli())
    contexts = [info.context for *_, info in ng.loop(opt, PARAMS, [(X, T)] * 3, context=jnp.array(0.0))]
    assert contexts == [1.0, 2.0, 3.0]


def test_scalars_are_plain_floats_without_what_was_not_measured():
    (*_, info), *_ = ng.loop(OPT, PARAMS, [(X, T)])
    numbers = ng.scalars(info, prefix="train/")
    assert all(type(value) is float for value in numbers.values())
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert numbers["train/loss"] == float(info.loss)
    assert numbers["train/accepted"] == 1.0
    assert numbers["train/solver/iterations"] == float(info.solver.iterations)
    assert "train/context" not in numbers

    (*_, info), *_ = ng.loop(ng.sgd(MODEL, ng.Bernoulli()), PARAMS, [(X, T)])
    assert "rho" not in ng.scalars(info)
    plane = info._replace(step_size=jnp.array([1.0, 0.5]))
    assert ng.scalars(plane)["step_size/1"] == 0.5
