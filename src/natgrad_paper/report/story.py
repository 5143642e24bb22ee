"""What the report of an experiment says beyond what every report says."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from natgrad_paper.report.claims import Claim
from natgrad_paper.report.load import Runs
from natgrad_paper.report.parts import Part
from natgrad_paper.report.views import RECONSTRUCTION, Published, View


@dataclass(frozen=True)
class Story:
    """What a report says about an experiment. All of it is a function of the logs."""

    title: str
    view: View = RECONSTRUCTION
    """The errors that the figure and the tables show."""
    claims: tuple[Claim, ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Titles and the methods below each, for legends; a method in none of them comes last."""
    paper: dict[str, Any] = field(default_factory=dict)
    """The paper's own settings, as plain tables: the head of the page names what differs from them."""
    departures: tuple[str, ...] = ()
    """What else differs from the paper, one sentence each."""
    figure: Callable[[Runs], Figure] | None = None
    """Draws the figure, if it is not the usual one of errors against iterations and time."""
    caption: str = ""
    """What that figure shows, in sentences."""
    published: Callable[[Runs], Published | None] = lambda runs: None
    """Errors that others published, where these runs compare with them."""
    sections: Callable[[Runs], Iterable[Part]] = lambda runs: ()
    """Further sections, between the results and the claims."""
    diagnostics: bool = True
    """Whether the page shows how the steps of a method went, all its trainings together."""
    rule: tuple[tuple[str, str], ...] = ()
    """Terms of the rule that decides claims, and what they mean, if the rule is not the usual one."""
