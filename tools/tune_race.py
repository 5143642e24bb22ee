"""Pick the constants of the race's contestants, with as many tries for each.

    python tools/tune_race.py --out runs/race-pilots                          # all of them on Curves: hours
    python tools/tune_race.py --out runs/race-pilots --methods muon,adam --preset characters

It needs an otherwise idle machine. A contestant starts with the preset's constants and has at most ten tries of the
race's own length: it keeps the constants with the lowest training error, and goes on to the next question. For a
first-order method the questions are: the rate, the batch, a cosine, batches that grow, an average. Tries that had other
results are in the CSV file; the tables for the preset are printed at the end.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import print as say

from natgrad_paper import figures
from natgrad_paper.cli.arguments import pick, preset, settings
from natgrad_paper.errors import UserError
from natgrad_paper.training import cache
from natgrad_paper.training.settings import CHOOSING
from natgrad_paper.training.source import Placed
from natgrad_paper.training.tune import pilot

Change = Callable[[Any, int], dict[str, Any]]
"""From a section of constants, and the steps that a training took with them, to the fields to change."""
STEP = 3.0
"""Between two rates."""


def times(field: str, factor: float) -> Change:
    """Return the change that multiplies a field; whole numbers stay whole."""

    def change(own: Any, steps: int) -> dict[str, Any]:
        value = getattr(own, field)
        new = value * factor
        return {field: max(1, round(new)) if isinstance(value, int) else float(f"{new:.3g}")}

    return change


def to(field: str, value: Any) -> Change:
    """Return the change that sets a field."""
    return lambda own, steps: {field: value}


def growing(own: Any, steps: int) -> dict[str, Any]:
    """Begin with a quarter of the batch, and double it twice before the middle of the training."""
    return {"first": max(1, own.batch // 4), "double": max(1, steps // 4)}


def cosine(factor: float) -> Change:
    """Return a schedule over as many steps as the constant rate took, from a multiple of that rate."""
    return lambda own, steps: {"steps": steps, **times("rate", factor)(own, steps)}


FIRST_ORDER = (
    (times("rate", 1 / STEP), times("rate", STEP)),
    (times("batch", 0.5), times("batch", 2.0)),
    (cosine(1.0), cosine(STEP)),
    (growing,),
    (to("average", 0.99), to("average", 0.999)),
)
QUESTIONS: dict[str, Sequence[Sequence[Change]]] = {
    "kncg": (
        (times("batch", 0.5), times("batch", 2.0)),
        (times("first", 0.5), times("first", 0.25), lambda own, steps: {"first": own.batch}),
        (times("probe", 0.5), times("probe", 2.0)),
        (to("average", 0.9), to("average", 0.999)),
    ),
    "kfac": (
        (times("damping", 0.1), times("damping", 10.0)),
        (times("floor", 0.1), times("floor", 10.0), times("floor", 0.01)),
        (times("batch", 0.5), times("batch", 2.0)),
        (times("damping", STEP), times("damping", 1 / STEP)),
    ),
}
"""What is asked of whom; of all others, `FIRST_ORDER`. Each has ten tries, the first with the preset's constants."""


def tuned(method: Any, given: Any, attempt: Callable[[Any], tuple[float, int]]) -> Any:
    """Return the best constants of a method: `attempt` has the error with some settings, and the steps it took."""
    section = method.section or method.name
    best = getattr(given, section)
    least, steps = attempt(given)
    for question in QUESTIONS.get(method.name, FIRST_ORDER):
        asked, at = best, steps
        for change in question:
            changed = {**asked.model_dump(), **change(asked, at)}
            own = type(asked).model_validate(changed)
            error, taken = attempt(given.model_copy(update={section: own}))
            if error < least:
                best, least, steps = own, error, taken
    return best


def main(words: Sequence[str] | None = None) -> None:
    """Tune what the options name."""
    experiment = figures.load("race")
    raced = [method.name for method in experiment.methods if method.name not in ("kncg-last", "hf", "lbfgs")]
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, required=True, help="a folder for the trials")
    options.add_argument("--preset", default="small", help="the problem: small, characters or addition")
    options.add_argument("--methods", default=",".join(raced))
    options.add_argument("--set", action="append", default=[], help="a change of the preset, field=value")
    options.add_argument("--seed", type=int, default=CHOOSING, help=f"{CHOOSING} or more")
    given = options.parse_args(words)
    if given.seed < CHOOSING:
        raise UserError(f"--seed: expected {CHOOSING} or more, found {given.seed}")
    known = {method.name: method for method in experiment.methods}
    methods = [pick(known, name, "--methods") for name in given.methods.split(",")]
    chosen = settings(experiment, preset(experiment, given.preset), given.set)
    placed = Placed(experiment.prepare(chosen, None))
    cache.enable()
    given.out.mkdir(parents=True, exist_ok=True)
    tables = []
    with (given.out / f"{given.preset}.csv").open("a", encoding="utf-8", newline="", buffering=1) as stream:
        record = csv.writer(stream)
        for method in methods:
            section = method.section or method.name

            def attempt(trial: Any, method: Any = method, section: str = section) -> tuple[float, int]:
                errors, iterations = pilot(placed, method, trial, given.seed)
                error = errors.get("error", np.nan)
                constants = getattr(trial, section).model_dump(exclude_none=True)
                record.writerow(
                    [method.name, given.seed, error, iterations, *map("=".join, _shown(constants))]
                )
                say(f"{method.label}: {error:.4g} after {iterations} steps with {constants}")
                return (error if np.isfinite(error) else np.inf), iterations

            best = tuned(method, chosen, attempt).model_dump(exclude_none=True)
            tables.append(f"{section} = {{ {', '.join(map(' = '.join, _shown(best)))} }}")
    print("\n".join(tables))


def _shown(constants: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in constants.items()]


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        sys.exit(f"tune_race: {problem}")
