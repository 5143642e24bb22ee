"""What the last step adds: natural conjugate gradient, as a second row or folded into the first."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions.base import Around, Descent, Direction, Proposal
from natgrad.directions.natural import Natural
from natgrad.metric.here import Here
from natgrad.part import Part
from natgrad.tree import Stack, Tree


@dataclass(frozen=True)
class WithLastStep(Around):
    """The rows of another direction, and the last step: NCG-L and NCG-Q find both coefficients at every step.

    The paper's d_{t−1} is the last step up to a factor, which the search finds; 0 at first and after a refusal.
    """

    inner: Direction = Natural()

    needs_last_step = True

    @property
    def width(self) -> int:  # type: ignore[override]
        """The inner rows, and one more."""
        return self.inner.width + 1

    def propose(self, here: Here, memory: Tree) -> Proposal:
        """Return the inner rows, and the last step after them."""
        inner = self.inner.propose(here, memory)
        assert here.last is not None
        if isinstance(inner.rows, Stack):
            raise TypeError(
                f"WithLastStep takes a few rows; {type(self.inner).__name__} gives a stack of them."
            )
        rows = (*inner.rows, here.last.step)
        slopes = jnp.concatenate([inner.slopes, tree.vdot(here.last.step, here.gradient)[None]])
        return inner._replace(rows=rows, slopes=slopes)


@dataclass(frozen=True)
class PolakRibiere(Part):
    """β = gᵀ(n − n₋) / g₋ᵀn₋: Polak–Ribière in the metric, ignoring its change between steps; never negative."""

    def __call__(self, gradient: Tree, natural: Tree, before: "ConjugateMemory") -> Array:
        """Return β, 0 where there is nothing to continue."""
        bottom = before.decrement
        beta = tree.vdot(gradient, tree.sub(natural, before.natural)) / jnp.where(bottom == 0, 1, bottom)
        return jnp.where(bottom == 0, 0, jnp.maximum(beta, 0))


class ConjugateMemory(NamedTuple):
    """What Polak–Ribière compares with."""

    inner: Tree
    natural: Tree
    """n₋, the last natural gradient."""
    decrement: Array
    """g₋ᵀ n₋."""
    direction: Tree
    """The last direction d₋, before its length was chosen."""


@dataclass(frozen=True)
class Conjugate(Around):
    """d = −n + β d₋: NCG-F, the conjugate direction by formula; a line search finds its length."""

    inner: Descent = Natural()
    beta: PolakRibiere = PolakRibiere()

    def init(self, theta: Tree) -> ConjugateMemory:
        """Return no direction."""
        zero = jnp.zeros((), tree.dtype(theta))
        return ConjugateMemory(self.inner.init(theta), tree.zeros_like(theta), zero, tree.zeros_like(theta))

    def propose(self, here: Here, memory: ConjugateMemory) -> Proposal:
        """Return −n + β d₋, or −n where that does not lead down."""
        natural, inner, solver = self.inner.natural(here, memory.inner)
        beta = self.beta(here.gradient, natural, memory)
        direction = tree.sub(tree.scale(beta, memory.direction), natural)
        downhill = tree.vdot(here.gradient, direction) < 0
        direction = tree.where(downhill, direction, tree.scale(-1, natural))
        kept = ConjugateMemory(inner, natural, tree.vdot(here.gradient, natural), direction)
        return Proposal.along(here, (direction,), kept, solver)

    def forget(self, before: ConjugateMemory, after: ConjugateMemory) -> ConjugateMemory:
        """Restart from the natural gradient."""
        inner = self.inner.forget(before.inner, after.inner)
        return ConjugateMemory(inner, *tree.zeros_like(before[1:]))
