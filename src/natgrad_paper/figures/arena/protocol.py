"""What the arena trains: every method from every seed on every problem. The methods on a problem take turns."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from natgrad_paper.errors import UserError
from natgrad_paper.figures.arena.entry import Entry
from natgrad_paper.figures.arena.problems import Suite
from natgrad_paper.training.log import RunLog
from natgrad_paper.training.problem import Method
from natgrad_paper.training.runner import Run, Training, alternating, failures

Refusal = Callable[[Any, Entry, Method], str]
"""From the settings to why a method cannot run on a problem, in words; empty if it can."""


def one_after_another(run: Run, refusal: Refusal) -> list[str]:
    """Train on problems one after another; return a line for each training that did not come to its own end.

    A method that stopped itself has failed on a problem, and the report says so. The run has not failed.
    """
    suite = run.problem
    assert isinstance(suite, Suite)
    contests = [(entry, competing(run, entry, refusal)) for entry in suite.entries]
    if not any(methods for _, methods in contests):
        raise UserError("--methods: expected one that can run on these problems, found none")
    logs = [log for entry, methods in contests for log in contest(run, entry, methods)]
    return failures([log for log in logs if not log.complete])


def competing(run: Run, entry: Entry, refusal: Refusal) -> list[Method]:
    """Return the methods that can run on a problem; say which cannot."""
    why = {method.name: refusal(run.settings, entry, method) for method in run.methods}
    for method in run.methods:
        if why[method.name]:
            run.display.tell(f"{method.label}, {entry.training}: {why[method.name]}, so it does not run")
    return [method for method in run.methods if not why[method.name]]


def contest(run: Run, entry: Entry, methods: list[Method]) -> list[RunLog]:
    """Train the methods on a problem in turns, and return their logs."""
    targets = getattr(run.settings, "targets", None)
    target = None if targets is None else getattr(targets, entry.name).on(entry.data["sha256"])
    facts, own = entry.facts(target), replace(entry, data=run.problem.data)
    logs: list[RunLog] = []
    with entry.precise():
        part = replace(run, problem=own, retries=False, _trainers={}, _evaluating={})
        for seed in run.seeds:
            trainings = [Training(method, seed, entry.training, facts) for method in methods]
            logs += alternating(part, trainings, run.settings.turn)
    return logs
