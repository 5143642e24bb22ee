"""A Kronecker-factored approximation of the metric that needs no layer tags, applied inverse.

For a leaf W seen as a matrix, and D_i the score of example i back-propagated from random signs at the outputs,

    L = E[D Dᵀ],   R = E[Dᵀ D],   τ = tr L = tr R,   F_W ≈ L ⊗ R / τ.

For a dense layer D = a bᵀ, so these are K-FAC's factors under K-FAC's own assumption (Martens & Grosse 2015); but only
the leaf's own gradient is looked at, so any model and any sharing of weights will do (Ren & Goldfarb 2021). In the
eigenbases of L and R the damped inverse is a division: λ may change with no factor inverted again.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.precondition import Inverse, Preconditioner
from natgrad.tree import Tree

if TYPE_CHECKING:
    from natgrad.directions.base import Here


class Side(NamedTuple):
    """A factor, L or R; of a side above the limit only its diagonal, and then no basis."""

    factor: Array
    basis: Array
    values: Array
    """The factor's diagonal in its basis."""


class Memory(NamedTuple):
    """Running averages and eigenbases, a leaf each in the order of `jax.tree.leaves`."""

    mass: Array
    """The sum of the weights in the averages: they start from nothing."""
    left: tuple[Side, ...]
    right: tuple[Side, ...]
    """Of a vector or a number, whose left side has length 1, the diagonal."""


@dataclass(frozen=True)
class Kronecker(Preconditioner):
    """P = L ⊗ R / τ + λI for every leaf; vectors get their diagonal.

    The factors are averages over steps of Σ_b S_b S_bᵀ and Σ_b S_bᵀ S_b, S_b the summed scores of one of `blocks`
    groups of the metric's examples, with random signs: unbiased, one backward pass, no gradient of a single example.
    """

    blocks: int = 8
    decay: float = 0.95
    """Of the averages, each time they are refreshed."""
    refresh: int = 1
    """Steps between refreshes of the averages."""
    rebase: int = 20
    """Steps between eigenbases."""
    limit: int = 2048
    """The longest side with a dense factor; a longer one has a diagonal one."""
    sketch: int | None = 32
    """Columns that stand for a score's other side in its Gram matrices: (SΩ)(SΩ)ᵀ with E[ΩΩᵀ] = I, unbiased and
    many times cheaper; None takes all columns."""

    def init(self, theta: Tree) -> Memory:
        """Return empty averages."""
        leaves = jax.tree.leaves(theta)
        left, right = (tuple(self._empty(leaf, side) for leaf in leaves) for side in (0, 1))
        return Memory(jnp.zeros((), tree.dtype(theta)), left, right)

    def inverse(self, here: "Here", memory: Memory) -> tuple[Inverse, Memory]:
        """Return r ↦ P⁻¹r, with averages and bases refreshed when it is their turn."""
        memory = jax.lax.cond(
            here.steps % self.refresh == 0, partial(self._measured, here), lambda kept: kept, memory
        )
        memory = jax.lax.cond(here.steps % self.rebase == 0, _rebased, lambda kept: kept, memory)
        return partial(_divided, memory, here.shift), memory

    def _empty(self, leaf: Array, side: int) -> Side:
        size, dtype = _matrix(leaf).shape[side], leaf.dtype
        if size > self.limit or leaf.ndim < 2:
            return Side(jnp.zeros(size, dtype), jnp.zeros((0, 0), dtype), jnp.zeros(size, dtype))
        return Side(jnp.zeros((size, size), dtype), jnp.eye(size, dtype=dtype), jnp.zeros(size, dtype))

    def _gram(self, rows: Array, side: Side, key: Array) -> Array:
        """Return S Sᵀ, or its diagonal; of wide rows, from a sketch of their columns."""
        if side.factor.ndim == 1:
            return jnp.sum(rows * rows, axis=1)
        if self.sketch is not None and rows.shape[1] > self.sketch:
            signs = jax.random.rademacher(key, (rows.shape[1], self.sketch), rows.dtype)
            rows = rows @ (signs / self.sketch**0.5)
        return rows @ rows.T

    def _measured(self, here: "Here", memory: Memory) -> Memory:
        assert here.metric is not None

        def measure(score: Tree) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
            leaves = [_matrix(leaf) for leaf in jax.tree.leaves(score)]
            keys = jax.random.split(here.place.key, 2 * len(leaves))
            rows = zip(leaves, memory.left, keys[: len(leaves)], strict=True)
            columns = zip(leaves, memory.right, keys[len(leaves) :], strict=True)
            return (
                tuple(self._gram(leaf, side, key) for leaf, side, key in rows),
                tuple(self._gram(leaf.T, side, key) for leaf, side, key in columns),
            )

        new = here.metric.scores(here.place.key, self.blocks, measure)

        def averaged(side: Side, new: Array) -> Side:
            factor = self.decay * side.factor + (1 - self.decay) * new
            return Side(factor, side.basis, _values(factor, side.basis))

        left, right = (
            tuple(averaged(side, part) for side, part in zip(sides, parts, strict=True))
            for sides, parts in zip((memory.left, memory.right), new, strict=True)
        )
        return Memory(self.decay * memory.mass + (1 - self.decay), left, right)


