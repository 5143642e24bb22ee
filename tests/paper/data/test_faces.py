"""Drawn faces: pure in (seed, index), balanced, and drawn where their traits say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from natgrad_paper.data import face_drawing, faces
from natgrad_paper.data.face_drawing import PEOPLE, SCENES, Expression, Person, Scene
from natgrad_paper.errors import UserError

pytestmark = pytest.mark.usefixtures("fast_compile")


@pytest.fixture(scope="module")
def many():
    return faces.draw(0, "train", 0, 300)


def test_shape_type_and_range(many):
    assert many.images.shape == (300, 48, 48)
    assert many.images.dtype == np.uint8
    assert many.labels.dtype == np.int32
    assert many.images.min() < 20
    assert many.images.max() > 235
    contrasts = many.images.std(axis=(1, 2))
    assert contrasts.min() > 8


def test_every_seven_have_the_seven_expressions_in_some_order(many):
    sevens = many.labels[: 42 * 7].reshape(42, 7)
    np.testing.assert_array_equal(np.sort(sevens, axis=1), np.broadcast_to(np.arange(7), (42, 7)))
    assert len(np.unique(sevens, axis=0)) > 35


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 299), st.integers(0, 299))
def test_a_face_is_the_same_however_it_is_asked_for(many, one, other):
    first, last = sorted((one, other))
    part = faces.draw(0, "train", first, last - first)
    np.testing.assert_array_equal(part.images, many.images[first:last])
    np.testing.assert_array_equal(part.labels, many.labels[first:last])


def test_seeds_and_streams_differ(many):
    others = [
        faces.draw(1, "train", 0, 20),
        *(faces.draw(0, name, 0, 20) for name in ("valid", "test", "unlabelled")),
    ]
    pictures = np.concatenate([many.images[:20], *(other.images for other in others)])
    assert len(np.unique(pictures.reshape(100, -1), axis=0)) == 100
    assert len({tuple(other.labels) for other in others}) == 4


def test_the_data_set_is_made_of_the_streams(many):
    data = faces.generate(0, train=30, valid=8, test=9, unlabelled=11)
    assert data.name == "drawn faces"
    np.testing.assert_array_equal(data.train.images, many.images[:30])
    np.testing.assert_array_equal(data.test.labels, faces.draw(0, "test", 0, 9).labels)
    np.testing.assert_array_equal(data.unlabelled, faces.draw(0, "unlabelled", 0, 11).images)
    assert data.first(30, 8, 9, 11).sha256() == data.sha256()
    assert data.first(30, 8, 9, 10).sha256() != data.sha256()
    with pytest.raises(UserError, match="drawn faces: 31 training images wanted, the data has 30"):
        data.first(31, 0, 0, 0)


def middles(ranges):
    return {name: jnp.float32((low + high) / 2) for name, (low, high) in ranges.items()}


def face(scene=None, **expression):
    rest = Expression(*(jnp.float32(0) for _ in Expression._fields))
    person = Person(**middles(PEOPLE))
    person = person._replace(beard=jnp.float32(0), glasses=jnp.float32(0))
    still = Scene(**middles(SCENES))
    still = still._replace(**{name: jnp.float32(value) for name, value in (scene or {}).items()})
    traits = {name: jnp.float32(value) for name, value in expression.items()}
    return np.asarray(paint(rest._replace(**traits), person, still))


paint = jax.jit(face_drawing.paint)

# Where on the picture (lines from, to) each trait of an expression shows, and nowhere else.
PLACES = {
    "brow_inner": (8, 25), "brow_outer": (8, 25), "brow_frown": (8, 25), "eye_open": (12, 27), "eye_squint": (12, 27),
    "mouth_smile": (22, 48), "mouth_wide": (28, 46), "teeth": (34, 44), "nose_wrinkle": (16, 42), "lip_raise": (30, 44),
}  # fmt: skip


@pytest.mark.parametrize("trait", PLACES)
def test_an_expression_shows_where_it_should(trait):
    first, last = PLACES[trait]
    base = {"mouth_open": 0.6}
    change = np.abs(face(**base, **{trait: 1.0}) - face(**base)).max(axis=1)
    assert change[first:last].max() > 0.08
    assert change[:first].max() < 1e-3
    assert last == 48 or change[last:].max() < 1e-3


def lowest_dark(picture, columns, lines):
    """The line of the darkest pixel in a part of the picture."""
    return lines[0] + np.argmin(picture[slice(*lines), slice(*columns)].min(axis=1))


def test_brows_lids_and_mouth_move_the_right_way():
    def brow(picture):
        return lowest_dark(picture, (17, 20), (8, 18))

    assert brow(face(brow_inner=1.2)) < brow(face()) < brow(face(brow_inner=-1.2)) + 1
    # A dropped jaw leaves a dark hole where there were lips; teeth make it bright.
    hole = np.s_[36:42, 21:27]
    assert face(mouth_open=1.3)[hole].mean() < face()[hole].mean() - 0.1
    assert face(mouth_open=1.3, teeth=1)[hole].mean() > face(mouth_open=1.3)[hole].mean() + 0.1

    # The corners of a smile lie above its middle, those of a sad mouth below.
    def corner(picture):
        return lowest_dark(picture, (17, 19), (33, 44))

    def middle(picture):
        return lowest_dark(picture, (23, 25), (33, 44))

    happy, sad = face(mouth_smile=1.3, mouth_wide=0.5), face(mouth_smile=-1.3, mouth_wide=0.5)
    assert corner(happy) < middle(happy)
    assert corner(sad) > middle(sad)


def test_moving_the_head_moves_the_picture():
    plain = {"light_x": 0, "light_y": 0, "slope": 0, "yaw": 0, "pitch": 0, "scale": 0.7, "background": 0.5}
    still = face(plain)
    moved = face(plain | {"shift_x": 4 * 2 / 48, "shift_y": -3 * 2 / 48})
    np.testing.assert_allclose(moved[:40, 4:], still[3:43, :-4], atol=1e-4)
    turned = face(plain | {"turn": np.pi / 2})
    np.testing.assert_allclose(turned, np.rot90(still, -1), atol=1e-3)


def test_strokes_and_ellipses_are_where_they_say():
    y, x = (jnp.asarray(axis, jnp.float32) for axis in np.mgrid[-1:1:21j, -1:1:21j])
    stroke = np.asarray(face_drawing._stroke(x, y, (-0.5, -0.3), (0.4, 0.6), 0.1))
    points = np.linspace([-0.5, -0.3], [0.4, 0.6], 2001)
    for i in range(0, 21, 4):
        for j in range(0, 21, 3):
            nearest = np.hypot(points[:, 0] - float(x[i, j]), points[:, 1] - float(y[i, j])).min()
            assert stroke[i, j] == pytest.approx(nearest - 0.1, abs=1e-3)
    ellipse = np.asarray(face_drawing._ellipse(x, y, 0.8, 0.45))
    level = (np.asarray(x) / 0.8) ** 2 + (np.asarray(y) / 0.45) ** 2 - 1
    clear = np.abs(level) > 1e-3
    np.testing.assert_array_equal(ellipse[clear] > 0, level[clear] > 0)
    # Along an axis, beyond the edge, the distance is exact.
    assert ellipse[10, 20] == pytest.approx(0.2, abs=1e-3)
    assert ellipse[20, 10] == pytest.approx(0.55, abs=1e-3)
