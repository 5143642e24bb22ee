"""The interface of the rows B: the directions a step may combine."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.metric.here import Here
from natgrad.part import Part
from natgrad.solve.result import Solution
from natgrad.tree import Rows, Stack, Tree


class SolverInfo(NamedTuple):
    """How the linear solve of a step went."""

    iterations: Array
    residual: Array
    """‖g − (F + λI)n‖, recomputed from n."""
    reason: Array
    """A `ng.Reason`; print it with `ng.Reason.name_of`."""
    space: Array
    """Where the solve worked, a `natgrad.solve.Space`; print it with its `name_of`."""

    @classmethod
    def of(cls, solution: Solution) -> "SolverInfo":
        """Return what `info` shows of a solve."""
        return cls(
            solution.iterations, solution.residual, solution.reason, jnp.asarray(solution.space, jnp.int32)
        )


class Proposal(NamedTuple):
    """What a direction proposes: rows to search along."""

    rows: Rows
    """Parameter-shaped rows: a tuple of trees, or a `tree.Stack` of many."""
    slopes: Array
    """gᵀB, one number per row."""
    memory: Tree = ()
    """What to remember if the step is taken; if it is refused, `forget` chooses."""
    solver: SolverInfo | None = None
    dampings: Array | None = None
    """λ of each row, where every row has its own."""
    promises: Array | None = None
    """The change of the loss that each row promises, if it is not the quadratic model's."""
    scale: Tree = None
    """s, if λ‖s∘d‖² damps a row d; None if λ‖d‖² does."""

    @property
    def scaled(self) -> Rows:
        """The rows times s: λ damps their lengths."""
        if self.scale is None:
            return self.rows
        assert not isinstance(self.rows, Stack)
        return tuple(jax.tree.map(jnp.multiply, self.scale, row) for row in self.rows)

    @classmethod
    def along(cls, here: Here, rows: Rows, memory: Tree = (), solver: SolverInfo | None = None) -> "Proposal":
        """Return the rows with their slopes at θ."""
        return cls(rows, tree.along(rows, here.gradient), memory, solver)


class Direction(Part):
    """The interface. Its memory is a pytree of arrays in the optimizer's state; most directions need none."""

    needs_metric: bool = True
    needs_last_step: bool = False
    """Whether it reads `here.last`."""
    solves: bool = False
    """Whether its proposals say how a linear solve went."""
    width: int = 1
    """The number of rows."""

    def init(self, theta: Tree) -> Tree:
        """Return the memory before the first step."""
        return ()

    def propose(self, here: Here, memory: Tree) -> Proposal:
        """Return the rows B at θ."""
        raise NotImplementedError

    def forget(self, before: Tree, after: Tree) -> Tree:
        """Return the memory after a step that was refused: `before` is what it was, `after` is what was proposed.

        A direction that measures something only every few steps should keep it, provided that it is finite for every
        batch.
        """
        return before


class Around(Direction):
    """A direction made of another one, `inner`, whose needs, memory and solver are its own unless it says otherwise."""

    inner: Direction

    @property
    def needs_metric(self) -> bool:  # type: ignore[override]
        """Whether the inner direction does."""
        return self.inner.needs_metric

    @property
    def solves(self) -> bool:  # type: ignore[override]
        """Whether the inner direction does."""
        return self.inner.solves

    def init(self, theta: Tree) -> Tree:
        """Return the inner direction's memory."""
        return self.inner.init(theta)

    def forget(self, before: Tree, after: Tree) -> Tree:
        """Let the inner direction choose."""
        return self.inner.forget(before, after)


class Descent(Direction):
    """A direction with one row, −n: steepest descent in some metric."""

    def natural(self, here: Here, memory: Tree) -> tuple[Tree, Tree, SolverInfo | None]:
        """Return n, the memory, and how the solve went."""
        raise NotImplementedError

    def propose(self, here: Here, memory: Tree) -> Proposal:
        """Return −n."""
        natural, memory, solver = self.natural(here, memory)
        return Proposal.along(here, (tree.scale(-1, natural),), memory, solver)


@dataclass(frozen=True)
class Gradient(Descent):
    """n = g: steepest descent in the Euclidean metric."""

    needs_metric = False

    def natural(self, here: Here, memory: Tree) -> tuple[Tree, Tree, None]:
        """Return g."""
        return here.gradient, memory, None
