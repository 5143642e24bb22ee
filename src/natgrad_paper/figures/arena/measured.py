"""What was measured once and is now fixed: targets, and the constants of the tuned methods.

`measured.toml` holds these numbers. A number that is not there was not measured yet, and nothing replaces it.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import create_model

from natgrad_paper.training.settings import Count, Finite, Positive, Section

ProblemName = Literal[
    "digits", "conv", "lstm", "transformer", "vae", "curves", "pinn", "regression", "cartpole", "linear"
]  # fmt: skip
NAMES: tuple[ProblemName, ...] = get_args(ProblemName)
"""The problems, in the order of the page."""
FILE = Path(__file__).with_name("measured.toml")


class Target(Section):
    """The training error to reach on a problem."""

    error: Finite | None = None
    """None if it was not measured yet."""
    data: str = ""
    """The hash of the data on which the target was measured: it holds for no other data."""

    def on(self, sha256: str) -> float | None:
        """Return the error, if it was measured on these data."""
        return self.error if self.data == sha256 else None


class Tuned(Section):
    """The constants of a tuned method on a problem."""

    rate: Positive | None = None
    """None if no pilots ran yet: the method then does not run."""
    steps: Count | None = None
    """Steps of the schedule: the rate rises over the first of them, and falls to zero as a cosine. None: constant."""


@cache
def contents() -> dict[str, Any]:
    """Return what the file holds."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def by_problem(kind: type[Section], section: str, about: str, **rest: Any) -> type[Section]:
    """Return settings with one field per problem, whose defaults are those of a table of the file.

    `rest` holds the types and defaults of further fields.
    """
    found = contents().get(section, {})
    fields: dict[str, Any] = {name: (kind, kind(**found.get(name, {}))) for name in NAMES}
    return create_model(kind.__name__ + "ByProblem", __base__=Section, __doc__=about, **fields, **rest)


Targets = by_problem(Target, "targets", "The errors to reach, fixed before the runs that they judge.")
