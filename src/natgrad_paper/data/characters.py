"""An endless stream of deformed characters: example i is a pure function of (seed, i), on any machine.

After the NISTP generator (Bengio et al. 2011): a character of one of 62 classes, slanted, thickened or thinned,
moved by an affine map, stretched locally and pinched, each with a complexity of its own, uniform on [0, 0.7].
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad_paper.data import deform
from natgrad_paper.data.deform import ONE, SIDE
from natgrad_paper.data.glyphs import CLASSES, Glyphs

COMPLEXITY = 45_875
"""0.7, in units of 2⁻¹⁶."""
STAGES = ("glyph", "slant", "thickness", "affine", "elastic", "pinch")
"""What `show` returns for each example, in order; the last only if it is pinched."""


class DeviceGlyphs(NamedTuple):
    """Glyphs on the device."""

    images: Array
    starts: Array
    counts: Array


class Traits(NamedTuple):
    """What happens to a character. Fixed numbers are in units of 2⁻¹⁶."""

    angle: Array
    sign: Array
    direction: Array
    element: Array
    a: Array
    b: Array
    d: Array
    e: Array
    tx: Array
    ty: Array
    level: Array
    field: Array
    pinch: Array


def source(glyphs: Glyphs) -> DeviceGlyphs:
    """Put glyphs on the device. If a class has more than 65,536 of them, only the first 65,536 are used."""
    counts = np.minimum(glyphs.counts, ONE)
    return DeviceGlyphs(jnp.asarray(glyphs.images), jnp.asarray(glyphs.starts), jnp.asarray(counts))


def stream(seed: int, number: int = 0) -> Array:
    """Return the key of a stream; streams of one seed with different numbers share no randomness."""
    return jax.random.fold_in(jax.random.key(seed), number)


@partial(jax.jit, static_argnames=("side", "pinched"))
def draw(
    source: DeviceGlyphs,
    key: Array,
    indices: Array,
    weights: Array | None = None,
    *,
    side: int = SIDE,
    pinched: bool = True,
) -> tuple[Array, Array]:
    """Return the examples at the given indices of a stream: float32 (n, side²) in [0, 1], and int32 labels (n,).

    Everything up to the last product is integer arithmetic, so an example has the same bits in any batch. `weights`
    gives the classes unequal frequencies: whole numbers, (62,) for all or (n, 62) for each example, with a sum from 1
    to 65536. Indices run to 2³². `side` is 32, or 16 for means over 2×2 pixels.
    """
    if side not in (SIDE, SIDE // 2):
        raise ValueError(f"side must be {SIDE} or {SIDE // 2}, not {side}")
    if weights is None:
        weights = jnp.ones(CLASSES, jnp.int32)
    shares = jnp.broadcast_to(weights.astype(jnp.int32), (*indices.shape, CLASSES))

    def example(index: Array, weights: Array) -> tuple[Array, Array]:
        image, label, traits = _undeformed(source, key, index, weights)
        return stages(image, traits, pinched)[-1], label

    pixels, labels = jax.vmap(example)(indices.astype(jnp.uint32), shares)
    if side == SIDE:
        return pixels.reshape(len(pixels), -1).astype(jnp.float32) * jnp.float32(1 / 255), labels
    sums = pixels.reshape(-1, side, 2, side, 2).sum(axis=(2, 4), dtype=jnp.int32)
    return sums.reshape(len(pixels), -1).astype(jnp.float32) * jnp.float32(1 / 1020), labels


@partial(jax.jit, static_argnames="pinched")
def show(source: DeviceGlyphs, key: Array, indices: Array, *, pinched: bool = True) -> tuple[Array, Array]:
    """Return each example at every stage of its making, uint8 (n, 5 or 6, 32, 32), and the labels: for pictures."""

    def one(index: Array) -> tuple[Array, Array]:
        image, label, traits = _undeformed(source, key, index, jnp.ones(CLASSES, jnp.int32))
        return jnp.stack(stages(image, traits, pinched)).astype(jnp.uint8), label

    return jax.vmap(one)(indices.astype(jnp.uint32))


def _undeformed(
    source: DeviceGlyphs, key: Array, index: Array, weights: Array
) -> tuple[Array, Array, Traits]:
    """Return the glyph of an example, its label, and what will happen to it."""
    which, how = jax.random.split(jax.random.fold_in(key, index))
    return *_pick(source, which, weights), traits(how)


def _pick(source: DeviceGlyphs, key: Array, weights: Array) -> tuple[Array, Array]:
    """Draw a class by weight, and one of its glyphs, all equally likely."""
    first, second = jax.random.bits(key, (2,), jnp.uint32) >> jnp.uint32(16)
    until = jnp.cumsum(weights, dtype=jnp.int32)
    label = (until <= _below(first, until[-1])).sum(dtype=jnp.int32)
    number = source.starts[label] + _below(second, source.counts[label])
    return source.images[number].astype(jnp.int32), label


def stages(image: Array, traits: Traits, pinched: bool = True) -> list[Array]:
    """Return the character as it comes, and after each deformation in the order of the original generator."""
    fields = jnp.asarray(deform.elastic_fields())[traits.level, traits.field]
    slanted = deform.slant(image, traits.angle, traits.sign)
    thick = deform.thicken(slanted, traits.element, traits.direction)
    moved = deform.affine(thick, traits.a, traits.b, traits.d, traits.e, traits.tx, traits.ty)
    stretched = deform.elastic(moved, fields.astype(jnp.int32))
    if not pinched:
        return [image, slanted, thick, moved, stretched]
    towards = jnp.asarray(deform.pinch_fields())[traits.pinch - deform.PINCH_LEAST]
    return [image, slanted, thick, moved, stretched, deform.elastic(stretched, towards.astype(jnp.int32))]


def traits(key: Array) -> Traits:
    """Draw what happens to a character."""
    halves = iter(jax.random.bits(key, (18,), jnp.uint32) >> jnp.uint32(16))
    slanting, thickness, moving, stretching, pinching = (_below(next(halves), COMPLEXITY) for _ in range(5))
    angle = _below(next(halves), slanting)
    sign = 2 * _below(next(halves), 2) - 1
    erosions, dilations = -(-5 * thickness >> 16), -(-9 * thickness >> 16)
    chance = _below(next(halves), dilations + erosions + 1)
    direction = jnp.where(chance < erosions, -1, jnp.where(chance < erosions + dilations, 1, 0))
    element = _below(next(halves), jnp.where(direction < 0, erosions, dilations))
    # ±0.4 c, and ±4.5 c in steps of 2⁻¹³ so that the width of the range fits 16 bits.
    tilt, shift = (2 * moving) // 5, (9 * moving) >> 4
    a, b, d, e = (_below(next(halves), 2 * tilt + 1) - tilt for _ in range(4))
    tx, ty = (8 * (_below(next(halves), 2 * shift + 1) - shift) for _ in range(2))
    field = _below(next(halves), deform.FIELDS)
    p = 2 * _below(next(halves), (17 * pinching) // 20) - pinching
    return Traits(
        angle, sign, direction.astype(jnp.int32), element, a + ONE, b, d, e + ONE, tx, ty,
        level=(10 * stretching) >> 16,
        field=field,
        pinch=(p + ONE // deform.PINCH_STEPS // 2) // (ONE // deform.PINCH_STEPS),
    )  # fmt: skip


def _below(half: Array, limit: Array | int) -> Array:
    """Return a whole number in [0, limit), from 16 random bits; the limit is at most 2¹⁶."""
    wide = limit.astype(jnp.uint32) if isinstance(limit, Array) else jnp.uint32(limit)
    return (half * wide >> jnp.uint32(16)).astype(jnp.int32)
