"""Deformations of 32×32 characters, after the NISTP generator (Bengio et al. 2011), in whole numbers.

Pixels are 0..255 in int32; angles, factors and shifts are multiples of 2⁻¹⁶ ("fixed"), places of bilinear sampling
multiples of 2⁻⁸. Integer arithmetic has no rounding that could depend on the size of a batch or on the machine, so a
deformed character is the same bits everywhere. Every function takes one image and scalars; `vmap` does the rest.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jax import Array

SIDE = 32
CENTER = (SIDE - 1) / 2
ONE = 1 << 16
"""1 as a fixed number."""
STEPS = 1 << 8
"""Places a bilinear sample can take between two pixels."""

FIELDS = 51
"""Elastic fields for each of the six levels above zero."""
PINCH_STEPS = 128
"""Strengths of pinching in a unit."""
PINCH_LEAST, PINCH_MOST = -90, 63
"""Strengths in those steps: −0.7 and 0.7², a little beyond."""


def slant(image: Array, angle: Array, sign: Array) -> Array:
    """Roll line i to the right by s·(round(i·angle) − round(16·angle)) pixels."""
    line = jnp.arange(SIDE, dtype=jnp.int32)
    shift = sign * (_rounded(line * angle) - _rounded(SIDE // 2 * angle))
    column = (line[None, :] - shift[:, None]) & (SIDE - 1)
    return image.ravel()[line[:, None] * SIDE + column]


# Height and width of the nine elements; the fourth is a plus, the others are full.
ELEMENTS = ((1, 2), (2, 1), (2, 2), (3, 3), (2, 3), (3, 2), (3, 3), (3, 4), (4, 3))
PLUS = 3


def elements() -> np.ndarray:
    """Return the nine elements as booleans (9, 4, 4): entry [k, 2 + a, 2 + b] is true if (a, b) belongs to element k.

    An element of even length reaches one pixel further up and left, as `scipy.ndimage` has it.
    """
    masks = np.zeros((len(ELEMENTS), 4, 4), bool)
    for number, (height, width) in enumerate(ELEMENTS):
        top, left = 2 - height // 2, 2 - width // 2
        masks[number, top : top + height, left : left + width] = True
    masks[PLUS] &= np.add.outer(np.abs(np.arange(-2, 2)), np.abs(np.arange(-2, 2))) <= 1
    return masks


def thicken(image: Array, element: Array, direction: Array) -> Array:
    """Grey erosion (direction −1), dilation (1) or nothing (0) with an element, rescaled to [0, max of the image].

    Erosion is the least pixel under the element, dilation the greatest under its mirror image; pixels outside do not
    count. An image that comes out flat is returned as it was.
    """
    # Erosion is dilation of the negative. Offsets (a, b) run from −2 to 1; a mirrored element from −1 to 2.
    mask = jnp.asarray(elements())[element]
    mask = jnp.where(direction > 0, mask[::-1, ::-1], mask)
    signed = jnp.where(direction > 0, image, -image)
    lowest = jnp.int32(-(1 << 20))
    padded = jnp.pad(signed, 2, constant_values=lowest)
    # With the mirrored element, offsets start one later: move the picture instead of the sixteen windows.
    moved = jnp.where(direction > 0, jnp.roll(padded, (-1, -1), (0, 1)), padded)
    best = jnp.full_like(signed, lowest)
    for a in range(4):
        for b in range(4):
            best = jnp.maximum(best, jnp.where(mask[a, b], moved[a : a + SIDE, b : b + SIDE], lowest))
    out = jnp.where(direction > 0, best, -best)
    least, most, ink = out.min(), out.max(), image.max()
    span = jnp.maximum(most - least, 1)
    rescaled = ((out - least) * ink * 2 + span) // (2 * span)
    return jnp.where((direction == 0) | (most == least), image, rescaled)


def affine(image: Array, a: Array, b: Array, d: Array, e: Array, tx: Array, ty: Array) -> Array:
    """Return out(x, y) = in(⌊ax + by + tx⌋, ⌊dx + ey + ty⌋), 0 from outside; the origin is the top left corner."""
    x = jnp.arange(SIDE, dtype=jnp.int32)[None, :]
    y = jnp.arange(SIDE, dtype=jnp.int32)[:, None]
    column, line = (a * x + b * y + tx) >> 16, (d * x + e * y + ty) >> 16
    inside = (column >= 0) & (column < SIDE) & (line >= 0) & (line < SIDE)
    return jnp.where(inside, image.ravel()[jnp.where(inside, line * SIDE + column, 0)], 0)


def elastic(image: Array, field: Array) -> Array:
    """Sample the image where a field of shape (2, 32, 32) moves each pixel: down by field[0], right by field[1]."""
    grid = STEPS * jnp.arange(SIDE, dtype=jnp.int32)
    return _bilinear(image, grid[:, None] + field[0], grid[None, :] + field[1])


@functools.cache
def elastic_fields() -> np.ndarray:
    """Return the bank of elastic fields, int16 (7, 51, 2, 32, 32), in 1/256 pixels; level 0 moves nothing.

    At level l, c = l/10 and k = c^⅓: numbers uniform on [−1, 1] are smoothed with exp(−(u/σ)²), σ = 10 − 7k, cut at
    0.75 σ along each axis, with sum 1, and multiplied by α = 10 k.
    """
    bank = np.zeros((7, FIELDS, 2, SIDE, SIDE), np.int16)
    for level in range(1, 7):
        k = (level / 10) ** (1 / 3)
        alpha, sigma = 10 * k, 10 - 7 * k
        reach = int(0.75 * sigma)
        weights = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2))
        weights /= weights.sum()
        rough = np.random.default_rng([level, 0xE1A5]).uniform(-1, 1, (FIELDS, 2, *(2 * [SIDE + 2 * reach])))
        lines = sum(w * rough[..., i : i + SIDE, :] for i, w in enumerate(weights))
        smooth = sum(w * lines[..., i : i + SIDE] for i, w in enumerate(weights))
        bank[level] = np.round(STEPS * alpha * smooth)
    return bank


@functools.cache
def pinch_fields() -> np.ndarray:
    """Return how far each strength p moves each pixel, int16 (strengths, 2, 32, 32), in 1/256 pixels.

    A pixel at d from the centre with r = |d| < 16 takes its value from d · sin(πr/32)^(−p): p > 0 pinches, p < 0
    bulges.
    """
    p = np.arange(PINCH_LEAST, PINCH_MOST + 1)[:, None, None] / PINCH_STEPS
    down, right = np.mgrid[:SIDE, :SIDE] - CENTER
    radius = np.hypot(down, right)
    reach = SIDE / 2
    factor = np.where(radius < reach, np.sin(np.pi / 2 * np.minimum(radius / reach, 1)) ** -p, 1)
    moves = np.stack([down * (factor - 1), right * (factor - 1)], axis=1)
    return np.round(STEPS * moves).astype(np.int16)


def _rounded(fixed: Array) -> Array:
    return (fixed + ONE // 2) >> 16


def _bilinear(image: Array, line: Array, column: Array) -> Array:
    """Sample at places in 1/256 pixels, 0 outside. One gather fetches all four neighbours, packed in a word."""
    padded = jnp.pad(image, 2).astype(jnp.uint32)
    corners = (padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:])
    shifted = (corner << jnp.uint32(8 * n) for n, corner in enumerate(corners))
    words = functools.reduce(jnp.bitwise_or, shifted)
    side = SIDE + 3
    top, left = (jnp.clip((place >> 8) + 2, 0, side - 1) for place in (line, column))
    word = words.ravel()[top * side + left]
    a, b, c, d = ((word >> jnp.uint32(8 * n) & jnp.uint32(255)).astype(jnp.int32) for n in range(4))
    down, right = line & (STEPS - 1), column & (STEPS - 1)
    upper = a * (STEPS - right) + b * right
    lower = c * (STEPS - right) + d * right
    return (upper * (STEPS - down) + lower * down + STEPS * STEPS // 2) >> 16
