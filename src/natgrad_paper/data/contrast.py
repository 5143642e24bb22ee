"""Local contrast normalisation: every pixel less its surroundings' mean, over their standard deviation."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

WIDTH, SIGMA = 9, 1.591
OFFSET, SPAN = 2.5, 5.0


def weights(width: int = WIDTH, sigma: float = SIGMA) -> np.ndarray:
    """Return a Gaussian of odd width with sum 1; the two-dimensional G is its outer product with itself."""
    steps = np.arange(width) - width // 2
    raw = np.exp(-(steps**2) / (2 * sigma**2))
    return raw / raw.sum()


@jax.jit
def normalize(images: Array) -> Array:
    """Return the images after local contrast normalisation, squeezed so that most values lie in [0, 1].

        v = x − G∗x,  s = √(G∗v²),  out = v / max(s, mean of s over the image),  (out + 2.5) / 5

    `images` has shape (..., height, width), in float or uint8 (then float32 comes back). G∗ pads with zeros. The
    result does not depend on the scale of x; an image of zeros becomes ½ everywhere.
    """
    x = images if jnp.issubdtype(images.dtype, jnp.floating) else images.astype(jnp.float32)
    v = x - _blur(x)
    s = jnp.sqrt(_blur(jnp.square(v)))
    least = jnp.maximum(s, s.mean(axis=(-2, -1), keepdims=True))
    out = jnp.where(least > 0, v / jnp.where(least > 0, least, 1), 0)
    return (out + OFFSET) / SPAN


def _blur(images: Array) -> Array:
    """Convolve with G as two products with band matrices: along columns, then along lines."""
    height, width = (jnp.asarray(_band(side), images.dtype) for side in images.shape[-2:])
    return jnp.einsum("ij,...jk,lk->...il", height, images, width, precision=jax.lax.Precision.HIGHEST)


def _band(side: int) -> np.ndarray:
    """Return the matrix of the convolution along an axis of the given length, zeros beyond its ends."""
    bands = [w * np.eye(side, k=offset) for offset, w in enumerate(weights(), start=-(WIDTH // 2))]
    return np.sum(bands, axis=0)
