"""Which cases a step sees, as pure functions of (seed, step): a run can be repeated from any step on.

The indices are drawn on the host, where a permutation costs nothing beside a step; the cases are
gathered on the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import numpy as np
from jax import Array

Key = tuple[int, int]
"""A run's seed, and the number of the part of the step that draws. No two parts share random numbers."""
PARTS = ("gradient", "metric", "search", "ratio")
NAMES = {"gradient": "batch", "search": "search_batch", "ratio": "ratio_batch"}
"""What the arguments of a step are called."""
FOREVER = 1 << 40
"""More steps than any training has."""
Remade = Callable[[Any], Any]
"""From a batch, as it is drawn from the cases, to the one that the step sees."""


class Draw:
    """A rule that picks cases for a step: as many in every step, and training cases, unless it says otherwise."""

    unlabelled: ClassVar = False
    """Whether the rule draws from the pool of inputs without labels, not from the training cases."""
    size: Any

    @property
    def most(self) -> int:
        """The most cases that the rule draws; 0 for all."""
        return int(self.size)

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray | None:
        """Return the cases of this step or None for all; `taken` is what the gradient sees."""
        raise NotImplementedError

    def same(self, step: int) -> int:
        """Return how many steps from this one on see as many cases; a large number if all do."""
        return FOREVER


@dataclass(frozen=True)
class FullBatch(Draw):
    """All cases, in every step."""

    size: int = 0

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray | None:
        """Return None, for all."""
        return None


@dataclass(frozen=True)
class Minibatch(Draw):
    """`size` cases, each once per epoch in an order redrawn each epoch; a last partial batch is left out."""

    size: int

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray:
        """Return this step's slice of its epoch's permutation."""
        epoch, number = divmod(step, max(1, cases // self.size))
        return _permutation(cases, key, epoch)[number * self.size : (number + 1) * self.size]


@dataclass(frozen=True)
class Growing(Draw):
    """`first` cases per step, twice as many after every `double` steps, up to `last`; each case once per epoch.

    Early steps need few cases, and a training takes many of them; late steps need an accurate gradient.
    """

    first: int
    last: int
    double: int

    @property
    def most(self) -> int:
        """The cases of a late step."""
        return self.last

    def size(self, step: int) -> int:
        """Return how many cases a step sees."""
        return min(self.last, self.first << min(step // self.double, 40))

    def same(self, step: int) -> int:
        """Return how many steps are left until the batch doubles."""
        return FOREVER if self.size(step) == self.last else self.double - step % self.double

    def seen(self, step: int) -> int:
        """Return how many cases all steps before this one saw together."""
        starts = range(0, step, self.double)
        return sum(self.size(start) * min(self.double, step - start) for start in starts)

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray:
        """Return the next cases of an order redrawn each epoch; a batch may reach into the next epoch."""
        epoch, first = divmod(self.seen(step), cases)
        orders = [_permutation(cases, key, each) for each in (epoch, epoch + 1)]
        return np.concatenate(orders)[first : first + self.size(step)]


@dataclass(frozen=True)
class Others(Draw):
    """`size` cases the gradient does not see in this step: the paper's separate batch for the metric."""

    size: int

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray:
        """Return cases drawn without replacement from those not taken."""
        free = np.arange(cases) if taken is None else np.setdiff1d(np.arange(cases), taken)
        return np.random.default_rng([*key, step]).choice(free, self.size, replace=False)


@dataclass(frozen=True)
class Unlabelled(Draw):
    """`size` inputs from the pool of those without labels: for the metric, which needs none."""

    size: int
    unlabelled: ClassVar = True

    def indices(self, cases: int, key: Key, step: int, taken: np.ndarray | None) -> np.ndarray:
        """Return inputs of the pool drawn without replacement."""
        return np.random.default_rng([*key, step]).choice(cases, self.size, replace=False)


@dataclass(frozen=True)
class Batches:
    """The cases for each part of a step. None is the library's default for that part."""

    gradient: Draw
    metric: Draw | None = None
    search: Draw | None = None
    ratio: Draw | None = None

    def least(self) -> tuple[int, int]:
        """Return how many training cases, and how many inputs without labels, the largest step needs."""
        own, rules = self.gradient.most, [rule for _, rule in self._rules()]
        others = [rule.most + own * isinstance(rule, Others) for rule in rules if not rule.unlabelled]
        pools = [rule.most for rule in rules if rule.unlabelled]
        return max(others, default=0), max(pools, default=0)

    def same(self, step: int) -> int:
        """Return how many steps from this one on see as many cases."""
        return min(rule.same(step) for _, rule in self._rules())

    def draw(self, cases: int, seed: int, first: int, steps: int, pool: int = 0) -> dict[str, np.ndarray]:
        """Return the indices of `steps` steps from `first` on, stacked; none for parts that see all cases.

        There are so many training `cases`, and so many inputs without labels in the `pool`.
        """
        rows: dict[str, list[np.ndarray]] = {}
        for step in range(first, first + steps):
            taken = self.gradient.indices(cases, (seed, 0), step, None)
            for part, rule in self._rules():
                many, key = pool if rule.unlabelled else cases, (seed, PARTS.index(part))
                chosen = taken if part == "gradient" else rule.indices(many, key, step, taken)
                if chosen is not None:
                    rows.setdefault(part, []).append(chosen)
        return {part: np.stack(chosen).astype(np.int32) for part, chosen in rows.items()}

    def arguments(
        self,
        inputs: Any,
        targets: Any,
        drawn: dict[str, Array],
        pool: Array | None = None,
        remade: Remade = lambda batch: batch,
    ) -> dict[str, Any]:
        """Return what `optimizer.step` takes by name, from all cases and the indices that one step drew. Traced.

        `pool` has the inputs without labels; `remade` changes each batch with labels.
        """

        def taken(part: str, values: Any) -> Any:
            return jax.tree.map(lambda each: each[drawn[part]], values) if part in drawn else values

        def cases(part: str) -> Any:
            return remade(taken(part, (inputs, targets)))

        arguments = {NAMES[part]: cases(part) for part, _ in self._rules() if part in NAMES}
        if (rule := self.metric) is not None:
            arguments["metric_inputs"] = taken("metric", pool) if rule.unlabelled else cases("metric")[0]
        return arguments

    def _rules(self) -> list[tuple[str, Draw]]:
        rules = [(part, getattr(self, part)) for part in PARTS]
        return [(part, rule) for part, rule in rules if rule is not None]


def number_of(inputs: Any) -> int:
    """Return how many cases there are. Inputs may be a tuple: then its first part counts."""
    return number_of(inputs[0]) if isinstance(inputs, tuple) else len(inputs)


@lru_cache(maxsize=4)
def _permutation(cases: int, key: Key, epoch: int) -> np.ndarray:
    return np.random.default_rng([*key, epoch]).permutation(cases)
