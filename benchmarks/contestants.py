"""Who races on what: the problems of `race.py`, its contestants, and the process in which one of them runs.

A contestant runs in a process of its own, which may be another environment's (kfac-jax needs an older JAX). It trains
for a slice, reports, and waits for the word to go on, so that slices of all contestants alternate.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad_paper import experiments, first_order
from natgrad_paper.batches import Batches, Growing, Minibatch, Part, Whole
from natgrad_paper.config import load
from natgrad_paper.experiment import Budget, Method, Problem
from natgrad_paper.models import sparse_init
from natgrad_paper.train import Trainer

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import recurrent


@dataclass(frozen=True)
class Course:
    """A problem, and the levels of training error that count."""

    title: str
    prepare: Callable[[], Problem]
    error: str
    levels: tuple[float, ...]


@dataclass(frozen=True)
class Contestant:
    """An optimizer with its settings on each course, and what tuning tries around them there."""

    title: str
    color: str
    build: Callable[[Problem, dict[str, Any]], Any]
    batches: Callable[[dict[str, Any]], Batches]
    settings: dict[str, dict[str, Any]]
    grids: dict[str, dict[str, tuple[Any, ...]]]
    steps_per_call: int = 1
    on_host: bool = False


@dataclass(frozen=True)
class Slices(Budget):
    """Seconds of training, looked at after every slice."""

    slice: float = 5.0

    def marks(self) -> np.ndarray:
        """Return the ends of the slices."""
        return np.append(np.arange(self.slice, self.limit, self.slice), self.limit)


@dataclass(frozen=True)
class Settings:
    """What a trainer asks of an experiment's numbers."""

    budget: Budget
    evaluation_chunk: int = 1000


def curves() -> Problem:
    """Return the paper's autoencoder on 20,000 curves."""
    experiment = experiments.load("curves")
    config = load(experiment.config, experiment.presets()["medium"])
    return dataclasses.replace(experiment.prepare(config, None), test=None)


