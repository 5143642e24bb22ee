"""How long the first call of a step compiles, as ratios to optax's Adam on the same net.

Each case runs in processes of its own, without a persistent cache, in turns with the others. Tracing and lowering are
Python's share, compiling is XLA's. CPU time counts all threads, and a busy machine disturbs it less than wall time.
Kernels are the fusions of the compiled program: LLVM compiles each of them by itself, which takes most of XLA's time.

    python benchmarks/compiling.py --repeats 3            (an otherwise idle machine)
"""

import argparse
import json
import os
import subprocess
import sys
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
CODE = 5
"""The layer whose units are linear: the code of the autoencoder."""
BATCH, PART, WIDTH = 1000, 250, 64
STAGES = ("trace", "lower", "compile")
CASES = ("Adam", "NGD", "KNCG", "Adam, 12 layers", "Adam, 60 layers", "KNCG, 12 layers", "KNCG, 60 layers")
GOALS = (
    ("KNCG / Adam", "KNCG", "Adam", 3.0),
    ("NGD / Adam", "NGD", "Adam", 2.5),
    ("KNCG, 60 layers / 12 layers", "KNCG, 60 layers", "KNCG, 12 layers", 1.5),
    ("Adam, 60 layers / 12 layers", "Adam, 60 layers", "Adam, 12 layers", None),
    ("60 layers, KNCG / Adam", "KNCG, 60 layers", "Adam, 60 layers", None),
)


def model(params: Any, x: jax.Array) -> jax.Array:
    """Apply sigmoid layers; the code of the autoencoder and the outputs are linear."""
    linear = {len(params) - 1} | ({CODE} if len(params[0]["biases"]) != WIDTH else set())
    for number, layer in enumerate(params):
        x = x @ layer["weights"] + layer["biases"]
        x = x if number in linear else jax.nn.sigmoid(x)
    return x


def weights(units: tuple[int, ...]) -> list[dict[str, jax.Array]]:
    """Return random weights and zero biases."""
    rng = np.random.default_rng(0)
    return [
        {
            "weights": jnp.asarray(rng.standard_normal((rows, columns)) / rows**0.5, jnp.float32),
            "biases": jnp.zeros(columns, jnp.float32),
        }
        for rows, columns in pairwise(units)
    ]


def adam(params: Any) -> tuple[Callable[..., Any], Any]:
    """Return a step of Adam and its state."""
    rule, likelihood = optax.adam(1e-3), ng.Bernoulli()

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean(likelihood.nll(model(params, batch[0]), batch[1]))

    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, batch)
        updates, state = rule.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, rule.init(params)


def prepared(case: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return a step and its arguments."""
    layers = int(case.split()[1]) if "layers" in case else None
    units = CURVES if layers is None else (WIDTH,) * (layers + 1)
    params = weights(units)
    x = jnp.asarray(np.random.default_rng(1).random((BATCH, units[0])), jnp.float32)
    t = (x > 0.5).astype(x.dtype)
    if case.startswith("Adam"):
        step, state = adam(params)
        return step, (params, state, (x, t)), {}
    if case == "NGD":
        opt = ng.natural_gradient(model, ng.Bernoulli())
        return opt.step, (params, opt.init(params), (x, t)), {}
    opt = ng.kncg(model, ng.Bernoulli())
    probe = {"metric_inputs": x[:PART], "ratio_batch": (x[:PART], t[:PART])}
    return opt.step, (params, opt.init(params), (x, t)), probe


def measure(case: str, compiler_options: dict[str, Any]) -> dict[str, Any]:
    """Return wall and CPU seconds of each stage, and how many kernels the program has."""
    step, arguments, probe = prepared(case)
    jax.block_until_ready(arguments)
    # What a process does once, for its first program of any kind, is nobody's.
    jax.jit(lambda x: x @ x + 1).lower(jnp.ones((300, 300))).compile()

    found: dict[str, Any] = {}

    def timed(stage: str, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = work(*args, **kwargs)
        found[stage] = [time.perf_counter() - wall, time.process_time() - cpu]
        return result

    traced = timed("trace", jax.jit(step).trace, *arguments, **probe)
    compiled = timed("compile", timed("lower", traced.lower).compile, compiler_options=compiler_options)
    found["kernels"] = compiled.as_text().count(" fusion(")
    return found


def in_a_process(case: str) -> dict[str, Any]:
    """Measure in a fresh process, without a persistent cache."""
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, __file__, "--case", case]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", choices=CASES, help="measure this one here, as JSON")
    parser.add_argument(
        "--options", type=json.loads, default={}, help="with --case: XLA's options, as a JSON object"
    )
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.options)))
        return

    runs: dict[str, list[Any]] = {case: [] for case in CASES}
    kernels: dict[str, int] = {}
    for _ in range(options.repeats):
        for case in CASES:
            found = in_a_process(case)
            runs[case].append([found[stage] for stage in STAGES])
            kernels[case] = found["kernels"]
    # Of shape (cases, repeats, stages, wall and CPU).
    times = np.array([runs[case] for case in CASES])

    print(f"seconds of CPU (wall), medians of {options.repeats}; the range is that of the total's CPU")
    print(
        f"{'':18}" + "".join(f"{stage:>16}" for stage in (*STAGES, "total")) + f"{'range':>16}{'kernels':>9}"
    )
    for case, own in zip(CASES, times, strict=True):
        totals = own.sum(axis=1, keepdims=True)
        wall, cpu = np.moveaxis(np.median(np.concatenate([own, totals], axis=1), axis=0), 1, 0)
        cells = "".join(f"{f'{c:.2f} ({w:.2f})':>16}" for w, c in zip(wall, cpu, strict=True))
        spread = f"{totals[..., 1].min():.1f} to {totals[..., 1].max():.1f}"
        print(f"{case:18}{cells}{spread:>16}{kernels[case]:>9}")

    totals = dict(zip(CASES, np.median(times.sum(axis=2), axis=1), strict=True))
    for title, above, below, goal in GOALS:
        wall, cpu = totals[above] / totals[below]
        verdict = "" if goal is None else f"; goal {goal:g}, {'met' if cpu <= goal else 'missed'}"
        print(f"{title}: {cpu:.1f} by CPU time, {wall:.1f} by wall time{verdict}")


if __name__ == "__main__":
    main()
