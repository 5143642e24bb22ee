"""A face from its traits: shapes given by signed distances, painted one over another with soft edges.

Coordinates are those of the face: x to the right, y down, the head about 1 wide and 1.3 high each way from its
middle. A distance is negative inside a shape; it decides how much of a pixel the shape covers.
"""

from collections import namedtuple
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from natgrad_paper.data.labelled import FACE_SIDE

Number = Array | float


class Expression(NamedTuple):
    """What a face does. Every number is 0 at rest."""

    brow_inner: Array  # the inner ends of the brows go up (or down)
    brow_outer: Array  # the outer ends of the brows go up (or down)
    brow_frown: Array  # the brows come together
    eye_open: Array  # the upper lids go up, showing the white of the eye (or come down)
    eye_squint: Array  # the lower lids go up
    mouth_smile: Array  # the corners of the mouth go up (or down)
    mouth_open: Array  # the jaw drops
    mouth_wide: Array  # the corners go apart (or together)
    teeth: Array  # the lips show the teeth
    nose_wrinkle: Array  # the nose is drawn up into wrinkles
    lip_raise: Array  # the middle of the upper lip goes up
    lopsided: Array  # the left half does more than the right (or less)


PEOPLE = {
    "head_width": (0.68, 0.84), "jaw": (0.12, 0.42), "skin": (0.42, 0.88), "hair": (0.04, 0.6),
    "hairline": (-0.78, -0.46), "parting": (-0.3, 0.3), "hair_length": (-0.6, 0.9), "ears": (0.0, 1.6),
    "eye_distance": (0.29, 0.37), "eye_size": (0.85, 1.2), "eye_height": (-0.16, -0.06), "iris": (0.08, 0.4),
    "brow_thickness": (0.6, 1.5), "brow_height": (0.2, 0.28), "nose_length": (0.85, 1.2),
    "nose_width": (0.75, 1.35), "mouth_height": (0.5, 0.6), "mouth_width": (0.85, 1.2),
    "lip_thickness": (0.6, 1.5), "beard": (-1.8, 0.7), "glasses": (-5.0, 1.0),
}  # fmt: skip
"""Whose face it is: the range of each trait. Those that only some people have start below zero, and are cut there."""
SCENES = {
    "shift_x": (-0.08, 0.08), "shift_y": (-0.08, 0.08), "turn": (-0.14, 0.14), "scale": (1.06, 1.24),
    "yaw": (-0.6, 0.6), "pitch": (-0.6, 0.6), "light_x": (-0.4, 0.4), "light_y": (-0.3, 0.3),
    "gain": (0.75, 1.15), "background": (0.05, 0.95), "slope": (-0.2, 0.2),
}  # fmt: skip
"""How a face is seen: its place and turn in the picture, the light and what is behind it."""
Person, Scene = (namedtuple(name, traits) for name, traits in (("Person", PEOPLE), ("Scene", SCENES)))


class Face(NamedTuple):
    """A face to be painted: each pixel's place on it, a pixel's size there, and its traits."""

    x: Array
    y: Array
    pixel: Array
    expression: Expression
    person: Any
    scene: Any


def paint(expression: Expression, person: Any, scene: Any) -> Array:
    """Return the picture, float32 of shape (48, 48), mostly between 0 and 1. All traits are scalars."""
    face = Face(*_coordinates(scene), expression, person, scene)
    canvas = scene.background + scene.slope * face.y
    for layer in (_hair_behind, _head, _eyes, _nose, _mouth, _brows, _glasses, _hair_in_front):
        canvas = layer(canvas, face)
    light = 1 + scene.light_x * face.x + scene.light_y * face.y
    return scene.gain * light * canvas


def _coordinates(scene: Any) -> tuple[Array, Array, Array]:
    """Return each pixel's place on the face, and a pixel's size there."""
    line = (jnp.arange(FACE_SIDE, dtype=jnp.float32) + 0.5) * (2 / FACE_SIDE) - 1
    u, v = line[None, :] - scene.shift_x, line[:, None] - scene.shift_y
    cosine, sine = jnp.cos(scene.turn), jnp.sin(scene.turn)
    x, y = (cosine * u + sine * v) / scene.scale, (cosine * v - sine * u) / scene.scale
    depth = 1 + 0.22 * scene.yaw * x + 0.22 * scene.pitch * y
    return x / depth, y / depth, 2 / FACE_SIDE / scene.scale


