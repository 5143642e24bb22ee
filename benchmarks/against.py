"""A step of this tree beside a step of an older commit: ratios in one run, in turns.

    python benchmarks/against.py HEAD~20                (an otherwise idle machine)
    python benchmarks/against.py v0.1 --recipes ngd kncg --rounds 8

The older commit is checked out in a folder of its own, which goes away at the end. Each tree has a process, which
compiles its steps once; then the two take turns. Old names of recipes are known: `kncg` was `ng.fast`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RECIPES = ("ngd", "ngd-l", "ncg-l", "kncg", "hf", "ksd", "kronecker", "refresh", "rebase")
"""The last three are the preconditioner's: NGD that applies it in 20 iterations, KNCG that renews its factors or its
bases in every step."""
STEPS, NEVER = 12, 10**6


def step_of(recipe: str, batch: int) -> Callable[[], float]:
    """Return a function that takes some steps on the Curves autoencoder and returns the seconds of each."""
    import jax
    import jax.numpy as jnp
    from compiling import CURVES, model, weights

    import natgrad as ng

    def kncg(*arguments: Any, **rest: Any) -> Any:
        return (
            ng.kncg(*arguments, average=None, **rest) if hasattr(ng, "kncg") else ng.fast(*arguments, **rest)
        )

    def preconditioned(refresh: int, rebase: int) -> dict[str, Any]:
        name = "preconditioner" if hasattr(ng, "kncg") else "precondition"
        return {name: ng.Kronecker(refresh=refresh, rebase=rebase)}

    params = weights(CURVES)
    x = jnp.asarray(np.random.default_rng(1).random((batch, CURVES[0])), jnp.float32)
    build = {
        "ngd": ng.natural_gradient,
        "ngd-l": lambda *a: ng.natural_gradient(*a, search=ng.LineSearch()),
        "ncg-l": ng.natural_conjugate_gradient,
        "kncg": kncg,
        "hf": ng.hessian_free,
        "ksd": ng.krylov_subspace_descent,
        "kronecker": lambda *a: ng.natural_gradient(
            *a, solver=ng.CG(20, 0.0), **preconditioned(NEVER, NEVER)
        ),
        "refresh": lambda *a: kncg(*a, **preconditioned(1, NEVER)),
        "rebase": lambda *a: kncg(*a, **preconditioned(NEVER, 1)),
    }[recipe]
    opt = build(model, ng.Bernoulli())
    state, step = opt.init(params), jax.jit(opt.step)

    def steps() -> float:
        nonlocal params, state
        start = time.perf_counter()
        for _ in range(STEPS):
            params, state, _ = step(params, state, (x, x))
        jax.block_until_ready(params)
        return (time.perf_counter() - start) / STEPS

    steps()
    return steps


def serve(recipe: str, batch: int) -> None:
    """Answer every line with the seconds of a step."""
    steps = step_of(recipe, batch)
    print(json.dumps(0), flush=True)
    for _ in sys.stdin:
        print(json.dumps(steps()), flush=True)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


@contextmanager
def process(tree: Path, recipe: str, batch: int) -> Iterator[Callable[[], float]]:
    """Start a tree's process, and return a function that asks it for the seconds of a step."""
    command = [sys.executable, __file__, "--serve", recipe, "--batch", str(batch), str(tree)]
    running = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(tree / "src")}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert running.stdin is not None
    assert running.stdout is not None
    asked, answers = running.stdin, running.stdout

    def answer() -> float:
        line = answers.readline()
        if not line:
            raise RuntimeError(f"the process of {tree} ended")
        return float(json.loads(line))

    def ask() -> float:
        print(file=asked, flush=True)
        return answer()

    try:
        answer()  # It has compiled.
        yield ask
    finally:
        running.kill()
        running.wait()


def main() -> None:
    """Print a row per recipe."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the older commit, as git names it")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--serve", choices=RECIPES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.batch)
        return
    print(f"{'recipe':8}{'then, ms':>10}{'now, ms':>10}{'now / then':>12}   (least to largest)")
    with checked_out(options.commit) as old:
        for recipe in options.recipes:
            with (
                process(old, recipe, options.batch) as then,
                process(ROOT, recipe, options.batch) as now,
            ):
                times = np.array([[then(), now()] for _ in range(options.rounds)])
            before, after = 1e3 * np.median(times, axis=0)
            ratios = times[:, 1] / times[:, 0]
            print(
                f"{recipe:8}{before:10.1f}{after:10.1f}{np.median(ratios):12.3f}   "
                f"({ratios.min():.3f} to {ratios.max():.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
