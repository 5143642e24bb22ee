"""−(F + λI)⁻¹g, by a Krylov solver: natural gradient descent, and Hessian-Free with its habits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions.base import Direction, Here, Rows, SolverInfo
from natgrad.precondition import Identity, Preconditioner
from natgrad.solve import CG, Solution, TruncatedCG
from natgrad.tree import Tree


class SolveMemory(NamedTuple):
    """What a solve leaves for the next one."""

    start: Tree
    """The last solution; () without warm starts."""
    precondition: Tree
    """The preconditioner's own memory."""


@dataclass(frozen=True)
class Natural(Direction):
    """−(F + λI)⁻¹ g: steepest descent in the metric."""

    solver: Any = CG()
    precondition: Preconditioner = Identity()
    warm_start: float | Callable[[Any], Any] | None = None
    """Start the solver from this fraction (or schedule of it) of the last solution; None starts from 0."""

    def init(self, theta: Tree) -> SolveMemory:
        """Return a zero start."""
        start = () if self.warm_start is None else tree.zeros_like(theta)
        return SolveMemory(start, self.precondition.init(theta))

    def solve(self, here: Here, memory: SolveMemory) -> tuple[Solution, SolveMemory]:
        """Solve (F + λI) n = g."""
        options: dict[str, Any] = {}
        inverse, kept = self.precondition.inverse(here, memory.precondition)
        if inverse is not None:
            options["preconditioner"] = inverse
        if self.warm_start is not None:
            part = self.warm_start(here.steps) if callable(self.warm_start) else self.warm_start
            options["x0"] = tree.scale(part, memory.start)
        solution = self.solver(here.metric, here.gradient, shift=here.shift, **options)
        return solution, SolveMemory(() if self.warm_start is None else solution.x, kept)

    def rows(self, here: Here, memory: SolveMemory) -> Rows:
        """Return −n."""
        solution, memory = self.solve(here, memory)
        return Rows(tree.stack(tree.scale(-1, solution.x)), memory, SolverInfo.of(solution))

    def forget(self, before: SolveMemory, after: SolveMemory) -> SolveMemory:
        """Start the next solve from 0, the last solution led nowhere; the preconditioner keeps what it measured."""
        return SolveMemory(tree.zeros_like(before.start), after.precondition)


@dataclass(frozen=True)
class TruncatedNewton(Direction):
    """The iterates CG passed on its way to −(F + λI)⁻¹ g, the last one first: Hessian-Free's choice for `Backtrack`."""

    natural: Natural = Natural(TruncatedCG())

    def init(self, theta: Tree) -> SolveMemory:
        """Return the solver's memory."""
        return self.natural.init(theta)

    def rows(self, here: Here, memory: SolveMemory) -> Rows:
        """Return minus the stored iterates, newest first; rows that were not needed are 0."""
        solution, memory = self.natural.solve(here, memory)
        iterates, _, stored = solution.snapshots

        def newest_first(leaf: Array) -> Array:
            index = stored - 1 - jnp.arange(leaf.shape[0], dtype=stored.dtype)
            rows = -leaf[jnp.maximum(index, 0)]
            return jnp.where((index >= 0).reshape(-1, *(1,) * (leaf.ndim - 1)), rows, 0)

        return Rows(jax.tree.map(newest_first, iterates), memory, SolverInfo.of(solution))

    def forget(self, before: SolveMemory, after: SolveMemory) -> SolveMemory:
        """Start the next solve from 0."""
        return self.natural.forget(before, after)


@dataclass(frozen=True)
class Preconditioned(Direction):
    """−P⁻¹ g: a cheap approximation of the metric, inverted; the exact metric then chooses the lengths (NCG-Q)."""

    precondition: Preconditioner = Identity()

    def init(self, theta: Tree) -> Tree:
        """Return the preconditioner's memory."""
        return self.precondition.init(theta)

    def rows(self, here: Here, memory: Tree) -> Rows:
        """Return −P⁻¹g."""
        inverse, memory = self.precondition.inverse(here, memory)
        row = here.gradient if inverse is None else inverse(here.gradient)
        return Rows(tree.stack(tree.scale(-1, row)), memory)

    def forget(self, before: Tree, after: Tree) -> Tree:
        """Keep what the preconditioner measured."""
        return after
