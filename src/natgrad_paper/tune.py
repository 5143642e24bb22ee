"""Choosing settings fairly: every combination of a small grid, judged on validation cases."""

import csv
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from natgrad_paper import config
from natgrad_paper.errors import UserError
from natgrad_paper.experiment import Experiment, Method, Problem
from natgrad_paper.train import Event, Trainer


@dataclass(frozen=True)
class Trial:
    """One combination and how it did."""

    changes: tuple[str, ...]
    """As given to --set."""
    validation: float
    training: float
    iterations: int

    @property
    def rank(self) -> float:
        """The error on the held-out cases; what is not finite comes last."""
        return self.validation if np.isfinite(self.validation) else np.inf


def combinations(grids: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every combination of grids such as `adam.rate=0.001,0.003`, as changes to a preset."""
    axes = []
    for grid in grids:
        field, sign, values = grid.partition("=")
        words = [word.strip() for word in values.split(",") if word.strip()]
        if not sign or not field.strip() or not words:
            raise UserError(f"--grid {grid}: expected field=value,value,…, found something else")
        if field.strip().startswith(("data.", "model.")):
            raise UserError(f"--grid {grid}: expected a setting of a method, found one of the problem")
        axes.append([f"{field.strip()}={word}" for word in words])
    return list(itertools.product(*axes))


def held_out(problem: Problem) -> Problem:
    """Return the problem tested on its validation cases, or else on part of its training set, which then lacks them.

    Its own test set is not touched, and what only a report needs is left out.
    """
    problem = problem.validated()
    return replace(problem, test=problem.valid, pictures=None, gauge=None)


def tune(
    experiment: Experiment,
    preset: Path | None,
    method: Method,
    base: Sequence[str],
    grids: Sequence[str],
    seed: int,
    data: Path | None,
    watch: Callable[[int, int, Event], None],
) -> Iterator[Trial]:
    """Train the method with every combination, one after another, and yield how each did."""
    trials, field = combinations(grids), experiment.view.main.field
    settings: list[Any] = [config.load(experiment.config, preset, [*base, *changes]) for changes in trials]
    problem = held_out(experiment.prepare(settings[0], data))
    for number, (changes, chosen) in enumerate(zip(trials, settings, strict=True)):
        errors: dict[str, float] = {}
        for event in Trainer(problem, method, chosen).run(seed):
            errors = event.errors or errors
            watch(number, len(trials), event)
        yield Trial(changes, errors[f"test_{field}"], errors[field], event.position.iteration)


def write(path: Path, trials: Sequence[Trial]) -> None:
    """Write the trials as CSV, in the order they were run."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["changes", "validation_error", "training_error", "iterations"])
        for trial in trials:
            writer.writerow([" ".join(trial.changes), trial.validation, trial.training, trial.iterations])
