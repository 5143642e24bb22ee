"""A Kronecker-factored approximation of the metric that needs no layer tags, applied inverse.

For a leaf W seen as a matrix, and D_i the score of example i back-propagated from random signs at the outputs,

    L = E[D Dᵀ],   R = E[Dᵀ D],   τ = tr L = tr R,   F_W ≈ L ⊗ R / τ.

For a dense layer D = a bᵀ, so these are K-FAC's factors under K-FAC's own assumption (Martens & Grosse 2015). Only the
leaf's own gradient is looked at, so any model and any sharing of weights will do (Ren & Goldfarb 2021). In the
eigenbases of L and R the damped inverse is a division: λ may change with no factor inverted again.

The program grows with the number of different shapes, not of leaves. Leaves of one shape form a group, and sides of one
length, whichever leaf they belong to, a stack. Each is one product with a leading axis.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import orthogonal, tree
from natgrad.here import Here, Use
from natgrad.packed import on_leaves, unpacked
from natgrad.part import require
from natgrad.precondition import Inverse, Preconditioner
from natgrad.tree import Tree

FLOOR = 1e-4
"""The least entry of P, as a part of a leaf's mean curvature."""
TURNS = 3
"""Of orthogonal iteration, each time the bases are renewed."""
EARLY_TURNS = 10
"""The same, before the first regular renewal: the bases start from nothing."""

# Not in the reduced precision that accelerators take for products: differences of these are divided by λ.
_exactly = partial(jnp.matmul, precision="highest")


class Sides(NamedTuple):
    """Factors, L or R, of one length, stacked on a leading axis; of long sides and of vectors, the diagonals alone."""

    factor: Array
    """(count, n, n), or (count, n) for diagonals, which have nothing else."""
    basis: Array | None = None
    """Their foremost eigenvectors, as columns."""
    values: Array | None = None
    """The factors' diagonals in these bases."""
    rest: Array | None = None
    """The means of the eigenvalues outside the bases; None where the bases are whole."""


class Memory(NamedTuple):
    """Running averages and eigenbases."""

    mass: Array
    """The sum of the weights in the averages: they start from nothing."""
    sides: tuple[Sides, ...]
    """One stack per length of side."""


class Slot(NamedTuple):
    """Where the sides of a group are."""

    stack: int
    start: int
    stop: int

    def of(self, stacks: Sequence[Any]) -> Any:
        """Return this part of a stack."""
        whole = stacks[self.stack]
        if self == (self.stack, 0, jax.tree.leaves(whole)[0].shape[0]):
            return whole
        return jax.tree.map(lambda leaf: leaf[self.start : self.stop], whole)


class Group(NamedTuple):
    """Leaves of one shape, seen as matrices; those with more columns than rows are transposed."""

    leaves: list[int]
    """Their places in `jax.tree.leaves`."""
    turned: list[bool]
    """Whether they are transposed."""
    shape: tuple[int, int]
    left: Slot | None
    """None for vectors: they have one row, and their right side, a diagonal, says it all."""
    right: Slot

    def matrices(self, leaves: Sequence[Array]) -> Array:
        """Return the leaves of the group as matrices, stacked."""
        parts = zip(self.leaves, self.turned, strict=True)
        return jnp.stack([_seen_as(self.shape, leaves[number], turned) for number, turned in parts])

    def put(self, matrices: Array, leaves: list[Array]) -> None:
        """Put the matrices where the leaves are."""
        for matrix, number, turned in zip(matrices, self.leaves, self.turned, strict=True):
            leaves[number] = (matrix.T if turned else matrix).reshape(leaves[number].shape)


