"""What a training sees: the batches of its steps, as pure functions of the step, and the cases of its errors."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import jax
import numpy as np

from natgrad_paper.errors import FieldError
from natgrad_paper.training.batches import Batches, number_of
from natgrad_paper.training.problem import Cases, Method, Problem, Tree


class Source(Protocol):
    """What the steps of a training are made from."""

    @property
    def data(self) -> Tree:
        """Arrays on the device, the same for all blocks."""

    def block(self, first: int, steps: int) -> Tree:
        """Return what `steps` steps from `first` on see, stacked: a pure function."""

    def same(self, first: int) -> int:
        """Return how many steps from `first` on have blocks of the same shapes."""

    def arguments(self, data: Tree, row: Tree, params: Tree) -> dict[str, Any]:
        """Return the keyword arguments of `optimizer.step`, with `batch`, from one row of a block. Traced.

        `params` are those before the step: what a step sees may depend on them.
        """

    def judged(self) -> dict[str, Cases]:
        """Return the cases on which errors are measured, by the prefix of their names: "", "test_", "valid_"."""


STEP = "step"
"""In a block, beside the indices of parts: seed and number of each step."""


@dataclass(frozen=True)
class Resident:
    """The cases of a problem, on the device, and how they are drawn."""

    problem: Problem
    batches: Batches
    seed: int
    place: "Placed"

    @property
    def data(self) -> Tree:
        """The training cases, and the pool of inputs without labels."""
        return self.place.data

    def block(self, first: int, steps: int) -> Tree:
        """Return the indices of the steps' cases, and the numbers of the steps where randomness depends on them."""
        inputs, _, pool = self.data
        cases, inputs_alone = number_of(inputs), 0 if pool is None else len(pool)
        rows: dict[str, Any] = self.batches.draw(cases, self.seed, first, steps, inputs_alone)
        if self.problem.draw is not None:
            rows[STEP] = np.array([(self.seed, step) for step in range(first, first + steps)], np.uint32)
        return rows

    def same(self, first: int) -> int:
        """Return how many steps see as many cases."""
        return self.batches.same(first)

    def arguments(self, data: Tree, row: Tree, params: Tree) -> dict[str, Any]:
        """Return the cases of one step, as the problem draws them."""
        inputs, targets, pool = data
        draw = self.problem.draw
        if draw is None:
            return self.batches.arguments(inputs, targets, row, pool)
        indices = {part: each for part, each in row.items() if part != STEP}
        remade = partial(draw, step_key(*row[STEP]), params)
        return self.batches.arguments(inputs, targets, indices, pool, remade)

    def judged(self) -> dict[str, Cases]:
        """Return the training cases, those of the test, and those of validation."""
        return self.place.judged


@dataclass(frozen=True)
class Placed:
    """A problem's arrays on the device, put there once for all methods and seeds."""

    problem: Problem

    @cached_property
    def data(self) -> Tree:
        """The training cases, and the pool of inputs without labels."""
        assert self.problem.train is not None
        return (*jax.device_put(self.problem.train), jax.device_put(self.problem.pool))

    @cached_property
    def judged(self) -> dict[str, Cases]:
        """The parts on which errors are measured."""
        own = self.problem
        parts = {"": own.judged or self.data[:2], "test_": own.test, "valid_": own.valid}
        return {prefix: jax.device_put(cases) for prefix, cases in parts.items() if cases is not None}

    def source(self, method: Method, settings: Any, seed: int) -> Resident:
        """Return what a method's training from a seed sees; too few cases for its batches are refused."""
        fits(self.problem, method, settings, "settings")
        batches = batches_of(self.problem, method, settings)
        assert batches is not None
        return Resident(self.problem, batches, seed, self)


def step_key(seed: Any, step: Any) -> jax.Array:
    """Return the random key of a step: a pure function of a run's seed and the number of the step."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(0xD4A3), seed), step)


def batches_of(problem: Problem, method: Method, settings: Any) -> Batches | None:
    """Return the batches of a method on a problem: the problem's own, if it has any, else the method's."""
    if problem.batches is not None or method.batches is None:
        return problem.batches
    return method.batches(settings)


def fits(problem: Problem, method: Method, settings: Any, where: str) -> None:
    """Refuse a method whose batches need more cases than there are; `where` names the source of its settings."""
    batches = batches_of(problem, method, settings)
    if batches is None or problem.train is None:
        return
    have = number_of(problem.train[0]), 0 if problem.pool is None else len(problem.pool)
    for need, found, kind in zip(batches.least(), have, ("training", "unlabelled"), strict=True):
        if need > found:
            field, expected = (*method.sections, method.name)[0], f"batches of at most {found} {kind} cases"
            raise FieldError(where, field, expected, need)
