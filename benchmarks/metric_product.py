"""What a metric product, a CG iteration and a step cost, as ratios to one loss-and-gradient evaluation.

Runs on the paper's Curves autoencoder (842,340 parameters) in float32. Every ratio is taken within one run, its
two sides interleaved and repeated; only a machine that does nothing else gives meaningful numbers.

    make bench        or        python benchmarks/metric_product.py --batches 1000 5000
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad_paper.data import curves
from natgrad_paper.training.models import Autoencoder

REPEATS = 9
autoencoder = Autoencoder((784, 400, 200, 100, 50, 25, 6))


def images(count: int) -> jax.Array:
    return jnp.asarray(curves.generate(0, train=count, test=0).train)


def seconds(functions: dict[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, float]:
    """Return the median time of each function, all of them interleaved so that noise hits them alike."""
    for function in functions.values():
        jax.block_until_ready(function())
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in times.items()}


def matmul_rate() -> float:
    """Return this machine's own matrix-multiply rate, in multiplications a second."""
    a = jax.random.normal(jax.random.key(0), (2000, 2000), jnp.float32)
    multiply = jax.jit(lambda x: x @ x)
    return 2000**3 / seconds({"a": lambda: multiply(a)})["a"]


def bare_products(params, x, count, microbatch=None):
    """Return a jitted loop of `count` metric products on one linearization, and nothing else."""

    @jax.jit
    def run(params, x, v):
        operator = ng.metric_product(autoencoder, ng.Bernoulli(), params, x, microbatch=microbatch)
        return jax.lax.fori_loop(0, count, lambda _, u: operator(u), v)

    return lambda: run(params, x, params)


def solver_iterations(params, x, gradient, count):
    @jax.jit
    def run(params, x, gradient):
        operator = ng.metric_product(autoencoder, ng.Bernoulli(), params, x)
        return ng.CG(maxiter=count, rtol=0.0)(operator, gradient, shift=jnp.float32(1.0)).x

    return lambda: run(params, x, gradient)


def measure(batch: int, rate: float) -> None:
    x = images(batch)
    params = autoencoder.init(0)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    likelihood = ng.Bernoulli()
    loss_and_gradient = jax.jit(
        jax.value_and_grad(lambda p, x: jnp.mean(likelihood.nll(autoencoder(p, x), x)))
    )
    forward = jax.jit(lambda p, x: jnp.mean(likelihood.nll(autoencoder(p, x), x)))
    _, gradient = loss_and_gradient(params, x)
    few, many = 2, 10
    lm = ng.LevenbergMarquardt(1.0)
    fixed = {"solver": ng.CG(maxiter=20, rtol=0.0), "damping": lm}
    ngd = ng.natural_gradient(autoencoder, likelihood, **fixed)
    ngd_l = ng.natural_gradient(autoencoder, likelihood, search=ng.LineSearch(), **fixed)
    state, searching = ngd.init(params), ngd_l.init(params)
    t = seconds(
        {
            "gradient": lambda: loss_and_gradient(params, x),
            "forward": lambda: forward(params, x),
            "few": bare_products(params, x, few),
            "many": bare_products(params, x, many),
            "few chunked": bare_products(params, x, few, batch // 4),
            "many chunked": bare_products(params, x, many, batch // 4),
            "few cg": solver_iterations(params, x, gradient, few),
            "many cg": solver_iterations(params, x, gradient, many),
            "step": lambda: ngd.step(params, state, (x, x)),
            "step with line search": lambda: ngd_l.step(params, searching, (x, x)),
        }
    )
    span = many - few
    product = (t["many"] - t["few"]) / span
    chunked = (t["many chunked"] - t["few chunked"]) / span
    iteration = (t["many cg"] - t["few cg"]) / span
    # A step is a gradient, 20 products, one for the true residual, a JVP for the KL and a forward pass for ρ.
    products = t["gradient"] + 21 * product + product / 2 + t["forward"]
    multiplications = 4 * size * batch
    print(f"batch {batch}, {size:,} parameters")
    print(f"  loss and gradient            {1e3 * t['gradient']:8.1f} ms")
    print(f"  metric product / gradient    {product / t['gradient']:8.2f}")
    print(f"  the same, in 4 chunks        {chunked / t['gradient']:8.2f}")
    print(f"  CG iteration / gradient      {iteration / t['gradient']:8.2f}")
    print(f"  product / matrix-multiply rate {multiplications / product / rate:6.2f}")
    print(f"  NGD step (20 iterations)     {t['step'] / t['gradient']:8.2f} gradients")
    print(f"  its share that is no product {1 - products / t['step']:8.1%}")
    print(f"  line search / step           {t['step with line search'] / t['step'] - 1:8.1%} more")


def import_time() -> None:
    code = "import jax, time; s = time.perf_counter(); import natgrad; print(time.perf_counter() - s)"
    best = min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    )
    print(f"import natgrad on top of import jax: {best:.2f} s")


def compile_times() -> None:
    """Report, apart from all ratios, how long the first step takes to compile."""
    x = images(200)
    params = autoencoder.init(0)
    recipes = {
        "ngd": ng.natural_gradient(autoencoder, ng.Bernoulli()),
        "ngd with line search": ng.natural_gradient(autoencoder, ng.Bernoulli(), search=ng.LineSearch()),
        "ncg": ng.natural_conjugate_gradient(autoencoder, ng.Bernoulli()),
    }
    for name, opt in recipes.items():
        state = opt.init(params)
        start = time.perf_counter()
        jax.jit(opt.step).lower(params, state, (x, x)).compile()
        print(f"compiling a step, {name}: {time.perf_counter() - start:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1000, 5000])
    arguments = parser.parse_args()
    import_time()
    compile_times()
    rate = matmul_rate()
    print(f"matrix-multiply rate: {rate / 1e9:.0f} G multiplications/s")
    for batch in arguments.batches:
        measure(batch, rate)


if __name__ == "__main__":
    main()
