"""Wrong claims and time per system of the solvers people use, and the cost of an iteration beside its product.

    python benchmarks/solvers.py [--systems 400] [--repeats 15]

The first table runs every solver on the same seeded corpus (tests/solve/corpus.py), each with the same rtol and
5n iterations; the claim of each is judged in float64 (tests/solve/judge.py). Solvers without a claim of their own
(`jax.scipy`: info is None) are judged as if they claimed success, as their users must. CG columns see only the
kinds CG is for. The second table times the solvers in turns and takes the least of the repeats.
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import scipy.sparse.linalg

from natgrad.solve import CG, MINRES, MinresQLP, Reason

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "solve"))
from corpus import Batch, batch
from judge import POSITIVE, judge

jax.config.update("jax_enable_x64", True)

RTOL = {np.float64: 1e-8, np.float32: 1e-4}
BREAKS = 0.1
"""The share of systems that get a NaN in b."""


def corpus(systems, dtype):
    sizes = (2, 13, 40, 120)
    for size in sizes:
        drawn = batch(11, size, systems // len(sizes), dtype)
        broken = np.arange(len(drawn.b)) % int(1 / BREAKS) == 3
        b = drawn.b.copy()
        b[broken, 0] = np.nan
        yield drawn._replace(b=b, kind=np.where(broken, "nan", drawn.kind))


def ours(make):
    def solve(drawn, rtol):
        solver = make(5 * drawn.b.shape[1], rtol)
        run = jax.jit(jax.vmap(lambda A, b: solver(lambda v: A @ v, b)))
        return timed(
            lambda: [np.asarray(part) for part in (lambda s: (s.x, s.reason))(run(drawn.A, drawn.b))]
        )

    return solve


def jax_scipy_cg(drawn, rtol):
    def one(A, b):
        return jax.scipy.sparse.linalg.cg(A, b, tol=rtol, maxiter=5 * drawn.b.shape[1])[0]

    run = jax.jit(jax.vmap(one))
    seconds, x = timed(lambda: np.asarray(run(drawn.A, drawn.b)))
    return seconds, (x, np.full(len(x), Reason.SOLVED))


def lineax_cg(drawn, rtol):
    solver = lineax.CG(rtol=rtol, atol=0, max_steps=5 * drawn.b.shape[1])

    def one(A, b):
        operator = lineax.MatrixLinearOperator(A, lineax.positive_semidefinite_tag)
        found = lineax.linear_solve(operator, b, solver, throw=False)
        return found.value, found.result == lineax.RESULTS.successful

    run = jax.jit(jax.vmap(one))
    seconds, (x, success) = timed(lambda: [np.asarray(part) for part in run(drawn.A, drawn.b)])
    return seconds, (x, np.where(success, Reason.SOLVED, Reason.MAXITER))


def scipy_solver(method):
    def solve(drawn, rtol):
        def run():
            pairs = [
                method(A, b, rtol=rtol, maxiter=5 * b.size) for A, b in zip(drawn.A, drawn.b, strict=True)
            ]
            return np.stack([x for x, _ in pairs]), np.array([info for _, info in pairs])

        with np.errstate(all="ignore"):
            seconds, (x, info) = timed(run)
        return seconds, (x, np.where(info == 0, Reason.SOLVED, Reason.MAXITER))

    return solve


def timed(run):
    run()
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


SOLVERS = {
    "natgrad CG": (ours(CG), True),
    "natgrad MINRES": (ours(MINRES), False),
    "natgrad MinresQLP": (ours(MinresQLP), False),
    "jax.scipy cg": (jax_scipy_cg, True),
    "lineax CG": (lineax_cg, True),
    "scipy cg": (scipy_solver(scipy.sparse.linalg.cg), True),
    "scipy minres": (scipy_solver(scipy.sparse.linalg.minres), False),
}


def claims(systems):
    print("| solver | dtype | systems | claims of success | wrong | ms per system |")
    print("|---|---|---|---|---|---|")
    for name, (solve, only_positive) in SOLVERS.items():
        for dtype in (np.float64, np.float32):
            total = claimed = wrong = seconds = 0
            for drawn in corpus(systems, dtype):
                if only_positive:
                    drawn = take(drawn, np.isin(drawn.kind, (*POSITIVE, "nan", "zero right-hand side")))
                took, (x, reason) = solve(drawn, RTOL[dtype])
                verdict = judge(_without_nan(drawn), np.nan_to_num(x, nan=0.0), reason, RTOL[dtype])
                success = np.isin(reason, (Reason.SOLVED, Reason.LEAST_SQUARES, Reason.ZERO_RHS))
                bad = np.where(
                    drawn.kind == "nan", success, verdict.wrong | (success & ~np.isfinite(x).all(1))
                )
                total, seconds = total + len(x), seconds + took
                claimed, wrong = claimed + int(success.sum()), wrong + int(bad.sum())
            print(
                f"| {name} | {np.dtype(dtype)} | {total} | {claimed} | {wrong} | {1e3 * seconds / total:.2f} |"
            )


def take(drawn, chosen):
    return Batch(*(part[chosen] for part in drawn))


def _without_nan(drawn):
    return drawn._replace(b=np.nan_to_num(drawn.b))


NETWORK = ((784, 600), (600,), (600, 500), (500,), (500, 400), (400,), (400, 70), (170,))
"""Parameters of a network, a million in all: what the solvers meet in natgrad."""


def overhead(title, shapes, repeats, few=5, many=45):
    """Time an iteration as the difference of two lengths, so that what a solve does once is left out."""
    rng = np.random.default_rng(0)
    # Far from convergence after `many` steps: on an easy spectrum the residual underflows and some stop early.
    d = [jnp.asarray(10 ** rng.uniform(-6, 0, shape), jnp.float32) for shape in shapes]
    b = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]

    def matvec(v):
        return jax.tree.map(jnp.multiply, d, v)

    runs = {
        "product alone": lambda b, k: jax.lax.fori_loop(0, k, lambda _, v: matvec(v), b),
        "jax.scipy cg": lambda b, k: jax.scipy.sparse.linalg.cg(matvec, b, tol=0.0, maxiter=k)[0],
        "natgrad CG": lambda b, k: CG(k, 0.0)(matvec, b).x,
        "natgrad MINRES": lambda b, k: MINRES(k, 0.0)(matvec, b).x,
        "natgrad MinresQLP": lambda b, k: MinresQLP(k, 0.0)(matvec, b).x,
    }
    compiled = {
        (name, k): jax.jit(run, static_argnums=1).lower(b, k).compile()
        for name, run in runs.items()
        for k in (few, many)
    }
    times = {key: [] for key in compiled}
    for _ in range(repeats + 1):
        for key, run in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(run(b))
            times[key].append(time.perf_counter() - start)
    # The least of the repeats is the one that others disturbed least.
    each = {name: (min(times[name, many][1:]) - min(times[name, few][1:])) / (many - few) for name in runs}
    once = {name: min(times[name, few][1:]) - few * each[name] for name in runs}
    bare = each["product alone"]
    print(f"\n| {title}, float32 | ms per iteration | beyond the product | ratio | ms once per solve |")
    print("|---|---|---|---|---|")
    for name in runs:
        beyond = each[name] - bare
        ratio = "" if name == "product alone" else f"{beyond / (each['jax.scipy cg'] - bare):.2f}"
        print(f"| {name} | {1e3 * each[name]:.2f} | {1e3 * beyond:.2f} | {ratio} | {1e3 * once[name]:.1f} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    if options.systems:
        claims(options.systems)
    overhead("a million unknowns, a network's parameters", NETWORK, options.repeats)
    overhead("a million unknowns, one array", [(1_000_000,)], options.repeats)


if __name__ == "__main__":
    main()
