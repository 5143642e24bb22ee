"""How a step's time and memory grow with the batch and with the parameters, over two decades each.

Times are medians of interleaved repeats; memory is what XLA plans for a step beside its arguments. A slope of 1 on
logarithmic axes is linear growth; with `microbatch` memory should not grow with the batch at all.

    python benchmarks/scaling.py            (an otherwise idle machine)
"""

import argparse
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from metric_product import autoencoder, seconds

import natgrad as ng

BATCHES = (100, 300, 1000, 3000, 10_000)
WIDTHS = (64, 110, 200, 360, 640)
FIXED_WIDTH, FIXED_BATCH, MICROBATCH = 200, 2000, 250


def model(params: Any, x: jax.Array) -> jax.Array:
    """Apply three square layers."""
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer)
    return x @ params[-1]


def weights(width: int) -> list[jax.Array]:
    """Return 3 · width² parameters."""
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (width, width)) / width**0.5 for key in keys]


def step(opt: ng.Optimizer, params: Any, batch: int, width: int) -> tuple[Any, int]:
    """Return a compiled step, ready to be timed, and the bytes of its plan."""
    x = jax.random.normal(jax.random.key(1), (batch, width))
    arguments = (params, opt.init(params), (x, (x > 0).astype(x.dtype)))
    compiled = jax.jit(opt.step).lower(*arguments).compile()
    return lambda: compiled(*arguments), compiled.memory_analysis().temp_size_in_bytes


def slope(sizes: Any, values: Any) -> float:
    """Return the slope on logarithmic axes."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def time_against(title: str, sizes: list[int], shapes: list[tuple[int, int]], repeats: int) -> None:
    """Print a step's time at every (width, batch), for a method with a solver and one without."""
    fixed = {"damping": ng.Constant(1.0)}
    recipes = {
        "NGD, 10 iterations of CG": ng.natural_gradient(
            model, ng.Bernoulli(), solver=ng.CG(10, 0.0), **fixed
        ),
        "KNCG": ng.kncg(model, ng.Bernoulli(), **fixed),
    }
    for name, opt in recipes.items():
        steps = {
            str(size): step(opt, weights(width), batch, width)[0]
            for size, (width, batch) in zip(sizes, shapes, strict=True)
        }
        found = [1e3 * value for value in seconds(steps, repeats).values()]
        cells = "  ".join(f"{size:,}: {value:.1f} ms" for size, value in zip(sizes, found, strict=True))
        ends = [slope(pair, times) for pair, times in zip(pairwise(sizes), pairwise(found), strict=True)]
        print(f"{name}, time against {title}: {cells}")
        print(
            f"  slope {slope(sizes, found):.2f}; between neighbours {', '.join(f'{s:.2f}' for s in ends)}",
            flush=True,
        )


def memory() -> None:
    """Print the bytes a step plans for against the batch, whole and in chunks, and against the parameters."""
    params = autoencoder.init(0)
    vector = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    print(
        f"the Curves autoencoder, parameter vectors of {vector / 2**20:.1f} MiB; NGD, beside a step's arguments"
    )
    for chunk in (None, MICROBATCH):
        opt = ng.natural_gradient(autoencoder, ng.Bernoulli(), microbatch=chunk)
        found = [step(opt, params, batch, 784)[1] / 2**20 for batch in BATCHES]
        cells = "  ".join(f"{batch:,}: {size:.0f} MiB" for batch, size in zip(BATCHES, found, strict=True))
        print(f"  microbatch={chunk}, against the batch: {cells}", flush=True)
    sizes = [3 * width**2 for width in WIDTHS]
    for name, build in (("NGD", ng.natural_gradient), ("KNCG", ng.kncg)):
        opt = build(model, ng.Bernoulli(), microbatch=MICROBATCH)
        found = [
            step(opt, weights(width), MICROBATCH * 2, width)[1] / (4 * size)
            for width, size in zip(WIDTHS, sizes, strict=True)
        ]
        cells = "  ".join(f"{size:,}: {vectors:.1f}" for size, vectors in zip(sizes, found, strict=True))
        print(
            f"  {name}, microbatch={MICROBATCH}, in parameter vectors, against the parameters: {cells}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--skip-times", action="store_true", help="memory alone, on a machine that is busy")
    options = parser.parse_args()
    if not options.skip_times:
        shapes = [(FIXED_WIDTH, batch) for batch in BATCHES]
        time_against(f"the batch, {3 * FIXED_WIDTH**2:,} parameters", list(BATCHES), shapes, options.repeats)
        shapes = [(width, FIXED_BATCH) for width in WIDTHS]
        sizes = [3 * width**2 for width in WIDTHS]
        time_against(f"the parameters, batch {FIXED_BATCH}", sizes, shapes, options.repeats)
    memory()


if __name__ == "__main__":
    main()
