"""Choose damping and rates for figure 2 by the validation error alone, on seeds that no result uses.

    python tools/measure_order.py --out runs/order-pilots.csv           # about ten minutes on one core

Every training has the updates of the preset `small`. For SGD, and for NGD with each damping, it tries three
rates a factor of two apart, and further ones while the best is at the edge. The mean over two seeds decides.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from natgrad_paper import figures
from natgrad_paper.cli.arguments import preset, settings
from natgrad_paper.figures.order.streams import STREAM, Examples
from natgrad_paper.training.tune import FIRST_SEED

SEEDS = (FIRST_SEED, FIRST_SEED + 1)
MOST = 4
"""Further rates at most, where the best is at the edge."""
STARTS: dict[str, dict[float | None, float]] = {
    "sgd": {None: 2.0},
    "ngd": {0.3: 0.5, 0.03: 0.1, 0.003: 0.025},
}
"""By method and damping, the rate in the middle of the first three."""


def error(problem: Any, method: Any, chosen: Any, examples: Examples, seed: int) -> float:
    """Return the validation error after one training."""
    opt = method.build(problem, chosen)

    @jax.jit
    def block(params: Any, state: Any, batches: Any) -> Any:
        def step(carry: Any, batch: Any) -> Any:
            params, state, _ = opt.step(*carry, batch)
            return (params, state), None

        return jax.lax.scan(step, (params, state), batches)[0]

    params = problem.init(seed)
    state, stream = opt.init(params), chosen.stream
    for number in range(stream.updates // stream.block):
        params, state = block(params, state, examples.block(STREAM, number, None))
    cases, truths = examples.validation
    return float(jnp.mean(jnp.argmax(problem.model(params, cases), -1) != truths))


def best(start: float, tried: Callable[[float], float]) -> tuple[float, float]:
    """Return the best rate and its error."""
    found = {rate: tried(rate) for rate in (start / 2, start, 2 * start)}
    for _ in range(MOST):
        rates, winner = sorted(found), min(found, key=lambda rate: found[rate])
        if winner not in (rates[0], rates[-1]):
            break
        rate = winner / 2 if winner == rates[0] else 2 * winner
        found[rate] = tried(rate)
    winner = min(found, key=lambda rate: found[rate])
    return winner, found[winner]


def main() -> None:
    """Try all of them, and write every trial down."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, required=True, help="a CSV file for the trials")
    given = options.parse_args()
    experiment = figures.load("order")
    plain = settings(experiment, preset(experiment, "small"), [])
    problem: Any = experiment.prepare(plain, None)
    examples = {seed: Examples(plain, problem.glyphs, seed) for seed in SEEDS}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", encoding="utf-8", newline="", buffering=1) as stream:
        record = csv.writer(stream)
        record.writerow(["method", "damping", "rate", "seed", "validation_error"])
        for method in experiment.methods:
            for damping, start in STARTS[method.name].items():

                def tried(rate: float, method: Any = method, damping: float | None = damping) -> float:
                    changes = [f"{method.name}.rate={rate}"]
                    changes += [] if damping is None else [f"ngd.damping={damping}"]
                    chosen = settings(experiment, preset(experiment, "small"), changes)
                    errors = []
                    for seed in SEEDS:
                        errors.append(error(problem, method, chosen, examples[seed], seed))
                        record.writerow([method.name, damping, rate, seed, errors[-1]])
                    return float(np.mean(errors))

                rate, least = best(start, tried)
                words = "" if damping is None else f", damping {damping:g}"
                print(f"{method.label}{words}: rate {rate:g}, {least:.1%} misclassified", flush=True)


if __name__ == "__main__":
    main()
