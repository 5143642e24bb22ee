"""Wrong claims and time per system of the solvers people use.

    python tests/solve/others.py [--systems 400]

Every solver gets the same seeded corpus (`corpus.py`), the same rtol and 5n iterations; the claim of each is judged in
float64 (`judge.py`). Solvers without a claim of their own (`jax.scipy`: info is None) are judged as if they claimed
success, as their users must. CG columns see only the kinds CG is for.
"""

import argparse
import time

import jax
import lineax
import numpy as np
import scipy.sparse.linalg
from corpus import Batch, batch
from judge import POSITIVE, judge

from natgrad.solve import CG, MINRES, MinresQLP, Reason

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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", type=int, default=400)
    claims(parser.parse_args().systems)


if __name__ == "__main__":
    main()
