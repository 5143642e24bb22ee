"""The smallest change of the loss that float32 can resolve, on the plateau of Curves: python benchmarks/resolution.py

A change measured as the difference of two losses is lost below eps times the loss. Measured as the sum of the
examples' own changes, output by output, it keeps its digits. The truth is computed in float64.
"""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad import tree
from natgrad.problem import Problem
from natgrad_paper.data import curves
from natgrad_paper.training.models import Autoencoder

MODEL = Autoencoder((784, 400, 200, 100, 50, 25, 6))
IMAGES = 2000


def plateau(x):
    """Return parameters at the plateau, and the natural gradient there."""
    opt = ng.natural_gradient(MODEL, ng.Bernoulli(), search=ng.LineSearch(), damping=ng.Constant(3.0))
    params = MODEL.init(0)
    state = opt.init(params)
    for _ in range(6):
        before = params
        params, state, _ = opt.step(params, state, (x, x))
    return params, tree.sub(params, before)


def measured(dtype, x, params, step):
    """Return the loss, its resolution, and its change by the step: as a sum of changes, and as a difference."""
    x, params, step = (jax.tree.map(lambda leaf: leaf.astype(dtype), part) for part in (x, params, step))
    problem = Problem(MODEL, ng.Bernoulli())
    examples = problem.examples(params, x, x, None, None)

    @jax.jit
    def both(params, step):
        moved = tree.add(params, step)
        start = problem.start(problem.forward(params, examples, None))
        difference = problem.loss(moved, examples, None) - problem.loss(params, examples, None)
        return start.loss, start.resolution, problem.change(moved, examples, None, start), difference

    return [float(value) for value in both(params, step)]


def main():
    x = jnp.asarray(curves.generate(0, IMAGES, 1).train)
    params, step = plateau(x)
    scales = 10.0 ** np.arange(0, -9, -1)
    print("| true change | as a sum of changes, error | as a difference, error | resolution claimed |")
    print("|---|---|---|---|")
    for scale in scales:
        # The step as float32 takes it: θ + d − θ.
        moved = tree.add(params, tree.scale(scale, step))
        taken = jax.tree.map(lambda a, b: a.astype(jnp.float64) - b.astype(jnp.float64), moved, params)
        _, _, truth, _ = measured(jnp.float64, x, params, taken)
        loss, resolution, change, difference = measured(jnp.float32, x, params, taken)
        print(
            f"| {truth:.1e} | {abs(change - truth):.1e} | {abs(difference - truth):.1e} | {resolution:.1e} |",
            flush=True,
        )
    print(f"\nThe loss is {loss:.2f}; eps times the loss is {np.finfo(np.float32).eps * loss:.1e}.")


if __name__ == "__main__":
    main()
