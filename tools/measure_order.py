"""Choose damping and rates for figure 2 by the validation error alone, on seeds that no result uses.

    python tools/measure_order.py --out runs/order-pilots.csv           # a few minutes on one core

Every training has the updates of the preset `small`. For SGD, and for NGD with each damping, it tries three
rates a factor of two apart, and further ones while the best is at the edge. The mean over two seeds decides.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from natgrad_paper import figures
from natgrad_paper.cli.arguments import preset, settings
from natgrad_paper.figures.order.streams import Examples, Plain
from natgrad_paper.training.loop import Trainer
from natgrad_paper.training.problem import Until
from natgrad_paper.training.settings import CHOOSING
from natgrad_paper.training.tune import around

SEEDS = (CHOOSING, CHOOSING + 1)
STEP, MOST = 2.0, 4
"""Between two rates, and further rates at most, where the best is at the edge."""
STARTS: dict[str, dict[float | None, float]] = {
    "sgd": {None: 2.0},
    "ngd": {0.3: 0.5, 0.03: 0.1, 0.003: 0.025},
}
"""By method and damping, the rate in the middle of the first three."""


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
    sources = {seed: Plain(Examples(plain, problem.glyphs, seed)) for seed in SEEDS}
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
                    trainer, errors = Trainer(problem, method, chosen), []
                    for seed, source in sources.items():
                        *_, end = trainer.run(seed, source, Until(chosen.stream.updates))
                        errors.append((end.errors or {})["valid_misclassified"])
                        record.writerow([method.name, damping, rate, seed, errors[-1]])
                    return float(np.mean(errors))

                found = around(start, STEP, MOST, tried)
                rate = min(found, key=lambda each: found[each])
                words = "" if damping is None else f", damping {damping:g}"
                print(f"{method.label}{words}: rate {rate:g}, {found[rate]:.1%} misclassified", flush=True)


if __name__ == "__main__":
    main()
