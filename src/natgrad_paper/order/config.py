"""The numbers of figure 2: what the presets fill and the command line can change."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from natgrad_paper.config import Count, NonNegative, Positive, Rule, Unfit

Side = Annotated[int, Rule("16 or 32", lambda side: side in (16, 32))]
Share = Annotated[float, Rule("a number from 0 to 1, both excluded", lambda x: 0 < x < 1)]


@dataclass(frozen=True)
class Stream:
    """The examples of a training: two equal chunks, of which the first has segments."""

    side: Side
    """Of an image, in pixels."""
    batch: Count
    segment: Count
    """Updates of a segment."""
    block: Count
    """Updates in one call of the compiled loop; it divides the segment."""
    segments: Count = 10
    pinched: bool = True
    memory: Positive = 600.0
    """Megabytes of examples that are kept for the next training instead of being made again."""

    def __post_init__(self) -> None:
        if self.segment % self.block:
            raise Unfit("block", f"a divisor of segment = {self.segment}", self.block)
        if self.updates * self.batch > 1 << 32:
            raise Unfit("segment", "a stream of at most 2^32 examples", self.segment)

    @property
    def updates(self) -> int:
        """Updates of a training."""
        return 2 * self.segments * self.segment

    @property
    def blocks(self) -> int:
        """Blocks of a training."""
        return self.updates // self.block

    def first_block(self, segment: int) -> int:
        """Return where a segment, counted from 1, begins."""
        return (segment - 1) * self.segment // self.block


@dataclass(frozen=True)
class Model:
    """A network with one layer of hidden units."""

    hidden: Count


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent: the rate to start from."""

    rate: Positive


@dataclass(frozen=True)
class Ngd:
    """Natural gradient descent, the metric on the gradient's own batch: the rate to start from, and constants."""

    rate: Positive
    damping: Positive
    maxiter: Count
    """Solver iterations at most."""
    solver: Literal["cg", "minres-qlp"] = "cg"
    rtol: NonNegative = 1e-4


@dataclass(frozen=True)
class Match:
    """How the rates are matched: the method that learns more is slowed down to the other's validation error."""

    tolerance: Share
    """The difference of the two errors that counts as none."""
    trainings: Count = 10
    """At most, besides one of each method at its own rate."""


@dataclass(frozen=True)
class Limit:
    """The check that no rate means no variance: one segment, at a falling rate."""

    factors: Annotated[
        tuple[float, ...],
        Rule("falling numbers between 0 and 1", lambda f: list(f) == sorted(set(f), reverse=True)
             and all(math.isfinite(x) and 0 < x < 1 for x in f)),
    ]  # fmt: skip
    """Of the matched rate."""
    segment: Count = 1


@dataclass(frozen=True)
class Drift:
    """The run whose mix of classes drifts: from the first characters to the last, and back."""

    width: Annotated[int, Rule("a whole number from 2 to 30", lambda n: 2 <= n <= 30)] = 16
    """How many classes to either side of the drifting centre still occur."""


@dataclass(frozen=True)
class Config:
    """All of the experiment's numbers."""

    stream: Stream
    model: Model
    sgd: Sgd
    ngd: Ngd
    match: Match
    limit: Limit
    validation: Count
    """Examples on which errors are measured."""
    held_out: Count
    """Other examples, on which outputs are compared."""
    minutes: Positive
    """What a seed takes on two cores, for the command to announce; changes nothing."""
    repeats: Annotated[int, Rule("a whole number, at least 2", lambda n: n >= 2)] = 5
    """Trainings with the same segment replaced."""
    drift: Drift = Drift()

    def __post_init__(self) -> None:
        if self.limit.segment > self.stream.segments:
            raise Unfit(
                "limit.segment", f"at most stream.segments = {self.stream.segments}", self.limit.segment
            )
