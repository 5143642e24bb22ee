"""A Kronecker-factored approximation of the metric that needs no layer tags, applied inverse.

For a leaf W seen as a matrix, and D_i the score of example i back-propagated from random signs at the outputs,

    L = E[D Dᵀ],   R = E[Dᵀ D],   τ = tr L = tr R,   F_W ≈ L ⊗ R / τ.

For a dense layer D = a bᵀ, so these are K-FAC's factors under K-FAC's own assumption (Martens & Grosse 2015); but only
the leaf's own gradient is looked at, so any model and any sharing of weights will do (Ren & Goldfarb 2021). In the
eigenbases of L and R the damped inverse is a division: λ may change with no factor inverted again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.here import Use
from natgrad.precondition import Inverse, Preconditioner
from natgrad.tree import Tree

if TYPE_CHECKING:
    from natgrad.here import Here


FLOOR = 1e-4
"""The least entry of P, as a part of a leaf's mean curvature."""

# Not in the reduced precision that accelerators take for products: differences of these are divided by λ.
_exactly = partial(jnp.matmul, precision="highest")


class Side(NamedTuple):
    """A factor, L or R; of a side above the limit only its diagonal, and then no basis."""

    factor: Array
    basis: Array
    """Its foremost eigenvectors, as columns."""
    values: Array
    """The factor's diagonal in its basis."""
    rest: Array
    """The mean of the eigenvalues outside the basis."""


class Memory(NamedTuple):
    """Running averages and eigenbases, a leaf each in the order of `jax.tree.leaves`."""

    mass: Array
    """The sum of the weights in the averages: they start from nothing."""
    left: tuple[Side, ...]
    right: tuple[Side, ...]
    """Of a vector or a number, whose left side has length 1, the diagonal."""


Kept = TypeVar("Kept", Side, Memory)