def characters() -> Problem:
    """Return a classifier of 62 kinds of deformed characters, 1024-500-250-62, on 20,000 of them."""
    from natgrad_paper.data import characters, glyphs

    source = characters.source(glyphs.embedded())
    images, labels = [], []
    draw = jax.jit(lambda indices: characters.draw(source, characters.stream(0), indices))
    for block in np.arange(20_000, dtype=np.uint32).reshape(-1, 1000):
        picture, label = draw(block)
        images.append(np.asarray(picture, np.float32).reshape(len(block), -1))
        labels.append(np.asarray(label))
    train = (np.concatenate(images), np.concatenate(labels))

    def model(params: Any, inputs: jax.Array) -> jax.Array:
        for layer in params[:-1]:
            inputs = jnp.tanh(inputs @ layer["weights"] + layer["biases"])
        return inputs @ params[-1]["weights"] + params[-1]["biases"]

    likelihood = ng.Categorical()

    def errors(params: Any, inputs: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
        return {"nll": likelihood.nll(model(params, inputs), targets)}

    def init(seed: int) -> Any:
        return jax.tree.map(lambda leaf: leaf * 0.5, sparse_init((1024, 500, 250, 62), seed))

    return Problem(model, likelihood, init, errors, train, None, {"name": "characters", "sha256": ""})


def addition() -> Problem:
    """Return the addition task over 20 ticks, 20,000 sequences."""
    train = jax.device_get(recurrent.draw(jax.random.key(0), 20_000, 20))

    def errors(params: Any, inputs: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
        return {"squared_error": jnp.sum((recurrent.model(params, inputs) - targets) ** 2, axis=-1)}

    return Problem(
        recurrent.model,
        ng.Gaussian(),
        recurrent.init,
        errors,
        train,
        None,
        {"name": "addition", "sha256": ""},
    )


COURSES = {
    "curves": Course("Curves autoencoder", curves, "squared_error", (1.0, 0.5, 0.3)),
    "characters": Course("62 characters, classified", characters, "nll", (0.5, 0.1, 0.01)),
    "addition": Course(
        "recurrent net, addition over 20 ticks", addition, "squared_error", (0.01, 0.001, 0.0003)
    ),
}


def natural(problem: Problem, settings: dict[str, Any]) -> ng.Optimizer:
    """Return the recipe to try first."""
    return ng.fast(problem.model, problem.likelihood, floor=settings["floor"])


def averaged(problem: Problem, settings: dict[str, Any]) -> ng.Averaged:
    """Return it judged by an average of its parameters."""
    return ng.Averaged(natural(problem, settings), settings["average"])


def minibatches(settings: dict[str, Any]) -> Batches:
    """Return batches of one size."""
    return Batches(Minibatch(settings["batch"]))


def growing(settings: dict[str, Any]) -> Batches:
    """Return batches that grow; metric and ρ on a part of them."""
    part = Part(settings["part"])
    return Batches(Growing(settings["first"], settings["batch"], 150), metric=part, ratio=part)


def hessian_free(problem: Problem, settings: dict[str, Any]) -> ng.Optimizer:
    """Return Hessian-Free on minibatches."""
    return ng.hessian_free(
        problem.model,
        problem.likelihood,
        solver=ng.TruncatedCG(settings["maxiter"]),
        preconditioner=ng.Identity(),
        damping=ng.LevenbergMarquardt(settings["damping"]),
    )


def kfac(problem: Problem, settings: dict[str, Any]) -> Any:
    """Return kfac-jax, where it is installed."""
    import kfac_contestant

    return kfac_contestant.build(problem, settings)


def same(**settings: Any) -> dict[str, dict[str, Any]]:
    """Return the same settings for every course."""
    return dict.fromkeys(COURSES, settings)


OURS = {
    "curves": {"first": 500, "batch": 1000, "part": 125, "floor": 1e-4},
    "characters": {"first": 1000, "batch": 1000, "part": 125, "floor": 3e-4},
    "addition": {"first": 125, "batch": 1000, "part": 250, "floor": 1e-5},
}

CONTESTANTS = {
    "ncg-kron": Contestant(
        "natgrad.fast, averaged", "#D95F02", averaged, growing,
        {course: {**settings, "average": 0.98} for course, settings in OURS.items()},
        same(first=(125, 500, 1000), part=(125, 250)),
    ),
    "ncg-plain": Contestant("natgrad.fast", "#FDB863", natural, growing, OURS, same(floor=(1e-5, 1e-4, 3e-4, 1e-3))),
    "hf": Contestant(
        "Hessian-Free", "#8C510A", hessian_free, minibatches,
        {
            "curves": {"batch": 1000, "maxiter": 20, "damping": 0.1},
            "characters": {"batch": 1000, "maxiter": 10, "damping": 0.1},
            "addition": {"batch": 1000, "maxiter": 30, "damping": 0.1},
        },
        same(maxiter=(10, 30), batch=(1000, 4000)),
    ),
    "adam": Contestant(
        "Adam", "#E41A1C", lambda p, s: first_order.adam(p, s["rate"]), minibatches,
        {
            "curves": {"rate": 3e-3, "batch": 200},
            "characters": {"rate": 3e-3, "batch": 500},
            "addition": {"rate": 1e-3, "batch": 50},
        },
        {
            "curves": {"rate": (1e-3, 3e-3, 1e-2), "batch": (100, 200, 500, 1000)},
            "characters": {"rate": (1e-3, 3e-3, 1e-2), "batch": (100, 500)},
            "addition": {"rate": (5e-4, 1e-3, 3e-3), "batch": (25, 50, 100)},
        },
        steps_per_call=20,
    ),
    "nesterov": Contestant(
        "Nesterov", "#BF812D", lambda p, s: first_order.nesterov(p, s["rate"], s["momentum"]), minibatches,
        {
            "curves": {"rate": 0.008, "momentum": 0.999, "batch": 100},
            "characters": {"rate": 0.3, "momentum": 0.9, "batch": 300},
            "addition": {"rate": 0.02, "momentum": 0.98, "batch": 50},
        },
        {
            "curves": {"rate": (0.004, 0.008, 0.016, 0.032), "batch": (50, 100, 200, 500)},
            "characters": {"rate": (0.1, 0.2, 0.3), "momentum": (0.9, 0.95), "batch": (100, 200, 300)},
            "addition": {"rate": (0.01, 0.02, 0.03), "momentum": (0.95, 0.98, 0.99), "batch": (50, 100)},
        },
        steps_per_call=20,
    ),
    "lbfgs": Contestant(
        "L-BFGS", "#7F7F7F", lambda p, s: first_order.lbfgs(p, s["memory"]), lambda s: Batches(Whole()),
        same(memory=10), same(memory=(10, 30)),
    ),
    # No settings for the recurrent net: kfac-jax finds no layers inside a scan, and refuses.
    "kfac": Contestant(
        "kfac-jax", "#1B9E77", kfac, minibatches,
        {
            "curves": {"batch": 1000, "damping": 150.0, "floor": 1e-4},
            "characters": {"batch": 1000, "damping": 0.001, "floor": 1e-6},
        },
        {
            "curves": {"damping": (150.0, 10.0, 1.0), "floor": (1e-5, 1e-4)},
            "characters": {"damping": (0.1, 0.01, 0.001), "floor": (1e-6, 1e-5)},
        },
        on_host=True,
    ),
}  # fmt: skip


def race(
    course: str, contestant: str, settings: dict[str, Any], seed: int, seconds: float, slice_: float
) -> None:
    """Train in slices: report each on a line, and wait for a line before the next."""
    who, where = CONTESTANTS[contestant], COURSES[course]
    problem = where.prepare()
    method = Method(
        contestant, who.title, who.color, lambda p, _: who.build(p, settings), lambda _: who.batches(settings),
        steps_per_call=lambda _: who.steps_per_call, on_host=who.on_host,
    )  # fmt: skip
    trainer = Trainer(problem, method, Settings(Slices(seconds=seconds, slice=slice_)))
    for event in trainer.run(seed):
        if event.errors is None:
            continue
        at = event.position
        report = {"seconds": at.training_seconds, "iteration": at.iteration, "compile": at.compile_seconds}
        print(json.dumps({**report, "error": event.errors[where.error], "ended": event.ended}), flush=True)
        if event.ended or not sys.stdin.readline():
            return


if __name__ == "__main__":
    race(**json.loads(sys.argv[1]))
