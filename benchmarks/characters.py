"""The stream of characters beside the step that eats it: seconds for a batch of examples and for an NGD step.

    python benchmarks/characters.py [--presets small medium paper] [--repeats 5]

Both are timed in turns in one process, least of the repeats. A run of `natgrad run order` makes fewer batches than
it takes steps, since trainings of a seed share theirs as long as they fit into memory.
"""

import argparse
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from natgrad_paper import config, experiments
from natgrad_paper.data import characters, glyphs
from natgrad_paper.order.courses import Examples, Plain
from natgrad_paper.order.learner import COMPETITORS, Learner

UPDATES = 5


def seconds(call):
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def measure(settings, repeats):
    """Return seconds for a batch and for a step."""
    # A few updates tell as much as a whole block.
    stream = replace(settings.stream, segment=UPDATES, block=UPDATES)
    settings = replace(settings, stream=stream)
    source = characters.source(glyphs.embedded())
    learner = Learner(next(each for each in COMPETITORS if each.name == "ngd"), settings)
    inputs, labels = Examples(settings, source, 0).block(Plain(), 0)
    trained, rate = learner.start(0), jnp.float32(settings.ngd.rate)
    jax.block_until_ready(learner.advance(trained, inputs, labels, rate))
    making, stepping = [], []
    for number in range(1, repeats + 1):
        making.append(seconds(lambda n=number: Examples(settings, source, 0).block(Plain(), n)))
        stepping.append(seconds(lambda: learner.advance(trained, inputs, labels, rate)))
    return np.min(making) / stream.block, np.min(stepping) / stream.block


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--presets", nargs="+", default=["small", "medium", "paper"])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    experiment = experiments.load("order")
    print("| preset | batch | ms to make it | images/s | ms of an NGD step | making / step |", flush=True)
    print("|---|---|---|---|---|---|")
    for name in arguments.presets:
        settings = config.load(experiment.config, experiment.presets()[name])
        making, stepping = measure(settings, arguments.repeats)
        batch = settings.stream.batch
        print(
            f"| {name} | {batch} | {1000 * making:.1f} | {batch / making:,.0f} | {1000 * stepping:.1f} "
            f"| {making / stepping:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
