"""Which cases a step sees, as pure functions of (seed, step): a run can be repeated from any step on.

The indices are drawn on the host, where a permutation costs nothing beside a step; the cases are
gathered on the device.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from jax import Array

Key = tuple[int, int]
"""A run's seed, and the number of the part of the step that draws: no two parts share their randomness."""

PARTS = ("gradient", "metric", "search", "ratio")

Either = TypeVar("Either")


class Draw(Protocol):
    """A rule that picks cases for a step."""

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray | None:
        """Return the cases of this step or None for all; `taken` is what the gradient sees."""

    def among(self, train: Either, pool: Either) -> Either:
        """Return what it draws from: the training cases, or the pool of inputs without labels."""


class FromTraining:
    """A rule that draws from the training cases."""

    def among(self, train: Either, pool: Either) -> Either:
        """Return the training cases."""
        return train


@dataclass(frozen=True)
class Whole(FromTraining):
    """All cases, in every step."""

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray | None:
        """Return None, for all."""
        return None


@dataclass(frozen=True)
class Minibatch(FromTraining):
    """`size` cases, each once an epoch in an order redrawn each epoch; a last partial batch is left out."""

    size: int

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray:
        """Return this step's slice of its epoch's permutation."""
        epoch, number = divmod(step, max(1, cases // self.size))
        return _permutation(cases, key, epoch)[number * self.size : (number + 1) * self.size]


@dataclass(frozen=True)
class Growing(FromTraining):
    """`first` cases a step, twice as many after every `double` steps, up to `last`; each case once an epoch.

    Early steps need few cases and there are many of them to take; late ones are as good as their gradient is exact.
    """

    first: int
    last: int
    double: int

    def size(self, step: int) -> int:
        """Return how many cases a step sees."""
        return min(self.last, self.first << min(step // self.double, 40))

    def seen(self, step: int) -> int:
        """Return how many cases all steps before this one saw together."""
        starts = range(0, step, self.double)
        return sum(self.size(start) * min(self.double, step - start) for start in starts)

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray:
        """Return the next cases of an order redrawn each epoch; a batch may reach into the next epoch."""
        size = self.size(step)
        if size > cases:
            raise ValueError(f"Growing(last={self.last}): there are only {cases} cases.")
        epoch, first = divmod(self.seen(step), cases)
        orders = [_permutation(cases, key, each) for each in (epoch, epoch + 1)]
        return np.concatenate(orders)[first : first + size]


@dataclass(frozen=True)
class Others(FromTraining):
    """`size` cases the gradient does not see in this step: the paper's separate batch for the metric."""

    size: int

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray:
        """Return cases drawn without replacement from those not taken."""
        free = np.arange(cases) if taken is None else np.setdiff1d(np.arange(cases), taken)
        return np.random.default_rng([*key, step]).choice(free, self.size, replace=False)


@dataclass(frozen=True)
class Unlabelled:
    """`size` inputs from the pool of those without labels: for the metric, which needs none."""

    size: int

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray:
        """Return inputs of the pool drawn without replacement."""
        return np.random.default_rng([*key, step]).choice(cases, self.size, replace=False)

    def among(self, train: Either, pool: Either) -> Either:
        """Return the pool."""
        return pool


@dataclass(frozen=True)
class Part:
    """For metric or ratio, the first `size` of the cases that the gradient sees: they need fewer. Nothing is drawn."""

    size: int

    def of(self, batch: Any) -> Any:
        """Return the part, or None where it is all: the library's default, one linearization for both."""
        if self.size >= batch[0].shape[0]:
            return None
        return jax.tree.map(lambda each: each[: self.size], batch)


@dataclass(frozen=True)
class Batches:
    """The cases for each part of a step. None is the library's default for that part."""

    gradient: Draw
    metric: Draw | Part | None = None
    search: Draw | None = None
    ratio: Draw | Part | None = None

    def draw(self, cases: int, seed: int, first: int, steps: int, pool: int = 0) -> dict[str, np.ndarray]:
        """Return the indices of `steps` steps from `first` on, stacked; none for parts that see all cases.

        Args:
            cases: How many training cases there are.
            seed: The run's.
            first: The first of the steps.
            steps: How many.
            pool: How many inputs without labels there are.
        """
        rows: dict[str, list[np.ndarray]] = {}
        for step in range(first, first + steps):
            taken = self.gradient.indices(cases, (seed, 0), step, None)
            for part, rule in self._rules():
                key = (seed, PARTS.index(part))
                many = rule.among(cases, pool)
                chosen = taken if part == "gradient" else rule.indices(many, key, step, taken)
                if chosen is not None:
                    rows.setdefault(part, []).append(chosen)
        return {part: np.stack(chosen).astype(np.int32) for part, chosen in rows.items()}

    def arguments(
        self, inputs: Array, targets: Array, drawn: dict[str, Array], pool: Array | None = None
    ) -> dict[str, Any]:
        """Return what `optimizer.step` takes by name, from one step's indices. Traced."""

        def cases(part: str, values: Any = (inputs, targets)) -> Any:
            return jax.tree.map(lambda each: each[drawn[part]], values) if part in drawn else values

        names = {"gradient": "batch", "search": "search_batch", "ratio": "ratio_batch"}
        arguments: dict[str, Any] = {
            names[part]: cases(part) for part, _ in self._rules() if part != "metric"
        }
        own = arguments["batch"]
        if isinstance(self.ratio, Part) and (few := self.ratio.of(own)) is not None:
            arguments["ratio_batch"] = few
        if isinstance(self.metric, Part):
            if (few := self.metric.of(own)) is not None:
                arguments["metric_inputs"] = few[0]
        elif self.metric is not None:
            arguments["metric_inputs"] = cases("metric", self.metric.among(inputs, pool))
        return arguments

    def _rules(self) -> list[tuple[str, Draw]]:
        rules = [(part, getattr(self, part)) for part in PARTS]
        return [(part, rule) for part, rule in rules if rule is not None and not isinstance(rule, Part)]


@lru_cache(maxsize=4)
def _permutation(cases: int, key: Key, epoch: int) -> np.ndarray:
    return np.random.default_rng([*key, epoch]).permutation(cases)