def _cover(canvas: Array, distance: Array, pixel: Array, color: Number, amount: Number = 1.0) -> Array:
    """Paint a shape: fully where the distance is below half a pixel inside, not at all half a pixel outside."""
    share = amount * jnp.clip(0.5 - distance / pixel, 0, 1)
    return canvas + share * (color - canvas)


def _ellipse(x: Array, y: Array, width: Number, height: Number) -> Array:
    """About the distance to an ellipse around the origin: exact on its edge to first order."""
    a, b = x / width, y / height
    radius = jnp.sqrt(a * a + b * b + 1e-6)
    slope = jnp.sqrt(jnp.square(a / width) + jnp.square(b / height) + 1e-6) / radius
    return (radius - 1) / slope


def _stroke(x: Array, y: Array, start: tuple, end: tuple, thickness: Number) -> Array:
    """The distance to a line between two points, as thick as twice `thickness`."""
    px, py = x - start[0], y - start[1]
    dx, dy = end[0] - start[0], end[1] - start[1]
    along = jnp.clip((px * dx + py * dy) / (dx * dx + dy * dy + 1e-9), 0, 1)
    return jnp.sqrt(jnp.square(px - along * dx) + jnp.square(py - along * dy) + 1e-9) - thickness


def _half(x: Array, expression: Expression) -> Array:
    """How strongly each side of the face takes part."""
    return 1 + expression.lopsided * jnp.clip(4 * x, -1, 1)


def _head_distance(x: Array, y: Array, person: Any, drop: Number) -> Array:
    """The head's outline: an ellipse whose lower half narrows to the chin and lengthens as the jaw drops."""
    below = jnp.maximum(y, 0)
    width = person.head_width * (1 - person.jaw * below * below)
    height = jnp.where(y > 0, 0.98 + drop, 0.95)
    return _ellipse(x, y, jnp.maximum(width, 0.3), height)


def _hair_behind(canvas: Array, face: Face) -> Array:
    """Long hair, neck and shoulders."""
    x, y, pixel, _, person, _ = face
    canvas = _cover(canvas, _ellipse(x, y - 1.75, 1.1, 0.62), pixel, 0.35 + 0.5 * person.hair)
    reach = person.hair_length
    long = jnp.maximum(_ellipse(x, y + 0.12, person.head_width + 0.2, 1.0 + 0.5 * reach), y - reach)
    canvas = _cover(canvas, long, pixel, 0.9 * person.hair)
    return _cover(canvas, _stroke(x, y, (0.0, 0.7), (0.0, 1.5), 0.3), pixel, 0.72 * person.skin)


def _head(canvas: Array, face: Face) -> Array:
    """Ears and head, shaded towards the rim as round things are."""
    x, y, pixel, expression, person, _ = face
    skin = person.skin
    for side in (-1, 1):
        ear = _ellipse(x - side * person.head_width, y - 0.02, 0.09, 0.17)
        canvas = _cover(canvas, ear, pixel, 0.82 * skin, person.ears)
    distance = _head_distance(x, y, person, 0.12 * expression.mouth_open)
    shade = 1 - 0.28 * jnp.square(jnp.clip(1 + distance / 0.45, 0, 1))
    canvas = _cover(canvas, distance, pixel, skin * shade)
    # Stubble and beards: darker below the cheeks.
    chin = jnp.maximum(distance + 0.02, 0.38 - y + 0.25 * jnp.square(x / person.head_width))
    canvas = _cover(canvas, chin, 3 * pixel, 0.5 * (skin + person.hair), person.beard)
    # Cheeks pushed up by a smile catch the light.
    for side in (-1, 1):
        cheek = _ellipse(x - side * 0.42, y - 0.2, 0.2, 0.15)
        canvas = _cover(canvas, cheek, 6 * pixel, 1.12 * skin, 0.7 * jnp.clip(expression.mouth_smile, 0, 1))
    return canvas


