"""Cheap approximations P of the metric. P⁻¹ speeds up a solver, or gives a direction by itself."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.metric import EmpiricalFisher
from natgrad.metric.here import Here, Use
from natgrad.part import Part
from natgrad.tree import Tree

Inverse = Callable[[Tree], Tree] | None


class Preconditioner(Part):
    """The interface; its memory lives in the optimizer's state."""

    def init(self, theta: Tree) -> Tree:
        """Return the memory before the first step."""
        return ()

    def inverse(self, here: Here, memory: Tree) -> tuple[Inverse, Tree]:
        """Return r ↦ P⁻¹r (None is the identity) and the memory.

        The memory is kept even if the step is refused, so no number that is not finite may enter it.
        """
        raise NotImplementedError

    def scale(self, here: Here, memory: Tree) -> Tree:
        """Return s, shaped like the gradient, if P damps by λ‖s∘d‖²; None, the default, if P damps by λ‖d‖²."""
        return None


@dataclass(frozen=True)
class Identity(Preconditioner):
    """P = I."""

    def inverse(self, here: Here, memory: Tree) -> tuple[Inverse, Tree]:
        """Return None, the identity."""
        return None, memory


@dataclass(frozen=True)
class Diagonal(Preconditioner):
    """P = (diag(mean of squared gradients) + λ)^exponent (Martens 2010: 0.75), on the gradient batch.

    The squares are those of each example's gradient. Random signs on `blocks` groups of examples give an unbiased
    estimate, and no example's gradient is formed.
    """

    exponent: float = 0.75
    blocks: int = 100
    floor: float = 0.0
    """The least entry, as a part of the largest (Vinyals & Povey 2012: 1e-4)."""

    def inverse(self, here: Here, memory: Tree) -> tuple[Inverse, Tree]:
        """Return r ↦ r / P."""
        if here.examples.targets is None:
            raise ValueError("Diagonal needs the batch's targets; with gradient= alone, use Jacobi.")
        assert here.linear is not None
        squares = EmpiricalFisher().operator(here, here.linear)
        diagonal = squares.diagonal(here.key_for(Use.DIAGONAL), self.blocks)
        return _divide_by(diagonal, here.shift, self.exponent, self.floor), memory


@dataclass(frozen=True)
class Jacobi(Preconditioner):
    """P = diag(F) + λ, estimated from the metric's own factor (Chapelle & Erhan 2011)."""

    blocks: int = 100

    def inverse(self, here: Here, memory: Tree) -> tuple[Inverse, Tree]:
        """Return r ↦ r / P."""
        assert here.metric is not None
        diagonal = here.metric.diagonal(here.key_for(Use.JACOBI), self.blocks)
        return _divide_by(diagonal, here.shift), memory


def _divide_by(
    diagonal: Tree, shift: Array, exponent: float = 1.0, floor: float = 0.0
) -> Callable[[Tree], Tree]:
    least = floor * tree.max_abs(diagonal)
    # Without damping, a parameter that nothing depends on has curvature 0; its gradient is 0 too.
    least = jnp.maximum(least, jnp.finfo(least.dtype).tiny ** 0.5)

    def entry(d: Array) -> Array:
        return jnp.maximum(d + shift.astype(d.dtype), least.astype(d.dtype)) ** exponent

    entries = jax.tree.map(entry, diagonal)
    return lambda r: jax.tree.map(jnp.divide, r, entries)
