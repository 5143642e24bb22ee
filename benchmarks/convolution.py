"""On a CPU the gradient of a convolution is slow inside a loop or a branch: how much, and what KNCG pays for it.

    taskset -c 0 python benchmarks/convolution.py            (an otherwise idle machine)

XLA rewrites the gradient of a kernel into a form that is fast on a CPU only where it is in a program's outermost
computation. KNCG renews its factors in a branch, so its steps that do so take longer.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad_paper.figures.arena import nets

CASES, SIDE, REPEATS, STEPS = 256, 28, 5, 24


def seconds(function: Callable[..., object], *arguments: object) -> float:
    """Return the median time of a call, the first one apart."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    """Print the seconds."""
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.random((CASES, SIDE, SIDE)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 10, CASES))
    params = nets.convolutional_init(jax.random.key(0), SIDE, jnp.float32)
    likelihood = ng.Categorical()

    def descended(params):
        gradient = jax.grad(lambda p: jnp.mean(likelihood.nll(nets.convolutional(p, images), labels)))(params)
        return jax.tree.map(lambda leaf, slope: leaf - 1e-9 * slope, params, gradient)

    alone = seconds(jax.jit(descended), params)
    looped = seconds(jax.jit(lambda p: jax.lax.fori_loop(0, 2, lambda _, p: descended(p), p)), params) / 2
    branched = seconds(jax.jit(lambda p, due: jax.lax.cond(due, descended, lambda p: p, p)), params, True)
    for words, found in (("by itself", alone), ("in a loop", looped), ("in a branch", branched)):
        print(f"a gradient of the arena's net {words}: {found:.2f} s")

    opt = ng.kncg(nets.convolutional, likelihood)
    state, step, times = opt.init(params), jax.jit(opt.step), []
    for number in range(2 * STEPS):
        start = time.perf_counter()
        params, state, _ = jax.block_until_ready(step(params, state, (images, labels)))
        if number >= STEPS:  # early on factors are renewed more often
            times.append(time.perf_counter() - start)
    without = float(np.median(times))
    share = 1 - without / np.mean(times)
    print(
        f"a step of KNCG: {np.mean(times):.2f} s, without new factors {without:.2f} s: they take {share:.0%}"
    )


if __name__ == "__main__":
    main()
