"""How a step of KNCG fares beside another process that keeps one core busy.

Steps alone and steps beside the neighbour alternate in short stretches, so that other work on the machine hits both
alike. The neighbour is a process of its own, started and ended here.

    python benchmarks/neighbour.py [--rounds 4] [--steps 60] [--batch 1000]       (an otherwise idle machine)
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from metric_product import autoencoder, images

import natgrad as ng

WARM = 70
"""Steps before the clock starts: the early ones renew the bases more often."""


@contextmanager
def busy() -> Iterator[None]:
    """Keep one core busy."""
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def main() -> None:
    """Print medians and worst steps."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--steps", type=int, default=60, help="per stretch: a multiple of 30 has its share of bases"
    )
    parser.add_argument("--batch", type=int, default=1000)
    options = parser.parse_args()

    x = images(options.batch)
    opt = ng.kncg(autoencoder, ng.Bernoulli())
    params = autoencoder.init(0)
    state: Any = opt.init(params)
    step = jax.jit(opt.step, donate_argnums=(0, 1))

    def stretch(count: int) -> list[float]:
        nonlocal params, state
        times = []
        for _ in range(count):
            start = time.perf_counter()
            params, state, info = step(params, state, (x, x))
            jax.block_until_ready((params, info.loss))
            times.append(time.perf_counter() - start)
        return times

    stretch(WARM)
    alone, beside = [], []
    for _ in range(options.rounds):
        alone += stretch(options.steps)
        with busy():
            beside += stretch(options.steps)

    idle, loaded = np.median(alone), np.median(beside)
    print(
        f"median step alone {1e3 * idle:.0f} ms, beside a neighbour {1e3 * loaded:.0f} ms: {loaded / idle:.2f} times"
    )
    print(f"mean step beside the neighbour: {np.mean(beside) / np.mean(alone):.2f} times the mean alone")
    for name, times, median in (("alone", alone, idle), ("beside", beside, loaded)):
        print(f"worst step {name}: {max(times) / median:.1f} times the median")


if __name__ == "__main__":
    main()
