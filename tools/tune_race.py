"""Pick the constants of the race's contestants, with as many tries for each.

    python tools/tune_race.py --out runs/race-pilots                          # all of them on Curves: hours
    python tools/tune_race.py --out runs/race-pilots --methods muon,adam --preset characters

It needs an otherwise idle machine. A contestant starts with the preset's constants and has at most ten tries of the
race's own length: it keeps the constants with the lowest training error, and goes on to the next question. For a
first-order method the questions are: the rate, the batch, batches that grow, a cosine, an average. A try that ends in
NaN or is given up is no candidate. All tries are in the CSV file; the table for the preset is printed after each
contestant.
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
CONTESTANTS = ("kncg", "nesterov", "adam", "muon", "soap", "shampoo", "kfac")
"""Those of the protocol. Whoever leaves one out, because it is not installed, has to say so."""
FIELDS = ("method", "seed", "training_error", "iterations", "constants")


def times(field: str, factor: float) -> Change:
    """Return the change that multiplies a field; whole numbers stay whole."""

    def change(own: Any, steps: int) -> dict[str, Any]:
        value = getattr(own, field)
        new = value * factor
        return {field: max(1, round(new)) if isinstance(value, int) else float(f"{new:.3g}")}

    return change


def batch(factor: float) -> Change:
    """Return the change of the batch; the first of growing batches is no larger."""

    def change(own: Any, steps: int) -> dict[str, Any]:
        found = times("batch", factor)(own, steps)
        first = getattr(own, "first", None)
        return found if first is None else {**found, "first": min(first, found["batch"])}

    return change


def to(field: str, value: Any) -> Change:
    """Return the change that sets a field."""
    return lambda own, steps: {field: value}


def growing(own: Any, steps: int) -> dict[str, Any]:
    """Begin with a quarter of the batch, and double it twice before the middle of the training."""
    return {"first": max(1, own.batch // 4), "double": max(1, steps // 4)}


def cosine(factor: float) -> Change:
    """Return a schedule over as many steps as the best constant rate took, from a multiple of that rate."""
    return lambda own, steps: {"steps": steps, **times("rate", factor)(own, steps)}


FIRST_ORDER = (
    (times("rate", 1 / STEP), times("rate", STEP)),
    (batch(0.5), batch(2.0)),
    (growing,),
    (cosine(1.0), cosine(STEP)),
    (to("average", 0.99), to("average", 0.999)),
)
QUESTIONS: dict[str, Sequence[Sequence[Change]]] = {
    "kncg": (
        (batch(0.5), batch(2.0)),
        (times("first", 0.5), times("first", 0.25), lambda own, steps: {"first": own.batch}),
        (times("probe", 0.5), times("probe", 2.0)),
        (to("average", 0.9), to("average", 0.999)),
    ),
    "kfac": (
        (times("damping", 0.1), times("damping", 10.0)),
        (times("floor", 0.1), times("floor", 10.0), times("floor", 0.01)),
        (batch(0.5), batch(2.0)),
        (times("damping", STEP), times("damping", 1 / STEP)),
    ),
}
"""What is asked of whom; of all others, `FIRST_ORDER`. Each has ten tries, the first with the preset's constants."""


def tuned(method: Any, given: Any, attempt: Callable[[Any], tuple[float, int]]) -> Any:
    """Return the best constants of a method, None if none survive.

    `attempt` has the error with some settings, and the steps it took.
    """
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
    return best if np.isfinite(least) else None


def main(words: Sequence[str] | None = None) -> None:
    """Tune what the options name."""
    experiment = figures.load("race")
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, required=True, help="a folder for the trials")
    options.add_argument("--preset", default="small", help="the problem: small, characters or addition")
    options.add_argument("--methods", default=",".join(CONTESTANTS), help="default: the protocol's")
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
    path = given.out / f"{given.preset}.csv"
    begun = path.exists()
    with path.open("a", encoding="utf-8", newline="", buffering=1) as stream:
        record = csv.writer(stream)
        if not begun:
            record.writerow(FIELDS)
        for method in methods:
            section = method.section or method.name

            def attempt(trial: Any, method: Any = method, section: str = section) -> tuple[float, int]:
                errors, iterations = pilot(placed, method, trial, given.seed)
                error = errors.get("error", np.nan)
                constants = getattr(trial, section).model_dump(exclude_none=True)
                shown = " ".join(map("=".join, _shown(constants)))
                record.writerow([method.name, given.seed, error, iterations, shown])
                say(f"{method.label}: {error:.4g} after {iterations} steps with {constants}")
                return (error if np.isfinite(error) else np.inf), iterations

            best = tuned(method, chosen, attempt)
            if best is None:
                print(f"{method.label}: no constants that survive: it does not race", flush=True)
                continue
            shown = ", ".join(map(" = ".join, _shown(best.model_dump(exclude_none=True))))
            print(f"{section} = {{ {shown} }}", flush=True)


def _shown(constants: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in constants.items()]


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        sys.exit(f"tune_race: {problem}")
