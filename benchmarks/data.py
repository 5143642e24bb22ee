"""How quickly the data are made: all of Curves, and the characters of figure 2's stream, at both sizes.

    python benchmarks/data.py [--repeats 3]

Wall clock and CPU time, least of the repeats: on a machine with other work the second is the one to read.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from natgrad_paper.data import characters, curves, glyphs

GOAL = 3.0
"""Seconds for all of Curves."""
BATCH = 2048
"""Characters at a time."""


def least(make: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the least seconds of wall clock and of CPU time."""
    wall, processor = [], []
    for _ in range(repeats):
        before = time.perf_counter(), time.process_time()
        jax.block_until_ready(make())
        wall.append(time.perf_counter() - before[0])
        processor.append(time.process_time() - before[1])
    return min(wall), min(processor)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print("| data | images | seconds | CPU seconds | images/s | goal |", flush=True)
    print("|---|---|---|---|---|---|")
    total = curves.TRAIN + curves.TEST

    def show(name: str, count: int, found: tuple[float, float], goal: str) -> None:
        wall, processor = found
        print(
            f"| {name} | {count} | {wall:.2f} | {processor:.2f} | {count / wall:.0f} | {goal} |", flush=True
        )

    found = least(lambda: curves.generate().train, repeats)
    met = "met" if found[0] < GOAL else "met in CPU time" if found[1] < GOAL else "missed"
    show("Curves", total, found, f"under {GOAL:g} s: {met}")
    source, indices = characters.source(glyphs.embedded()), jnp.arange(BATCH, dtype=jnp.uint32)
    for side, goal in ((16, ""), (32, "10000 images/s")):

        def make(side: int = side) -> Any:
            return characters.draw(source, characters.stream(0), indices, side=side)

        jax.block_until_ready(make())  # compiles
        show(f"characters, {side}×{side}", BATCH, least(make, repeats), goal)


if __name__ == "__main__":
    main()