@dataclass(frozen=True)
class Kronecker(Preconditioner):
    """P = L ⊗ R / τ + λI for every leaf, no eigenvalue below 1e-4 of their mean; vectors get their diagonal.

    The factors are averages over steps of Σ_b S_b S_bᵀ and Σ_b S_bᵀ S_b, S_b the summed scores of one of `blocks`
    groups of the metric's examples, with random signs: unbiased, one backward pass, no gradient of a single example.

    Memory: n² numbers for a side of n up to `limit`. That is about the parameters' own where a leaf's sides are alike;
    of a leaf (2000, 10) it is 200 times the leaf, and a smaller `limit` gives its long side a diagonal.
    """

    blocks: int = 16
    size: int | None = 8
    """The most examples in a group: further ones add cost and, next to the averages over steps, little certainty.
    None shares all of the metric's examples out among the groups."""
    decay: float = 0.9
    """Of the averages, each time they are refreshed."""
    refresh: int = 4
    """Steps between refreshes of the averages."""
    rebase: int = 30
    """Steps between eigenbases. Early on both come more often, at every step that is a power of two."""
    limit: int = 2048
    """The longest side with a dense factor; a longer one has a diagonal one."""
    rank: int = 128
    """Eigenvectors kept of a side; to the directions outside them the mean of their eigenvalues has to do."""
    sketch: int = 8
    """Columns that stand for a score's other side in its Gram matrices: (SΩ)(SΩ)ᵀ with E[ΩΩᵀ] = I, unbiased and many
    times cheaper."""

    def __post_init__(self) -> None:
        for name in ("blocks", "refresh", "rebase", "limit", "rank", "sketch"):
            if getattr(self, name) < 1:
                raise ValueError(f"Kronecker({name}={getattr(self, name)}): give a positive number.")
        if self.size is not None and self.size < 1:
            raise ValueError(f"Kronecker(size={self.size}): give a positive number of examples, or None.")
        if not 0 <= self.decay < 1:
            raise ValueError(f"Kronecker(decay={self.decay}): give a number in [0, 1).")

    def init(self, theta: Tree) -> Memory:
        """Return empty averages."""
        leaves = jax.tree.leaves(theta)
        left, right = (tuple(self._empty(leaf, side) for leaf in leaves) for side in (0, 1))
        return Memory(jnp.zeros((), tree.dtype(theta)), left, right)

    def inverse(self, here: "Here", memory: Memory) -> tuple[Inverse, Memory]:
        """Return r ↦ P⁻¹r, with averages and bases refreshed when it is their turn."""
        # A batch that spoils the gradient has nothing to say of the metric either.
        sound = tree.is_finite(here.gradient)
        refresh, rebase = _turn(here.steps, self.refresh) & sound, _turn(here.steps, self.rebase) & sound

        memory = _renewed(refresh, partial(self._measured, here), memory, but="basis")
        memory = _renewed(rebase, _rebased, memory, but="factor")
        return partial(_divided, memory, here.shift), memory

    def _empty(self, leaf: Array, side: int) -> Side:
        size, dtype = _matrix(leaf).shape[side], leaf.dtype
        if size > self.limit or leaf.ndim < 2 or leaf.size == 0:
            return Side(
                jnp.zeros(size, dtype), jnp.zeros((0, 0), dtype), jnp.zeros(size, dtype), jnp.zeros((), dtype)
            )
        rank = min(self.rank, size)
        # Any start will do that is orthogonal to nothing.
        basis = jnp.linalg.qr(jax.random.normal(jax.random.key(size), (size, rank), dtype))[0]
        return Side(jnp.zeros((size, size), dtype), basis, jnp.zeros(rank, dtype), jnp.zeros((), dtype))

    def _measured(self, here: "Here", memory: Memory) -> Memory:
        """Return the averages with this step's scores in them."""
        assert here.metric is not None
        sides = (*memory.left, *memory.right)
        across = [side.factor.shape[0] for side in (*memory.right, *memory.left)]
        for_scores, for_sketch = jax.random.split(here.key_for(Use.KRONECKER))
        shared = _signs(for_sketch, across, self.sketch)

        def measure(key: Array, score: Tree) -> tuple[Tree, Tree]:
            matrices = [_matrix(leaf) for leaf in jax.tree.leaves(score)]
            views = [*matrices, *(matrix.T for matrix in matrices)]
            own = _signs(key, across, 1)
            dense = [side.factor.ndim == 2 for side in sides]
            diagonals = [
                None if full else jnp.sum(view * view, axis=1)
                for view, full in zip(views, dense, strict=True)
            ]
            sketches = [
                _sketched(view, omega, flips) if full else None
                for view, full, omega, flips in zip(views, dense, shared, own, strict=True)
            ]
            return diagonals, sketches

        mass = self.decay * memory.mass + (1 - self.decay)
        share = (1 - self.decay) / mass

        def averaged(side: Side, diagonal: Array, sketch: Array | None) -> Side:
            columns = None if sketch is None else sketch.reshape(-1, sketch.shape[-1])
            measured = diagonal if columns is None else _exactly(columns.T, columns)
            factor = side.factor + share.astype(measured.dtype) * (measured - side.factor)
            if columns is None:
                return side._replace(factor=factor, values=factor)
            # The eigenvalues follow at every refresh, the basis only now and then.
            seen = jnp.sum(_exactly(columns, side.basis) ** 2, axis=0)
            values = side.values + share.astype(measured.dtype) * (seen - side.values)
            return Side(factor, side.basis, values, _rest(factor, values))

        parts = here.metric.scores(for_scores, self.blocks, measure, self.size)
        new = [averaged(*each) for each in zip(sides, *parts, strict=True)]
        after = Memory(mass, tuple(new[: len(memory.left)]), tuple(new[len(memory.left) :]))
        # Scores that are not finite would stay in the averages for good.
        return _if_finite(after, memory)


def _if_finite(new: Kept, old: Kept) -> Kept:
    """Return the new, or the old where a number in it is not finite.

    A branch, not a choice entry by entry: into each leaf's kernel XLA would put the test of all of them anew.
    """
    return jax.lax.cond(tree.is_finite(new), lambda: new, lambda: old)


def _signs(key: Array, widths: Sequence[int], count: int) -> list[Array]:
    """Return random signs, (count, width) for each width: drawn at once, which compiles in a fraction of the time."""
    drawn = jax.random.rademacher(key, (count, sum(widths)), jnp.int8)
    return jnp.split(drawn, list(accumulate(widths))[:-1], axis=1)


def _sketched(rows: Array, omega: Array, flips: Array) -> Array:
    """Return (SDΩ)ᵀ, E[DΩΩᵀD] = I: Ω for all groups, D a group's own, so that their errors do not add up.

    What is narrow enough stays as it is.
    """
    if rows.shape[1] <= omega.shape[0]:
        return rows.T
    return _exactly((omega * flips).astype(rows.dtype), rows.T) / omega.shape[0] ** 0.5


def _renewed(turn: Array, renew: Callable[[Memory], Memory], memory: Memory, but: str) -> Memory:
    """Return the memory, renewed if it is its turn, but for a field: what a branch may change is copied every step."""

    def without(memory: Memory) -> Memory:
        return _each_side(lambda side: side._replace(**{but: None}), memory)

    new = jax.lax.cond(turn, lambda: without(renew(memory)), lambda: without(memory))
    return _each_side(lambda side, old: side._replace(**{but: getattr(old, but)}), new, memory)