class Length(NamedTuple):
    """What sides of one stack have in common."""

    size: int
    dense: bool
    dtype: Any


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
        require(lambda: 0 <= self.decay < 1, f"Kronecker(decay={self.decay}): give a number in [0, 1).")

    def init(self, theta: Tree) -> Memory:
        """Return empty averages."""
        groups, lengths = _arranged(theta, self.limit)
        slots = [slot for group in groups for slot in (group.left, group.right) if slot is not None]
        counts = [max(slot.stop for slot in slots if slot.stack == number) for number in range(len(lengths))]
        sides = tuple(self._empty(*each) for each in zip(lengths, counts, strict=True))
        return Memory(jnp.zeros((), tree.dtype(theta)), sides)

    def inverse(self, here: Here, memory: Memory) -> tuple[Inverse, Memory]:
        """Return r ↦ P⁻¹r, with averages and bases refreshed when it is their turn."""
        # A batch that spoils the gradient has nothing to say of the metric either.
        sound = tree.is_finite(here.gradient)
        refresh, rebase = _turn(here.steps, self.refresh) & sound, _turn(here.steps, self.rebase) & sound

        memory = _renewed(refresh, partial(self._measured, here), memory, but="basis")
        turns = jnp.where(here.steps < self.rebase, EARLY_TURNS, TURNS)
        memory = _renewed(rebase, partial(_rebased, turns), memory, but="factor")
        divided = self._divider(memory, here.gradient, here.shift)
        # A branch, for the sake of what comes after. XLA compiles equal kernels once, but those that read a part of a
        # stack are all different: the end of a branch keeps the parts out of them.
        return lambda r: jax.lax.cond(sound, divided, lambda r: r, r), memory

    def _empty(self, length: Length, count: int) -> Sides:
        size, _, dtype = length
        if not length.dense:
            return Sides(jnp.zeros((count, size), dtype))
        rank = min(self.rank, size)
        # A basis of some eigenvectors turns into the foremost ones only if it is orthogonal to none of them.
        start = jnp.eye(size, dtype=dtype) if rank == size else orthogonal.spread(size, rank, dtype)
        return Sides(
            jnp.zeros((count, size, size), dtype),
            jnp.array(jnp.broadcast_to(start, (count, size, rank))),
            jnp.zeros((count, rank), dtype),
            None if rank == size else jnp.zeros(count, dtype),
        )

    def _measured(self, here: Here, memory: Memory) -> Memory:
        """Return the averages with this step's scores in them."""
        assert here.metric is not None
        groups, lengths = _arranged(here.gradient, self.limit)
        for_scores, for_sketch = jax.random.split(here.key_for(Use.KRONECKER))

        # Every group's sides, each with the number of its columns.
        slots = [(slot, group.shape[1 - side]) for group in groups for side, slot in _sides(group)]
        across = [
            (slot.stop - slot.start, width)
            for slot, width in slots
            if lengths[slot.stack].dense and width > self.sketch
        ]
        shared = _signs(for_sketch, self.sketch, across)

        def measure(key: Array, score: Tree) -> tuple[Tree, Tree]:
            leaves = jax.tree.leaves(unpacked(score))
            stacked = [group.matrices(leaves) for group in groups]
            views = [
                matrices if side == 0 else matrices.mT
                for group, matrices in zip(groups, stacked, strict=True)
                for side, _ in _sides(group)
            ]
            signs = iter([a * b for a, b in zip(shared, _signs(key, 1, across), strict=True)])
            diagonals, sketches = [], []
            for view, (slot, width) in zip(views, slots, strict=True):
                dense = lengths[slot.stack].dense
                diagonals.append(None if dense else jnp.sum(view * view, axis=2))
                omega = next(signs) if dense and width > self.sketch else None
                sketches.append(_sketched(view, omega) if dense else None)
            return diagonals, sketches

        parts = here.metric.scores(for_scores, self.blocks, measure, self.size)
        decay = jnp.asarray(self.decay, memory.mass.dtype)
        mass = decay * memory.mass + (1 - decay)
        share = (1 - decay) / mass
        found = [
            diagonal if diagonal is not None else sketch for diagonal, sketch in zip(*parts, strict=True)
        ]
        owners = [slot.stack for slot, _ in slots]
        new = [
            _averaged(
                sides,
                _joined([part for part, own in zip(found, owners, strict=True) if own == number]),
                share,
            )
            for number, sides in enumerate(memory.sides)
        ]
        # Scores that are not finite would stay in the averages for good. A branch, not a choice entry by entry: into
        # each stack's kernel XLA would put the test of all of them anew.
        after = Memory(mass, tuple(new))
        return jax.lax.cond(tree.is_finite(after), lambda: after, lambda: memory)

    def _divider(self, memory: Memory, like: Tree, shift: Array) -> Callable[[Tree], Tree]:
        """Return r ↦ P⁻¹r for trees like this one."""
        groups, _ = _arranged(like, self.limit)
        sides = [
            (None if group.left is None else group.left.of(memory.sides), group.right.of(memory.sides))
            for group in groups
        ]

        def divide(r: Tree) -> Tree:
            leaves, structure = jax.tree.flatten(r)
            for group, (left, right) in zip(groups, sides, strict=True):
                solved = jax.vmap(partial(_solved, shift))(group.matrices(leaves), left, right)
                group.put(solved, leaves)
            return jax.tree.unflatten(structure, leaves)

        return partial(on_leaves, divide)


