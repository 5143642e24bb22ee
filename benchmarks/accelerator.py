"""The speed table, on whatever device JAX finds: the first call and a step of Adam, NGD and KNCG, and their parts.

Needs natgrad alone. The net has the shape of the paper's Curves autoencoder (842,340 parameters). Its data are random:
speed does not depend on them. Ratios are to one evaluation of loss and gradient on the same device and batch.

    python benchmarks/accelerator.py                       # batches of 1,000 and 5,000
    python benchmarks/accelerator.py --batches 200 --repeats 3 --units 64,32,64
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import natgrad as ng

CURVES = (784, 400, 200, 100, 50, 25, 6, 25, 50, 100, 200, 400, 784)
ITERATIONS = 20


def model(params: Any, x: jax.Array) -> jax.Array:
    """Apply sigmoid layers; the outputs are linear."""
    for w, b in params[:-1]:
        x = jax.nn.sigmoid(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def contestants(params: Any, batch: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return each program and its arguments."""
    likelihood = ng.Bernoulli()

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean(likelihood.nll(model(params, batch[0]), batch[1]))

    def adam(params: Any, state: Any, batch: Any) -> Any:
        updates, state = rule.update(jax.grad(loss)(params, batch), state)
        return optax.apply_updates(params, updates), state

    def products(params: Any, batch: Any) -> Any:
        operator = ng.metric_product(model, likelihood, params, batch[0])
        return jax.lax.fori_loop(0, ITERATIONS, lambda _, v: operator(v), params)

    rule, ngd, kncg = optax.adam(1e-3), ng.natural_gradient(model, likelihood), ng.kncg(model, likelihood)
    return {
        "loss and gradient": (jax.value_and_grad(loss), (params, batch)),
        f"{ITERATIONS} metric products": (products, (params, batch)),
        "a step of Adam": (adam, (params, rule.init(params), batch)),
        "a step of NGD, 20 CG iterations": (ngd.step, (params, ngd.init(params), batch)),
        "a step of KNCG": (kncg.step, (params, kncg.init(params), batch)),
    }


def measured(run: Callable[..., Any], arguments: tuple[Any, ...], repeats: int) -> tuple[float, float]:
    """Return the seconds of the first call, and the median of the later ones."""
    program = jax.jit(run)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        times.append(time.perf_counter() - start)
    return times[0], float(np.median(times[1:]))


def main(batches: list[int], repeats: int, units: tuple[int, ...]) -> None:
    """Print a table per batch size."""
    device = jax.devices()[0]
    print(
        f"{device.device_kind} ({device.platform}), jax {jax.__version__}, natgrad {ng.__version__}, float32"
    )
    rng = np.random.default_rng(0)
    params = [
        (jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32), jnp.zeros(s[1])) for s in pairwise(units)
    ]
    for count in batches:
        x = jnp.asarray(rng.uniform(size=(count, units[0])), jnp.float32)
        print(f"\n| batch {count} | first call, s | later calls, ms | in gradients |\n|---|---|---|---|")
        unit = None
        for name, (run, arguments) in contestants(params, (x, x)).items():
            first, later = measured(run, arguments, repeats)
            unit = unit or later
            print(f"| {name} | {first:.1f} | {1000 * later:.2f} | {later / unit:.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--units", type=lambda text: tuple(map(int, text.split(","))), default=CURVES)
    main(**vars(parser.parse_args()))
