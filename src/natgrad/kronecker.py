"""A Kronecker-factored approximation P of the metric that needs no layer tags, and its inverse.

For a leaf W seen as a matrix, and D_i the score of example i back-propagated from random signs at the outputs,

    L = E[D Dᵀ],   R = E[Dᵀ D],   τ = tr L = tr R,   F_W ≈ L ⊗ R / τ.

For a dense layer D = a bᵀ, so these are K-FAC's factors under K-FAC's own assumption (Martens & Grosse 2015). Only
the leaf's own gradient is needed, so any model and any sharing of weights will do (Ren & Goldfarb 2021). In the
eigenbases of L and R the damped inverse is a division, so a new λ needs no new inverse.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import orthogonal, tree, units
from natgrad.arranged import Arranged, Axes, Length, arranged
from natgrad.metric.here import Here, Use
from natgrad.packed import on_leaves, unpacked
from natgrad.part import require
from natgrad.precondition import Inverse, Preconditioner
from natgrad.tree import Tree

FLOOR = 1e-4
"""The least entry of P, as a fraction of a leaf's mean curvature."""
TURNS = 3
"""Iterations of orthogonal iteration each time the bases are renewed."""
EARLY_TURNS = 10
"""The same before the first regular renewal, because the first bases know nothing of the factors."""


class Sides(NamedTuple):
    """Factors, L or R, of one length, stacked on a leading axis; long sides have diagonals only.

    A side shorter than its stack is padded with zeros, and its basis with unit vectors. The padding never mixes with
    the rest.
    """

    factor: Array
    """(count, n, n), or (count, n) for diagonals, which have no other fields."""
    basis: Array | None = None
    """Their leading eigenvectors, as columns."""
    values: Array | None = None
    """The factors' diagonals in these bases."""
    rest: Array | None = None
    """The means of the eigenvalues outside the bases; None if the bases are whole."""
    peak: Array | None = None
    """(count, n), the largest amount that a group of examples has recently added to the factors' diagonals."""
    scale: Array | None = None
    """(count, n): bases and values are those of the factors divided by it on both sides. None without scaling."""


class Vectors(NamedTuple):
    """All vectors of one dtype, end to end."""

    diagonal: Array
    """The diagonals of their metrics."""
    mean: Array
    """The mean of the diagonal over each entry's vector."""


class Memory(NamedTuple):
    """Running averages and eigenbases."""

    mass: Array
    """The sum of the weights in the averages, which start from zero."""
    sides: tuple[Sides, ...]
    """One stack per length of side."""
    vectors: tuple[Vectors, ...] = ()
    """One per dtype."""


