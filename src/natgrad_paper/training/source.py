"""What a training sees: blocks of steps, as pure functions of their number, and the cases it is judged on."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax

from natgrad_paper.errors import FieldError
from natgrad_paper.training.batches import Batches
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

    def arguments(self, data: Tree, row: Tree) -> dict[str, Any]:
        """Return what `optimizer.step` takes by name, `batch` among it, from one row of a block. Traced."""

    def judged(self) -> dict[str, Cases]:
        """Return the cases on which errors are measured, by the prefix of their names: "", "test_", "valid_"."""


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
        """Return the indices of the steps' cases."""
        inputs, _, pool = self.data
        return self.batches.draw(len(inputs), self.seed, first, steps, 0 if pool is None else len(pool))

    def same(self, first: int) -> int:
        """Return how many steps see as many cases."""
        return self.batches.same(first)

    def arguments(self, data: Tree, row: Tree) -> dict[str, Any]:
        """Return the cases of one step."""
        inputs, targets, pool = data
        return self.batches.arguments(inputs, targets, row, pool)

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
        parts = {"": self.data[:2], "test_": self.problem.test, "valid_": self.problem.valid}
        return {prefix: jax.device_put(cases) for prefix, cases in parts.items() if cases is not None}

    def source(self, method: Method, settings: Any, seed: int) -> Resident:
        """Return what a method's training from a seed sees; too few cases for its batches are refused."""
        assert method.batches is not None
        fits(self.problem, method, settings, "settings")
        return Resident(self.problem, method.batches(settings), seed, self)


def fits(problem: Problem, method: Method, settings: Any, where: str) -> None:
    """Refuse a method whose batches need more cases than there are; `where` names the source of its settings."""
    if method.batches is None or problem.train is None:
        return
    have = len(problem.train[0]), 0 if problem.pool is None else len(problem.pool)
    for need, found, kind in zip(
        method.batches(settings).least(), have, ("training", "unlabelled"), strict=True
    ):
        if need > found:
            raise FieldError(
                where, (*method.sections, method.name)[0], f"batches of at most {found} {kind} cases", need
            )
