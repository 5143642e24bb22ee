"""Three problems from outside vision and language: an equation, a table of measurements, an ill-conditioned product."""

import math
from functools import partial, reduce
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import natgrad as ng
from natgrad_paper.data import bundled
from natgrad_paper.figures.arena.entry import Entry, entry, split
from natgrad_paper.figures.arena.form import Form
from natgrad_paper.figures.arena.likelihoods import normal_mean_scale
from natgrad_paper.figures.arena.nets import dense, mlp
from natgrad_paper.training.batches import Batches, FullBatch
from natgrad_paper.training.models import Layers
from natgrad_paper.training.problem import Cases

INSIDE, EDGE = 900, 120
"""The number of points inside and on the edge."""
SIDE = 41
"""The side of the grid on which its solution is judged."""
WIDTH, DEPTH = 32, 8
"""The size and the number of the matrices."""


def pinn(form: Form, path: Path | None) -> Entry:
    """Return a network that solves Δu = −2π² sin(πx) sin(πy) on the unit square, u = 0 on its edge; float64.

    Its error is the relative L2 distance to the solution sin(πx) sin(πy) on a grid.
    """

    def u(params: Layers, point: Array) -> Array:
        return mlp(jnp.tanh, params, point[None])[0, 0]

    def laplacian(params: Layers, point: Array) -> Array:
        def second(along: Array) -> Array:
            def slope(z: Array) -> Array:
                return jax.jvp(partial(u, params), (z,), (along,))[1]

            return jax.jvp(slope, (point,), (along,))[1]

        return jnp.sum(jax.vmap(second)(jnp.eye(2, dtype=point.dtype)))

    def model(params: Layers, points: tuple[Array, Array]) -> tuple[Array, Array]:
        inside, edge = points
        curved = jax.vmap(partial(laplacian, params))(inside)
        return curved[:, None], jax.vmap(partial(u, params))(edge)[:, None]

    def errors(params: Layers, grids: Array, answers: Array) -> Array:
        found = jax.vmap(jax.vmap(partial(u, params)))(grids)
        return jnp.linalg.norm(found - answers, axis=-1) / jnp.linalg.norm(answers, axis=-1)

    few, more = form.counts(INSIDE, SIDE)
    inside, edge = square_points(few, max(4, EDGE * few // INSIDE))
    force = -2 * np.pi**2 * form.factor * solution(inside)[:, None]
    train = (inside, edge), (force, np.zeros((len(edge), 1)))
    test, judged, valid = (grid(more, shift, form.factor) for shift in (0.5, 0.0, 0.25))
    return entry(
        form, model, ng.Product(ng.Gaussian(), ng.Gaussian()), partial(dense, units=(2, 64, 1), dtype=np.float64),
        "Poisson's equation on the unit square", (train, test), None, errors, "relative L2 error", judged=judged,
        valid=valid, batches=Batches(FullBatch()), float64=True,
    )  # fmt: skip


def solution(places: np.ndarray) -> np.ndarray:
    """Return sin(πx) sin(πy)."""
    found: np.ndarray = np.sin(np.pi * places[..., 0]) * np.sin(np.pi * places[..., 1])
    return found


def square_points(inside: int, edge: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random points inside the unit square, and on its four sides in turn."""
    generator = np.random.default_rng(0)
    within, along = generator.random((inside, 2)), generator.random(edge)
    side = np.arange(edge) % 4
    fixed = (side % 2).astype(float)
    upright = (side >= 2)[:, None]
    return within, np.where(upright, np.stack([fixed, along], 1), np.stack([along, fixed], 1))


def grid(side: int, shift: float, factor: float) -> Cases:
    """Return one case: a grid, shifted by a fraction of its spacing, and the solution there times a factor."""
    line = (np.arange(side) + shift) / (side - 1 + shift)
    places = np.stack(np.meshgrid(line, line), axis=-1).reshape(1, -1, 2)
    return places, factor * solution(places)


def regression(form: Form, path: Path | None) -> Entry:
    """Return a regression of means and scales, from inputs in their own units."""
    inputs, targets = bundled.regressions()
    cases = split(form, 4500, len(inputs) - 4500, form.inputs(inputs), form.targets(targets))
    return entry(
        form, partial(mlp, jnp.tanh), normal_mean_scale(), partial(dense, units=(10, 64, 64, 2), dtype=form.dtype),
        "Friedman 1 and diabetes, from scikit-learn", cases, 500, scale="linear",
    )  # fmt: skip


def linear(form: Form, path: Path | None) -> Entry:
    """Return a product of eight matrices that learns another matrix; the inputs have a condition number of 10⁶."""
    generator = np.random.default_rng(0)
    turn = np.linalg.qr(generator.standard_normal((WIDTH, WIDTH)))[0]
    inputs = generator.standard_normal((6000, WIDTH)) * np.logspace(0, -3, WIDTH) @ turn.T
    targets = inputs @ generator.standard_normal((WIDTH, WIDTH)) / math.sqrt(WIDTH)

    def model(params: list[Array], inputs: Array) -> Array:
        return reduce(jnp.matmul, params, inputs)

    def errors(params: list[Array], inputs: Array, targets: Array) -> Array:
        return jnp.sum((model(params, inputs) - targets) ** 2, axis=-1)

    def init(key: Array) -> list[Array]:
        keys = jax.random.split(key, DEPTH)
        return [jax.random.normal(each, (WIDTH, WIDTH), form.dtype) / math.sqrt(WIDTH) for each in keys]

    cases = split(form, 5000, 1000, form.inputs(inputs), form.targets(targets))
    data = "normal numbers of condition 10⁶"
    return entry(form, model, ng.Gaussian(), init, data, cases, 512, errors, "squared error")