def _eyes(canvas: Array, face: Face) -> Array:
    """Sockets, whites, irises and lids. The gaze follows the turn of the head."""
    x, y, pixel, expression, person, scene = face
    skin = person.skin
    half = _half(x, expression)
    side = jnp.where(x < 0, -1.0, 1.0).astype(x.dtype)
    ex = jnp.abs(x) - person.eye_distance
    ey = y - person.eye_height
    width = 0.19 * person.eye_size
    socket = _ellipse(ex, ey + 0.03, 1.5 * width, 0.2)
    canvas = _cover(canvas, socket, 5 * pixel, 0.78 * skin, 0.8)
    arch = jnp.maximum(1 - jnp.square(ex / width), 0)
    upper = person.eye_size * jnp.clip(0.095 + 0.075 * expression.eye_open * half, 0.012, 0.22)
    lower = person.eye_size * jnp.clip(0.065 - 0.05 * expression.eye_squint * half, 0.005, 0.1)
    # Outer corners droop a little as the inner brow goes up, as in sorrow.
    droop = 0.25 * (jnp.clip(expression.brow_inner, -1, 1) - jnp.clip(expression.brow_outer, -1, 1)) * 0.3
    ey = ey - droop * ex
    white = jnp.maximum(-ey - upper * arch, ey - lower * arch)
    inside = jnp.maximum(white, jnp.abs(ex) - width)
    canvas = _cover(canvas, inside, pixel, 0.5 + 0.5 * skin)
    ix = side * ex - 0.1 * scene.yaw * width
    iris = _ellipse(ix, ey + 0.01, 0.088 * person.eye_size, 0.088 * person.eye_size)
    canvas = _cover(canvas, jnp.maximum(iris, inside), pixel, person.iris)
    pupil = _ellipse(ix, ey + 0.01, 0.04 * person.eye_size, 0.04 * person.eye_size)
    canvas = _cover(canvas, jnp.maximum(pupil, inside), pixel, 0.03)
    lash = jnp.maximum(jnp.abs(ey + upper * arch) - 0.022, jnp.abs(ex) - width - 0.02)
    canvas = _cover(canvas, lash, pixel, 0.25 * skin, 0.85)
    lid = jnp.maximum(jnp.abs(ey - lower * arch) - 0.01, jnp.abs(ex) - width)
    return _cover(canvas, lid, pixel, 0.45 * skin, 0.5 + 0.35 * jnp.clip(expression.eye_squint, 0, 1))


def _brows(canvas: Array, face: Face) -> Array:
    """Two strokes per brow, inner and outer, and the folds between the brows of a frowning face."""
    x, y, pixel, expression, person, _ = face
    skin = person.skin
    half = _half(x, expression)
    ax = jnp.abs(x)
    base = person.eye_height - person.brow_height
    inner_x = person.eye_distance - 0.21 - 0.055 * expression.brow_frown
    outer_x = person.eye_distance + 0.25
    inner_y = base + 0.02 - 0.11 * expression.brow_inner * half
    outer_y = base + 0.05 - 0.09 * expression.brow_outer * half
    middle = base - 0.035 - (0.045 * expression.brow_inner + 0.075 * expression.brow_outer) * half
    thick = 0.04 * person.brow_thickness
    bend = person.eye_distance + 0.06
    inner = _stroke(ax, y, (inner_x, inner_y), (bend, middle), thick)
    outer = _stroke(ax, y, (bend, middle), (outer_x, outer_y), 0.75 * thick)
    canvas = _cover(canvas, jnp.minimum(inner, outer), 1.3 * pixel, 0.25 * skin + 0.6 * person.hair, 0.9)
    fold = _stroke(ax, y, (0.06, base + 0.0), (0.05, base + 0.14), 0.012)
    return _cover(canvas, fold, pixel, 0.5 * skin, 0.8 * jnp.clip(expression.brow_frown, 0, 1))


def _nose(canvas: Array, face: Face) -> Array:
    """Bridge, tip and nostrils, moved by the turn of the head; wrinkles across the bridge."""
    x, y, pixel, expression, person, scene = face
    skin = person.skin
    lift = 0.04 * expression.nose_wrinkle
    tip = 0.30 * person.nose_length - lift
    nx = x + 0.08 * scene.yaw * jnp.clip((y + 0.2) / (tip + 0.2), 0, 1)
    wing = 0.13 * person.nose_width * (1 + 0.2 * expression.nose_wrinkle)
    shadow = _stroke(nx, y, (0.05, -0.15), (0.75 * wing, tip - 0.05), 0.03)
    canvas = _cover(canvas, shadow, 3 * pixel, 0.72 * skin, 0.6)
    ridge = _stroke(nx, y, (-0.01, -0.15), (-0.015, tip - 0.04), 0.03)
    canvas = _cover(canvas, ridge, 3 * pixel, 1.13 * skin, 0.6)
    base = _ellipse(nx, y - tip, wing, 0.05)
    canvas = _cover(canvas, base, 2 * pixel, 0.72 * skin, 0.7)
    nostril = _ellipse(jnp.abs(nx) - 0.55 * wing, y - tip - 0.012, 0.035, 0.022)
    canvas = _cover(canvas, nostril, pixel, 0.2 * skin, 0.9)
    amount = jnp.clip(expression.nose_wrinkle, 0, 1)
    for level in (-0.16, -0.07, 0.02):
        wrinkle = _stroke(jnp.abs(nx), y, (0.0, level + 0.03), (0.1, level - 0.01), 0.011)
        canvas = _cover(canvas, wrinkle, pixel, 0.5 * skin, 0.85 * amount)
    return canvas


