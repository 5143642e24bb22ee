"""How the steps went: λ, ρ, solver iterations and KL along a run, drawn small, one line per method."""

from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from natgrad_paper.drawing import SOFT, STYLE, Group, blank, color, dress
from natgrad_paper.series import Runs

BINS = 40


@dataclass(frozen=True)
class Quantity:
    """A number of every step."""

    field: str
    title: str
    about: str
    log: bool = True
    over: str = ""
    """Another number it is divided by."""

    def of(self, record: dict[str, Any]) -> float | None:
        """Return the number a step has, where it has one that can be drawn."""
        value, base = record.get(self.field), record.get(self.over) if self.over else 1.0
        if value is None or not base or (self.log and value <= 0):
            return None
        return float(value / base)


QUANTITIES = (
    Quantity("damping", "damping λ", "the damping coefficient"),
    Quantity("rho", "ratio ρ", "actual over predicted change of the loss", log=False),
    Quantity("solver_iterations", "solver iterations", "iterations of the linear solver in a step"),
    Quantity(
        "kl", "½ dᵀFd of the step", "how far a step moves the model: the quadratic approximation of the KL"
    ),
    Quantity(
        "kl_held_out", "KL held out / the metric’s", over="kl_metric",
        about="½ dᵀFd of the step on held-out inputs, over that on the metric’s: above 1, it does more than it shows",
    ),
    Quantity(
        "kl_gradient", "KL gradient’s / the metric’s", over="kl_metric",
        about="½ dᵀFd of the step on the gradient’s inputs, over that on the metric’s",
    ),
)  # fmt: skip
RATIO_RANGE = (-1.0, 2.0)
"""Where ρ is shown; beyond it a step failed, however badly."""


def track(runs: Runs, quantity: Quantity) -> tuple[np.ndarray, np.ndarray]:
    """Return the quantity along iterations: medians over all seeds' steps, in bins of equal width in log.

    A log without single steps has the last one before each evaluation.
    """
    records = [record for log in runs.logs for record in (log.steps or log.evaluations)]
    pairs = [(record["iteration"], quantity.of(record)) for record in records]
    kept = [(x, y) for x, y in pairs if x > 0 and y is not None]
    if not kept:
        return np.empty(0), np.empty(0)
    x, y = np.array(kept, float).T
    edges = np.geomspace(1, x.max() * 1.0001, BINS + 1) if x.max() > 1 else np.array([1.0, 2.0])
    which = np.digitize(x, edges)
    bins = np.unique(which)
    return (
        np.array([np.exp(np.log(x[which == k]).mean()) for k in bins]),
        np.array([np.median(y[which == k]) for k in bins]),
    )


def with_steps(group: Group) -> Group:
    """Return the group without the methods that have none of the quantities."""
    kept = [runs for runs in group.runs if any(len(track(runs, quantity)[0]) for quantity in QUANTITIES)]
    return replace(group, runs=tuple(kept))


def draw(group: Group, quantity: Quantity, limits: tuple[float, float]) -> Figure | None:
    """Return the panel of a quantity for a group of methods, if any has it; limits are those of the iterations."""
    tracks = [(runs, track(runs, quantity)) for runs in group.runs]
    if not any(len(x) for _, (x, _) in tracks):
        return None
    with matplotlib.rc_context(STYLE | {"font.size": 9}):
        figure = blank(3.0, 2.15)
        panel = figure.subplots()
        panel.set_xscale("log")
        if quantity.log:
            panel.set_yscale("log")
        for runs, (x, y) in tracks:
            if len(x):
                panel.plot(
                    x,
                    y,
                    color=color(runs),
                    lw=1.3,
                    ls=group.style,
                    marker="o" if len(x) < 3 else None,
                    ms=2.5,
                )
        panel.set_xlim(*limits)
        if not quantity.log:
            low, high = panel.get_ylim()
            panel.set_ylim(max(low, RATIO_RANGE[0]), min(high, RATIO_RANGE[1]))
        if quantity.over or not quantity.log:
            panel.axhline(1.0, color=SOFT, lw=0.6)
        panel.set_title(quantity.title, fontsize=9, loc="left")
        panel.set_xlabel("iterations", fontsize=8)
        panel.tick_params(labelsize=7.5)
        dress(panel)
        figure.subplots_adjust(left=0.17, right=0.945, top=0.87, bottom=0.2)
    return figure


def limits(groups: list[Group]) -> tuple[float, float]:
    """Return the range of iterations, the same for all panels."""
    last = [record["iteration"] for group in groups for runs in group.runs for record in runs.final()]
    return 0.9, max([2.0, *last]) * 1.1
