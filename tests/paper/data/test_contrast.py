"""Local contrast normalisation against loops, and on pictures where something could be divided by nothing."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from natgrad_paper.data import contrast


def reference(image):
    """The definition, pixel by pixel, in float64."""
    height, width = image.shape
    kernel = np.array(
        [[np.exp(-(a * a + b * b) / (2 * 1.591**2)) for b in range(-4, 5)] for a in range(-4, 5)]
    )
    kernel /= kernel.sum()

    def blur(values):
        out = np.zeros_like(values)
        for i in range(height):
            for j in range(width):
                for a in range(9):
                    for b in range(9):
                        line, column = i + a - 4, j + b - 4
                        if 0 <= line < height and 0 <= column < width:
                            out[i, j] += kernel[a, b] * values[line, column]
        return out

    v = image - blur(image)
    s = np.sqrt(blur(v * v))
    return (v / np.maximum(s, s.mean()) + 2.5) / 5


@pytest.mark.parametrize("shape", [(48, 48), (13, 20)])
def test_equals_the_definition(shape):
    image = np.random.default_rng(0).uniform(0, 255, shape)
    np.testing.assert_allclose(contrast.normalize(jnp.asarray(image)), reference(image), rtol=1e-12)


def test_is_the_same_for_many_images_as_for_one():
    images = np.random.default_rng(1).integers(0, 256, (5, 48, 48)).astype(np.uint8)
    together = contrast.normalize(jnp.asarray(images))
    assert together.dtype == jnp.float32
    for image, normal in zip(images, together, strict=True):
        np.testing.assert_allclose(normal, reference(image.astype(float)), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("value", [0, 1, 255])
def test_constant_images_give_numbers(value):
    normal = np.asarray(contrast.normalize(jnp.full((48, 48), value, jnp.uint8)))
    assert np.isfinite(normal).all()
    # Far from the border a constant image has no contrast at all.
    np.testing.assert_allclose(normal[12:36, 12:36], 0.5, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(arrays(np.uint8, (16, 16)), st.integers(-20, 20))
def test_the_scale_of_the_light_does_not_matter(image, power):
    normal = contrast.normalize(jnp.asarray(image.astype(np.float64)))
    assert np.isfinite(normal).all()
    scaled = contrast.normalize(jnp.asarray(image * 2.0**power))
    np.testing.assert_array_equal(normal, scaled)
