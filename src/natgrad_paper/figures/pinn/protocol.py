"""What is trained: every method from every seed on every equation. The methods on an equation take turns."""

from natgrad_paper.figures.arena.entry import Entry
from natgrad_paper.figures.arena.protocol import one_after_another
from natgrad_paper.figures.pinn.methods import FIXED
from natgrad_paper.training.problem import Method
from natgrad_paper.training.runner import Run


def drive(run: Run) -> list[str]:
    """Train on the equations one after another."""
    return one_after_another(run, refusal)


def refusal(run: Run, entry: Entry, method: Method) -> str:
    """Return why a method cannot run on an equation."""
    return "its points change" if entry.draw is not None and method.name in FIXED else ""
