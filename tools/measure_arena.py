"""Measure the arena's targets and the constants of its tuned methods, and write them to `measured.toml`.

    python tools/measure_arena.py --out runs/arena-pilots                    # all problems and tuned methods: hours
    python tools/measure_arena.py --out runs/arena-pilots --problems digits,linear --methods adamw-tuned

It needs an otherwise idle machine. For each problem and each tuned method it tries three rates a factor of three apart
around the author's, further ones while the best is at the edge, then the best again with a warm-up and a cosine. The
number of steps of that schedule is what the constant rate did in the budget. The two best then run from two further
seeds, and the lower mean of the training error wins. That mean of tuned AdamW is the target. All pilots have seeds
from 100 on, and all of them are kept as CSV.
What was measured before stays, unless it is measured again.
"""

import argparse
import csv
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from natgrad_paper import figures
from natgrad_paper.cli.arguments import preset, settings
from natgrad_paper.errors import UserError
from natgrad_paper.figures.arena.contests import LEAST
from natgrad_paper.figures.arena.entry import ERROR
from natgrad_paper.figures.arena.measured import FILE, NAMES, Tuned
from natgrad_paper.figures.arena.methods import RULER, TARGETS, AdamW, Muon, Soap
from natgrad_paper.figures.arena.problems import PROBLEMS, Suite
from natgrad_paper.training import cache
from natgrad_paper.training.problem import Method
from natgrad_paper.training.settings import CHOOSING, stated
from natgrad_paper.training.source import Placed
from natgrad_paper.training.tune import around, pilot

STEP = 3.0
"""Between two rates."""
EXTENSIONS = 4
"""Further rates at most, where the best is at the edge."""
FINALISTS = 2
RATES = {
    "adamw-tuned": AdamW().rate, "muon-tuned": Muon().rate, "soap-tuned": Soap().rate, "shampoo-tuned": 1e-2,
    "kron-tuned": 1e-3,
}  # fmt: skip
"""The authors' rates: pilots begin there."""
SEEDS = (CHOOSING, CHOOSING + 1, CHOOSING + 2)
FIELDS = ("problem", "method", "seed", "rate", "steps", "error", "iterations")


class Trial(NamedTuple):
    """How a training did."""

    error: float
    iterations: int


class Bench:
    """One problem, on which trials run and are written down."""

    def __init__(self, name: str, seconds: float | None, data: Path | None, record: Any) -> None:
        self.name, self._record = name, record
        experiment = figures.load("arena")
        changes = [f'problems=["{name}"]', *([f"budget.seconds={seconds}"] if seconds else [])]
        self._settings = settings(experiment, preset(experiment, "small"), changes)
        problem = experiment.prepare(self._settings, data)
        assert isinstance(problem, Suite)
        self.problem = problem
        self._placed = Placed(problem)

    def _with(self, method: Method, constants: Tuned) -> Any:
        """Return the settings with these constants, whatever was measured before."""
        own = getattr(self._settings, method.section).model_copy(update={self.name: constants})
        return self._settings.model_copy(update={method.section: own})

    def trial(self, method: Method, constants: Tuned, seed: int) -> Trial:
        """Return how one training did, after writing it down."""
        errors, iterations = pilot(self._placed, method, self._with(method, constants), seed)
        found = Trial(errors.get(ERROR, float("nan")), iterations)
        self._record.writerow([self.name, method.name, seed, constants.rate, constants.steps, *found])
        print(f"{self.name}, {method.label}, seed {seed}: {constants}: {found.error:.5g}", flush=True)
        return found

    def mean(self, method: Method, constants: Tuned, first: float) -> float:
        """Return the mean error over all pilot seeds, on the scale of the problem; `first` is that of the first."""
        errors = [first, *(self.trial(method, constants, seed).error for seed in SEEDS[1:])]
        if not np.isfinite(errors).all():
            return float("inf")
        logarithmic = self.problem.scale == "log"
        return float(np.exp(np.mean(np.log(np.maximum(errors, LEAST)))) if logarithmic else np.mean(errors))


def chosen(bench: Bench, method: Method, usual: float) -> tuple[Tuned, float]:
    """Return the constants of a method on a problem, and the mean error over the pilot seeds with them.

    The two best constants of the first seed run from the others as well: a rate that one seed survives is no good.
    """
    trials: dict[Tuned, Trial] = {}

    def attempt(rate: float, steps: int | None = None) -> float:
        constants = Tuned(rate=float(f"{rate:.2g}"), steps=steps)
        if constants not in trials:
            trials[constants] = bench.trial(method, constants, CHOOSING)
        return _rank(trials[constants])

    def best() -> Tuned:
        return min(trials, key=lambda each: _rank(trials[each]))

    around(usual, STEP, EXTENSIONS, attempt)
    constant, steps = best().rate or usual, trials[best()].iterations
    for rate in (constant, constant * STEP):
        attempt(rate, steps)
    finalists = sorted(trials, key=lambda each: _rank(trials[each]))[:FINALISTS]
    means = {each: bench.mean(method, each, trials[each].error) for each in finalists}
    winner = min(means, key=lambda each: means[each])
    return winner, means[winner]


def _rank(trial: Trial) -> float:
    return trial.error if np.isfinite(trial.error) else np.inf


def written(table: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the file: its comment stays, tables come in the order of the problems."""
    yield from (line for line in FILE.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    for section in sorted(table):
        for name in (name for name in NAMES if name in table[section]):
            yield ""
            yield f"[{section}.{name}]"
            for field, value in table[section][name].items():
                yield f'{field} = "{value}"' if isinstance(value, str) else f"{field} = {value!r}"


def main(words: Sequence[str] | None = None) -> None:
    """Measure what the options name."""
    methods = {method.name: method for method in RULER}
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, required=True, help="a folder for the trials")
    options.add_argument("--problems", default=",".join(PROBLEMS))
    options.add_argument("--methods", default=",".join(methods))
    options.add_argument("--seconds", type=float, help="of a training; default: the preset's")
    options.add_argument("--data", type=Path, help="MNIST's directory, for the convolutional net")
    options.add_argument("--table", type=Path, default=FILE, help="the file to write")
    given = options.parse_args(words)
    names, wanted = given.problems.split(","), given.methods.split(",")
    for word, known in [(name, list(PROBLEMS)) for name in names] + [
        (name, list(methods)) for name in wanted
    ]:
        if word not in known:
            raise UserError(f"expected one of {', '.join(known)}, found {word!r}")
    cache.enable()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "trials.csv"
    begun = path.exists()
    table = tomllib.loads(given.table.read_text(encoding="utf-8")) if given.table.exists() else {}
    with path.open("a", encoding="utf-8", newline="", buffering=1) as stream:
        record = csv.writer(stream)
        if not begun:
            record.writerow(FIELDS)
        for name in names:
            bench = Bench(name, given.seconds, given.data, record)
            for method in (methods[each] for each in wanted):
                constants, error = chosen(bench, method, RATES[method.name])
                if not np.isfinite(error):
                    print(f"{name}, {method.label}: no constants that all seeds survive: nothing is written")
                    continue
                table.setdefault(method.section, {})[name] = stated(constants)
                if method.name == TARGETS:
                    target = {"error": error, "data": bench.problem.data["sha256"]}
                    table.setdefault("targets", {})[name] = target
                given.table.write_text("\n".join(written(table)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        sys.exit(f"measure_arena: {problem}")
