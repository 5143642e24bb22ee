"""What CONTRIBUTING promises: a method with constants is one place, an experiment is one file."""

import json
import sys
from dataclasses import replace

import pytest

import natgrad as ng
from figures.runs import invoke
from natgrad_paper import figures
from natgrad_paper.figures import curves
from natgrad_paper.figures.base import settings_with
from natgrad_paper.figures.curves.problem import Settings
from natgrad_paper.training.batches import Batches, Minibatch
from natgrad_paper.training.problem import Method
from natgrad_paper.training.settings import Count, Positive, Section

pytestmark = pytest.mark.usefixtures("fast_compile")


# The one place: what stands here would stand in figures/curves/methods.py, and the method in METHODS.
class Bounded(Section):
    """Natural gradient whose steps change the model by a bounded KL."""

    batch: Count = 40
    radius: Positive = 0.1
    """The KL of a step."""
    maxiter: Count = 5
    """Solver iterations at most."""


BOUNDED = Method(
    "ngd-kl", "NGD, KL radius", "#AA4466",
    lambda problem, own: ng.natural_gradient(
        problem.model, problem.likelihood, search=ng.KLRadius(own.bounded.radius), solver=ng.CG(own.bounded.maxiter)
    ),
    lambda own: Batches(Minibatch(own.bounded.batch)), Bounded, "bounded", about="steps of a bounded KL",
)  # fmt: skip


@pytest.fixture
def _added(monkeypatch):
    methods = (*curves.METHODS, BOUNDED)
    changed = replace(curves.EXPERIMENT, methods=methods, settings=settings_with(Settings, methods))
    monkeypatch.setattr(curves, "EXPERIMENT", changed)


@pytest.mark.usefixtures("_added")
def test_a_method_with_three_constants_is_one_place(tmp_path):
    out = tmp_path / "run"
    arguments = ("--preset", "smoke", "--methods", "sgd,ngd-kl", "--set", "bounded.radius=0.2", "--out", out)
    result = invoke("run", "curves", *arguments)
    assert result.exit_code == 0, result.output
    header = json.loads((out / "logs" / "ngd-kl.0.jsonl").read_text().splitlines()[0])
    assert header["settings"]["bounded"] == {"batch": 40, "radius": 0.2, "maxiter": 5}
    # Nobody else's log knows of it: its constants are no part of what other runs are.
    others = json.loads((out / "logs" / "sgd.0.jsonl").read_text().splitlines()[0])
    assert "bounded" not in others["settings"]
    assert "NGD, KL radius" in (out / "report.html").read_text()
    shown = invoke("show", "curves", "smoke")
    assert "bounded.radius" in shown.output
    assert "The KL of a step" in " ".join(shown.output.split())


@pytest.mark.usefixtures("_added")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("bounded.radius=-1", "--set: bounded.radius: expected"),
        ("bounded.radios=1", "bounded.radios: expected 'radius', found"),
        ("bounded.batch=300", "bounded: expected batches of at most 200 training cases, found 300"),
    ],
)
def test_its_mistakes_are_one_line(tmp_path, change, words):
    out = tmp_path / "out"
    result = invoke(
        "run", "curves", "--preset", "smoke", "--methods", "ngd-kl", "--set", change, "--out", out
    )
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    assert words in result.output
    assert not out.exists()


SINE = '''
"""Fitting a sine: the smallest experiment."""

import hashlib

import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad_paper.figures.base import Experiment, settings_with
from natgrad_paper.report.story import Story
from natgrad_paper.training.batches import Batches, FullBatch
from natgrad_paper.training.problem import Budget, Method, Problem
from natgrad_paper.training.settings import Count, Positive, Section


class Settings(Section):
    """The settings of the sine."""

    budget: Budget = Budget(iterations=20)
    points: Count = 100


class Sgd(Section):
    """Gradient descent."""

    rate: Positive = 0.01


def init(seed):
    """Return the initial weights."""
    weights = np.random.default_rng(seed).normal(size=(2, 8)).astype(np.float32)
    return {"in": jnp.asarray(weights[:1]), "bias": jnp.zeros(8, jnp.float32), "out": jnp.asarray(weights[1:].T)}


def model(params, inputs):
    """Return the outputs: eight hidden units."""
    return jnp.tanh(inputs @ params["in"] + params["bias"]) @ params["out"]


def errors(params, inputs, targets):
    """Return each case's error, for the figure."""
    return {"squared_error": jnp.sum((model(params, inputs) - targets) ** 2, axis=-1)}


def prepare(settings, path):
    """Return the problem; there is no file of the user's to read."""
    x = np.linspace(-3, 3, settings.points, dtype=np.float32)[:, None]
    data = {"name": "Sine", "sha256": hashlib.sha256(x.tobytes()).hexdigest(), "train": list(x.shape)}
    return Problem(model, ng.Gaussian(), init, errors, data, train=(x, np.sin(x)))


METHODS = (
    Method(
        "sgd", "SGD", "#000000",
        lambda problem, own: ng.sgd(problem.model, problem.likelihood, learning_rate=own.sgd.rate),
        lambda own: Batches(FullBatch()), Sgd,
    ),
    Method(
        "ngd", "NGD", "#0072B2", lambda problem, own: ng.natural_gradient(problem.model, problem.likelihood),
        lambda own: Batches(FullBatch()),
    ),
)
EXPERIMENT = Experiment(
    "sine", "A sine", settings_with(Settings, METHODS), METHODS, prepare, ("sgd", "ngd"), Story("A sine")
)
'''  # fmt: skip


def test_an_experiment_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "sine.py").write_text(SINE.lstrip())
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "natgrad_paper.figures.sine", raising=False)
    assert "sine" in figures.names()
    out = tmp_path / "run"
    result = invoke("run", "sine", "--seeds", "3", "--set", "sgd.rate=0.02", "--out", out)
    assert result.exit_code == 0, result.output
    text = (out / "report.html").read_text()
    assert "Sine, 100 training cases" in text
    assert invoke("report", out).exit_code == 0
    assert "sine" in invoke("list").output
    assert "sgd.rate" in invoke("show", "sine").output
    del sys.modules["natgrad_paper.figures.sine"]