def _each_side(function: Callable[..., Side], memory: Memory, *others: Memory) -> Memory:
    left = map(function, memory.left, *(other.left for other in others))
    right = map(function, memory.right, *(other.right for other in others))
    return Memory(memory.mass, tuple(left), tuple(right))


def _turn(steps: Array, every: int) -> Array:
    """Whether it is time: every so many steps, and at the powers of two before that."""
    return (steps % every == 0) | ((steps < every) & (steps & (steps - 1) == 0))


def _matrix(leaf: Array) -> Array:
    """Return the leaf with its fan-in in rows and its units in columns."""
    # Not -1, which an empty leaf leaves open.
    return leaf.reshape(math.prod(leaf.shape[:-1]), leaf.shape[-1] if leaf.ndim else 1)


def _rebased(memory: Memory) -> Memory:
    """Return the memory with the eigenbases of its factors as they are now."""

    def rebase(side: Side) -> Side:
        if side.factor.ndim == 1:
            return side
        values, basis = _eigenvectors(side.factor, side.basis)
        new = Side(side.factor, basis, values, _rest(side.factor, values))
        # Where no eigenvectors were found, the old ones keep the state finite.
        return _if_finite(new, side)

    return _each_side(rebase, memory)


def _rest(factor: Array, values: Array) -> Array:
    """Return the mean of the eigenvalues outside the basis, from the trace."""
    outside = max(factor.shape[0] - values.shape[0], 1)
    return jnp.maximum(jnp.trace(factor) - jnp.sum(values), 0) / outside


def _divided(memory: Memory, shift: Array, r: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(r)
    parts = zip(leaves, memory.left, memory.right, strict=True)
    solved = [_solved(leaf, left, right, shift) for leaf, left, right in parts]
    return jax.tree.unflatten(structure, solved)


def _eigenvectors(factor: Array, before: Array) -> tuple[Array, Array]:
    """Return the foremost eigenvalues and eigenvectors: of some, what a turn of subspace iteration makes of the old."""
    if before.shape[0] == before.shape[1]:
        return jnp.linalg.eigh(factor)
    span, _ = jnp.linalg.qr(_exactly(factor, before))
    values, turn = jnp.linalg.eigh(_exactly(span.T, _exactly(factor, span)))
    return values, _exactly(span, turn)


def _solved(leaf: Array, left: Side, right: Side, shift: Array) -> Array:
    """Return (L ⊗ R / τ + λI)⁻¹ r in the eigenbases."""
    if leaf.size == 0:
        return leaf
    tiny = jnp.finfo(leaf.dtype).tiny ** 0.5
    # The traces agree, but for the sketches. A vector's left side is τ.
    trace = jnp.sqrt(_trace(left)) * jnp.sqrt(_trace(right))
    # Without damping, directions that no score has shown yet: not 0 next to the mean of those that were seen.
    least = jnp.maximum(FLOOR * trace / leaf.size, tiny)

    def over_left(rows: Array, a: Array) -> Array:
        def over_right(columns: Array, b: Array) -> Array:
            curvature = (
                jnp.maximum(b.reshape(-1, 1), 0) * jnp.maximum(a.reshape(1, -1), 0) / jnp.maximum(trace, tiny)
            )
            return columns / jnp.maximum(curvature + shift.astype(leaf.dtype), least)

        return _along(right, rows.T, over_right).T

    return _along(left, _matrix(leaf), over_left).reshape(leaf.shape)


def _trace(side: Side) -> Array:
    outside = side.factor.shape[0] - side.values.shape[0]
    return jnp.sum(jnp.maximum(side.values, 0)) + outside * side.rest


def _along(side: Side, rows: Array, divide: Callable[[Array, Array], Array]) -> Array:
    """Return the rows, turned into a side's eigenbasis, divided by what goes with its eigenvalues, and turned back."""
    if side.factor.ndim == 1:
        return divide(rows, side.values)
    inside = _exactly(side.basis.T, rows)
    if side.basis.shape[0] == side.basis.shape[1]:
        return _exactly(side.basis, divide(inside, side.values))
    # What rounding leaves of the inside in the outside is divided by `rest`, perhaps a millionth of the values: it is
    # taken out once more, after the division, which is one number along this side and so commutes with the basis.
    outside = divide(rows - _exactly(side.basis, inside), side.rest)
    left_over = _exactly(side.basis.T, outside)
    return outside + _exactly(side.basis, divide(inside, side.values) - left_over)
