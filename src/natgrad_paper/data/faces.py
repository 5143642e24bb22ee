"""Drawn faces: 48×48 pictures of people nobody has met, each with one of seven expressions.

These faces replace the Toronto Face Database where it is not available. The expression decides what brows, eyes, nose
and mouth do, with random strength and random deviations. The person, the pose of the head, the light and the noise do
not depend on the expression.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad_paper.data.face_drawing import PEOPLE, SCENES, Expression, Person, Scene, paint
from natgrad_paper.data.labelled import EXPRESSIONS, Faces, Labelled

NAME = "drawn faces"
TRAIN, VALID, TEST = 2925, 418, 835
"""As many as a fold of the Toronto Face Database has."""
UNLABELLED = 10_000
STREAMS = {"train": 0, "valid": 1, "test": 2, "unlabelled": 3}
GROUP = 128
"""Faces drawn at a time. Groups are aligned, so a face is always drawn by the same program at the same place."""

CLASSES = len(EXPRESSIONS)
NOISE = 0.02

# Columns: anger, disgust, fear, happy, sad, surprise, neutral. After Ekman & Friesen's action units.
_POSED = {
    "brow_inner": (-1.0, -0.6, 1.0, 0.1, 1.1, 1.0, 0.0),
    "brow_outer": (0.4, -0.3, 0.4, 0.1, -0.7, 1.2, 0.0),
    "brow_frown": (1.0, 0.5, 0.6, 0.0, 0.5, 0.0, 0.0),
    "eye_open": (0.2, -0.5, 1.1, -0.2, -0.6, 1.0, 0.0),
    "eye_squint": (0.5, 0.9, 0.0, 0.8, 0.1, -0.1, 0.0),
    "mouth_smile": (-0.5, -0.6, -0.6, 1.2, -1.0, 0.0, 0.0),
    "mouth_open": (0.1, 0.25, 0.55, 0.45, -0.05, 1.3, 0.0),
    "mouth_wide": (-0.3, -0.1, 0.6, 0.8, -0.2, -0.5, 0.0),
    "teeth": (0.3, 0.4, 0.4, 0.8, 0.0, 0.1, 0.0),
    "nose_wrinkle": (0.2, 1.1, 0.0, 0.1, 0.0, 0.0, 0.0),
    "lip_raise": (0.0, 1.2, 0.2, 0.2, 0.1, 0.2, 0.0),
    "lopsided": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
}
_ACCIDENT = {
    "brow_inner": 0.3, "brow_outer": 0.3, "brow_frown": 0.25, "eye_open": 0.25, "eye_squint": 0.25,
    "mouth_smile": 0.25, "mouth_open": 0.1, "mouth_wide": 0.3, "teeth": 0.25, "nose_wrinkle": 0.15,
    "lip_raise": 0.25, "lopsided": 0.25,
}  # fmt: skip
"""Standard deviations of the random deviations from a posed expression."""
_WEAK, _STRONG = 0.6, 1.2


def generate(
    seed: int = 0, train: int = TRAIN, valid: int = VALID, test: int = TEST, unlabelled: int = UNLABELLED
) -> Faces:
    """Return drawn faces, a pure function of the seed; a smaller set is always the beginning of a larger one."""
    return Faces(
        NAME,
        draw(seed, "train", 0, train),
        draw(seed, "valid", 0, valid),
        draw(seed, "test", 0, test),
        draw(seed, "unlabelled", 0, unlabelled).images,
    )


def draw(seed: int, stream: str, first: int, count: int) -> Labelled:
    """Return the faces `first` to `first + count` of a stream, with their labels.

    Face i depends on the seed, the stream and i alone. Each group of seven faces that starts at a multiple of seven
    has all seven expressions, in a random order.
    """
    key = jax.random.fold_in(jax.random.key(seed), STREAMS[stream])
    start = first - first % GROUP
    images, labels = [np.zeros((0, 48, 48), np.uint8)], [np.zeros(0, np.int32)]
    for group in range(start, first + count, GROUP):
        pictures, classes = _group(key, jnp.uint32(group))
        inside = slice(max(first - group, 0), min(first + count - group, GROUP))
        images.append(np.asarray(pictures)[inside])
        labels.append(np.asarray(classes)[inside])
    return Labelled(np.concatenate(images), np.concatenate(labels))


@jax.jit
def _group(key: Array, start: Array) -> tuple[Array, Array]:
    indices = start + jnp.arange(GROUP, dtype=jnp.uint32)
    return jax.vmap(partial(_face, key))(indices)


def _face(key: Array, index: Array) -> tuple[Array, Array]:
    """Return face number `index`: uint8 of shape (48, 48), and its label."""
    seven = jnp.uint32(CLASSES)
    order = jax.random.permutation(jax.random.fold_in(jax.random.fold_in(key, 0), index // seven), CLASSES)
    label = order[index % seven].astype(jnp.int32)
    keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 1), index), 4)
    expression = _expression(keys[0], label)
    person: Any = Person(**_between(keys[1], PEOPLE))
    person = person._replace(
        hair=person.hair * person.skin,
        ears=jnp.clip(person.ears, 0, 1),
        beard=jnp.clip(person.beard, 0, 1),
        glasses=(person.glasses > 0).astype(jnp.float32),
    )
    picture = paint(expression, person, Scene(**_between(keys[2], SCENES)))
    noise = NOISE * jax.random.normal(keys[3], picture.shape, jnp.float32)
    return jnp.round(255 * jnp.clip(picture + noise, 0, 1)).astype(jnp.uint8), label


def _expression(key: Array, label: Array) -> Expression:
    """Return what the face does: the posed expression at a random strength, with random deviations."""
    one, two = jax.random.split(key)
    strength = jax.random.uniform(one, (), jnp.float32, _WEAK, _STRONG)
    posed = jnp.array([_POSED[trait] for trait in Expression._fields], jnp.float32)[:, label]
    spread = jnp.array([_ACCIDENT[trait] for trait in Expression._fields], jnp.float32)
    return Expression(*(strength * posed + spread * jax.random.normal(two, posed.shape, jnp.float32)))


def _between(key: Array, ranges: dict[str, tuple[float, float]]) -> dict[str, Array]:
    """Return numbers drawn uniformly, each from its range."""
    low, high = jnp.array(list(ranges.values()), jnp.float32).T
    drawn = low + (high - low) * jax.random.uniform(key, low.shape, jnp.float32)
    return dict(zip(ranges, drawn, strict=True))
