"""What the last step adds: natural conjugate gradient, as a second row or folded into the first."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions.base import Direction, Here, Rows
from natgrad.directions.natural import Natural
from natgrad.tree import Tree


class LastStep(NamedTuple):
    """The step before this one, beside the inner direction's memory."""

    inner: Tree
    step: Tree


@dataclass(frozen=True)
class WithLastStep(Direction):
    """The rows of another direction, and the last step: NCG-L and NCG-Q find both coefficients anew.

    The paper's d_{t−1} is the last step up to a factor, which the search finds; 0 at first and after a refusal.
    """

    inner: Direction = Natural()

    @property
    def needs_metric(self) -> bool:  # type: ignore[override]
        """Whether the inner direction does."""
        return self.inner.needs_metric

    def init(self, theta: Tree) -> LastStep:
        """Return no step."""
        return LastStep(self.inner.init(theta), tree.zeros_like(theta))

    def rows(self, here: Here, memory: LastStep) -> Rows:
        """Return the inner rows and the last step under them."""
        inner = self.inner.rows(here, memory.inner)
        rows = jax.tree.map(lambda rows, s: jnp.concatenate([rows, s[None]]), inner.rows, memory.step)
        return Rows(rows, LastStep(inner.memory, memory.step), inner.solver)

    def remember(self, memory: LastStep, step: Tree) -> LastStep:
        """Keep the step."""
        return LastStep(self.inner.remember(memory.inner, step), step)

    def forget(self, before: LastStep, after: LastStep) -> LastStep:
        """Drop the step: a restart."""
        return LastStep(self.inner.forget(before.inner, after.inner), tree.zeros_like(before.step))


@dataclass(frozen=True)
class PolakRibiere:
    """β = gᵀ(n − n₋) / g₋ᵀn₋: Polak–Ribière in the metric, ignoring its change between steps; never negative.

    Euclidean: nᵀ(n − n₋) / n₋ᵀn₋.
    """

    euclidean: bool = False

    def __call__(self, gradient: Tree, natural: Tree, before: "ConjugateMemory") -> Array:
        """Return β, 0 where there is nothing to continue."""
        change = tree.sub(natural, before.natural)
        if self.euclidean:
            top, bottom = tree.vdot(natural, change), tree.vdot(before.natural, before.natural)
        else:
            top, bottom = tree.vdot(gradient, change), before.decrement
        beta = top / jnp.where(bottom == 0, 1, bottom)
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
class Conjugate(Direction):
    """d = −n + β d₋: NCG-F, the conjugate direction by formula; a line search finds its length."""

    inner: Direction = Natural()
    beta: PolakRibiere = PolakRibiere()

    @property
    def needs_metric(self) -> bool:  # type: ignore[override]
        """Whether the inner direction does."""
        return self.inner.needs_metric

    def init(self, theta: Tree) -> ConjugateMemory:
        """Return no direction."""
        zero = tree.zeros_like(theta)
        return ConjugateMemory(self.inner.init(theta), zero, jnp.zeros((), tree.dtype(theta)), zero)

    def rows(self, here: Here, memory: ConjugateMemory) -> Rows:
        """Return −n + β d₋, or −n where that does not lead down."""
        inner = self.inner.rows(here, memory.inner)
        natural = jax.tree.map(lambda rows: -rows[0], inner.rows)
        beta = self.beta(here.gradient, natural, memory)
        direction = tree.sub(tree.scale(beta, memory.direction), natural)
        downhill = tree.vdot(here.gradient, direction) < 0
        direction = tree.where(downhill, direction, tree.scale(-1, natural))
        kept = ConjugateMemory(inner.memory, natural, tree.vdot(here.gradient, natural), direction)
        return Rows(tree.stack(direction), kept, inner.solver)

    def remember(self, memory: ConjugateMemory, step: Tree) -> ConjugateMemory:
        """Let the inner direction have the step."""
        return memory._replace(inner=self.inner.remember(memory.inner, step))

    def forget(self, before: ConjugateMemory, after: ConjugateMemory) -> ConjugateMemory:
        """Restart from the natural gradient."""
        zero = tree.zeros_like(before.direction)
        inner = self.inner.forget(before.inner, after.inner)
        return ConjugateMemory(inner, zero, jnp.zeros_like(before.decrement), zero)