def _arranged(theta: Tree, limit: int) -> tuple[list[Group], list[Length]]:
    """Return the leaves in groups, and what the stacks hold that their sides are in. An empty leaf is in no group."""
    alike: dict[tuple[Any, ...], list[tuple[int, bool]]] = {}
    for number, leaf in enumerate(jax.tree.leaves(unpacked(theta))):
        if leaf.size:
            # Fan-in in rows, units in columns.
            shape = math.prod(leaf.shape[:-1]), leaf.shape[-1] if leaf.ndim else 1
            turned = leaf.ndim > 1 and shape[0] < shape[1]
            key = shape[::-1] if turned else shape, leaf.ndim > 1, leaf.dtype
            alike.setdefault(key, []).append((number, turned))
    counts: dict[Length, int] = {}

    def slot(size: int, matrix: bool, dtype: Any, count: int) -> Slot:
        length = Length(size, matrix and size <= limit, dtype)
        start = counts.get(length, 0)
        counts[length] = start + count
        return Slot(list(counts).index(length), start, start + count)

    groups = []
    for (shape, matrix, dtype), members in alike.items():
        leaves, turns = map(list, zip(*members, strict=True))
        left = slot(shape[0], matrix, dtype, len(leaves)) if matrix else None
        groups.append(Group(leaves, turns, shape, left, slot(shape[1], matrix, dtype, len(leaves))))
    return groups, list(counts)


def _seen_as(shape: tuple[int, int], leaf: Array, turned: bool) -> Array:
    return leaf.reshape(shape[::-1]).T if turned else leaf.reshape(shape)


def _sides(group: Group) -> list[tuple[int, Slot]]:
    """Return the sides a group has: 0 for its left one, 1 for its right one."""
    both = enumerate((group.left, group.right))
    return [(side, slot) for side, slot in both if slot is not None]


def _signs(key: Array, count: int, shapes: Sequence[tuple[int, int]]) -> list[Array]:
    """Return random signs, (members, count, width) for each shape: drawn at once, which compiles in less time."""
    sizes = [members * count * width for members, width in shapes]
    drawn = jnp.split(jax.random.rademacher(key, (sum(sizes),), jnp.int8), list(accumulate(sizes))[:-1])
    return [flat.reshape(m, count, w) for flat, (m, w) in zip(drawn, shapes, strict=False)]


def _sketched(views: Array, omega: Array | None) -> Array:
    """Return (SΩ)ᵀ of each view S, E[ΩΩᵀ] = I; without Ω, Sᵀ."""
    if omega is None:
        return views.mT
    return _exactly(omega.astype(views.dtype), views.mT) / omega.shape[1] ** 0.5


def _joined(parts: list[Array]) -> Array:
    """Return the parts of a stack as one, (members, rows, n) or (members, n). Missing rows are zeros, which add 0."""
    if parts[0].ndim > 2:
        # (blocks, members, columns, n) as it comes from the groups of examples.
        most = max(part.shape[2] for part in parts)
        parts = [jnp.pad(p, ((0, 0), (0, 0), (0, most - p.shape[2]), (0, 0))) for p in parts]
        parts = [part.swapaxes(0, 1).reshape(part.shape[1], -1, part.shape[3]) for part in parts]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _averaged(sides: Sides, found: Array, share: Array) -> Sides:
    """Return the averages, moved by a share towards what was found: diagonals, or the rows of Gram matrices."""
    share = share.astype(found.dtype)
    if sides.basis is None or sides.values is None:
        return Sides(sides.factor + share * (found - sides.factor))
    factor = sides.factor + share * (_exactly(found.mT, found) - sides.factor)
    # The eigenvalues follow at every refresh, the basis only now and then.
    seen = jnp.sum(_exactly(found, sides.basis) ** 2, axis=1)
    values = sides.values + share * (seen - sides.values)
    return Sides(factor, sides.basis, values, _rest(sides, factor, values))


