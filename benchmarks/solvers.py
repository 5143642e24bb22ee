"""The cost of a solver's iteration beside its product.

    python benchmarks/solvers.py [--repeats 15]

Solvers are timed in turns, and the least of the repeats counts. `python tests/solve/others.py` counts wrong claims.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from natgrad.solve import CG, MINRES, MinresQLP

jax.config.update("jax_enable_x64", True)

NETWORK = ((784, 600), (600,), (600, 500), (500,), (500, 400), (400,), (400, 70), (170,))
"""Parameters of a network, a million in all: what the solvers meet in natgrad."""


def overhead(title, shapes, repeats, few=5, many=45):
    """Time an iteration as the difference of two lengths, so that what a solve does once is left out."""
    rng = np.random.default_rng(0)
    # Far from convergence after `many` steps: on an easy spectrum the residual underflows and some stop early.
    d = [jnp.asarray(10 ** rng.uniform(-6, 0, shape), jnp.float32) for shape in shapes]
    b = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]

    def matvec(v):
        return jax.tree.map(jnp.multiply, d, v)

    runs = {
        "product alone": lambda b, k: jax.lax.fori_loop(0, k, lambda _, v: matvec(v), b),
        "jax.scipy cg": lambda b, k: jax.scipy.sparse.linalg.cg(matvec, b, tol=0.0, maxiter=k)[0],
        "natgrad CG": lambda b, k: CG(k, 0.0)(matvec, b).x,
        "natgrad MINRES": lambda b, k: MINRES(k, 0.0)(matvec, b).x,
        "natgrad MinresQLP": lambda b, k: MinresQLP(k, 0.0)(matvec, b).x,
    }
    compiled = {
        (name, k): jax.jit(run, static_argnums=1).lower(b, k).compile()
        for name, run in runs.items()
        for k in (few, many)
    }
    times = {key: [] for key in compiled}
    for _ in range(repeats + 1):
        for key, run in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(run(b))
            times[key].append(time.perf_counter() - start)
    # The least of the repeats is the one that others disturbed least.
    each = {name: (min(times[name, many][1:]) - min(times[name, few][1:])) / (many - few) for name in runs}
    once = {name: min(times[name, few][1:]) - few * each[name] for name in runs}
    bare = each["product alone"]
    print(f"\n| {title}, float32 | ms per iteration | beyond the product | ratio | ms once per solve |")
    print("|---|---|---|---|---|")
    for name in runs:
        beyond = each[name] - bare
        ratio = "" if name == "product alone" else f"{beyond / (each['jax.scipy cg'] - bare):.2f}"
        print(f"| {name} | {1e3 * each[name]:.2f} | {1e3 * beyond:.2f} | {ratio} | {1e3 * once[name]:.1f} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    overhead("a million unknowns, a network's parameters", NETWORK, options.repeats)
    overhead("a million unknowns, one array", [(1_000_000,)], options.repeats)


if __name__ == "__main__":
    main()
