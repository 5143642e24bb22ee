"""The iterator over steps and the numbers for a logger."""

import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from models import MODELS, targets_for

import natgrad as ng

pytestmark = pytest.mark.usefixtures("fast_compile")

MODEL, PARAMS, X = MODELS["mlp"]
T = targets_for(ng.Bernoulli(), MODEL(PARAMS, X))
OPT = ng.natural_gradient(MODEL, ng.Bernoulli())


def test_the_loop_takes_the_same_steps_as_a_hand_written_one():
    batches = [(X, T), {"batch": (X, T), "metric_inputs": X[:4]}, (X, T)]
    seen = list(ng.loop(OPT, PARAMS, batches))
    params, state = PARAMS, OPT.init(PARAMS)
    for batch, kept in zip(batches, seen, strict=True):
        extra = {"metric_inputs": X[:4]} if isinstance(batch, dict) else {}
        params, state, info = OPT.step(params, state, (X, T), **extra)
        assert info.loss == kept[2].loss
    np.testing.assert_array_equal(seen[-1][0][0]["w"], params[0]["w"])
    resumed = list(ng.loop(OPT, seen[0][0], batches[1:], state=seen[0][1]))
    np.testing.assert_array_equal(resumed[-1][0][0]["w"], params[0]["w"])


def test_a_stateful_models_context_goes_from_step_to_step():
    opt = ng.sgd(ng.Stateful(lambda p, x, c: (MODEL(p, x), c + 1)), ng.Bernoulli())
    contexts = [info.context for *_, info in ng.loop(opt, PARAMS, [(X, T)] * 3, context=jnp.array(0.0))]
    assert contexts == [1.0, 2.0, 3.0]


def test_the_bar_counts_steps_and_shows_the_loss(capsys):
    last = list(ng.loop(OPT, PARAMS, [(X, T)] * 3, progress=True))[-1]
    shown = capsys.readouterr().out
    assert "3/3" in shown
    assert f"loss {float(last[2].loss):.4g}" in shown


def test_the_bar_asks_for_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with pytest.raises(ImportError, match="pip install rich"):
        next(ng.loop(OPT, PARAMS, [(X, T)], progress=True))


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
