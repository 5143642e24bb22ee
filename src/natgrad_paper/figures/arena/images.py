"""Four problems on small pictures: a dense and a convolutional classifier, a variational and a plain autoencoder."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad_paper.data import bundled, curves, idx_file
from natgrad_paper.errors import UserError
from natgrad_paper.figures.arena.entry import Entry, entry, split, thinned
from natgrad_paper.figures.arena.form import Form
from natgrad_paper.figures.arena.likelihoods import to_standard_normal
from natgrad_paper.figures.arena.nets import convolutional, convolutional_init, dense, mlp
from natgrad_paper.training.models import Autoencoder, Layers
from natgrad_paper.training.problem import Cases, Tree

TRAIN, TEST = 1437, 360
"""How scikit-learn's digits are split."""
CODE = 8
"""The size of the variational autoencoder's code."""
JUDGED = 2000
SMALLEST = 4
"""The shortest side, in pixels, that survives two poolings."""


def digits(form: Form, path: Path | None) -> Entry:
    """Return scikit-learn's digits to classify, by two layers of rectified linear units."""
    images, labels = bundled.digit_images()
    cases = split(form, TRAIN, TEST, form.inputs(images), labels)
    init = partial(dense, units=(64, 256, 128, 10), gain=math.sqrt(2), dtype=form.dtype)
    return entry(form, partial(mlp, jax.nn.relu), ng.Categorical(), init, "scikit-learn digits", cases, 256)


def conv(form: Form, path: Path | None) -> Entry:
    """Return MNIST to classify, from the user's directory; without one, scikit-learn's digits take its place."""
    name, side, (train, test) = labelled_pictures(form, path)
    init = partial(convolutional_init, side=side, dtype=form.dtype)
    return entry(
        form, convolutional, ng.Categorical(), init, name, (train, test), 256, judged=thinned(train, JUDGED),
        looped=False,
    )  # fmt: skip


def labelled_pictures(form: Form, path: Path | None) -> tuple[str, int, tuple[Cases, Cases]]:
    """Return labelled pictures: what they are, their side, training and test cases."""
    if path is None:
        images, labels = bundled.digit_images()
        large = images.reshape(-1, 8, 8).repeat(3, axis=1).repeat(3, axis=2)
        framed = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(form.dtype)
        name = "scikit-learn digits, enlarged to 28 × 28, in place of MNIST"
        return name, 28, split(form, TRAIN, TEST, framed, labels)
    found = idx_file.read(path)
    labels, test_labels = idx_file.labels(path, found)
    pixels = found.train.shape[1]
    side = math.isqrt(pixels)
    if side**2 != pixels or side < SMALLEST:
        raise UserError(
            f"{path}: expected square pictures, {SMALLEST} pixels wide at least, found {pixels} pixels"
        )
    few, more = form.counts(10_000, 2000)

    def squares(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, side, side).astype(form.dtype)

    train = squares(found.train[:few]), labels[:few]
    return found.name, side, (train, (squares(found.test[:more]), test_labels[:more]))


def vae(form: Form, path: Path | None) -> Entry:
    """Return a variational autoencoder of digits: its noise is drawn anew in every step."""
    images, _ = bundled.digit_images()
    likelihood = ng.Product(ng.Bernoulli(), to_standard_normal())

    def model(params: dict[str, Layers], inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        pixels, noise = inputs
        code = mlp(jnp.tanh, params["encoder"], pixels)
        mean, log_scale = jnp.split(code, 2, axis=-1)
        return mlp(jnp.tanh, params["decoder"], mean + jnp.exp(log_scale) * noise), code

    def init(key: Array) -> dict[str, Layers]:
        one, other = jax.random.split(key)
        encoder = dense(one, (64, 128, 2 * CODE), dtype=form.dtype)
        return {"encoder": encoder, "decoder": dense(other, (CODE, 128, 64), dtype=form.dtype)}

    def errors(params: dict[str, Layers], inputs: Any, targets: Any) -> Array:
        pixels, divergence = likelihood.nll(model(params, inputs), targets)
        return pixels + divergence

    def draw(key: Array, params: Tree, batch: Any) -> Any:
        (pixels, noise), targets = batch
        return (pixels, jax.random.normal(key, noise.shape, noise.dtype)), targets

    def noisy(cases: Cases, seed: int) -> Cases:
        inputs, pixels = cases
        noise = np.random.default_rng(seed).standard_normal((len(pixels), CODE)).astype(form.dtype)
        return (inputs, noise), (pixels, np.zeros_like(noise))

    parts = split(form, TRAIN, TEST, form.inputs(images), images.astype(form.dtype))
    cases = noisy(parts[0], 1), noisy(parts[1], 2)
    return entry(
        form, model, likelihood, init, "scikit-learn digits", cases, 256, errors, "negative evidence bound", draw=draw
    )  # fmt: skip


def bottleneck(form: Form, path: Path | None) -> Entry:
    """Return the paper's deep autoencoder on 4000 generated curves; its error is the squared one."""
    few, more = form.counts(4000, 1000)
    found = curves.generate(0, few, more)
    model, likelihood = Autoencoder((784, 400, 200, 100, 50, 25, 6)), ng.Bernoulli()

    def errors(params: Layers, inputs: Array, targets: Array) -> Array:
        return jnp.sum((likelihood.mean(model(params, inputs)) - targets) ** 2, axis=-1)

    def start(seed: int) -> Layers:
        found: Layers = jax.tree.map(lambda leaf: leaf.astype(form.dtype), model.init(seed))
        return found

    def cases(images: np.ndarray) -> Cases:
        return form.inputs(images), images.astype(form.dtype)

    parts, words = (cases(found.train), cases(found.test)), "squared error, sum over pixels"
    made = entry(form, model, likelihood, None, found.name, parts, 500, errors, words)
    return replace(made, init=start)