@dataclass(frozen=True)
class Kronecker(Preconditioner):
    """P = L ⊗ R / τ + λI for every leaf read as a matrix; for a vector, the diagonal of its metric, plus λ.

    No eigenvalue of P is below 1e-4 of the mean eigenvalue of L ⊗ R / τ, or of the mean of the vector's diagonal.

    The factors are averages over steps of Σ_b S_b S_bᵀ and Σ_b S_bᵀ S_b. S_b is the sum of the scores of one of
    `blocks` groups of the metric's examples, with random signs. The estimate is unbiased and takes one backward pass.

    A leaf is read as inputs × units, (in, …, in, out): dense layers and convolutions of Flax and Haiku, attention's
    (heads, k, d), embeddings (rows, d). A leaf called `weight`, as in Equinox and PyTorch, is read as (out, in, …,
    in). A leaf of three or more axes, the first of them the longest, is read as (in, out, …, out): attention's (d,
    heads, k). `axes` overrides these rules.

    Memory: a side of n up to `limit` takes n² numbers. If a leaf's sides are alike, that is about as many as the
    leaf's own. For a leaf (2000, 10) it is 200 times as many; a smaller `limit` gives its long side a diagonal.
    """

    blocks: int = 16
    size: int | None = 8
    """The most examples in a group. More examples cost time and, beside the averages over steps, add little accuracy.
    None distributes all of the metric's examples over the groups."""
    decay: float = 0.9
    """The decay of the averages per refresh."""
    refresh: int = 4
    """Steps between refreshes of the averages."""
    rebase: int = 30
    """Steps between renewals of the eigenbases. Early on, refreshes and renewals also come at every power of two."""
    limit: int = 2048
    """The longest side with a dense factor; longer sides have diagonal ones."""
    rank: int = 128
    """Eigenvectors kept per side; the remaining directions share the mean of their eigenvalues."""
    sketch: int = 8
    """To how many columns a score S is reduced before its product SSᵀ is formed, and to how many rows before SᵀS is.
    The factors take (SΩ)(SΩ)ᵀ with E[ΩΩᵀ] = I in place of SSᵀ, which is unbiased and many times cheaper. A column of SΩ
    is the sum of some columns of S, with random signs. A score with no more columns than this is kept whole."""
    uneven: float | None = None
    """P = L ⊗ R / τ + λS: if the sizes of the data's columns differ by more than this factor, a leaf that reads them
    damps each in units of its own. The measure is the standard deviation of log p, p the peaks of the leaf's inputs.
    None damps by λI, which is what a solver needs; `ng.kncg` uses 200."""
    axes: Axes | None = None
    """What the axes of leaves are, if the rules above do not fit: `axes(path, leaf)` returns one letter per axis, "i"
    for inputs, "o" for units, "s" for a stack of layers with factors of their own. None leaves a leaf to the rules.
    For layers stacked for a scan: `lambda path, leaf: "sio" if leaf.ndim == 3 else None`. A leaf without an "i" or
    without an "o" gets its diagonal, as vectors do."""

    def __post_init__(self) -> None:
        for name in ("blocks", "refresh", "rebase", "limit", "rank", "sketch"):
            if getattr(self, name) < 1:
                raise ValueError(f"Kronecker({name}={getattr(self, name)}): give a positive number.")
        if self.size is not None and self.size < 1:
            raise ValueError(f"Kronecker(size={self.size}): give a positive number of examples, or None.")
        require(
            lambda: self.uneven is None or self.uneven >= 1,
            f"Kronecker(uneven={self.uneven}): give a number from 1, or None.",
        )
        require(lambda: 0 <= self.decay < 1, f"Kronecker(decay={self.decay}): give a number in [0, 1).")

    def init(self, theta: Tree) -> Memory:
        """Return empty averages."""
        arranged = self._arranged(theta)
        sides = tuple(self._empty(*each) for each in zip(arranged.lengths, arranged.counts, strict=True))
        none = [jnp.zeros((2, sum(row.sizes)), row.dtype) for row in arranged.rows]
        return Memory(jnp.zeros((), tree.dtype(theta)), sides, tuple(Vectors(*each) for each in none))

    def inverse(self, here: Here, memory: Memory) -> tuple[Inverse, Memory]:
        """Return r ↦ P⁻¹r, with averages and bases refreshed when they are due."""
        # If a batch's gradient is not finite, its metric is not used either.
        sound = tree.is_finite(here.gradient)
        refresh, rebase = _turn(here.steps, self.refresh) & sound, _turn(here.steps, self.rebase) & sound

        before, memory = memory, self._without_scales(here, memory)
        memory = _renewed(refresh, partial(self._refreshed, here), memory, but="basis")
        turns = jnp.where(here.steps < self.rebase, EARLY_TURNS, TURNS)
        scaled = partial(self._scaled, here)
        memory = _renewed(rebase, lambda memory: _rebased(turns, scaled(memory)), memory, but="factor")
        divided = self._divider(memory, here.gradient, here.shift)
        memory = _with_scales(memory, before)
        # The division stands in a branch to save compile time: XLA compiles equal kernels once. Without the branch,
        # later kernels would also cut their own part out of a stack, and no two of them would be equal.
        return lambda r: jax.lax.cond(sound, divided, lambda r: r, r), memory

    def _arranged(self, theta: Tree) -> Arranged:
        return arranged(theta, self.limit, self.rank, self.axes)

    def _empty(self, length: Length, count: int) -> Sides:
        size, _, dtype = length
        row = jnp.zeros((count, size), dtype)
        scaling = (None, None) if self.uneven is None else (jnp.zeros_like(row), row + 1)
        if not length.dense:
            return Sides(row, None, None, None, *scaling)
        rank = min(self.rank, size)
        # A partial basis converges to the leading eigenvectors only if it is orthogonal to none of them.
        start = jnp.eye(size, dtype=dtype) if rank == size else orthogonal.spread(size, rank, dtype)
        return Sides(
            jnp.zeros((count, size, size), dtype),
            jnp.array(jnp.broadcast_to(start, (count, size, rank))),
            jnp.zeros((count, rank), dtype),
            None if rank == size else jnp.zeros(count, dtype),
            *scaling,
        )

    def _columns(self, here: Here) -> list[Array | None]:
        """Return the data's columns that each stack of sides may read; see `units.columns`."""
        arranged = self._arranged(here.gradient)
        return [None] * len(arranged.counts) if self.uneven is None else units.columns(here, arranged)

    def _without_scales(self, here: Here, memory: Memory) -> Memory:
        """Return the memory without the scales of stacks that cannot read the data: they stay 1."""
        each = zip(memory.sides, self._columns(here), strict=True)
        return memory._replace(
            sides=tuple(s._replace(peak=None, scale=None) if own is None else s for s, own in each)
        )

    def _scaled(self, here: Here, memory: Memory) -> Memory:
        """Return the memory with the current scales, for new bases."""

        def scaled(sides: Sides, inputs: np.ndarray, columns: Array | None) -> Sides:
            if columns is None or sides.peak is None:
                return sides
            return sides._replace(scale=units.scale(sides.peak, inputs, columns, self.uneven))

        inputs = self._arranged(here.gradient).inputs
        return memory._replace(sides=tuple(map(scaled, memory.sides, inputs, self._columns(here))))

    def scale(self, here: Here, memory: Memory) -> Tree:
        """Return √S for every parameter; None if no leaf can read the data's columns."""
        if all(columns is None for columns in self._columns(here)):
            return None

        def spread(like: Tree) -> Tree:
            leaves, structure = jax.tree.flatten(jax.tree.map(jnp.ones_like, like))
            scales = [sides.scale for sides in memory.sides]
            for group in self._arranged(like).groups:
                left, right = group.left.of(scales), group.right.of(scales)
                group.put(left[:, :, None] * right[:, None, :], leaves)
            return jax.tree.unflatten(structure, leaves)

        return on_leaves(spread, here.gradient)

    def _refreshed(self, here: Here, memory: Memory) -> Memory:
        """Return the averages with this step's scores. The first scores set the scales, and are then measured again."""
        if all(sides.scale is None for sides in memory.sides):
            return self._measured(here, memory)
        first = memory.mass == 0

        def once(_: Any, memory: Memory) -> Memory:
            anew = self._scaled(here, memory)._replace(mass=jnp.zeros_like(memory.mass))
            return self._measured(here, tree.where(first, anew, memory))

        return jax.lax.fori_loop(0, jnp.where(first, 2, 1), once, memory)

    def _measured(self, here: Here, memory: Memory) -> Memory:
        """Return the averages with this step's scores in them."""
        assert here.metric is not None
        groups, rows, lengths, _ = self._arranged(here.gradient)
        widest = max((max(group.shape) for group in groups), default=1)
        columns = min(self.sketch, widest)
        scales = [sides.scale for sides in memory.sides]

        def measure(key: Array, score: Tree) -> tuple[Tree, Tree]:
            leaves = jax.tree.leaves(unpacked(score))
            signs = jax.random.rademacher(key, (2, widest), jnp.int8)
            sums: list[list[Array]] = [[] for _ in lengths]
            sketches: list[list[Array]] = [[] for _ in lengths]
            for group in groups:
                matrices = group.matrices(leaves)
                for side, (slot, other) in enumerate(((group.left, group.right), (group.right, group.left))):
                    own = _divided(matrices, other.of(scales), 1 - side)
                    if lengths[slot.stack].dense:
                        omega = _omega(signs[side, : group.shape[1 - side]], columns, matrices.dtype)
                        sketches[slot.stack].append(_sketched(own, omega, side))
                    else:
                        sums[slot.stack].append(jnp.sum(own * own, axis=2 - side))
            squares = [row.joined(leaves) ** 2 for row in rows]
            return ([_joined(part) for part in sums], squares), [_joined(part) for part in sketches]

        (sums, squares), sketches = here.metric.scores(
            here.key_for(Use.KRONECKER), self.blocks, measure, self.size
        )
        decay = jnp.asarray(self.decay, memory.mass.dtype)
        mass = decay * memory.mass + (1 - decay)
        share = (1 - decay) / mass
        found = [
            diagonal if sketch is None else sketch for diagonal, sketch in zip(sums, sketches, strict=True)
        ]
        sides = tuple(_averaged(*each, share) for each in zip(memory.sides, found, strict=True))
        vectors = tuple(
            Vectors(
                *(old + share.astype(old.dtype) * (new - old) for old, new in zip(own, both, strict=True))
            )
            for own, both in zip(
                memory.vectors,
                [(each, row.means(each)) for row, each in zip(rows, squares, strict=True)],
                strict=True,
            )
        )
        after = Memory(mass, sides, vectors)
        # Scores that are not finite would stay in the averages forever. This is a cond, not a where: XLA would repeat
        # the test of all stacks in each stack's kernel.
        return jax.lax.cond(_is_finite(after), lambda: after, lambda: memory)

    def _divider(self, memory: Memory, like: Tree, shift: Array) -> Callable[[Tree], Tree]:
        """Return r ↦ P⁻¹r for trees like this one."""
        groups, rows, _, _ = self._arranged(like)
        divisors = [_divisor(sides) for sides in memory.sides]

        def divide(r: Tree) -> Tree:
            leaves, structure = jax.tree.flatten(r)
            for row, vectors in zip(rows, memory.vectors, strict=True):
                flat = row.joined(leaves)
                least = jnp.maximum(FLOOR * vectors.mean, _tiny(flat))
                row.put(flat / jnp.maximum(vectors.diagonal + shift.astype(flat.dtype), least), leaves)
            for group in groups:
                left, right = group.left.of(divisors), group.right.of(divisors)
                group.put(_solved(shift, group.matrices(leaves), group.sizes, left, right), leaves)
            return jax.tree.unflatten(structure, leaves)

        return partial(on_leaves, divide)


