"""Figure 2: how much a trained model depends on the examples in single segments of its stream.

`protocol` says what is trained, `streams` what a training sees, `matching` at which rates two methods are compared.
"""

from typing import Any

from natgrad_paper.figures.base import figure
from natgrad_paper.figures.order.claims import CLAIMS, RULE
from natgrad_paper.figures.order.methods import METHODS
from natgrad_paper.figures.order.panels import CAPTION, VIEW, draw, sections
from natgrad_paper.figures.order.problem import Settings, prepare
from natgrad_paper.figures.order.protocol import drive
from natgrad_paper.report.story import Story


def cost(settings: Any, methods: int, seeds: int) -> str:
    """Return in words what a run costs."""
    again = settings.repeats * (len(settings.replaces) + len(settings.limit.factors)) + 2
    trainings = f"{methods} methods × {seeds} seed{'s' * (seeds > 1)} × {again} trainings"
    hours = settings.minutes * seeds / 60
    time = f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} days"
    time = f"{60 * hours:.0f} min" if hours < 2 else time
    updates = f"{settings.stream.updates} updates, besides matching the rates"
    return f"{trainings} of {updates}: about {time} on two cores"


STORY = Story(
    "Figure 2: the order of the training examples",
    VIEW,
    CLAIMS,
    departures=(
        "Without --data the characters come from handwriting fonts: the paper’s NISTP data are not distributed.",
        "Hidden units are tanh and initial weights Glorot and Bengio’s: the paper does not say.",
        "The method that learns more is slowed down until both have the same validation error, seed by seed.",
    ),
    figure=draw,
    caption=CAPTION,
    sections=sections,
    rule=RULE,
)
EXPERIMENT = figure(
    "order", STORY, Settings, METHODS, prepare, ("sgd", "ngd"),
    "stream.side stream.batch stream.segment stream.segments model repeats held_out sgd ngd.rate ngd.damping",
    drive=drive, whole=True, cost=cost, problems=lambda settings: None,
)  # fmt: skip
