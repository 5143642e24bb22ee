"""Is a damping of 3 large beside the metric of figure 2? F's largest and mean eigenvalue along both trainings.

    python benchmarks/spectrum.py [--seed 100] [--updates 1000]

If λ is far above F's eigenvalues, (F + λI)⁻¹g is nearly g/λ: natural gradient descent and SGD are then one method, and
the figure cannot tell them apart. SGD and NGD run on the stream of the preset `small` at its rates; F is that of
held-out examples. The largest eigenvalue is Lanczos' (SciPy), the mean one the trace over the number of parameters:
Hutchinson's estimate with 64 random signs. Not by the clock, so the machine need not be idle.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.sparse.linalg import LinearOperator, eigsh

import natgrad as ng
from natgrad_paper import figures
from natgrad_paper.cli.arguments import preset, settings
from natgrad_paper.figures.order.streams import Examples, Plain
from natgrad_paper.training.loop import Trainer
from natgrad_paper.training.problem import Until

SIGNS, CASES = 64, 1000


@partial(jax.jit, static_argnums=0)
def product(model, params, inputs, vector):
    """Return F times a flat vector."""
    operator = ng.metric_product(model, ng.Categorical(), params, inputs)
    return ravel_pytree(operator(ravel_pytree(params)[1](vector)))[0]


def largest_and_mean(model, params, inputs):
    """Return F's largest eigenvalue and its mean one, on some inputs."""
    flat = ravel_pytree(params)[0]
    times = partial(product, model, params, inputs)
    operator = LinearOperator(
        (flat.size, flat.size), dtype=np.float32, matvec=lambda v: np.asarray(times(jnp.asarray(v.ravel())))
    )
    top = eigsh(operator, k=1, which="LA", tol=1e-3, return_eigenvectors=False)[0]
    signs = jax.random.rademacher(jax.random.key(0), (SIGNS, flat.size), flat.dtype)
    trace = np.mean([float(jnp.vdot(each, times(each))) for each in signs])
    return float(top), trace / flat.size


def main(seed, updates):
    """Print the eigenvalues along the trainings of both methods."""
    experiment = figures.load("order")
    chosen = settings(experiment, preset(experiment, "small"), [])
    problem = experiment.prepare(chosen, None)
    examples = Examples(chosen, problem.glyphs, seed)
    block, inputs = chosen.stream.block, examples.held_out[0][:CASES]
    looks = tuple(block * 2**k for k in range(10) if block * 2**k < updates)
    print(f"figure 2, preset small, seed {seed}, {CASES} held-out examples; the paper's damping is 3")
    print("| method | updates | misclassified | largest eigenvalue | mean | λ = 3 / largest |")
    print("|---|---|---|---|---|---|")
    for method in experiment.methods:
        trainer = Trainer(problem, method, chosen)
        for event in trainer.run(seed, Plain(examples), Until(updates, looks, evaluates_start=True)):
            if event.errors is not None:
                wrong = event.errors["valid_misclassified"]
                top, mean = largest_and_mean(problem.model, event.trained[0], inputs)
                numbers = f"{wrong:.1%} | {top:.3g} | {mean:.2g} | {3 / top:.2g}"
                print(f"| {method.label} | {event.position.iteration} | {numbers} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--updates", type=int, default=1000)
    given = parser.parse_args()
    main(given.seed, given.updates)
