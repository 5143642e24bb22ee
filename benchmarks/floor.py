"""Where KNCG's λ stops falling: numbers in place of its rule, on the arena's problems.

python benchmarks/floor.py [--problems digits,linear] [--floors rule,1e-4,1e-6] [--seed 100] [--mnist DIRECTORY]

Errors after a number of steps, training and test, of the averaged parameters. Not by the clock, so the machine need
not be idle. Without MNIST's idx files, `conv` takes scikit-learn's digits. `pinn` is in double precision. The floor
`fixed` is the rule whose bound does not grow while steps fit their own batch.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp

import natgrad as ng
from natgrad.recipes import LEAST
from natgrad_paper.figures.arena.form import Form
from natgrad_paper.figures.arena.problems import PROBLEMS
from natgrad_paper.training.batches import number_of

STEPS = {
    "digits": 600, "conv": 100, "lstm": 400, "transformer": 100, "vae": 600, "curves": 500, "pinn": 300,
    "regression": 600, "cartpole": 60, "linear": 600,
}  # fmt: skip
FLOORS = ("rule", "1e-3", "1e-4", "1e-6", "1e-8")
FIXED = ng.LevenbergMarquardt(3e-3, lower_by=0.98, least=LEAST)


def given(floor: str) -> dict:
    """Return the arguments of `ng.kncg`."""
    if floor == "rule":
        return {}
    return {"damping": FIXED} if floor == "fixed" else {"floor": float(floor)}


def run(name: str, floor: str, seed: int, steps: int, mnist: Path | None) -> str:
    """Return a row of the table."""
    entry = PROBLEMS[name].make(Form(), mnist)
    assert entry.train is not None
    assert entry.test is not None
    opt = ng.kncg(entry.model, entry.likelihood, objective=entry.objective, **given(floor))
    judged = entry.judged or entry.train, entry.test
    with entry.precise():
        params, train = entry.init(seed), jax.tree.map(jnp.asarray, entry.train)
        state, cases = opt.init(params), number_of(entry.train[0])

        @jax.jit
        def step(params, state, rows, key):
            batch = train if rows is None else jax.tree.map(lambda each: each[rows], train)
            return opt.step(params, state, batch if entry.draw is None else entry.draw(key, params, batch))

        for number in range(steps):
            rows = entry.batches.draw(cases, seed, number, 1).get("gradient")
            key = jax.random.fold_in(jax.random.key(seed), number)
            params, state, info = step(params, state, None if rows is None else rows[0], key)
        found = [float(jnp.mean(entry.errors(state.average, *part)["error"])) for part in judged]
    return f"| {name} | {floor} | {found[0]:.3g} | {found[1]:.3g} | {float(info.damping):.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", default=",".join(STEPS))
    parser.add_argument("--floors", default=",".join(FLOORS))
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--steps", type=int, help="of every problem; default: each problem's own")
    parser.add_argument("--mnist", type=Path, help="the directory of MNIST's idx files, for conv")
    chosen = parser.parse_args()
    print("| problem | floor | training error | test error | λ at the end |\n|---|---|---|---|---|")
    for name in chosen.problems.split(","):
        for floor in chosen.floors.split(","):
            print(run(name, floor, chosen.seed, chosen.steps or STEPS[name], chosen.mnist), flush=True)


if __name__ == "__main__":
    main()
