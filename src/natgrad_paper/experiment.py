"""What an experiment is made of: a problem, the methods that compete on it, and when they stop."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from jax import Array

from natgrad_paper.batches import Batches
from natgrad_paper.claims import Claim
from natgrad_paper.config import Count, Positive, Size, Unfit
from natgrad_paper.log import RunLog
from natgrad_paper.measures import RECONSTRUCTION, View

Tree = Any
Errors = Callable[[Tree, Array, Array], dict[str, Array]]


class Optimizer(Protocol):
    """The two functions of every natgrad optimizer; anything that has them can compete."""

    @property
    def init(self) -> Callable[..., Tree]:
        """From the parameters to the state before the first step."""

    @property
    def step(self) -> Callable[..., tuple[Tree, Tree, Any]]:
        """From (params, state, batch, …) to the parameters and state after the step, and what happened."""


HELD_OUT = 10
"""One training case in so many, the last ones, is held out where a problem has no cases for validation."""


@dataclass(frozen=True)
class Problem:
    """What is trained, on what, and how it is judged."""

    model: Callable[[Tree, Array], Array]
    likelihood: Any
    init: Callable[[int], Tree]
    """Initial parameters from a seed: the same for every method."""
    errors: Errors
    """Each case's errors, from (params, inputs, targets); the log holds their means. Patience watches the first."""
    train: tuple[np.ndarray, np.ndarray]
    """Training inputs and targets."""
    test: tuple[np.ndarray, np.ndarray] | None
    data: dict[str, Any]
    """The data's name and hash, for the log."""
    pictures: Callable[[Tree, Array], Array] | None = None
    """From (params, inputs) to images in [0, 1] to be looked at, if the problem has any."""
    valid: tuple[np.ndarray, np.ndarray] | None = None
    """Inputs and targets on which settings are chosen; where there are none, a part of the training cases is."""
    pool: np.ndarray | None = None
    """Inputs without labels, for a metric that is to see some."""
    gauge: Callable[[Tree, Tree, Array, Array, Array], dict[str, Array]] | None = None
    """Numbers of a logged step that cost extra, from (params before, after; the inputs of gradient, metric, `valid`).

    Measured outside the clock of training, of the steps that are logged, by methods of one step a call.
    """
    plateau: dict[str, float] = field(default_factory=dict)
    """The training error of the best answer that is the same for all cases, by its name in `errors`; for claims."""
    sights: dict[str, np.ndarray] | None = None
    """What the data look like, by the name of the stage: bytes, (lines, columns, height, width); for the report."""

    def validated(self) -> "Problem":
        """Return the problem with validation cases: its own, or else its last training cases, which it then lacks."""
        if self.valid is not None:
            return self
        inputs, targets = self.train
        kept = left(len(inputs))
        train, valid = (inputs[:kept], targets[:kept]), (inputs[kept:], targets[kept:])
        shapes = {"train": list(train[0].shape), "valid": list(valid[0].shape)}
        return replace(self, train=train, valid=valid, data={**self.data, **shapes})