def _renewed(turn: Array, renew: Callable[[Memory], Memory], memory: Memory, but: str) -> Memory:
    """Return the memory, renewed if it is its turn, but for a field: what a branch may change is copied every step."""

    absent: dict[str, Any] = {but: None}

    def without(memory: Memory) -> Memory:
        return memory._replace(sides=tuple(sides._replace(**absent) for sides in memory.sides))

    new = jax.lax.cond(turn, lambda: without(renew(memory)), lambda: without(memory))
    both = zip(new.sides, memory.sides, strict=True)
    return Memory(new.mass, tuple(sides._replace(**{but: getattr(old, but)}) for sides, old in both))


def _turn(steps: Array, every: int) -> Array:
    """Whether it is time: every so many steps, and at the powers of two before that."""
    return (steps % every == 0) | ((steps < every) & (steps & (steps - 1) == 0))


def _rebased(turns: Array | int, memory: Memory) -> Memory:
    """Return the memory with bases turned towards the eigenvectors of its factors as they are now."""

    def rebase(sides: Sides) -> Sides:
        if sides.basis is None or sides.values is None:
            return sides
        found = jax.vmap(orthogonal.iterated, (0, 0, None))(sides.factor, sides.basis, turns)
        # Where a trace overflows, the old basis and values keep the state finite.
        finite = jax.vmap(tree.is_finite)(found)
        basis, values = (
            jnp.where(finite.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
            for new, old in zip(found, (sides.basis, sides.values), strict=True)
        )
        rest = _rest(sides, sides.factor, values)
        if rest is not None and sides.rest is not None:
            rest = jnp.where(finite, rest, sides.rest)
        return Sides(sides.factor, basis, values, rest)

    return Memory(memory.mass, tuple(rebase(sides) for sides in memory.sides))


def _rest(sides: Sides, factor: Array, values: Array) -> Array | None:
    """Return the means of the eigenvalues outside the bases, from the traces."""
    if sides.rest is None:
        return None
    outside = factor.shape[-1] - values.shape[-1]
    return jnp.maximum(jnp.trace(factor, axis1=1, axis2=2) - jnp.sum(values, axis=1), 0) / outside


def _solved(shift: Array, matrix: Array, left: Sides | None, right: Sides) -> Array:
    """Return (L ⊗ R / τ + λI)⁻¹ r in the eigenbases, of one leaf; for a vector (diag R + λI)⁻¹ r."""
    tiny = jnp.finfo(matrix.dtype).tiny ** 0.5
    # The traces agree, but for the sketches.
    trace = _trace(right) if left is None else jnp.sqrt(_trace(left)) * jnp.sqrt(_trace(right))
    # Without damping, directions that no score has shown yet: not 0 next to the mean of those that were seen.
    least = jnp.maximum(FLOOR * trace / matrix.size, tiny)

    def over_left(rows: Array, a: Array) -> Array:
        def over_right(columns: Array, b: Array) -> Array:
            curvature = jnp.maximum(b.reshape(-1, 1), 0) * jnp.maximum(a.reshape(1, -1), 0)
            return columns / jnp.maximum(curvature + shift.astype(matrix.dtype), least)

        return _along(right, rows.T, over_right).T

    if left is None:
        return over_left(matrix, jnp.ones((), matrix.dtype))
    # a b / τ is finite where neither a b nor 1 / τ need be.
    return _along(left, matrix, lambda rows, a: over_left(rows, a / jnp.maximum(trace, tiny)))


def _trace(side: Sides) -> Array:
    values = side.factor if side.values is None else side.values
    inside = jnp.sum(jnp.maximum(values, 0))
    return inside if side.rest is None else inside + (side.factor.shape[0] - len(values)) * side.rest


def _along(side: Sides, rows: Array, divide: Callable[[Array, Array], Array]) -> Array:
    """Return the rows, turned into a side's eigenbasis, divided by what goes with its eigenvalues, and turned back."""
    if side.basis is None:
        return divide(rows, side.factor)
    assert side.values is not None
    inside = _exactly(side.basis.T, rows)
    if side.rest is None:
        return _exactly(side.basis, divide(inside, side.values))
    # What rounding leaves of the inside in the outside is divided by `rest`, perhaps a millionth of the values: it is
    # taken out once more, after the division, which is one number along this side and so commutes with the basis.
    outside = divide(rows - _exactly(side.basis, inside), side.rest)
    left_over = _exactly(side.basis.T, outside)
    return outside + _exactly(side.basis, divide(inside, side.values) - left_over)
