"""What the arena trains: every method from every seed on every problem. The methods on a problem take turns."""

from dataclasses import replace
from typing import Any

from natgrad_paper.errors import UserError
from natgrad_paper.figures.arena.entry import Entry
from natgrad_paper.figures.arena.methods import SINGLE, constants
from natgrad_paper.figures.arena.problems import Suite, posed
from natgrad_paper.training.log import RunLog
from natgrad_paper.training.precision import precise
from natgrad_paper.training.problem import Budget, Method
from natgrad_paper.training.runner import Run, Training, alternating, failures


def drive(run: Run) -> list[str]:
    """Train on the problems one after another; return a line for each training that did not come to its own end.

    A method that stopped itself has failed on a problem, and the report says so. The run has not failed.
    """
    suite = run.problem
    assert isinstance(suite, Suite)
    contests = [(entry, competing(run, entry)) for entry in suite.entries]
    if not any(methods for _, methods in contests):
        raise UserError("--methods: expected one that can run on these problems, found none")
    logs: list[RunLog] = []
    for entry, methods in contests:
        target = getattr(run.settings.targets, entry.name).on(entry.data["sha256"])
        logs += contest(run, entry, methods, target)
    return failures([log for log in logs if not log.complete])


def competing(run: Run, entry: Entry) -> list[Method]:
    """Return the methods that can run on a problem; say which cannot."""
    found = []
    for method in run.methods:
        chosen = constants(method, run.settings, entry.name)
        if chosen is not None and chosen.rate is None:
            run.display.tell(f"{method.label}, {entry.training}: no rate was chosen yet, so it does not run")
        elif entry.float64 and method.name in SINGLE:
            run.display.tell(f"{method.label}, {entry.training}: not in double precision, so it does not run")
        else:
            found.append(method)
    return found


def contest(run: Run, entry: Entry, methods: list[Method], target: float | None = None) -> list[RunLog]:
    """Train the methods on a problem in turns, and return their logs."""
    facts, own = entry.facts(target), replace(entry, data=run.problem.data)
    logs: list[RunLog] = []
    with precise(entry):
        part = replace(run, problem=own, retries=False, _trainers={}, _evaluating={})
        for seed in run.seeds:
            trainings = [Training(method, seed, entry.training, facts) for method in methods]
            logs += alternating(part, trainings, run.settings.turn)
    return logs


def trainings(settings: Any, methods: int, seeds: int) -> int:
    """Return how many trainings a run has, if every method runs on every problem."""
    return len(list(posed(settings))) * methods * seeds


def cost(settings: Any, methods: int, seeds: int) -> str:
    """Return in words what a run costs."""
    return cost_on(len(list(posed(settings))), settings.budget, methods, seeds)


def cost_on(problems: int, budget: Budget, methods: int, seeds: int) -> str:
    """Return in words what it costs to train so many methods from so many seeds on so many problems."""
    parts = ((problems, "problem"), (methods, "method"), (seeds, "seed"))
    words = " × ".join(f"{number} {name}{'s' * (number > 1)}" for number, name in parts)
    if budget.seconds is None:
        return f"{words} × {budget.iterations} iterations"
    minutes = problems * methods * seeds * budget.seconds / 60
    total = f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
    return f"{words} × {budget.seconds:g} s = {total} of training, besides compiling and evaluating"