def _mouth(canvas: Array, face: Face) -> Array:
    """Lips as bands along two arcs, what shows between them, and the folds from nose to corners."""
    x, y, pixel, expression, person, scene = face
    skin = person.skin
    half = _half(x, expression)
    mx = x + 0.04 * scene.yaw
    width = jnp.clip(0.27 * person.mouth_width * (1 + 0.32 * expression.mouth_wide), 0.09, 0.6)
    across = jnp.clip(jnp.square(mx / width), 0, 1)
    arch = 1 - across
    smile = 0.13 * expression.mouth_smile * half
    middle = person.mouth_height + 0.45 * smile - smile * across
    opening = jnp.clip(0.012 + 0.2 * expression.mouth_open, 0.004, 0.36)
    rise = 0.04 * expression.lip_raise * half * arch
    top = middle - 0.3 * opening * arch - rise
    bottom = middle + 0.75 * opening * arch
    beyond = jnp.abs(mx) - width
    lips = 0.045 * person.lip_thickness
    outer = jnp.maximum(top - 0.9 * lips * arch - 0.01 - y, y - bottom - 1.15 * lips * arch - 0.01)
    canvas = _cover(canvas, jnp.maximum(outer, beyond), pixel, 0.62 * skin, 0.85)
    inside = jnp.maximum(jnp.maximum(top - y, y - bottom) - 0.012, beyond)
    canvas = _cover(canvas, inside, pixel, 0.1 * skin + 0.04)
    rows = jnp.maximum(jnp.maximum(inside + 0.018, y - top - 0.1), jnp.abs(mx) - 0.9 * width)
    canvas = _cover(canvas, rows, pixel, 0.92, jnp.clip(expression.teeth, 0, 1))
    level = person.mouth_height
    chin = _stroke(jnp.abs(mx), y, (0.0, level + 0.22), (0.09, level + 0.23), 0.02)
    canvas = _cover(canvas, chin, 3 * pixel, 0.75 * skin, 0.4 * jnp.clip(1 - expression.mouth_open, 0, 1))
    corner, wing = level - 0.55 * smile, (0.15 * person.nose_width + 0.03, 0.27 * person.nose_length)
    fold = _stroke(jnp.abs(mx), y, wing, (width + 0.09, corner - 0.03), 0.014)
    depth = jnp.clip(0.15 + 0.5 * jnp.abs(expression.mouth_smile) + 0.4 * expression.nose_wrinkle, 0, 0.9)
    return _cover(canvas, fold, 1.5 * pixel, 0.6 * skin, depth)


def _glasses(canvas: Array, face: Face) -> Array:
    """Round frames with a bridge, on those who wear them."""
    x, y, pixel, _, person, _ = face
    ring = jnp.abs(_ellipse(jnp.abs(x) - person.eye_distance, y - person.eye_height, 0.25, 0.21)) - 0.016
    end = (person.eye_distance - 0.24, person.eye_height - 0.03)
    bridge = _stroke(jnp.abs(x), y, (0.0, person.eye_height - 0.05), end, 0.014)
    return _cover(canvas, jnp.minimum(ring, bridge), pixel, 0.15, 0.9 * person.glasses)


def _hair_in_front(canvas: Array, face: Face) -> Array:
    """The cap of hair above the hairline, which a parting makes uneven; it shows a slight sheen."""
    x, y, pixel, _, person, _ = face
    cap = _ellipse(x, y + 0.12, person.head_width + 0.12, 0.98)
    line = person.hairline + 0.38 * jnp.square(x - person.parting) / person.head_width
    hair = jnp.maximum(cap, y - line)
    sheen = person.hair * (1 + 0.25 * jnp.clip(1 - jnp.square((y + 0.85) / 0.2), 0, 1))
    return _cover(canvas, hair, 1.5 * pixel, sheen)
