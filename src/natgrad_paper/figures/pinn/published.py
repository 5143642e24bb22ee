"""What others published on the same equations: errors against seconds on their machines, to be drawn beside ours.

`published.toml` holds the numbers as their logs have them; `factor` makes an absolute error relative.
"""

import tomllib
from functools import cache
from pathlib import Path

from natgrad_paper.training.settings import Positive, Section

FILE = Path(__file__).with_name("published.toml")


class Publication(Section):
    """Where numbers come from, and on which machine they were measured."""

    title: str
    address: str
    hardware: str


class Curve(Section):
    """Errors of one method on one equation."""

    method: str
    source: str
    """Its name among the sources."""
    factor: Positive = 1.0
    """1 / the root mean square of the solution, if the error is absolute."""
    seconds: list[Positive]
    errors: list[Positive]

    @property
    def relative(self) -> list[float]:
        """The errors in our measure."""
        return [self.factor * error for error in self.errors]


@cache
def sources() -> dict[str, Publication]:
    """Return the sources by name."""
    return {name: Publication(**each) for name, each in _table()["sources"].items()}


@cache
def curves(problem: str) -> tuple[Curve, ...]:
    """Return what was published on an equation."""
    return tuple(Curve(**each) for each in _table().get(problem, []))


@cache
def _table() -> dict:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
