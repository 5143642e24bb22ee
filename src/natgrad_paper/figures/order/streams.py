"""What a training sees: the stream of a seed, as it is, with one segment replaced, or with a drifting mix of classes.

An example is a pure function of (seed, number of its stream, index), so a stream needs no storage. Blocks of examples
are kept as long as there is room, since many trainings share them.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad_paper.data import characters
from natgrad_paper.data.glyphs import CLASSES
from natgrad_paper.training.problem import Cases

STREAM, VALIDATION, HELD_OUT, FRESH = 0, 1, 2, 16
"""Numbers of a seed's streams; from `FRESH` on, one for every replacement of a segment."""
STEPS = 64
"""The number of places of the drifting centre between two classes."""

Block = tuple[Array, Array]


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
    """The examples of one seed, in blocks of updates; as many blocks are kept as there is room for."""

    def __init__(self, settings: Any, source: characters.DeviceGlyphs, seed: int) -> None:
        self.settings, self._source, self._seed = settings, source, seed
        stream = settings.stream
        size = 4 * stream.block * stream.batch * (stream.side**2 + 1)
        self.block = lru_cache(max(1, int(1e6 * stream.memory / size)))(self._block)

    def _block(self, stream: int, number: int, mix: Mix | None) -> Block:
        """Return a block of a stream: inputs (updates, batch, pixels) and labels (updates, batch)."""
        size, batch = self.settings.stream.block, self.settings.stream.batch
        first, many = number * size * batch, size * batch
        inputs, labels = self._draw(stream, np.arange(first, first + many), mix)
        return inputs.reshape(size, batch, -1), labels.reshape(size, batch)

    @cached_property
    def validation(self) -> Block:
        """The examples on which errors are measured."""
        return self._draw(VALIDATION, np.arange(self.settings.validation))

    @cached_property
    def held_out(self) -> Block:
        """The examples on which outputs are compared."""
        return self._draw(HELD_OUT, np.arange(self.settings.held_out))

    def _draw(self, stream: int, indices: np.ndarray, mix: Mix | None = None) -> Block:
        key, shape = characters.stream(self._seed, stream), self.settings.stream
        weights = None if mix is None else jnp.asarray(mix.weights(indices))
        numbers = jnp.asarray(indices.astype(np.uint32))
        options = {"side": shape.side, "pinched": shape.pinched}
        return jax.block_until_ready(characters.draw(self._source, key, numbers, weights, **options))


@dataclass(frozen=True)
class Plain:
    """The stream as it is: a source of a training."""

    examples: Examples

    @property
    def data(self) -> tuple[()]:
        """Nothing: all examples come in blocks."""
        return ()

    def drawn_from(self, update: int) -> tuple[int, Mix | None]:
        """Return the number of an update's stream, and the mix of its classes if it is not the equal one."""
        return STREAM, None

    def block(self, first: int, steps: int) -> Block:
        """Return the examples of `steps` updates from `first` on, which lie in one block."""
        number, skipped = divmod(first, self.examples.settings.stream.block)
        stream, mix = self.drawn_from(first)
        inputs, labels = self.examples.block(stream, number, mix)
        return inputs[skipped : skipped + steps], labels[skipped : skipped + steps]

    def same(self, first: int) -> int:
        """Return how many updates are left of the block."""
        size: int = self.examples.settings.stream.block
        return size - first % size

    def arguments(self, data: Any, row: Block, params: Any) -> dict[str, Any]:
        """Return the batch of an update."""
        return {"batch": row}

    def judged(self) -> dict[str, Cases]:
        """Return the examples on which errors are measured."""
        return {"valid_": self.examples.validation}


@dataclass(frozen=True)
class Replaced(Plain):
    """The stream with a segment, counted from 1, replaced by fresh examples: others for each repeat, from 1 too."""

    segment: int
    repeat: int

    def drawn_from(self, update: int) -> tuple[int, Mix | None]:
        """Return a fresh stream inside the segment."""
        settings = self.examples.settings
        first = settings.stream.start(self.segment)
        if not first <= update < first + settings.stream.segment:
            return STREAM, None
        return FRESH + (self.segment - 1) * settings.repeats + self.repeat - 1, None


@dataclass(frozen=True)
class Drifting(Plain):
    """The stream with a mix of classes that drifts, from the first to the last or, backwards, from last to first."""

    backwards: bool = False

    def drawn_from(self, update: int) -> tuple[int, Mix | None]:
        """Return the common stream, with the mix."""
        stream = self.examples.settings.stream
        return STREAM, Mix(self.examples.settings.drift.width, stream.updates * stream.batch, self.backwards)
