"""Leaves read as matrices, and arranged so that a program grows with the number of shapes, not of leaves.

Matrices of one shape form a group. Sides of one length form a stack, whichever leaf they belong to. Each group and
each stack is one product with a leading axis. Short sides are padded to one length if that costs little, and all
vectors lie end to end.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad.packed import unpacked
from natgrad.tree import Tree

IN, OUT, STACK = "ios"
"""What an axis of a leaf may be."""
PADDING = 8
"""Padding of short sides may add one part in this many to the cost of new bases, or the cost of one side of 64."""

Axes = Callable[[Any, Any], str | None]
"""From a leaf's path and the leaf to one letter per axis; None leaves it to `usual_axes`."""


def usual_axes(path: Any, leaf: Any) -> str:
    """Return one letter per axis of a leaf: "i" inputs, "o" units.

    A leaf is read as (in, …, in, out): kernels of Flax and Haiku, attention's (heads, k, d), embeddings (rows, d).
    A leaf called `weight`, as in Equinox and PyTorch, is read as (out, in, …, in). A leaf of three or more axes, the
    first of them the longest, is read as (in, out, …, out): attention's (d, heads, k).
    """
    inner = leaf.ndim - 1
    if inner < 1:
        return OUT * leaf.ndim
    if path and _name(path[-1]) == "weight":
        return OUT + IN * inner
    if inner > 1 and leaf.shape[0] > max(leaf.shape[1:]):
        return IN + OUT * inner
    return IN * inner + OUT


class Slot(NamedTuple):
    """Where the sides of a group are."""

    stack: int
    start: int
    stop: int

    def of(self, stacks: Sequence[Any]) -> Any:
        """Return this part of a stack; None of None."""
        whole = stacks[self.stack]
        if whole is None:
            return None
        if self == (self.stack, 0, jax.tree.leaves(whole)[0].shape[0]):
            return whole
        return jax.tree.map(lambda leaf: leaf[self.start : self.stop], whole)


class Member(NamedTuple):
    """A leaf as one matrix, or as several if it has "s" axes; the longer side is the left one."""

    leaf: int
    """Its place in `jax.tree.leaves`."""
    layers: int
    """How many matrices."""
    shape: tuple[int, int]
    """Of each."""
    order: tuple[int, ...]
    """Its axes, those of the stack first, then those of the rows."""
    turned: bool
    """Whether the units are in the rows."""

    def matrices(self, leaf: Array, shape: tuple[int, int]) -> Array:
        """Return the matrices, padded to a shape."""
        if self.order != tuple(range(leaf.ndim)):
            leaf = leaf.transpose(self.order)
        found = leaf.reshape(self.layers, *self.shape)
        if self.shape == shape:
            return found
        return jnp.pad(found, [(0, 0), *((0, n - m) for n, m in zip(shape, self.shape, strict=True))])

    def leaf_of(self, matrices: Array, like: Array) -> Array:
        """Return the leaf again."""
        rows, columns = self.shape
        found = matrices[:, :rows, :columns].reshape([like.shape[axis] for axis in self.order])
        return found if self.order == tuple(range(like.ndim)) else found.transpose(np.argsort(self.order))


class Group(NamedTuple):
    """Leaves seen as matrices of one shape, some of them padded."""

    members: list[Member]
    shape: tuple[int, int]
    left: Slot
    right: Slot

    @property
    def sizes(self) -> list[int]:
        """The numbers in each matrix, without padding."""
        return [math.prod(member.shape) for member in self.members for _ in range(member.layers)]

    def matrices(self, leaves: Sequence[Array]) -> Array:
        """Return the leaves of the group as matrices, stacked."""
        found = [member.matrices(leaves[member.leaf], self.shape) for member in self.members]
        return found[0] if len(found) == 1 else jnp.concatenate(found)

    def put(self, matrices: Array, leaves: list[Array]) -> None:
        """Put the matrices where the leaves are."""
        stop = 0
        for member in self.members:
            start, stop = stop, stop + member.layers
            leaves[member.leaf] = member.leaf_of(matrices[start:stop], leaves[member.leaf])


class Row(NamedTuple):
    """Vectors of one dtype."""

    leaves: list[int]
    """Their places in `jax.tree.leaves`."""
    sizes: list[int]
    dtype: Any

    def joined(self, leaves: Sequence[Array]) -> Array:
        """Return the vectors end to end."""
        return jnp.concatenate([leaves[number].reshape(-1) for number in self.leaves])

    def put(self, flat: Array, leaves: list[Array]) -> None:
        """Put the parts where the leaves are."""
        parts = jnp.split(flat, np.cumsum(self.sizes)[:-1])
        for part, number in zip(parts, self.leaves, strict=True):
            leaves[number] = part.reshape(leaves[number].shape)

    def means(self, flat: Array) -> Array:
        """Return the mean of each entry's vector, one number per entry."""
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        sums = jax.ops.segment_sum(flat, owner, len(self.sizes), indices_are_sorted=True)
        return (sums / np.asarray(self.sizes, flat.dtype))[owner]


