"""The Curves data: 28×28 drawings of the quadratic through three random points, so six numbers make an image.

This is a new implementation after the description of the original (`digs3pts_1.mat`, Hinton & Salakhutdinov 2006).
The data have the original's size and nearly its statistics, but not its pixels, so their name is always "Curves
(regenerated)".
"""

import numpy as np

from natgrad_paper.data.images import Images

SIDE = 28
TRAIN, TEST = 20_000, 10_000
REGENERATED = "Curves (regenerated)"

LOW, HIGH, GAP = 2.0, 26.0, 2.0
SAMPLES = 120
INK_SCALE, INK_SPREAD = 1.2, 0.5
GROUP = 1_000  # images drawn at a time, so that the work stays in the cache


def generate(seed: int = 0, train: int = TRAIN, test: int = TEST) -> Images:
    """Return the regenerated Curves data, a pure function of the seed.

    Training and test images come from separate streams. A smaller set is always the beginning of a larger one.
    """
    return Images(REGENERATED, draw(random_triples(seed, 0, train)), draw(random_triples(seed, 1, test)))


def random_triples(seed: int, stream: int, count: int) -> np.ndarray:
    """Return `count` triples of points, of shape (count, 3, 2), the last axis being (x, y).

    They are uniform on [2, 26]² under the condition that x grows by at least 2 from each point to the next. To sample
    this without rejection, uniforms on a shorter interval are sorted and then spread out.
    """
    unit = np.random.default_rng([seed, stream]).random((count, 3, 2))
    x = LOW + (HIGH - LOW - 2 * GAP) * np.sort(unit[..., 0], axis=1) + GAP * np.arange(3)
    y = LOW + (HIGH - LOW) * unit[..., 1]
    return np.stack([x, y], axis=-1)


def quadratic(triples: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return the curves at times t, of shape (count, len(t), 2): they pass the points at t = 0, 1, 2."""
    lagrange = np.stack([(t - 1) * (t - 2) / 2, t * (2 - t), t * (t - 1) / 2], axis=-1)
    first, second, third = (triples[:, None, k, :] for k in range(3))
    return lagrange[:, :1] * first + lagrange[:, 1:2] * second + lagrange[:, 2:] * third


def trace(triples: np.ndarray, samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """Return points equally spaced in arc length along each curve, and each curve's length."""
    count = len(triples)
    t = np.linspace(0.0, 2.0, samples + 1)
    steps = np.diff(quadratic(triples, t), axis=1)
    travelled = np.cumsum(np.sqrt(steps[..., 0] ** 2 + steps[..., 1] ** 2), axis=1)
    length = travelled[:, -1]
    # One interpolation for all curves: curve i covers the interval [i, i + 1] of one growing sequence.
    share = np.concatenate([np.zeros((count, 1)), travelled / length[:, None]], axis=1)
    row = np.arange(count)[:, None]
    middles = (np.arange(samples) + 0.5) / samples
    flat = np.interp((row + middles).ravel(), (row + share).ravel(), np.tile(t, count))
    times = flat.reshape(count, samples, 1)
    first, second, third = (triples[:, None, k, :] for k in range(3))
    # Horner's form of the same quadratic, here with its own times for each curve.
    linear = 2 * second - 1.5 * first - 0.5 * third
    return first + times * (linear + times * (0.5 * (first + third) - second)), length


def draw(triples: np.ndarray) -> np.ndarray:
    """Return the images of the curves through the given points, of shape (count, 784), float32 in [0, 1]."""
    images = np.empty((len(triples), SIDE * SIDE), np.float32)
    for start in range(0, len(triples), GROUP):
        ink = _ink(triples[start : start + GROUP])
        images[start : start + GROUP] = np.minimum(_blur(_blur(ink)), 1).reshape(len(ink), -1)
    return images


def _ink(triples: np.ndarray) -> np.ndarray:
    """One unit of ink per pixel of length, each sample's shared bilinearly by the four nearest pixels."""
    count = len(triples)
    position, length = trace(triples)
    # Pixel centres lie at half-integers, so that [2, 26] is centred. Two pixels of margin catch
    # the ink of curves that leave the picture; the margin is cut off.
    margin = 2
    side = SIDE + 2 * margin
    position = np.clip(position - 0.5 + margin, 0, side - 1.001)
    corner = np.floor(position)
    part = position - corner
    column, line = corner[..., 0].astype(np.int64), corner[..., 1].astype(np.int64)
    flat = np.arange(count)[:, None] * side * side + line * side + column
    dose = (length / position.shape[1])[:, None]
    right, down = part[..., 0], part[..., 1]
    field = np.zeros(count * side * side)
    for offset, weight in (
        (0, (1 - right) * (1 - down)),
        (1, right * (1 - down)),
        (side, (1 - right) * down),
        (side + 1, right * down),
    ):
        field += np.bincount((flat + offset).ravel(), (dose * weight).ravel(), minlength=field.size)
    inside = slice(margin, margin + SIDE)
    field = field.reshape(count, side, side)[:, inside, inside]
    # The grid is coarse enough that rounding on another machine does not change the hash.
    return (np.round(field * 65536) / 65536).astype(np.float32)


def _blur(images: np.ndarray) -> np.ndarray:
    """Convolve with Hinton & Nair's inking filter, 1.2·[a/12 a/6 a/12; a/6 1−a a/6; a/12 a/6 a/12], a = ½.

    The filter is a/12 times the outer product of [1 2 1] with itself, and the rest in the middle.
    """
    side = np.float32(INK_SCALE * INK_SPREAD / 12)
    middle = np.float32(INK_SCALE * (1 - INK_SPREAD - 4 * INK_SPREAD / 12))
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    lines = padded[:, :-2] + padded[:, 1:-1] * np.float32(2) + padded[:, 2:]
    both = lines[:, :, :-2] + lines[:, :, 1:-1] * np.float32(2) + lines[:, :, 2:]
    return side * both + middle * images
