"""Drawn faces are neither trivial nor impossible."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from natgrad_paper.data import contrast, faces


def error(model, params, rate, steps, train, test):
    """Train with Adam on normalised faces; return the part of the test faces misclassified."""
    optimizer = optax.adamw(optax.cosine_decay_schedule(rate, steps), weight_decay=1e-2)

    def loss(params, images, labels):
        return optax.softmax_cross_entropy_with_integer_labels(model(params, images), labels).mean()

    @jax.jit
    def step(params, state, images, labels):
        updates, state = optimizer.update(jax.grad(loss)(params, images, labels), state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    inputs = [np.asarray(4 * (contrast.normalize(jnp.asarray(part.images)) - 0.5)) for part in (train, test)]
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = rng.integers(len(train), size=64)
        params, state = step(params, state, inputs[0][rows], train.labels[rows])
    return float(np.mean(np.argmax(model(params, inputs[1]), axis=1) != test.labels))


def linear(params, images):
    return images.reshape(len(images), -1) @ params["weights"] + params["biases"]


def convolutional(params, images):
    values = images[..., None]
    for kernel in params["kernels"]:
        shape = ("NHWC", "HWIO", "NHWC")
        values = jax.nn.relu(
            jax.lax.conv_general_dilated(values, kernel, (2, 2), "VALID", dimension_numbers=shape)
        )
    hidden = jax.nn.relu(values.reshape(len(values), -1) @ params["hidden"])
    return hidden @ params["weights"] + params["biases"]


@pytest.mark.long
@jax.numpy_dtype_promotion("standard")  # Adam in optax mixes whole numbers and floats
def test_a_small_convolutional_net_does_clearly_better_than_a_linear_classifier():
    train, test = faces.draw(0, "train", 0, 2925), faces.draw(0, "test", 0, 835)
    rng = np.random.default_rng(1)

    def weights(*shape):
        return jnp.asarray(rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1])), jnp.float32)

    zeros = {"weights": jnp.zeros((2304, 7), jnp.float32), "biases": jnp.zeros(7, jnp.float32)}
    flat = error(linear, zeros, 1e-3, 1200, train, test)
    params = {
        "kernels": [weights(5, 5, 1, 16), weights(5, 5, 16, 32)], "hidden": weights(81 * 32, 64),
        "weights": weights(64, 7), "biases": jnp.zeros(7, jnp.float32),
    }  # fmt: skip
    deep = error(convolutional, params, 2e-3, 600, train, test)
    print(f"linear {100 * flat:.1f} %, convolutional {100 * deep:.1f} % misclassified")
    assert 0.35 < flat < 0.55
    assert 0.08 < deep < 0.28