def _matrix(leaf: Array) -> Array:
    """Return the leaf with its fan-in in rows and its units in columns."""
    return leaf.reshape(-1, leaf.shape[-1]) if leaf.ndim > 1 else leaf.reshape(1, -1)


def _values(factor: Array, basis: Array) -> Array:
    return factor if factor.ndim == 1 else jnp.sum(basis * (factor @ basis), axis=0)


def _rebased(memory: Memory) -> Memory:
    """Return the memory with the eigenbases of its factors as they are now."""

    def rebase(side: Side) -> Side:
        if side.factor.ndim == 1:
            return side
        values, basis = jnp.linalg.eigh(side.factor)
        # A factor with a NaN in it has no basis; the old one keeps the state finite until the step is refused.
        usable = jnp.all(jnp.isfinite(values)) & jnp.all(jnp.isfinite(basis))
        return Side(side.factor, jnp.where(usable, basis, side.basis), jnp.where(usable, values, side.values))

    return Memory(memory.mass, tuple(map(rebase, memory.left)), tuple(map(rebase, memory.right)))


def _divided(memory: Memory, shift: Array, r: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(r)
    parts = zip(leaves, memory.left, memory.right, strict=True)
    solved = [_solved(leaf, left, right, memory.mass, shift) for leaf, left, right in parts]
    return jax.tree.unflatten(structure, solved)


def _solved(leaf: Array, left: Side, right: Side, mass: Array, shift: Array) -> Array:
    """Return (L ⊗ R / τ + λI)⁻¹ r in the eigenbases."""
    rows = _turned(left, _turned(right, _matrix(leaf).T, back=False).T, back=False)
    a, b = jnp.maximum(left.values, 0), jnp.maximum(right.values, 0)
    tiny = jnp.finfo(leaf.dtype).tiny ** 0.5
    # The averages weigh 1 − decay^k in all. The traces agree, but for the sketches. A vector's left side is τ.
    trace = jnp.sqrt(jnp.sum(a)) * jnp.sqrt(jnp.sum(b))
    curvature = a[:, None] * b[None, :] / jnp.maximum(trace, tiny) / jnp.maximum(mass, tiny)
    rows = rows / jnp.maximum(curvature + shift.astype(leaf.dtype), tiny)
    return _turned(left, _turned(right, rows.T, back=True).T, back=True).reshape(leaf.shape)


def _turned(side: Side, rows: Array, back: bool) -> Array:
    """Return Uᵀ rows, or U rows to turn them back; without a basis, the rows."""
    if side.factor.ndim == 1:
        return rows
    return (side.basis if back else side.basis.T) @ rows
