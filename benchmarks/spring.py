"""SPRING's momentum on points drawn anew: python benchmarks/spring.py

Poisson's equation in five dimensions (P3 of `natgrad run pinn`), float64, new points in every step, a line search,
and a constant λ. The table has the relative error after the last step for each fraction μ that SPRING keeps; 0 is the
natural gradient. λ is the best for μ = 0 on a seed of its own. docs/protocols/pinn.md has the claim.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track
from scipy import stats

import natgrad as ng
from natgrad.directions import Spring
from natgrad_paper.figures.pinn.problems import posed

FRACTIONS = 0.0, 0.5, 0.9, 0.99
DAMPINGS = 1e-3, 1e-5, 1e-7, 1e-9
CHOSEN_ON = 100
"""The seed on which λ is chosen."""


def error(momentum, damping, seed, steps, inside):
    """Return the relative error after so many steps."""
    entry = posed("p3", inside=inside)
    opt = ng.Optimizer(
        entry.model,
        entry.likelihood,
        direction=Spring(momentum),
        search=ng.LineSearch(),
        damping=ng.Constant(damping),
    )

    @jax.jit
    def step(carry, at):
        params, state = carry
        batch = entry.draw(jax.random.fold_in(jax.random.key(seed), at), params, None)
        params, state, _ = opt.step(params, state, batch)
        return params, state

    params = entry.init(seed)
    carry = params, opt.init(params)
    for at in range(steps):
        carry = step(carry, jnp.asarray(at))
    points, answers = entry.judged
    return float(next(iter(entry.errors(carry[0], jnp.asarray(points), jnp.asarray(answers)).values()))[0])


def main(seeds, steps, inside):
    """Print λ's choice, the errors of each seed, and the paired comparison with μ = 0."""
    chosen = {}
    for damping in track(DAMPINGS, "Choosing λ"):
        chosen[damping] = error(0.0, damping, CHOSEN_ON, steps, inside)
        print(f"λ = {damping:.0e}: {chosen[damping]:.2e}", flush=True)
    damping = min(chosen, key=chosen.get)
    print(f"\nλ = {damping:.0e}\n\n| seed | {' | '.join(f'μ = {each}' for each in FRACTIONS)} |")
    print("|---|" + "---|" * len(FRACTIONS))
    rows = []
    for seed in range(seeds):
        rows.append([error(each, damping, seed, steps, inside) for each in FRACTIONS])
        print(f"| {seed} | {' | '.join(f'{value:.2e}' for value in rows[-1])} |", flush=True)
    found = np.array(rows)
    print(f"| median | {' | '.join(f'{value:.2e}' for value in np.median(found, axis=0))} |\n")
    for k, fraction in enumerate(FRACTIONS[1:], 1):
        logs = np.log(found[:, k] / found[:, 0])
        low, high = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
        print(
            f"μ = {fraction} over μ = 0: {np.exp(logs.mean()):.2f} ({np.exp(low):.2f} to {np.exp(high):.2f})"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--inside", type=int, help="points inside; default: the problem's own 3,000")
    given = parser.parse_args()
    with jax.enable_x64(True):
        main(given.seeds, given.steps, given.inside)
