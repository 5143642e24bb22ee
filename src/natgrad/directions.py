"""The rows B: the directions a step may combine, from the gradient, the metric and what the last step left."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from jax import Array

from natgrad import tree
from natgrad.operator import Operator
from natgrad.solve import CG
from natgrad.solve.result import Solution
from natgrad.tree import Tree


class SolverInfo(NamedTuple):
    """How the linear solve of a step went."""

    iterations: Array
    residual: Array
    """‖g − (F + λI)n‖, recomputed from n."""
    reason: Array
    """A `ng.Reason`; print it with `ng.Reason.name_of`."""


class Rows(NamedTuple):
    """What a direction hands to the search."""

    rows: Tree
    """Parameter-shaped rows, stacked on a leading axis of every leaf."""
    memory: Tree
    """What to remember if the step is taken."""
    solver: SolverInfo | None = None


class Direction:
    """The interface. `memory` is a pytree of arrays in the optimizer's state; most directions need none."""

    needs_metric: bool = True

    def init(self, params: Tree) -> Tree:
        """Return the memory before the first step."""
        return ()

    def rows(self, gradient: Tree, metric: Operator | None, shift: Array, memory: Tree, key: Array) -> Rows:
        """Return the rows B at θ; `shift` is λ + l2, to be added to the metric's diagonal."""
        raise NotImplementedError

    def remember(self, memory: Tree, step: Tree) -> Tree:
        """Return the memory after a step that was taken; `memory` is what `rows` returned."""
        return memory

    def forget(self, memory: Tree) -> Tree:
        """Return the memory after a step that was refused; `memory` is what it was before that step."""
        return memory


@dataclass(frozen=True)
class Gradient(Direction):
    """−g: steepest descent in the Euclidean metric."""

    needs_metric = False

    def rows(self, gradient: Tree, metric: Operator | None, shift: Array, memory: Tree, key: Array) -> Rows:
        """Return −g."""
        return Rows(tree.stack(tree.scale(-1, gradient)), memory)


@dataclass(frozen=True)
class Natural(Direction):
    """−(F + λI)⁻¹ g: steepest descent in the metric, by a Krylov solver."""

    solver: Any = CG()

    def rows(self, gradient: Tree, metric: Operator | None, shift: Array, memory: Tree, key: Array) -> Rows:
        """Solve (F + λI) n = g."""
        assert metric is not None
        solution = self.solver(metric, gradient, shift=shift)
        return Rows(tree.stack(tree.scale(-1, solution.x)), memory, report(solution))


def report(solution: Solution) -> SolverInfo:
    """Return what `info` shows of a solve."""
    return SolverInfo(solution.iterations, solution.residual, solution.reason)
