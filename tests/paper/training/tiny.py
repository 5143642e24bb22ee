"""An experiment that compiles in a moment: two layers on sixty points, a few methods, and a run of them."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import create_model

import natgrad as ng
from natgrad_paper.training import log
from natgrad_paper.training.batches import Batches, FullBatch, Growing, Minibatch, Others
from natgrad_paper.training.problem import Budget, Method, Problem
from natgrad_paper.training.runner import Run
from natgrad_paper.training.settings import Count, Positive, Section, Size

CASES = 60


class Own(Section):
    """What is no method's."""

    budget: Budget = Budget(iterations=30, evaluations=5)
    evaluation_chunk: Size = 7
    damping: Positive = 1.0


class Descent(Section):
    """Of gradient descent."""

    rate: Positive = 0.05
    batch: Count = 10
    steps_per_call: Size = 8


class Natural(Section):
    """Of natural gradient."""

    rate: Positive = 1.0


class Swelling(Section):
    """Of gradient descent on growing batches."""

    first: Count = 4
    last: Count = 20
    double: Count = 6


def model(params, inputs):
    return jnp.tanh(inputs @ params["w"]) @ params["v"]


def init(seed):
    weights = np.random.default_rng(seed).normal(size=(3, 5)).astype(np.float32)
    return {"w": jnp.asarray(weights), "v": jnp.ones((5, 1), jnp.float32)}


def errors(params, inputs, targets):
    return {"squared_error": jnp.sum((model(params, inputs) - targets) ** 2, axis=-1)}


def problem(**changes):
    """Return the problem: a sum of three numbers."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(CASES, 3)).astype(np.float32)
    targets = inputs.sum(axis=1, keepdims=True)
    facts = {"name": "sums", "sha256": "5" * 64, "train": [CASES, 3], "test": [9, 3]}
    given = {
        "model": model, "likelihood": ng.Gaussian(), "init": init, "errors": errors, "data": facts,
        "train": (inputs, targets), "test": (inputs[:9] + 1, targets[:9] + 3),
        "plateau": {"squared_error": 3.0},
    }  # fmt: skip
    return Problem(**(given | changes))


SGD = Method(
    "sgd", "SGD", "#000000",
    lambda problem, own: ng.sgd(problem.model, problem.likelihood, learning_rate=own.sgd.rate),
    lambda own: Batches(Minibatch(own.sgd.batch)), Descent, steps_per_call=lambda own: own.sgd.steps_per_call,
)  # fmt: skip
NGD = Method(
    "ngd", "NGD", "#0000ff",
    lambda problem, own: ng.natural_gradient(
        problem.model, problem.likelihood, learning_rate=own.ngd.rate, damping=ng.LevenbergMarquardt(own.damping)
    ),
    lambda own: Batches(Minibatch(20), Others(20)), Natural, reads=("damping",),
)  # fmt: skip
GROWING = Method(
    "growing", "Growing", "#00ff00",
    lambda problem, own: ng.sgd(problem.model, problem.likelihood, learning_rate=0.05),
    lambda own: Batches(Growing(own.growing.first, own.growing.last, own.growing.double)), Swelling,
    steps_per_call=lambda own: 4,
)  # fmt: skip
AVERAGED = Method(
    "averaged", "Averaged", "#ff0000",
    lambda problem, own: ng.kncg(problem.model, problem.likelihood, average=0.9),
    lambda own: Batches(FullBatch()),
)  # fmt: skip
METHODS = (SGD, NGD, GROWING, AVERAGED)
Settings = create_model(
    "Settings",
    __base__=Own,
    sgd=(Descent, Descent()),
    ngd=(Natural, Natural()),
    growing=(Swelling, Swelling()),
)


class Notes:
    """A display that remembers, and does something when a training has come so far."""

    def __init__(self, title="", iteration=-1, do=lambda: None):
        self.told, self.begun, self.skipped, self.events = [], [], [], []
        self._at, self._do = (title, iteration), do

    def begin(self, title, named):
        self.begun.append(title)

        def update(event):
            self.events.append((title, event.position.iteration))
            if (title, event.position.iteration) == self._at:
                self._do()

        return update

    def skip(self, title, named):
        self.skipped.append(title)

    def tell(self, sentence):
        self.told.append(sentence)


COMPILED = {}
"""Methods compiled for the usual problem and settings: for all runs that do not ask for their own."""
USUAL = problem()


def run(directory, methods=(SGD, NGD), seeds=(0,), display=None, resume=False, settings=None, **changes):
    """Return a run, of which nothing has begun."""
    chosen = Settings() if settings is None else settings
    subject = changes.pop("problem", None) or USUAL
    if settings is None and subject is USUAL:
        changes = {"_trainers": COMPILED, **changes}
    return Run(
        "sums", "small", chosen, subject, METHODS, tuple(methods), tuple(seeds), directory, display or Notes(),
        resume, **changes,
    )  # fmt: skip


def drive(whole, how):
    """Run, with its signals; return its failures."""
    with whole.signals:
        return how(whole)


def contents(directory):
    """Return the records of all logs without their times: what two runs of a seed share."""
    found = {}
    for path in sorted((directory / "logs").iterdir()):
        records = [log.record_in(line) for line in path.read_text().splitlines()]
        kept = [record for record in records if record["record"] not in ("resumed", "gap")]
        found[path.name] = [log.without_times(record) for record in kept]
    return found


def bits(tree):
    """Return every bit of a tree of arrays."""
    leaves = jax.tree.leaves(tree)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [
        np.asarray(jax.random.key_data(leaf) if key else leaf).tobytes()
        for leaf, key in zip(leaves, keys, strict=True)
    ]


class Clock(SimpleNamespace):
    """A clock that stands still unless it is moved: by the wall, and of the processor."""

    wall: float = 0.0
    cpu: float = 0.0

    def perf_counter(self):
        return self.wall

    def process_time(self):
        return self.cpu

    def move(self, wall, cpu):
        self.wall, self.cpu = self.wall + wall, self.cpu + cpu