def _omega(signs: Array, count: int, dtype: Any) -> Array:
    """Return Ωᵀ, (count, width): it adds each column of a score, with a sign, to one of `count` columns.

    E[ΩΩᵀ] = I, and the variance is that of an Ω full of signs. Neighboring columns go to different places, so a score
    of no more than `count` columns is kept whole. The places are drawn beforehand, so that columns at regular
    distances do not always meet.
    """
    rng = np.random.default_rng(count)
    places = np.concatenate([rng.permutation(count) for _ in range(-(-len(signs) // count))])[: len(signs)]
    return jnp.where(places == np.arange(count)[:, None], signs, 0).astype(dtype)


def _sketched(matrices: Array, omega: Array, side: int) -> Array:
    """Return (SΩ)ᵀ of the matrices S, or of their transposes for the right side."""
    # There is one Ω per matrix, though all are equal: a product with a leading axis moves no matrix.
    omega = jnp.broadcast_to(omega, (len(matrices), *omega.shape))
    return tree.matmul(omega, matrices if side else matrices.mT)


def _joined(parts: list[Array]) -> Array | None:
    """Return the parts of a stack as one."""
    return jnp.concatenate(parts) if parts else None


def _averaged(sides: Sides, found: Array, share: Array) -> Sides:
    """Return the averages, moved by a share towards what was found: diagonals, or the rows of Gram matrices."""
    share = share.astype(found.dtype)
    if sides.basis is None or sides.values is None:
        factor = sides.factor + share * (found - sides.factor)
        return sides._replace(factor=factor, peak=_peak(sides, found))
    # The groups of examples give (blocks, members, columns, n).
    rows = found.swapaxes(0, 1).reshape(found.shape[1], -1, found.shape[3])
    factor = sides.factor + share * (tree.matmul(rows.mT, rows) - sides.factor)
    # The eigenvalues change at every refresh, the basis less often.
    scaled = rows if sides.scale is None else rows / sides.scale[:, None]
    seen = jnp.sum(tree.matmul(scaled, sides.basis) ** 2, axis=1)
    values = sides.values + share * (seen - sides.values)
    peak = None if sides.peak is None else _peak(sides, jnp.max(jnp.sum(found**2, axis=2), axis=0))
    rest = _rest(sides, factor, values)
    return sides._replace(factor=factor, values=values, rest=rest, peak=peak)


def _peak(sides: Sides, found: Array) -> Array | None:
    return None if sides.peak is None else units.peaks(sides.peak, found)


def _with_scales(memory: Memory, before: Memory) -> Memory:
    """Return the memory with the scales and peaks of `before` where `_without_scales` had left them out."""
    return memory._replace(
        sides=tuple(
            old._replace(**{name: value for name, value in new._asdict().items() if value is not None})
            for new, old in zip(memory.sides, before.sides, strict=True)
        )
    )


def _is_finite(memory: Memory) -> Array:
    """Tell whether all averages are finite: any other number shows in the eigenvalues, or by the trace in `rest`."""
    total = [
        jnp.sum(leaf, dtype=memory.mass.dtype)
        for sides in memory.sides
        for leaf in ((sides.factor,) if sides.values is None else (sides.values, sides.rest))
        if leaf is not None
    ]
    total += [jnp.sum(vectors.mean, dtype=memory.mass.dtype) for vectors in memory.vectors]
    return jnp.all(jnp.isfinite(jnp.stack(total))) if total else jnp.array(True)


def _renewed(turn: Array, renew: Callable[[Memory], Memory], memory: Memory, but: str) -> Memory:
    """Renew the memory if it is due, except for one field: XLA copies every field that a branch may change."""

    absent: dict[str, Any] = {but: None}

    def without(memory: Memory) -> Memory:
        return memory._replace(sides=tuple(sides._replace(**absent) for sides in memory.sides))

    new = jax.lax.cond(turn, lambda: without(renew(memory)), lambda: without(memory))
    both = zip(new.sides, memory.sides, strict=True)
    return new._replace(sides=tuple(sides._replace(**{but: getattr(old, but)}) for sides, old in both))


def _turn(steps: Array, every: int) -> Array:
    """Tell whether a renewal is due: every `every` steps, and at the powers of two before the first."""
    return (steps % every == 0) | ((steps < every) & (steps & (steps - 1) == 0))


def _rebased(turns: Array | int, memory: Memory) -> Memory:
    """Return the memory with bases turned towards the eigenvectors of its current factors."""

    def rebase(sides: Sides) -> Sides:
        if sides.basis is None or sides.values is None:
            return sides
        factor = sides.factor
        if sides.scale is not None:
            factor = factor / sides.scale[:, :, None] / sides.scale[:, None]
        basis, values = orthogonal.iterated(factor, sides.basis, turns)
        rest = _rest(sides, sides.factor, values)
        # If a trace overflows, the basis stays, and old values keep the state finite.
        finite = jnp.isfinite(values[:, 0])
        values = jnp.where(finite[:, None], values, sides.values)
        if rest is not None and sides.rest is not None:
            rest = jnp.where(finite, rest, sides.rest)
        return sides._replace(basis=basis, values=values, rest=rest)

    return memory._replace(sides=tuple(rebase(sides) for sides in memory.sides))


def _rest(sides: Sides, factor: Array, values: Array) -> Array | None:
    """Return the means of the eigenvalues outside the bases, from the traces."""
    if sides.rest is None:
        return None
    outside = factor.shape[-1] - values.shape[-1]
    diagonal = orthogonal.diagonals(factor)
    if sides.scale is not None:
        diagonal = diagonal / sides.scale**2
    return jnp.maximum(jnp.sum(diagonal, axis=1) - jnp.sum(values, axis=1), 0) / outside


class Divisor(NamedTuple):
    """What a division needs to know about sides."""

    basis: Array | None
    values: Array
    """The eigenvalues inside the bases, then n copies of the mean of the others; not negative, and divided by
    `root`."""
    root: Array
    """The roots of the factors' traces."""
    scale: Array | None


def _divisor(sides: Sides) -> Divisor:
    values = sides.values
    if values is None:
        values = sides.factor if sides.scale is None else sides.factor / sides.scale**2
    values = jnp.maximum(values, 0)
    trace = jnp.sum(values, axis=1)
    if sides.rest is not None:
        size = sides.factor.shape[1]
        trace += (size - values.shape[1]) * sides.rest
        outside = jnp.broadcast_to(sides.rest[:, None], (len(values), size))
        values = jnp.concatenate([values, outside], axis=1)
    root = jnp.maximum(jnp.sqrt(trace), _tiny(trace))
    # a b / τ can be finite even if a b or 1 / τ is not.
    return Divisor(sides.basis, values / root[:, None], root, sides.scale)


def _solved(shift: Array, matrices: Array, sizes: list[int], left: Divisor, right: Divisor) -> Array:
    """Return (L ⊗ R / τ + λS)⁻¹ r: divided by √S, solved in the eigenbases there, divided by √S."""
    matrices = _divided(_divided(matrices, left.scale, 0), right.scale, 1)
    # The two traces differ only because of the sketches.
    trace = left.root * right.root
    # Without damping, directions that no score has shown yet need an entry that is not 0 beside the mean of the others.
    least = jnp.maximum(FLOOR * trace / np.asarray(sizes, matrices.dtype), _tiny(matrices))
    inside = _onto(right, _onto(left, matrices, 0), 1)
    curvature = left.values[:, :, None] * right.values[:, None, :] + shift.astype(matrices.dtype)
    divided = inside / jnp.maximum(curvature, least[:, None, None])
    solved = _back(left, _back(right, divided, 1), 0)
    return _divided(_divided(solved, left.scale, 0), right.scale, 1)


def _divided(matrices: Array, scale: Array | None, axis: int) -> Array:
    """Return the matrices with their rows (axis 0) or columns (axis 1) divided by the scale, if there is one."""
    return matrices if scale is None else matrices / jnp.expand_dims(scale, 2 - axis)


def _tiny(like: Array) -> Any:
    return jnp.finfo(like.dtype).tiny ** 0.5


def _onto(side: Divisor, matrices: Array, axis: int) -> Array:
    """Return the matrices in a side's eigenbasis, followed, if it is not whole, by what lies outside it."""
    if side.basis is None:
        return matrices
    inside = _times(side.basis, matrices, axis, back=False)
    if side.values.shape[1] == side.basis.shape[2]:
        return inside
    return jnp.concatenate([inside, matrices - _times(side.basis, inside, axis)], axis=1 + axis)


def _back(side: Divisor, divided: Array, axis: int) -> Array:
    """Return the matrices from what `_onto` made of them."""
    if side.basis is None:
        return divided
    rank = side.basis.shape[2]
    if side.values.shape[1] == rank:
        return _times(side.basis, divided, axis)
    inside, outside = jnp.split(divided, [rank], axis=1 + axis)
    # Rounding leaves a remnant of the inside in the outside, and `rest`, by which it was divided, may be a millionth
    # of the values. So the remnant is removed once more after the division, which is by one number along this side
    # and so commutes with the basis.
    left_over = _times(side.basis, outside, axis, back=False)
    return outside + _times(side.basis, inside - left_over, axis)


def _times(basis: Array, matrices: Array, axis: int, back: bool = True) -> Array:
    """Return Bᵀ M, or B M on the way back, for the left side; M B or M Bᵀ for the right."""
    if axis == 0:
        return tree.matmul(basis if back else basis.mT, matrices)
    return tree.matmul(matrices, basis.mT if back else basis)