def left(cases: int) -> int:
    """Return how many training cases are left where some are held out."""
    return cases - max(1, cases // HELD_OUT)


@dataclass(frozen=True)
class Share:
    """Which part of the cases is a process's own, where several train together."""

    index: int
    count: int

    def of(self, length: int) -> slice:
        """Return the places of the share's cases; where they do not divide, the last shares are longer by one."""
        return slice(self.index * length // self.count, (self.index + 1) * length // self.count)


@dataclass(frozen=True)
class Method:
    """A competitor: how to build it and what cases its steps see, given the problem and the config."""

    name: str
    """On the command line and in the names of logs."""
    label: str
    color: str
    optimizer: Callable[[Problem, Any], Optimizer]
    batches: Callable[[Any], Batches]
    steps_per_call: Callable[[Any], int] = lambda config: 1
    """Steps in one call of the compiled loop: above one where a step is shorter than Python's share in it."""
    about: str = ""
    on_host: bool = False
    """Whether its search runs on the host, so that its steps cannot be compiled whole."""


@dataclass(frozen=True)
class Budget:
    """When training ends and when it is looked at: a limit, and evaluations at a geometric grid up to it."""

    rivals: ClassVar = ("seconds", "iterations")
    """Fields of which there is one: given on the command line, it takes the place of the preset's."""
    seconds: Positive | None = None
    """Training seconds: compilation and evaluation do not count."""
    iterations: Count | None = None
    evaluations: Size = 40
    first: Positive = 1.0
    """Where the grid starts, in the unit of the limit."""
    step_seconds: Positive | None = None
    """What an iteration takes on two cores, for the command to announce; changes nothing."""
    patience: Count | None = None
    """Evaluations in a row without a lower validation error that end a training early; where not set, none do."""

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.iterations is None):
            found = "neither" if self.seconds is None else "both"
            raise Unfit("seconds", "a limit in seconds or in iterations", found)
        if self.first > self.limit:
            raise Unfit("first", f"at most the limit, {self.limit:g}", self.first)

    @property
    def limit(self) -> float:
        """The limit, in its own unit."""
        return float(self.seconds if self.seconds is not None else self.iterations or 0)

    def spent(self, iterations: int, seconds: float) -> float:
        """Return how much is spent, in the limit's unit."""
        return seconds if self.seconds is not None else float(iterations)

    def marks(self) -> np.ndarray:
        """Return the grid of evaluations, the limit being the last."""
        return (
            np.geomspace(self.first, self.limit, self.evaluations)
            if self.evaluations > 1
            else np.array([self.limit])
        )


class Study(Protocol):
    """How an experiment is run and reported that is not a race of its methods by error."""

    def cost(self, config: Any, seeds: int) -> str:
        """Return in words what a run costs."""

    def run(self, plan: Any, problem: Any, directory: Path, console: Any, resume: bool) -> list[str]:
        """Run all seeds of a `run.Plan`, logs in the directory; return a line for each thing that went wrong."""

    def show(self, logs: list[RunLog], directory: Path, console: Any) -> None:
        """Write the report of logs into the directory, and show it in short."""


@dataclass(frozen=True)
class Experiment:
    """One figure of the paper: everything the command needs to list it and run it.

    Its presets are the files `<name>.<preset>.toml` beside its module. Without any, it has one, `small`: the defaults
    of its config.
    """

    name: str
    title: str
    config: type
    """The dataclass its presets fill; it has a `budget` and an `evaluation_chunk`."""
    methods: tuple[Any, ...]
    """`Method`s; of a study, whatever has a name, a label, a color and a word about it."""
    prepare: Callable[[Any, Path | None], Any]
    """From a config and the user's data file, if any, to the `Problem`; of a study, to whatever has `data`."""
    first_look: tuple[str, ...]
    """The methods that run where neither the command nor the preset names any."""
    view: View = RECONSTRUCTION
    """What the report shows."""
    share: Callable[[Any, Path | None, Share], Problem] | None = None
    """The same as `prepare`, with a share of the cases; None where the data are not dealt out."""
    claims: tuple[Claim, ...] = ()
    """What the report judges from the logs."""
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Titles and the methods below each, for legends; a method in none of them comes last."""
    study: Study | None = None
    """How it is run and reported, where that is its own."""
    option: str = "--data"
    """The option that names the user's data file."""
    home: Path = field(default=Path())
    """The directory with the presets."""

    def presets(self) -> dict[str, Path | None]:
        """Return the preset files by name, in order of size where the names are the usual ones; None is no file."""
        found = {path.name.split(".")[1]: path for path in self.home.glob(f"{self.name}.*.toml")}
        usual = [name for name in ("smoke", "small", "medium", "paper") if name in found]
        return {name: found[name] for name in usual + sorted(set(found) - set(usual))} or {"small": None}
