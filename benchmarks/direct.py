"""A step of `ng.gauss_newton`: where its time goes, and what 33 values of λ cost beside two.

    python benchmarks/direct.py            (an otherwise idle machine; double precision)

A physics-informed net of 4,417 parameters and 1,260 residuals: Poisson's equation in two dimensions, as the dual.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad.solve.direct import decomposed_dual

INSIDE, EDGE, WIDTH = 900, 360, 64


def u(params: dict, x: jax.Array) -> jax.Array:
    """Return the net's solution at a point."""
    hidden = jnp.tanh(jnp.tanh(x @ params["a"] + params["b"]) @ params["c"] + params["d"])
    return hidden @ params["e"] + params["f"]


def model(params: dict, points: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return −Δu inside, and u on the edge."""
    inside, edge = points
    laplacian = jax.vmap(lambda x: jnp.trace(jax.hessian(lambda at: u(params, at))(x)))
    return -laplacian(inside), u(params, edge)


def init(key: jax.Array) -> dict:
    """Return weights and biases: 2-64-64-1."""
    a, c, e = jax.random.split(key, 3)
    return {
        "a": jax.random.normal(a, (2, WIDTH)), "b": jnp.zeros(WIDTH), "c": jax.random.normal(c, (WIDTH, WIDTH)) / 8,
        "d": jnp.zeros(WIDTH), "e": jax.random.normal(e, (WIDTH,)) / 8, "f": jnp.zeros(()),
    }  # fmt: skip


def interleaved(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each call; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            if number:  # the first one compiles
                times[name].append(time.perf_counter() - start)
    return {name: float(np.median(found)) for name, found in times.items()}


def main() -> None:
    """Print the seconds, and the ratio."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--repeats", type=int, default=7)
    repeats = options.parse_args().repeats
    one, two = jax.random.split(jax.random.key(0))
    along = jax.random.uniform(two, (EDGE,))
    edge = jnp.stack([along, jnp.arange(EDGE) % 2.0], axis=1)
    points = (
        jax.random.uniform(one, (INSIDE, 2)),
        jnp.where(jnp.arange(EDGE)[:, None] % 4 < 2, edge, edge[:, ::-1]),
    )
    answers = 2 * jnp.pi**2 * jnp.prod(jnp.sin(jnp.pi * points[0]), axis=1), jnp.zeros(EDGE)
    params = init(jax.random.key(1))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    calls: dict[str, Callable[[], object]] = {}
    for count in (2, 33):
        opt = ng.gauss_newton(model, ng.Product(ng.Gaussian(), ng.Gaussian()), count=count)
        step, state = jax.jit(opt.step), opt.init(params)
        calls[f"a step, {count} λ"] = partial(step, params, state, (points, answers))
    matrix = jax.random.normal(jax.random.key(2), (INSIDE + EDGE, size))
    r = jnp.ones(INSIDE + EDGE)
    triangle = jnp.linalg.qr(matrix.T, mode="r")
    programs = {
        "the decomposition in it": (decomposed_dual, matrix, r),
        "… its QR": (lambda a: jnp.linalg.qr(a.T, mode="r"), matrix),
        "… its SVD": (lambda a: jnp.linalg.svd(a.T), triangle),
        "in its place, AAᵀ and its eigenvectors, with half of the digits": (
            lambda a: jnp.linalg.eigh(a @ a.T),
            matrix,
        ),
    }
    for name, (function, *data) in programs.items():
        calls[name] = partial(jax.jit(function), *data)
    found = interleaved(calls, repeats)
    print(f"{INSIDE + EDGE} residuals, {size} parameters")
    for name, seconds in found.items():
        print(f"{name}: {seconds:.2f} s")
    print(f"33 λ / 2 λ: {found['a step, 33 λ'] / found['a step, 2 λ']:.2f}")


if __name__ == "__main__":
    main()
