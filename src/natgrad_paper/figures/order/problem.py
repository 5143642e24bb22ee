"""The problem of figure 2: a small network learns to tell 62 characters apart, from a stream of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import jax.numpy as jnp
from jax import Array
from pydantic import Field, model_validator

import natgrad as ng
from natgrad_paper.data import characters, glyphs
from natgrad_paper.training.models import Classifier, Layers
from natgrad_paper.training.problem import Problem
from natgrad_paper.training.settings import Count, Positive, Section, Share, Size, unfit


class Stream(Section):
    """The examples of a training: two equal chunks, of which the first has segments."""

    side: Literal[16, 32] = 16
    """The side of an image, in pixels."""
    batch: Count = 128
    """Examples per update."""
    segment: Count = 50
    """The number of updates in a segment."""
    block: Count = 50
    """Updates in one call of the compiled loop; this number divides the segment."""
    segments: Count = 10
    """Segments in the first chunk."""
    pinched: bool = True
    """Whether characters are pinched, too: deformed in one more way."""
    memory: Positive = 600.0
    """Megabytes of examples that are kept for the next training instead of being made again."""

    @model_validator(mode="after")
    def _fits(self) -> "Stream":
        if self.segment % self.block:
            unfit("block", f"a divisor of segment = {self.segment}", self.block)
        if self.updates * self.batch > 1 << 32:
            unfit("segment", "a stream of at most 2^32 examples", self.segment)
        return self

    @property
    def updates(self) -> int:
        """Updates of a training."""
        return 2 * self.segments * self.segment

    def start(self, segment: int) -> int:
        """Return the update with which a segment, counted from 1, begins."""
        return (segment - 1) * self.segment


class Model(Section):
    """A network with one layer of hidden units."""

    hidden: Size = 100
    """Hidden units."""


class Match(Section):
    """How the rates are matched: the method that learns more is slowed down to the other's validation error."""

    tolerance: Share = 0.004
    """The difference of the two errors that counts as none."""
    trainings: Count = 10
    """The most trainings for the matching, besides one of each method at its own rate."""


class Limit(Section):
    """The check that no rate means no variance: one segment, at a falling rate."""

    factors: Annotated[tuple[Share, ...], Field(strict=False)] = (0.1, 0.01)
    """Fractions of the matched rate."""
    segment: Count = 1
    """The segment that is replaced, counted from 1."""

    @model_validator(mode="after")
    def _fits(self) -> "Limit":
        if list(self.factors) != sorted(set(self.factors), reverse=True):
            unfit("factors", "falling numbers between 0 and 1", list(self.factors))
        return self


class Drift(Section):
    """The run whose mix of classes drifts: from the first characters to the last, and back."""

    width: Annotated[int, Field(ge=2, le=30)] = 16
    """How many classes to either side of the drifting centre still occur."""


class Settings(Section):
    """The settings of figure 2."""

    stream: Stream = Stream()
    model: Model = Model()
    match: Match = Match()
    limit: Limit = Limit()
    drift: Drift = Drift()
    repeats: Annotated[int, Field(ge=2)] = 5
    """Trainings with the same segment replaced."""
    replaced: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] | None = None
    """The segments that are replaced, counted from 1; without it, all of them."""
    validation: Count = 5000
    """Examples on which errors are measured."""
    held_out: Count = 2000
    """Other examples, on which outputs are compared."""
    minutes: Positive = 15.0
    """What a seed takes on two cores, for the command to announce; it changes nothing."""
    evaluation_chunk: Size = 1000
    """Examples evaluated at a time."""

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        every, named = self.stream.segments, list(self.replaced or ())
        if named and (named != sorted(set(named)) or named[-1] > every):
            unfit("replaced", f"rising numbers, at most stream.segments = {every}", named)
        if self.limit.segment > every:
            unfit("limit.segment", f"at most stream.segments = {every}", self.limit.segment)
        if self.limit.factors and self.limit.segment not in self.replaces:
            unfit("limit.segment", f"one of replaced = {named}", self.limit.segment)
        return self

    @property
    def replaces(self) -> Sequence[int]:
        """The segments that are replaced."""
        return self.replaced or range(1, self.stream.segments + 1)


@dataclass(frozen=True)
class Characters(Problem):
    """A problem whose examples are drawn as they are needed."""

    glyphs: characters.DeviceGlyphs = field(kw_only=True)


def prepare(settings: Any, path: Path | None) -> Characters:
    """Return the problem: with the embedded glyphs, or those of the user's file."""
    found = glyphs.embedded() if path is None else glyphs.read(path)
    model = Classifier((settings.stream.side**2, settings.model.hidden, glyphs.CLASSES))

    def errors(params: Layers, inputs: Array, labels: Array) -> dict[str, Array]:
        wrong = jnp.argmax(model(params, inputs), axis=-1).astype(labels.dtype) != labels
        return {"misclassified": wrong.astype(jnp.float32)}

    source = characters.source(found)
    return Characters(model, ng.Categorical(), model.init, errors, found.describe(), glyphs=source)
