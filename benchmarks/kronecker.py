"""What the Kronecker preconditioner saves and costs, on the Curves autoencoder where training has come to rest.

The net is trained by KNCG until λ is at its floor. There: iterations of CG to a relative residual of 0.1 with no
preconditioner, the diagonal one, and this one; and a step's time with and without it.

    python benchmarks/kronecker.py --seeds 3            (an otherwise idle machine)
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from metric_product import autoencoder, images, seconds

import natgrad as ng

BATCH, WARM, TRIES, RESIDUAL = 1000, 40, 3, 0.1
ROAD = ((250, 300), (BATCH, 200))
"""Examples in a batch, and steps with it."""


def batches(x: jax.Array, seed: int, size: int = BATCH) -> Any:
    """Yield minibatches."""
    rng = np.random.default_rng([seed, size])
    while True:
        cases = x[rng.choice(len(x), size, replace=False)]
        yield cases, cases


def trained(x: jax.Array, seed: int) -> tuple[Any, float]:
    """Return parameters some way down the road, and λ there."""
    opt = ng.kncg(autoencoder, ng.Bernoulli(), probe=None, average=None)
    params = autoencoder.init(seed)
    state, step = opt.init(params), jax.jit(opt.step, donate_argnums=(0, 1))
    for size, steps in ROAD:
        source = batches(x, seed, size)
        for _ in range(steps):
            params, state, info = step(params, state, next(source))
    print(
        f"seed {seed}: after {int(state.steps)} steps loss {float(info.loss):.3f}, λ {float(state.damping):.1e}",
        flush=True,
    )
    return params, float(state.damping)


def iterations(kind: Any, params: Any, damping: float, x: jax.Array, seed: int) -> float:
    """Return the mean iterations at these parameters, which stay, once the preconditioner's averages are warm."""

    def solve(most: int) -> Any:
        return jax.jit(
            ng.natural_gradient(
                autoencoder, ng.Bernoulli(), preconditioner=kind, solver=ng.CG(most, RESIDUAL),
                damping=ng.Constant(damping), learning_rate=0.0,
            ).step
        )  # fmt: skip

    opt = ng.natural_gradient(autoencoder, ng.Bernoulli(), preconditioner=kind, damping=ng.Constant(damping))
    state, source = opt.init(params), batches(x, seed + 100)
    if isinstance(kind, ng.Kronecker):
        warm = solve(1)
        for _ in range(WARM):
            _, state, _ = warm(params, state, next(source))
    found, exact = [], solve(2000)
    for _ in range(TRIES):
        _, state, info = exact(params, state, next(source))
        assert int(info.solver.reason) == ng.Reason.SOLVED
        found.append(int(info.solver.iterations))
    return float(np.mean(found))


def overhead(params: Any, x: jax.Array) -> None:
    """Print a step's time with the preconditioner, an average over its intervals, against the step without."""
    batch = (x[:BATCH], x[:BATCH])
    kinds = {"without": ng.Identity(), "with": ng.Kronecker()}

    def many(kind: Any) -> Any:
        opt = ng.kncg(autoencoder, ng.Bernoulli(), preconditioner=kind, probe=None, average=None)
        state = opt.init(params)._replace(steps=jnp.int32(1024))
        step = jax.jit(opt.step, donate_argnums=(0, 1))

        def run() -> Any:
            # Thirty steps: one eigenbasis, eight refreshes.
            p, s = jax.tree.map(jnp.array, (params, state))
            for _ in range(30):
                p, s, _ = step(p, s, batch)
            return p

        return run

    t = seconds({name: many(kind) for name, kind in kinds.items()}, 5)
    print(
        f"a step, batch {BATCH}: {1e3 * t['with'] / 30:.0f} ms, without {1e3 * t['without'] / 30:.0f} ms; "
        f"it takes {1 - t['without'] / t['with']:.0%} of the step"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    x = images(20_000)
    ratios = []
    for seed in range(options.seeds):
        params, damping = trained(x, seed)
        kinds = {"none": ng.Identity(), "diagonal": ng.Jacobi(), "Kronecker": ng.Kronecker()}
        found = {name: iterations(kind, params, damping, x, seed) for name, kind in kinds.items()}
        ratios.append((found["none"] / found["Kronecker"], found["diagonal"] / found["Kronecker"]))
        print(
            "  iterations: " + ", ".join(f"{name} {count:.1f}" for name, count in found.items()), flush=True
        )
    none, diagonal = np.mean(ratios, axis=0)
    print(f"cut by {none:.1f} against none, {diagonal:.1f} against the diagonal, means over seeds")
    overhead(params, x)


if __name__ == "__main__":
    main()
