"""What an experiment's figure, tables and claims are about: errors of the logs, how they are drawn and compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

AXES = {"iteration": "iterations", "training_seconds": "training time (s)"}
"""What an error is drawn against: a field of an evaluation, and its title."""


class Scale(Protocol):
    """How an error is drawn, averaged over seeds and compared between methods: straight on this scale."""

    @property
    def name(self) -> str:
        """As matplotlib has it."""

    def holds(self, value: float) -> bool:
        """Whether it has a place for the value."""

    def to(self, values: Any) -> np.ndarray:
        """Return values on the scale."""

    def back(self, places: Any) -> np.ndarray:
        """Return the values at places on the scale."""

    def compared(self, difference: float) -> str:
        """Return what a difference on the scale means, as a number."""

    @property
    def smallest(self) -> float:
        """The smallest difference that counts as one."""

    @property
    def smallest_words(self) -> str:
        """The same, in words."""


@dataclass(frozen=True)
class Logarithmic:
    """Means are geometric, a difference is a ratio. Zero has no place on it."""

    name: str = "log"

    def holds(self, value: float) -> bool:
        """Whether it is above zero."""
        return value > 0

    def to(self, values: Any) -> np.ndarray:
        """Return logarithms."""
        return np.log(values)

    def back(self, places: Any) -> np.ndarray:
        """Return exponentials."""
        return np.exp(places)

    def compared(self, difference: float) -> str:
        """Return the ratio."""
        return f"{np.exp(difference):.3g}"

    @property
    def smallest(self) -> float:
        """2%: less would not matter to anybody."""
        return float(np.log(1.02))

    @property
    def smallest_words(self) -> str:
        """The same, in words."""
        return "2%"


@dataclass(frozen=True)
class Linear:
    """Means are arithmetic, a difference is a difference."""

    name: str = "linear"

    def holds(self, value: float) -> bool:
        """Whether it is finite."""
        return bool(np.isfinite(value))

    def to(self, values: Any) -> np.ndarray:
        """Return the values."""
        return np.asarray(values, float)

    def back(self, places: Any) -> np.ndarray:
        """Return the values."""
        return np.asarray(places, float)

    def compared(self, difference: float) -> str:
        """Return the difference."""
        return f"{difference:+.3g}".replace("-", "−")

    @property
    def smallest(self) -> float:
        """Half a point of the hundred that such errors are counted in."""
        return 0.5

    @property
    def smallest_words(self) -> str:
        """The same, in words."""
        return "0.5 points"


LOGARITHMIC, LINEAR = Logarithmic(), Linear()


@dataclass(frozen=True)
class Measure:
    """An error of the logs, smaller being better."""

    field: str
    """In an evaluation."""
    name: str
    """In tables and sentences: `training error`."""
    title: str
    """On an axis, where there is room to be exact."""
    scale: Scale = LOGARITHMIC
    unit: str = ""
    factor: float = 1.0
    """From the log's number to the one shown: 100 for percent."""

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Return the number an evaluation has, if it is one the scale holds."""
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

    @property
    def name(self) -> str:
        """Unlike that of any other panel."""
        return f"{self.axis}-{self.measure.field}"

    def words(self, lower: str, upper: str) -> str:
        """Return what is computed when two methods are compared; the usual error goes without saying."""
        if self.measure.scale.name == "log":
            return f"{lower} / {upper}" + f", {self.measure.name}" * (self.measure != SQUARED_ERROR)
        return f"{lower} − {upper}, {self.measure.label}"


@dataclass(frozen=True)
class View:
    """What the report of an experiment shows."""

    panels: tuple[Panel, ...]
    at_end: tuple[Measure, ...]
    """Further errors in the tables, at the end of the runs."""
    title: str
    """Of the figure, in the report."""

    @property
    def main(self) -> Measure:
        """The error of the first panel: the one the screen follows and tuning lowers."""
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
    tuple(Panel(SQUARED_ERROR, axis) for axis in AXES),
    (TEST_SQUARED_ERROR,),
    "Error against iterations and against time",
)
"""Of the autoencoders."""
