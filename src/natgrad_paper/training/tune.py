"""Chooses settings fairly: every combination of a small grid, from seeds that no result uses, on validation cases."""

import csv
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from natgrad_paper.errors import UserError
from natgrad_paper.training.log import Status
from natgrad_paper.training.loop import Event, Trainer
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import CHOOSING
from natgrad_paper.training.source import Placed


@dataclass(frozen=True)
class Trial:
    """One combination and how it did."""

    changes: tuple[str, ...]
    """The changes, as given to --set."""
    validation: float
    training: float
    iterations: int

    @property
    def rank(self) -> float:
        """The error on the held-out cases; errors that are not finite come last."""
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


def tune(
    problem: Problem,
    method: Method,
    trials: Sequence[tuple[tuple[str, ...], Any]],
    seed: int,
    error: str,
    watch: Callable[[int, int, Event], None],
) -> Iterator[Trial]:
    """Train the method with every combination of settings, one after another, and yield how each did.

    Errors are measured on the problem's validation cases, or on a part of its training set, which is then not trained
    on. The test set is not used.

    Args:
        problem: The problem.
        method: The method to tune.
        trials: The changes of each trial in words, and the settings with these changes.
        seed: The seed of every trial, at least `CHOOSING`.
        error: The name of the error that counts.
        watch: Called with the number of the trial, how many there are, and an event.
    """
    if seed < CHOOSING:
        raise UserError(
            f"--seed: expected {CHOOSING} or more, since smaller seeds are for results, found {seed}"
        )
    problem = problem.validated()
    if problem.train is None:
        raise UserError("tune: expected one problem with training cases, found several, or a stream")
    problem = replace(problem, test=problem.valid, reconstruct=None, gauge=None)
    placed = Placed(problem)
    for number, (changes, settings) in enumerate(trials):
        errors, iterations = pilot(placed, method, settings, seed, partial(watch, number, len(trials)))
        yield Trial(changes, errors[f"test_{error}"], errors[error], iterations)


def pilot(
    placed: Placed,
    method: Method,
    settings: Any,
    seed: int,
    watch: Callable[[Event], object] = lambda event: None,
) -> tuple[dict[str, float], int]:
    """Train a method on a problem to the end of its budget; return its last errors and the number of iterations.

    The errors of a training that was given up are NaN: its constants are no good, however low they were.
    """
    errors: dict[str, float] = {}
    with placed.problem.precise():
        trainer = Trainer(placed.problem, method, settings)
        for event in trainer.run(seed, placed.source(method, trainer.settings, seed), settings.budget):
            errors = event.errors or errors
            watch(event)
    if event.status is Status.GAVE_UP:
        errors = dict.fromkeys(errors, float("nan"))
    return errors, event.position.iteration


def around(usual: float, step: float, most: int, tried: Callable[[float], float]) -> dict[float, float]:
    """Return rates and their errors, which `tried` measures: three around the usual one, a factor of `step` apart.

    While the best is at the edge, at most `most` further ones follow.
    """
    found = {rate: tried(rate) for rate in (usual / step, usual, usual * step)}
    for _ in range(most):
        best, rates = min(found, key=lambda rate: found[rate]), sorted(found)
        if best not in (rates[0], rates[-1]):
            break
        further = best / step if best == rates[0] else best * step
        found[further] = tried(further)
    return found


def write(path: Path, trials: Sequence[Trial]) -> None:
    """Write the trials as CSV, in the order they were run."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["changes", "validation_error", "training_error", "iterations"])
        for trial in trials:
            writer.writerow([" ".join(trial.changes), trial.validation, trial.training, trial.iterations])
