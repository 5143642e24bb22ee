"""The contestants: Gauss–Newton steps with nothing chosen, and what most people train such nets with."""

from typing import Any

import optax

import natgrad as ng
from natgrad_paper.figures.arena import methods as arena
from natgrad_paper.figures.arena.entry import Entry
from natgrad_paper.training import baselines
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import Positive, Size


class Adam(arena.Rated):
    """Adam at the rate that most papers start from; nothing was tried."""

    rate: Positive = 1e-3
    """The learning rate."""
    steps_per_call: Size = 20
    """Most steps in one call of the compiled loop."""


class Lbfgs(arena.Calls):
    """L-BFGS with optax's zoom line search."""

    memory: Size = 50
    """The number of pairs that it remembers."""


def gauss_newton(problem: Problem, own: Any) -> ng.Optimizer:
    """Return Gauss–Newton steps with untouched defaults."""
    return ng.gauss_newton(problem.model, problem.likelihood)


def lbfgs(problem: Problem, own: Any) -> Any:
    """Return L-BFGS."""
    return baselines.lbfgs(problem, own.lbfgs.memory)


def refusal(settings: Any, entry: Entry, method: Method) -> str:
    """Return why a method cannot run on an equation; an empty text if it can."""
    return "its points change" if entry.draw is not None and method.name in FIXED else ""


OURS = "gauss-newton"
FIXED = ("lbfgs",)
"""Methods that compare gradients of one step with those of the last, and so need the same points."""
METHODS = (
    Method(OURS, "ng.gauss_newton", "#0072B2", gauss_newton, about="defaults, nothing chosen"),
    arena.rated("adam", "Adam", "#D55E00", optax.adam, Adam, "constant rate"),
    arena.untried("lbfgs", "L-BFGS", "#009E73", lbfgs, Lbfgs, "zoom line search, where points stay"),
    *([arena.rated("soap", "SOAP", "#56B4E9", arena.soap, arena.Soap, "eigenbases every 10 steps")]
      if arena.installed("soap_jax") else []),
)  # fmt: skip
