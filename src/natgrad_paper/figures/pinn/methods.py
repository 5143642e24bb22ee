"""The contestants: Gauss–Newton steps with nothing chosen, and what most people train such nets with."""

from typing import Any

import optax

import natgrad as ng
from natgrad_paper.figures.arena.methods import first_order, installed, soap
from natgrad_paper.training.problem import Method, Problem
from natgrad_paper.training.settings import Positive, Section, Size


class Adam(Section):
    """Adam at the rate that most papers start from; nothing was tried."""

    rate: Positive = 1e-3
    steps_per_call: Size = 20
    """The most steps in one call of the compiled loop, which Python does not slow down."""


class Lbfgs(Section):
    """L-BFGS with optax's zoom line search."""

    memory: Size = 50
    """The number of pairs that it remembers."""
    steps_per_call: Size = 10


class Soap(Section):
    """SOAP with its author's constants."""

    rate: Positive = 3e-3
    steps_per_call: Size = 10


def gauss_newton(problem: Problem, own: Any) -> ng.Optimizer:
    """Return Gauss–Newton steps with untouched defaults."""
    return ng.gauss_newton(problem.model, problem.likelihood)


def adam(problem: Problem, own: Any) -> Any:
    """Return Adam."""
    return first_order(problem, optax.adam(own.adam.rate))


def lbfgs(problem: Problem, own: Any) -> Any:
    """Return L-BFGS."""
    return first_order(problem, optax.lbfgs(memory_size=own.lbfgs.memory), searches=True)


OURS = "gauss-newton"
FIXED = ("lbfgs",)
"""Methods that compare gradients of one step with those of the last, and so need the same points."""
METHODS = (
    Method(OURS, "ng.gauss_newton", "#0072B2", gauss_newton, about="defaults, nothing chosen"),
    Method("adam", "Adam", "#D55E00", adam, settings=Adam, about="constant rate",
           steps_per_call=lambda own: own.adam.steps_per_call),
    Method("lbfgs", "L-BFGS", "#009E73", lbfgs, settings=Lbfgs, about="zoom line search, where points stay",
           steps_per_call=lambda own: own.lbfgs.steps_per_call),
    *([Method("soap", "SOAP", "#56B4E9", lambda problem, own: first_order(problem, soap(own.soap.rate)),
              settings=Soap, about="eigenbases every 10 steps", steps_per_call=lambda own: own.soap.steps_per_call)]
      if installed("soap_jax") else []),
)  # fmt: skip
