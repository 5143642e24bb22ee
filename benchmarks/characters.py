"""The stream of characters beside the step that eats it: seconds for a batch of examples and for an NGD step.

    python benchmarks/characters.py [--presets small medium paper] [--repeats 5]

Both are timed in turns in one process, least of the repeats. A run of `natgrad run order` makes fewer batches than
it takes steps, since trainings of a seed share theirs as long as they fit into memory.
"""

import argparse
import time

import jax
import numpy as np

from natgrad_paper import figures
from natgrad_paper.figures.order.streams import Examples, Plain
from natgrad_paper.training.settings import build, changed

UPDATES = 5


def seconds(call):
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def measure(experiment, settings, repeats):
    """Return seconds for a batch and for a step."""
    problem = experiment.prepare(settings, None)
    method = next(each for each in experiment.methods if each.name == "ngd")
    optimizer = method.build(problem, method.own(settings))

    @jax.jit
    def advance(params, state, block):
        def step(carry, batch):
            return optimizer.step(*carry, batch)[:2], None

        return jax.lax.scan(step, (params, state), block)[0]

    params = problem.init(0)
    block = Plain(Examples(settings, problem.glyphs, 0)).block(0, UPDATES)
    jax.block_until_ready(advance(params, optimizer.init(params), block))
    making, stepping = [], []
    for number in range(1, repeats + 1):
        fresh = Plain(Examples(settings, problem.glyphs, 0))
        making.append(seconds(lambda n=number, fresh=fresh: fresh.block(n * UPDATES, UPDATES)))
        stepping.append(seconds(lambda: advance(params, optimizer.init(params), block)))
    return np.min(making) / UPDATES, np.min(stepping) / UPDATES


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--presets", nargs="+", default=["small", "medium", "paper"])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    experiment = figures.load("order")
    # A few updates tell as much as a whole block.
    short = {"stream": {"segment": UPDATES, "block": UPDATES}}
    print("| preset | batch | ms to make it | images/s | ms of an NGD step | making / step |", flush=True)
    print("|---|---|---|---|---|---|")
    for name in arguments.presets:
        preset = experiment.presets()[name]
        settings = build(
            experiment.settings, changed(experiment.settings, preset.changes, short), preset.where
        )
        making, stepping = measure(experiment, settings, arguments.repeats)
        batch = settings.stream.batch
        print(
            f"| {name} | {batch} | {1000 * making:.1f} | {batch / making:,.0f} | {1000 * stepping:.1f} "
            f"| {making / stepping:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
