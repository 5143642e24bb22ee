"""What a training sees: the stream of a seed, as it is, with one segment replaced, or with a drifting mix of classes.

An example is a pure function of (seed, number of its stream, index), so a course needs no storage: only a rule that
says from which stream the examples of each stretch come. Blocks of examples are kept as long as there is room.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad_paper.data import characters
from natgrad_paper.data.glyphs import CLASSES
from natgrad_paper.order.config import Config

STREAM, VALIDATION, HELD_OUT, FRESH = 0, 1, 2, 16
"""Numbers of a seed's streams; from `FRESH` on, one for every replacement of a segment."""
STEPS = 64
"""Places of the drifting centre between two classes."""

Block = tuple[Array, Array]


@dataclass(frozen=True)
class Plain:
    """The stream as it is."""

    def stretch(self, config: Config, block: int) -> tuple[int, "Mix | None"]:
        """Return the number of the stream of a block, and the mix of its classes where it is not the equal one."""
        return STREAM, None


@dataclass(frozen=True)
class Replaced:
    """The stream with a segment, counted from 1, replaced by fresh examples: others for each repeat, from 1 too."""

    segment: int
    repeat: int

    def stretch(self, config: Config, block: int) -> tuple[int, "Mix | None"]:
        """Return the stream of a block: a fresh one inside the segment."""
        first = config.stream.first_block(self.segment)
        if not first <= block < config.stream.first_block(self.segment + 1):
            return STREAM, None
        return FRESH + (self.segment - 1) * config.repeats + self.repeat - 1, None


@dataclass(frozen=True)
class Drifting:
    """The stream with a mix of classes that drifts, from the first to the last or, backwards, from last to first."""

    backwards: bool = False

    def stretch(self, config: Config, block: int) -> tuple[int, "Mix | None"]:
        """Return the common stream, with the mix."""
        return STREAM, Mix(config.drift.width, config.stream.updates * config.stream.batch, self.backwards)


Course = Plain | Replaced | Drifting


@dataclass(frozen=True)
class Mix:
    """Weights of the classes along a stream: a triangle that moves over them at a constant pace."""

    width: int
    examples: int
    backwards: bool

    def weights(self, indices: np.ndarray) -> np.ndarray:
        """Return the weights at the indices, int32 (n, 62): whole numbers, as `characters.draw` wants them."""
        # The centre goes from class 0 to class 61; 64-bit, since products exceed 32 bits on long streams.
        centre = indices.astype(np.int64) * ((CLASSES - 1) * STEPS) // max(1, self.examples - 1)
        if self.backwards:
            centre = (CLASSES - 1) * STEPS - centre
        distance = np.abs(np.arange(CLASSES) * STEPS - centre[:, None])
        return np.maximum(0, self.width * STEPS - distance).astype(np.int32)


class Examples:
    """The examples of one seed, in blocks of updates."""

    def __init__(self, config: Config, source: characters.Source, seed: int) -> None:
        self._config, self._source, self._seed = config, source, seed
        self._kept: OrderedDict[Any, Block] = OrderedDict()

    def block(self, course: Course, number: int) -> Block:
        """Return a block of a course: inputs (updates, batch, pixels) and labels (updates, batch)."""
        stream = self._config.stream
        where, mix = course.stretch(self._config, number)
        indices = np.arange(number * stream.block * stream.batch, (number + 1) * stream.block * stream.batch)

        def make() -> Block:
            inputs, labels = self._draw(where, indices, mix)
            return (
                inputs.reshape(stream.block, stream.batch, -1),
                labels.reshape(stream.block, stream.batch),
            )

        return self._keep((where, mix, number), make)

    def validation(self) -> Block:
        """Return the examples on which errors are measured."""
        return self._keep(VALIDATION, lambda: self._draw(VALIDATION, np.arange(self._config.validation)))

    def held_out(self) -> Block:
        """Return the examples on which outputs are compared."""
        return self._keep(HELD_OUT, lambda: self._draw(HELD_OUT, np.arange(self._config.held_out)))

    def _draw(self, stream: int, indices: np.ndarray, mix: Mix | None = None) -> Block:
        shape = self._config.stream
        return jax.block_until_ready(
            characters.draw(
                self._source,
                characters.stream(self._seed, stream),
                jnp.asarray(indices.astype(np.uint32)),
                None if mix is None else jnp.asarray(mix.weights(indices)),
                side=shape.side,
                pinched=shape.pinched,
            )
        )

    def _keep(self, name: Any, make: Callable[[], Block]) -> Block:
        """Return what was kept under a name, or make it; what was used longest ago goes when there is no room."""
        if name not in self._kept:
            self._kept[name] = make()
            room = 1e6 * self._config.stream.memory
            while len(self._kept) > 1 and sum(_bytes(block) for block in self._kept.values()) > room:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]


def _bytes(block: Block) -> int:
    return sum(part.nbytes for part in block)
