"""−n with n = (F + λI)⁻¹g: by a Krylov solver, by a preconditioner alone, and by Hessian-Free's rules."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions.base import Around, Descent, Proposal, SolverInfo
from natgrad.metric.here import Here
from natgrad.precondition import Identity, Preconditioner
from natgrad.solve import CG, Direct, Solution, TruncatedCG
from natgrad.solve.problem import Iterative
from natgrad.solve.truncated import snapshot_iterations
from natgrad.tree import Stack, Tree

Solver = Iterative | Direct
"""What solves (F + λI) n = g."""


class SolveMemory(NamedTuple):
    """What a solve leaves for the next one."""

    start: Tree
    """The last solution; () without warm starts."""
    preconditioner: Tree
    """The preconditioner's own memory."""


@dataclass(frozen=True)
class Natural(Descent):
    """n = (F + λI)⁻¹ g: steepest descent in the metric."""

    solver: Solver = CG()
    preconditioner: Preconditioner = Identity()
    warm_start: float | Callable[[Any], Any] | None = None
    """Start the solver from this fraction (or schedule of it) of the last solution; None starts from 0."""

    solves = True

    def init(self, theta: Tree) -> SolveMemory:
        """Return a zero start."""
        start = () if self.warm_start is None else tree.zeros_like(theta)
        return SolveMemory(start, self.preconditioner.init(theta))

    def solve(self, here: Here, memory: SolveMemory) -> tuple[Solution, SolveMemory]:
        """Solve (F + λI) n = g."""
        assert here.metric is not None
        options: dict[str, Any] = {}
        inverse, kept = self.preconditioner.inverse(here, memory.preconditioner)
        if inverse is not None:
            options["preconditioner"] = inverse
        if self.warm_start is not None:
            part = self.warm_start(here.steps) if callable(self.warm_start) else self.warm_start
            options["x0"] = tree.scale(part, memory.start)
        solution = self.solver(here.metric, here.gradient, shift=here.shift, **options)
        return solution, SolveMemory(() if self.warm_start is None else solution.x, kept)

    def natural(self, here: Here, memory: SolveMemory) -> tuple[Tree, SolveMemory, SolverInfo]:
        """Return the solution."""
        solution, memory = self.solve(here, memory)
        return solution.x, memory, SolverInfo.of(solution)

    def forget(self, before: SolveMemory, after: SolveMemory) -> SolveMemory:
        """Start the next solve from 0, because the last solution failed; the preconditioner keeps what it measured."""
        return SolveMemory(tree.zeros_like(before.start), after.preconditioner)


@dataclass(frozen=True)
class Preconditioned(Descent):
    """n = P⁻¹ g, with P a cheap approximation of the metric; the exact metric then chooses the lengths (NCG-Q)."""

    preconditioner: Preconditioner = Identity()

    def init(self, theta: Tree) -> Tree:
        """Return the preconditioner's memory."""
        return self.preconditioner.init(theta)

    def natural(self, here: Here, memory: Tree) -> tuple[Tree, Tree, None]:
        """Return P⁻¹g."""
        inverse, memory = self.preconditioner.inverse(here, memory)
        return here.gradient if inverse is None else inverse(here.gradient), memory, None

    def propose(self, here: Here, memory: Tree) -> Proposal:
        """Return −n, and the scale by which P damps."""
        proposal = super().propose(here, memory)
        return proposal._replace(scale=self.preconditioner.scale(here, proposal.memory))

    def forget(self, before: Tree, after: Tree) -> Tree:
        """Keep what the preconditioner measured."""
        return after


@dataclass(frozen=True)
class TruncatedNewton(Around):
    """The iterates CG passed on its way to −(F + λI)⁻¹ g, the last one first: Hessian-Free's choice for `Backtrack`."""

    inner: Natural = Natural(TruncatedCG())

    @property
    def width(self) -> int:  # type: ignore[override]
        """The number of iterates that CG stores."""
        assert isinstance(self.inner.solver, TruncatedCG)
        return len(snapshot_iterations(self.inner.solver.maxiter)) + 1

    def propose(self, here: Here, memory: SolveMemory) -> Proposal:
        """Return minus the stored iterates, newest first; rows that were not needed are 0."""
        solution, memory = self.inner.solve(here, memory)
        iterates, _, stored = solution.snapshots

        def newest_first(leaf: Array) -> Array:
            index = stored - 1 - jnp.arange(leaf.shape[0], dtype=stored.dtype)
            rows = -leaf[jnp.maximum(index, 0)]
            return jnp.where((index >= 0).reshape(-1, *(1,) * (leaf.ndim - 1)), rows, 0)

        rows = Stack(jax.tree.map(newest_first, iterates))
        return Proposal.along(here, rows, memory, SolverInfo.of(solution))
