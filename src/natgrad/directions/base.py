"""The interface of the rows B: the directions a step may combine."""

from dataclasses import dataclass
from typing import NamedTuple

from jax import Array

from natgrad import tree
from natgrad.operator import Operator, Place
from natgrad.solve.result import Solution
from natgrad.tree import Tree


@dataclass(frozen=True)
class Here:
    """θ as a direction sees it."""

    gradient: Tree
    metric: Operator | None
    """v ↦ Fv; None for a direction that asked for none."""
    shift: Array
    """λ + l2, to be added to the metric's diagonal."""
    place: Place
    """Where the gradient was taken: the problem, θ, the gradient batch and the step's random key."""
    steps: Array
    """The number of the step, for schedules."""


class SolverInfo(NamedTuple):
    """How the linear solve of a step went."""

    iterations: Array
    residual: Array
    """‖g − (F + λI)n‖, recomputed from n."""
    reason: Array
    """A `ng.Reason`; print it with `ng.Reason.name_of`."""

    @classmethod
    def of(cls, solution: Solution) -> "SolverInfo":
        """Return what `info` shows of a solve."""
        return cls(solution.iterations, solution.residual, solution.reason)


class Rows(NamedTuple):
    """What a direction hands to the search."""

    rows: Tree
    """Parameter-shaped rows, stacked on a leading axis of every leaf."""
    memory: Tree
    """What to remember if the step is taken; if it is refused, `forget` chooses."""
    solver: SolverInfo | None = None


class Direction:
    """The interface. Its memory is a pytree of arrays in the optimizer's state; most directions need none."""

    needs_metric: bool = True

    def init(self, theta: Tree) -> Tree:
        """Return the memory before the first step."""
        return ()

    def rows(self, here: Here, memory: Tree) -> Rows:
        """Return the rows B at θ."""
        raise NotImplementedError

    def remember(self, memory: Tree, step: Tree) -> Tree:
        """Return the memory after a step that was taken; `memory` is what `rows` returned."""
        return memory

    def forget(self, before: Tree, after: Tree) -> Tree:
        """Return the memory after a step that was refused: `before` is what it was, `after` is what `rows` returned.

        What is measured anew only now and then is worth keeping, if it is finite whatever the batch held.
        """
        return before


@dataclass(frozen=True)
class Gradient(Direction):
    """−g: steepest descent in the Euclidean metric."""

    needs_metric = False

    def rows(self, here: Here, memory: Tree) -> Rows:
        """Return −g."""
        return Rows(tree.stack(tree.scale(-1, here.gradient)), memory)
