"""What a figure, its tables and its claims are about: errors of the logs, how they are drawn and compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

CLOCK = "training_seconds"
"""The axis that is meaningful only on an otherwise idle machine."""
AXES = {"iteration": "iterations", CLOCK: "training time (s)", "cpu_seconds": "processor time (s)"}
"""What an error is drawn against: a field of an evaluation, and its title."""


@dataclass(frozen=True)
class Scale:
    """How an error is drawn, averaged over seeds and compared between methods: linearly on this scale."""

    name: str
    """The name in matplotlib: log, where a difference is a ratio and means are geometric, or linear."""
    smallest: float
    """The smallest effect that counts unless a claim says otherwise: a share, or a difference."""

    def holds(self, value: float) -> bool:
        """Whether the scale has a place for the value."""
        return bool(np.isfinite(value)) and (value > 0 or self.name == "linear")

    def to(self, values: Any) -> np.ndarray:
        """Return values on the scale."""
        return np.log(values) if self.name == "log" else np.asarray(values, float)

    def back(self, places: Any) -> np.ndarray:
        """Return the values at places on the scale."""
        return np.exp(places) if self.name == "log" else np.asarray(places, float)

    def compared(self, difference: float) -> str:
        """Return what a difference on the scale means, as a number: a ratio, or a difference."""
        if self.name == "log":
            return f"{np.exp(difference):.3g}"
        return f"{difference:+.3g}".replace("-", "−")

    def effect(self, smallest: float | None = None) -> tuple[float, str]:
        """Return the smallest effect that counts, on the scale and in words."""
        least = self.smallest if smallest is None else smallest
        if self.name == "log":
            return float(np.log1p(least)), f"{100 * least:g}%"
        return least, f"{least:g} points"


LOGARITHMIC, LINEAR = Scale("log", 0.02), Scale("linear", 0.5)


@dataclass(frozen=True)
class Measure:
    """An error in the logs; smaller is better."""

    field: str
    """The error's field in an evaluation."""
    name: str
    """The error's name in tables and sentences: `training error`."""
    title: str
    """The error's title on an axis, where there is room to be exact."""
    scale: Scale = LOGARITHMIC
    unit: str = ""
    factor: float = 1.0
    """The factor from the log's number to the one shown: 100 for percent."""

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Return the number that an evaluation has, if it is one the scale holds."""
        value = record.get(self.field)
        return None if value is None or not self.scale.holds(value) else self.factor * float(value)

    def mean(self, values: Any) -> float:
        """Return the mean of several, on the scale."""
        return float(self.scale.back(np.mean(self.scale.to(values))))

    @property
    def label(self) -> str:
        """Its name, and the unit where there is one."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass(frozen=True)
class Panel:
    """A panel of the figure: an error along an axis, which is logarithmic."""

    measure: Measure
    axis: str = "iteration"

    def compares(self, lower: str, upper: str) -> str:
        """Return what is computed when two methods are compared; the usual error is not named."""
        if self.measure.scale.name == "log":
            return f"{lower} / {upper}" + f", {self.measure.name}" * (self.measure != SQUARED_ERROR)
        return f"{lower} − {upper}, {self.measure.label}"

    def place(self, where: float) -> str:
        """Return a place of the axis in words."""
        if self.axis == "iteration":
            return f"{where:,.0f} iteration{'s' * (where != 1)}".replace(",", " ")
        return f"{where:.3g} s" + " of processor time" * (self.axis == "cpu_seconds")


@dataclass(frozen=True)
class Published:
    """Errors that others published, drawn as thin lines."""

    errors: Mapping[str, float]
    """The errors by the words that name them in the figure."""
    about: str
    """What they are and how far they compare, for the caption."""


@dataclass(frozen=True)
class View:
    """What the report of an experiment shows."""

    panels: tuple[Panel, ...]
    at_end: tuple[Measure, ...]
    """Further errors in the tables, at the end of the runs."""
    title: str
    """The title of the figure, in the report."""

    @property
    def main(self) -> Measure:
        """The error of the first panel: the one that the screen follows and tuning lowers."""
        return self.panels[0].measure

    @property
    def shared(self) -> bool:
        """Whether all panels show the same error, and can share its axis."""
        return len({panel.measure for panel in self.panels}) == 1

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of the panels."""
        return tuple(dict.fromkeys(panel.axis for panel in self.panels))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """All errors shown."""
        return tuple(dict.fromkeys((*(panel.measure for panel in self.panels), *self.at_end)))


SQUARED_ERROR = Measure(
    "squared_error", "squared error", "squared error on the training set\n(sum over pixels, mean over cases)"
)
TEST_SQUARED_ERROR = Measure("test_squared_error", "test error", "squared error on the test set")
RECONSTRUCTION = View(
    tuple(Panel(SQUARED_ERROR, axis) for axis in ("iteration", CLOCK)),
    (TEST_SQUARED_ERROR,),
    "Error against iterations and against time",
)
"""Of the autoencoders."""
