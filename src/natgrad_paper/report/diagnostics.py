"""How the steps went: λ, ρ, solver iterations and KL along a run, drawn small, one line per method."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from natgrad_paper.report.figure import SOFT, Group, blank, dress, styled
from natgrad_paper.report.load import Runs

BINS = 40
RATIO_RANGE = (-1.0, 2.0)
"""The range in which ρ is shown; a ρ outside it only means that the step failed."""


@dataclass(frozen=True)
class Quantity:
    """A number of every step."""

    field: str
    title: str
    about: str
    log: bool = True
    over: str = ""
    """The name of another number that this one is divided by."""

    def of(self, record: dict[str, Any]) -> float | None:
        """Return the step's number, if it has one that can be drawn."""
        value, base = record.get(self.field), record.get(self.over) if self.over else 1.0
        return None if value is None or not base or (self.log and value <= 0) else float(value / base)


QUANTITIES = (
    Quantity("damping", "damping λ", "the damping coefficient"),
    Quantity("rho", "ratio ρ", "actual over predicted change of the loss", log=False),
    Quantity("solver_iterations", "solver iterations", "iterations of the linear solver in a step"),
    Quantity("kl", "½ dᵀFd of the step", "how far a step moves the model: the quadratic approximation of the KL"),
    Quantity("kl_held_out", "KL held out / the metric’s", over="kl_metric",
             about="½ dᵀFd of the step on held-out inputs, over that on the metric’s; above 1, it does more"),
    Quantity("kl_gradient", "KL gradient’s / the metric’s", over="kl_metric",
             about="½ dᵀFd of the step on the gradient’s inputs, over that on the metric’s"),
)  # fmt: skip


def track(runs: Runs, name: str, quantity: Quantity) -> tuple[np.ndarray, np.ndarray]:
    """Return the quantity along iterations: medians over all seeds' steps, in bins of equal width in log.

    If a log has no single steps, the last step before each evaluation is used.
    """
    records = [record for log in runs.trainings(name) for record in log.steps or log.evaluations]
    pairs = [(record["iteration"], quantity.of(record)) for record in records]
    x, y = np.array([(x, y) for x, y in pairs if x > 0 and y is not None], float).reshape(-1, 2).T
    which = np.digitize(x, np.geomspace(1, max(2.0, x.max()) * 1.0001, BINS + 1)) if len(x) else np.empty(0)
    bins = np.unique(which)
    middles = [np.exp(np.log(x[which == k]).mean()) for k in bins]
    return np.array(middles), np.array([np.median(y[which == k]) for k in bins])


def draw(runs: Runs, group: Group) -> tuple[Figure, list[Quantity]] | None:
    """Return one panel per quantity that methods of a group have, and those quantities; None if they have none."""
    tracks = {q: {name: track(runs, name, q) for name in group.methods} for q in QUANTITIES}
    used = [q for q, found in tracks.items() if any(len(x) for x, _ in found.values())]
    if not used:
        return None
    names = [name for name in group.methods if any(len(tracks[q][name][0]) for q in used)]
    last = max([2.0, *(log.evaluations[-1]["iteration"] for log in runs.logs if log.evaluations)])
    columns = 4 if len(used) <= 4 else 3
    rows = -(-len(used) // columns)
    with styled():
        figure = blank(12, 2.5 * rows + 0.4)
        places = figure.subplots(rows, columns, squeeze=False).flat
        for quantity, place in zip(used, places, strict=False):
            place.set_xscale("log")
            place.set_yscale("log" if quantity.log else "linear")
            for name in names:
                x, y = tracks[quantity][name]
                looks = {"color": runs.color(name), "ls": group.dashes, "marker": "o" if len(x) < 3 else None}
                place.plot(x, y, lw=1.3, ms=2.5, label=runs.label(name), **looks)
            place.set_xlim(0.9, 1.1 * last)
            if not quantity.log:
                low, high = place.get_ylim()
                place.set_ylim(max(low, RATIO_RANGE[0]), min(high, RATIO_RANGE[1]))
            if quantity.over or not quantity.log:
                place.axhline(1.0, color=SOFT, lw=0.6)
            place.set_title(quantity.title)
            place.set_xlabel("iterations")
            dress(place)
        for place in places:
            place.remove()
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=6, fontsize=8.5)
    return figure, used
