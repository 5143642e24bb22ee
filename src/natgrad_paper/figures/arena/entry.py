"""One problem of the arena, as the protocol and the report use it."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from natgrad_paper.data.images import hash_of
from natgrad_paper.figures.arena.form import PLAIN, Form
from natgrad_paper.training.batches import Batches, Minibatch
from natgrad_paper.training.problem import Cases, Problem, Tree, shapes

ERROR = "error"
"""The name of the one error of every problem, in logs."""


@dataclass(frozen=True)
class Entry(Problem):
    """A problem with its name, in one of its forms."""

    name: str = field(default="", kw_only=True)
    """The problem's name in settings, logs and targets."""
    words: str = field(default="", kw_only=True)
    """What its error is."""
    scale: str = field(default="log", kw_only=True)
    """How errors are drawn and averaged: linear if they may be negative."""
    variant: str = field(default=PLAIN, kw_only=True)

    @property
    def training(self) -> str:
        """The name of its trainings."""
        return self.name if self.variant == PLAIN else f"{self.name}-{self.variant}"

    def facts(self, target: float | None) -> dict[str, Any]:
        """Return what the log of a training says about the problem."""
        about = {"problem": self.name, "variant": self.variant, "error": self.words, "scale": self.scale}
        return {**about, "target": target, "data": self.data}


def entry(
    form: Form, model: Any, likelihood: Any, init: Any, data: str, cases: tuple[Cases, Cases], batch: int | None,
    errors: Any = None, words: str = "negative log-likelihood", **rest: Any,
) -> Entry:  # fmt: skip
    """Return a problem.

    Args:
        form: The problem's form.
        model: From (parameters, inputs) to outputs.
        likelihood: What the outputs mean.
        init: From a random key to parameters.
        data: What the data are, in words.
        cases: Training and test cases.
        batch: Training cases per step; None if `rest` holds `batches`.
        errors: From (parameters, inputs, targets) to each case's error, if that is not the likelihood's.
        words: What that error is.
        **rest: Further fields.
    """

    def parameters(seed: int) -> Tree:
        return init(jax.random.key(seed))

    def named(params: Tree, inputs: Any, targets: Any) -> dict[str, Any]:
        if errors is None:
            return {ERROR: likelihood.nll(model(params, inputs), targets)}
        return {ERROR: errors(params, inputs, targets)}

    if batch is not None:
        rest["batches"] = Batches(Minibatch(form.size(batch)))
    rest = {"float64": form.float64, "variant": form.variant, "words": words, **rest}
    return Entry(model, likelihood, parameters, named, data_facts(data, *cases), *cases, **rest)


def data_facts(name: str, train: Cases, test: Cases) -> dict[str, Any]:
    """Return what a log says about data: name, hash and the shapes of both parts."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((train, test))]
    sha256 = hash_of(*((leaf, leaf.dtype.newbyteorder("<").str) for leaf in leaves))
    return {"name": name, "sha256": sha256, **shapes(train=train, test=test)}


def split(form: Form, train: int, test: int, *columns: np.ndarray) -> tuple[Cases, Cases]:
    """Return the first rows of inputs and targets for training and the last ones for testing; fewer in a small form."""
    few, more = form.counts(train, test)
    inputs, targets = columns
    last = train + more
    return (inputs[:few], targets[:few]), (inputs[train:last], targets[train:last])


def thinned(cases: Cases, most: int) -> Cases:
    """Return evenly spaced cases, `most` of them or a few less: enough to measure an error."""
    count = len(jax.tree.leaves(cases)[0])
    chosen = slice(None, None, -(-count // most))
    found: Cases = jax.tree.map(lambda each: each[chosen], cases)
    return found