class Length(NamedTuple):
    """What sides of one stack have in common."""

    size: int
    dense: bool
    dtype: Any


class Arranged(NamedTuple):
    """The leaves in groups, and what the stacks of their sides hold. An empty leaf is in no group."""

    groups: list[Group]
    rows: list[Row]
    lengths: list[Length]
    counts: list[int]

    @property
    def inputs(self) -> list[np.ndarray]:
        """Which entries of the stacks, (count, n) each, belong to sides of inputs: not to units, not to padding."""
        found = [
            np.zeros((count, length.size), bool)
            for length, count in zip(self.lengths, self.counts, strict=True)
        ]
        for group in self.groups:
            start = 0
            for member in group.members:
                slot, size = (
                    (group.right, member.shape[1]) if member.turned else (group.left, member.shape[0])
                )
                found[slot.stack][slot.start + start : slot.start + start + member.layers, :size] = True
                start += member.layers
        return found


def arranged(theta: Tree, limit: int, rank: int, axes: Axes | None = None) -> Arranged:
    """Return the leaves of a tree in groups. Sides up to `limit` are dense, with bases of `rank` vectors at most."""
    vectors: dict[Any, Row] = {}
    matrices = []
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(unpacked(theta))):
        if not leaf.size:
            continue
        letters = _letters(axes, path, leaf)
        if not {IN, OUT} <= set(letters):
            row = vectors.setdefault(leaf.dtype, Row([], [], leaf.dtype))
            row.leaves.append(number)
            row.sizes.append(leaf.size)
            continue
        matrices.append((_member(number, leaf.shape, letters), leaf.dtype))

    every = [
        (size, dtype) for member, dtype in matrices for size in member.shape * member.layers if size <= limit
    ]
    padded = {
        (size, dtype): length
        for dtype in dict(every).values()
        for size, length in _padded([n for n, own in every if own == dtype], rank).items()
    }
    alike: dict[tuple[Length, Length], list[Member]] = {}
    for member, dtype in matrices:
        left, right = (Length(padded.get((n, dtype), n), n <= limit, dtype) for n in member.shape)
        alike.setdefault((left, right), []).append(member)
    counts: dict[Length, int] = {}

    def slot(length: Length, count: int) -> Slot:
        start = counts.get(length, 0)
        counts[length] = start + count
        return Slot(list(counts).index(length), start, start + count)

    groups = []
    for (left, right), members in alike.items():
        count = sum(member.layers for member in members)
        groups.append(Group(members, (left.size, right.size), slot(left, count), slot(right, count)))
    return Arranged(groups, list(vectors.values()), list(counts), list(counts.values()))


def _name(key: Any) -> Any:
    """Return what a key of a path says: a field's name, a dictionary's key or a place in a list."""
    return next((getattr(key, kind) for kind in ("name", "key", "idx") if hasattr(key, kind)), None)


def _letters(axes: Axes | None, path: Any, leaf: Any) -> str:
    """Return what each axis of a leaf is."""
    given = None if axes is None else axes(path, leaf)
    if given is None:
        return usual_axes(path, leaf)
    if len(given) != leaf.ndim or not set(given) <= {IN, OUT, STACK}:
        raise ValueError(
            f"axes gives {given!r} for {jax.tree_util.keystr(path)} of shape {leaf.shape}: "
            'give one letter per axis, "i" for inputs, "o" for units, "s" for a stack of layers.'
        )
    return given


def _member(leaf: int, shape: tuple[int, ...], letters: str) -> Member:
    """Return a leaf as matrices, of which the longer side is the left one."""
    axes = {kind: [axis for axis, own in enumerate(letters) if own == kind] for kind in (STACK, IN, OUT)}
    count, rows, columns = (math.prod(shape[axis] for axis in own) for own in axes.values())
    turned = rows < columns
    sides = (OUT, IN) if turned else (IN, OUT)
    order = tuple(axis for kind in (STACK, *sides) for axis in axes[kind])
    return Member(leaf, count, (columns, rows) if turned else (rows, columns), order, turned)


def _padded(sizes: list[int], rank: int) -> dict[int, int]:
    """Return the padded length of each size. Only sides with whole bases are padded, and only if that costs little."""
    spare = max(sum(n * n * min(n, rank) for n in sizes) // PADDING, 64**3)
    lengths, longest = {}, 0
    for size in sorted(set(sizes), reverse=True):
        extra = sizes.count(size) * (longest**3 - size**3)
        if longest and extra <= spare:
            lengths[size], spare = longest, spare - extra
        else:
            lengths[size] = size
            longest = size if size <= rank else 0
    return lengths
