"""What is trained: a problem, the methods that compete on it, and when they are evaluated and stop."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import jax
import numpy as np
from jax import Array
from pydantic import model_validator

from natgrad_paper.training.batches import Batches, number_of
from natgrad_paper.training.settings import Count, Positive, Section, Size, unfit

Tree = Any
Cases = tuple[Any, Any]
"""Inputs and targets."""
Errors = Callable[[Tree, Any, Any], dict[str, Array]]
HELD_OUT = 10
"""If a problem has no validation cases, one in this many training cases, from the end, is held out."""
GROWTH = 1.4
"""Between two evaluations, iterations grow by no more than this factor."""


class Optimizer(Protocol):
    """The two functions of every natgrad optimizer; anything that has them can compete."""

    @property
    def init(self) -> Callable[..., Tree]:
        """From the parameters to the state before the first step."""

    @property
    def step(self) -> Callable[..., tuple[Tree, Tree, Any]]:
        """From (params, state, batch, …) to the parameters and state after the step, and what happened."""


@dataclass(frozen=True)
class Problem:
    """What is trained, on what, and how it is judged."""

    model: Callable[[Tree, Any], Any]
    likelihood: Any
    init: Callable[[int], Tree]
    """Initial parameters from a seed: the same for every method."""
    errors: Errors
    """Each case's errors, from (params, inputs, targets); the log holds their means. Patience watches the first."""
    data: dict[str, Any]
    """The data's `name`, `sha256` and the shapes of its parts, for the log."""
    train: Cases | None = None
    """None if examples come as a stream."""
    test: Cases | None = None
    valid: Cases | None = None
    """The cases on which settings are chosen; without them, a part of the training cases is held out."""
    pool: np.ndarray | None = None
    """Inputs without labels, for the metric."""
    reconstruct: Callable[[Tree, Array], Array] | None = None
    """From (params, inputs) to images in [0, 1] for the report, if the problem has any."""
    gauge: Callable[[Tree, Tree, Array, Array, Array], dict[str, Array]] | None = None
    """Further numbers of a logged step, from (params before, after; the inputs of gradient, metric, `valid`).

    They are measured outside the clock of training, for logged steps only, of methods with one step per call.
    """
    plateau: dict[str, float] = field(default_factory=dict)
    """The training error of the best answer that is the same for all cases, by its name in `errors`; for claims."""
    sights: dict[str, np.ndarray] | None = None
    """What the data look like, by the name of the stage: bytes, (lines, columns, height, width); for the report."""
    lines: tuple[str, ...] = ()
    """The titles of the lines of those pictures."""

    objective: Callable[[Tree, Tree], Array] | None = None
    """The loss of each case, from (outputs, targets), if it is not the likelihood's."""
    batches: Batches | None = None
    """The batches of every method, if the problem defines them and not the method."""
    draw: Callable[[Array, Tree, Any], Any] | None = None
    """From (key of the step, parameters, batch) to the batch that the step sees, with noise or played episodes.

    It is a pure function, the same for every method. It may add weights: (inputs, targets, weights).
    """
    judged: Cases | None = None
    """The cases of the training error, if they are not all training cases: fewer, or of another kind."""
    float64: bool = False
    """Whether the problem is computed in double precision."""
    looped: bool = True
    """Whether a compiled call may take several steps. XLA's convolutions are ten times slower in a loop, on CPUs."""

    def validated(self) -> "Problem":
        """Return the problem with validation cases: its own, or its last training cases, which training then omits."""
        if self.valid is not None or self.train is None:
            return self
        count = number_of(self.train[0])
        kept = count - max(1, count // HELD_OUT)
        train = jax.tree.map(lambda each: each[:kept], self.train)
        valid = jax.tree.map(lambda each: each[kept:], self.train)
        return replace(self, train=train, valid=valid, data={**self.data, **shapes(train=train, valid=valid)})

    def precise(self) -> AbstractContextManager[None]:
        """Return the context in which JAX computes in double precision if the problem asks for it."""
        return jax.enable_x64(self.float64 or jax.config.read("jax_enable_x64"))


def shapes(**parts: Cases) -> dict[str, list[int]]:
    """Return the shape of the inputs of each part, for the log."""
    return {part: list(jax.tree.leaves(cases)[0].shape) for part, cases in parts.items()}


@dataclass(frozen=True)
class Method:
    """A competitor: its constants, how to build it, and which cases its steps see."""

    name: str
    """The method's name on the command line and in the names of logs."""
    label: str
    color: str
    build: Callable[[Problem, Any], Optimizer]
    """Builds the optimizer from the problem and the settings that the method reads."""
    batches: Callable[[Any], Batches] | None = None
    """The batches, from the same settings; None if the experiment's own source defines them."""
    settings: type[Section] | None = None
    """The method's own constants, all with defaults."""
    section: str = ""
    """The section of these constants in presets and `--set`; methods may share one. Default: the method's name."""
    reads: tuple[str, ...] = ()
    """Further sections of the experiment's settings that the method reads."""
    steps_per_call: Callable[[Any], int] = lambda settings: 1
    """The most steps per call of the compiled loop. Several spare short steps Python's overhead per call."""
    about: str = ""
    on_host: bool = False
    """Whether its search runs on the host, so that its steps cannot be compiled whole."""
    resumes: bool = True
    """Whether checkpoints hold all of its state; if not, a training that was stopped starts again."""

    @property
    def sections(self) -> tuple[str, ...]:
        """All sections that the method reads."""
        own = (self.section or self.name,) if self.settings is not None else ()
        return tuple(dict.fromkeys((*own, *self.reads)))

    def own(self, settings: Section) -> SimpleNamespace:
        """Return the settings that this method reads, and no others; its log states them."""
        return SimpleNamespace(**{name: getattr(settings, name) for name in self.sections})


class Budget(Section):
    """When a training ends and when it is evaluated."""

    rivals: ClassVar = ("seconds", "iterations")
    seconds: Positive | None = None
    """Training seconds; compilation and evaluation do not count."""
    iterations: Count | None = None
    """Steps, in place of seconds."""
    evaluations: Size = 30
    """Evaluations on a geometric grid up to the limit, beside those on a grid of iterations: 1, 2, 3, 4, 5, 7, …"""
    first: Positive = 1.0
    """Where that grid starts, in the unit of the limit."""
    step_seconds: Positive | None = None
    """What an iteration takes on two cores, for the command to announce; it changes nothing."""
    patience: Count | None = None
    """Evaluations in a row without a lower validation error that end a training early."""
    evaluates_start: ClassVar = True
    """Whether the first evaluation comes before the first step."""

    @model_validator(mode="after")
    def _fits(self) -> "Budget":
        if (self.seconds is None) == (self.iterations is None):
            found = "neither" if self.seconds is None else "both"
            unfit("seconds", "a limit in seconds or in iterations", found)
        if self.first > self.limit:
            unfit("first", f"at most the limit, {self.limit:g}", self.first)
        return self

    @property
    def limit(self) -> float:
        """The limit, in its own unit."""
        return float(self.seconds if self.seconds is not None else self.iterations or 0)

    def spent(self, iterations: int, seconds: float) -> float:
        """Return how much of the budget is spent, in the limit's unit."""
        return seconds if self.seconds is not None else float(iterations)

    def next_second(self, seconds: float) -> float:
        """Return the next time of an evaluation; infinity for a limit in iterations."""
        if self.seconds is None:
            return np.inf
        return next((mark for mark in self._grid() if mark > seconds), self.seconds)

    def next_iteration(self, iteration: int) -> int:
        """Return the next iteration of an evaluation, the limit at most: a function of the iteration alone."""
        following = 1
        while following <= iteration:
            following = max(following + 1, int(following * GROWTH))
        if self.iterations is None:
            return following
        further = [mark for mark in map(round, self._grid()) if mark > iteration]
        return min([following, *further, self.iterations])

    def _grid(self) -> np.ndarray:
        count = self.evaluations
        return np.geomspace(self.first, self.limit, count) if count > 1 else np.array([self.limit])


@dataclass(frozen=True)
class Until:
    """A budget of iterations with evaluations at given iterations only."""

    iterations: int
    looks: tuple[int, ...] = ()
    """Iterations of evaluations before the end."""
    patience: int | None = None
    evaluates_start: bool = False

    @property
    def limit(self) -> float:
        """The number of iterations."""
        return float(self.iterations)

    def spent(self, iterations: int, seconds: float) -> float:
        """Return the iterations."""
        return float(iterations)

    def next_second(self, seconds: float) -> float:
        """Return infinity: time does not count."""
        return np.inf

    def next_iteration(self, iteration: int) -> int:
        """Return the iteration of the next evaluation."""
        return min([*(look for look in self.looks if look > iteration), self.iterations])
