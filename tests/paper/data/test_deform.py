"""Each deformation against its definition, written as loops over pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given, settings
from hypothesis import strategies as st

from natgrad_paper.data import deform, glyphs

SIDE = 32
ONE = 65536


@pytest.fixture(scope="module")
def images():
    noise = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE))
    letters = glyphs.embedded().images[[100, 5000, 12000]]
    return np.concatenate([noise, letters]).astype(np.int32)


def scalar(value):
    return jnp.asarray(value, jnp.int32)


slant = jax.jit(deform.slant)
thicken = jax.jit(deform.thicken)
affine = jax.jit(deform.affine)
elastic = jax.jit(deform.elastic)


def slow_slant(image, angle, sign):
    out = np.zeros_like(image)
    for i in range(SIDE):
        shift = sign * (np.floor(i * angle + 0.5) - np.floor(16 * angle + 0.5))
        for j in range(SIDE):
            out[i, int(j + shift) % SIDE] = image[i, j]
    return out


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("angle", [0, 12345, 20000, 45874])
def test_slant(images, angle, sign):
    for image in images:
        np.testing.assert_array_equal(
            slant(image, scalar(angle), scalar(sign)), slow_slant(image, angle / ONE, sign)
        )


def slow_thicken(image, element, direction):
    """Erosion: the least pixel under the element; dilation: the greatest under its mirror image."""
    height, width = [(1, 2), (2, 1), (2, 2), (3, 3), (2, 3), (3, 2), (3, 3), (3, 4), (4, 3)][element]
    offsets = [(a - height // 2, b - width // 2) for a in range(height) for b in range(width)]
    if element == 3:
        offsets = [(a, b) for a, b in offsets if a == 0 or b == 0]
    out = np.zeros_like(image)
    for i in range(SIDE):
        for j in range(SIDE):
            places = [(i - direction * a, j - direction * b) for a, b in offsets]
            values = [image[a, b] for a, b in places if 0 <= a < SIDE and 0 <= b < SIDE]
            out[i, j] = max(values) if direction > 0 else min(values)
    if direction == 0 or out.max() == out.min():
        return image
    return (out - out.min()) / (out.max() - out.min()) * image.max()


@pytest.mark.parametrize("direction", [-1, 0, 1])
@pytest.mark.parametrize("element", range(9))
def test_thicken(images, element, direction):
    for image in images[1:4]:
        ours = np.asarray(thicken(image, scalar(element), scalar(direction)))
        np.testing.assert_allclose(ours, slow_thicken(image, element, direction), atol=0.5000001)
        assert ours.max() == image.max()


@pytest.mark.parametrize("element", range(9))
def test_thicken_has_scipys_conventions(element, images):
    height, width = deform.ELEMENTS[element]
    footprint = np.ones((height, width), bool)
    if element == deform.PLUS:
        footprint[::2, ::2] = False
    # An image with 0 and 255 left after it comes out of both unscaled.
    image = np.where(images[4] > 128, 255, 0).astype(np.int32)
    image[10:20, 10:20] = 255
    dilated = scipy.ndimage.grey_dilation(image, footprint=footprint)
    eroded = scipy.ndimage.grey_erosion(image, footprint=footprint)
    np.testing.assert_array_equal(thicken(image, scalar(element), scalar(1)), dilated)
    np.testing.assert_array_equal(thicken(image, scalar(element), scalar(-1)), eroded)


@pytest.mark.parametrize("value", [0, 255])
def test_an_emptied_image_is_left_alone(value):
    flat = np.full((SIDE, SIDE), value, np.int32)
    dot = np.zeros((SIDE, SIDE), np.int32)
    dot[7, 9] = 200
    np.testing.assert_array_equal(thicken(flat, scalar(6), scalar(-1)), flat)
    np.testing.assert_array_equal(thicken(dot, scalar(6), scalar(-1)), dot)


def slow_affine(image, a, b, d, e, tx, ty):
    out = np.zeros_like(image)
    for y in range(SIDE):
        for x in range(SIDE):
            column, line = int(np.floor(a * x + b * y + tx)), int(np.floor(d * x + e * y + ty))
            if 0 <= column < SIDE and 0 <= line < SIDE:
                out[y, x] = image[line, column]
    return out


@settings(max_examples=20, deadline=None)
@given(*(4 * [st.integers(-18_350, 18_350)]), *(2 * [st.integers(-206_000, 206_000)]), st.integers(0, 4))
def test_affine(images, a, b, d, e, tx, ty, which):
    fixed = (ONE + a, b, d, ONE + e, tx, ty)
    image = images[which]
    expected = slow_affine(image, *(number / ONE for number in fixed))  # exact in float64
    np.testing.assert_array_equal(affine(image, *map(scalar, fixed)), expected)


def slow_sample(image, line, column):
    """Bilinear interpolation of an image that is 0 outside."""
    out = np.zeros((SIDE, SIDE))
    for i in range(SIDE):
        for j in range(SIDE):
            top, left = int(np.floor(line[i, j])), int(np.floor(column[i, j]))
            for a in (top, top + 1):
                for b in (left, left + 1):
                    if 0 <= a < SIDE and 0 <= b < SIDE:
                        share = (1 - abs(line[i, j] - a)) * (1 - abs(column[i, j] - b))
                        out[i, j] += share * image[a, b]
    return out


@pytest.mark.parametrize("scale", [1, 10])
def test_elastic(images, scale):
    i, j = np.mgrid[:SIDE, :SIDE]
    for level in (0, 1, 6):
        field = scale * deform.elastic_fields()[level, 17].astype(np.int32)
        for image in images[1:3]:
            expected = slow_sample(image, i + field[0] / 256, j + field[1] / 256)
            np.testing.assert_allclose(elastic(image, field), expected, atol=0.5000001)


def test_no_elastic_field_no_change(images):
    np.testing.assert_array_equal(elastic(images[0], np.zeros((2, SIDE, SIDE), np.int32)), images[0])


@pytest.mark.parametrize("level", range(1, 7))
def test_elastic_fields_are_smoothed_noise(level):
    """One field of each level, convolved by loops."""
    c = level / 10
    k = c ** (1 / 3)
    sigma = 10 - 7 * k
    reach = int(0.75 * sigma)
    steps = range(-reach, reach + 1)
    kernel = np.array([[np.exp(-((a / sigma) ** 2) - (b / sigma) ** 2) for b in steps] for a in steps])
    kernel /= kernel.sum()
    rough = np.random.default_rng([level, 0xE1A5]).uniform(-1, 1, (51, 2, SIDE + 2 * reach, SIDE + 2 * reach))
    assert np.abs(rough).max() <= 1
    field = deform.elastic_fields()[level, 50, 1]
    for i in range(0, SIDE, 7):
        for j in range(0, SIDE, 5):
            window = rough[50, 1, i : i + 2 * reach + 1, j : j + 2 * reach + 1]
            assert field[i, j] == pytest.approx(256 * 10 * k * (kernel * window).sum(), abs=0.51)


def test_elastic_fields_move_by_about_a_pixel_and_differ():
    bank = deform.elastic_fields().astype(float) / 256
    assert bank.shape == (7, 51, 2, 32, 32)
    assert (bank[0] == 0).all()
    spread = bank[1:].std(axis=(1, 2, 3, 4))
    assert (np.diff(spread) > 0).all()
    assert 0.2 < spread[0] < spread[-1] < 1.5
    flat = bank[1:].reshape(6 * 51 * 2, -1)
    assert len(np.unique(flat, axis=0)) == len(flat)


@pytest.mark.parametrize("p", [-0.6875, -0.125, 0.0, 0.25, 0.484375])
def test_pinch(images, p):
    field = deform.pinch_fields()[round(p * 128) - deform.PINCH_LEAST].astype(np.int32)
    line, column = np.zeros((2, SIDE, SIDE))
    for i in range(SIDE):
        for j in range(SIDE):
            down, right = i - 15.5, j - 15.5
            r = np.sqrt(down**2 + right**2)
            factor = np.sin(np.pi * r / 32) ** -p if r < 16 else 1.0
            line[i, j], column[i, j] = 15.5 + down * factor, 15.5 + right * factor
    smooth = scipy.ndimage.gaussian_filter(images[4].astype(float), 1).round().astype(np.int32)
    expected = slow_sample(smooth, line, column)
    # Places are rounded to 1/256 pixel.
    np.testing.assert_allclose(elastic(smooth, field), expected, atol=1.5)
    if p == 0:
        np.testing.assert_array_equal(elastic(images[0], field), images[0])
