"""Four ways to make rows orthonormal, alone and beside a process that keeps one core busy.

KNCG renews its eigenbases by orthogonal iteration, which needs orthonormal rows in every round. The table has the
milliseconds of one call on a stack of matrices, compiling apart, and how far the rows are from orthonormal if their
condition is 1e4. "Nested": whether the first k rows span what they spanned before, which orders eigenvectors.

    python benchmarks/orthonormal.py [--count 4] [--rows 128] [--length 512]       (an otherwise idle machine)
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from neighbour import busy

from natgrad import tree
from natgrad.orthogonal import orthonormal

CALLS = 40


def by_lapack(rows: Array) -> Array:
    """Return LAPACK's Q."""
    return jnp.linalg.qr(rows.mT)[0].mT


def by_cholesky(rows: Array) -> Array:
    """Return L⁻¹ rows with LLᵀ = rows rowsᵀ, twice."""
    for _ in range(2):
        lower = jnp.linalg.cholesky(tree.matmul(rows, rows.mT))
        rows = jax.lax.linalg.triangular_solve(lower, rows, left_side=True, lower=True)
    return rows


def by_newton_schulz(rows: Array) -> Array:
    """Return the polar factor: X ← 3/2 X − 1/2 X Xᵀ X, 40 times, from rows of Frobenius norm 1."""
    start = rows / jnp.sqrt(jnp.sum(rows**2, axis=(1, 2), keepdims=True))

    def turn(_: int, x: Array) -> Array:
        return 1.5 * x - 0.5 * tree.matmul(tree.matmul(x, x.mT), x)

    return jax.lax.fori_loop(0, 40, turn, start)


WAYS: dict[str, tuple[Callable[[Array], Array], str]] = {
    "products, Gram–Schmidt twice (ours)": (orthonormal, "yes"),
    "LAPACK's QR": (by_lapack, "yes"),
    "Cholesky-QR, twice": (by_cholesky, "yes"),
    "Newton–Schulz, 40 rounds": (by_newton_schulz, "no"),
}


def timed(call: Callable[[], Array]) -> np.ndarray:
    """Return the milliseconds of calls."""
    found = []
    for _ in range(CALLS):
        start = time.perf_counter()
        jax.block_until_ready(call())
        found.append(1e3 * (time.perf_counter() - start))
    return np.array(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, default=512)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = options.count, options.rows, options.length
    left, _, right = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    rows = jnp.asarray(left * np.geomspace(1, 1e-4, options.rows) @ right, jnp.float32)
    print("| | compiling, s | median, worst ms alone | beside a busy process | error | nested |")
    print("|---|---|---|---|---|---|")
    for name, (way, nested) in WAYS.items():
        start = time.perf_counter()
        program = jax.jit(way).lower(rows).compile()
        compiling = time.perf_counter() - start
        found = np.asarray(program(rows), np.float64)
        error = np.abs(found @ found.swapaxes(1, 2) - np.eye(options.rows)).max()
        cells = []
        for beside in (nullcontext(), busy()):
            with beside:
                times = timed(lambda program=program: program(rows))
            cells.append(f"{np.median(times):.3g}, {times.max():.3g}")
        print(f"| {name} | {compiling:.2f} | {' | '.join(cells)} | {error:.1e} | {nested} |", flush=True)


if __name__ == "__main__":
    main()
