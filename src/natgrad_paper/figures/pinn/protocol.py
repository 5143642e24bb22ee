"""What is trained: every method from every seed on every equation. The methods on an equation take turns."""

from typing import Any

from natgrad_paper.errors import UserError
from natgrad_paper.figures.arena.problems import Suite
from natgrad_paper.figures.arena.protocol import contest, cost_on
from natgrad_paper.figures.pinn.methods import FIXED
from natgrad_paper.training.log import RunLog
from natgrad_paper.training.runner import Run, failures


def drive(run: Run) -> list[str]:
    """Train on the equations one after another; return a line for each training that did not come to its own end."""
    whole = run.problem
    assert isinstance(whole, Suite)
    logs: list[RunLog] = []
    for entry in whole.entries:
        methods = [each for each in run.methods if entry.draw is None or each.name not in FIXED]
        logs += contest(run, entry, methods)
    if not logs:
        raise UserError("--methods: expected one that can run on these equations, found none")
    return failures([log for log in logs if not log.complete])


def trainings(settings: Any, methods: int, seeds: int) -> int:
    """Return how many trainings a run has at most."""
    return len(settings.problems) * methods * seeds


def cost(settings: Any, methods: int, seeds: int) -> str:
    """Return in words what a run costs at most."""
    return cost_on(len(settings.problems), settings.budget, methods, seeds)
