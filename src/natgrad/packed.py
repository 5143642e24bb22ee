"""Parameters as the step sees them: small arrays are packed into one vector, others stay as they are.

Compile time grows with the number of different kernels. A network has small arrays of many shapes, and packed they
cost no more than one: a step's vector algebra compiles as if the network had two or three arrays. On a CPU several
arrays of one shape are not packed, because they share their kernels anyway. An accelerator has to launch every kernel,
shared or not. An array that is large, or lies on several devices, is never copied or moved.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad.tree import Tree

SMALL = 2**15
"""The largest size of an array that is packed."""
ALIKE = 4
"""On a CPU, arrays are not packed if at least this many share a shape and dtype. To cut an array out of the vector
takes a kernel of its own, because no other array has its place."""


@dataclass(frozen=True)
class Layout:
    """How a tree is packed."""

    structure: Any
    """The tree's structure, from `jax.tree.structure`."""
    shapes: tuple[tuple[int, ...], ...]
    """The shapes of its leaves."""
    groups: tuple[tuple[int, ...], ...]
    """For every packed array, the numbers of its leaves: one leaf as it is, or several of one dtype, end to end."""

    @classmethod
    def of(cls, tree: Tree) -> "Layout":
        """Return how to pack a tree."""
        leaves, structure = jax.tree.flatten(tree)
        shares = jax.default_backend() == "cpu"
        alike = Counter((leaf.shape, leaf.dtype) for leaf in leaves if shares)
        small: dict[Any, list[int]] = {}
        groups = []
        for number, leaf in enumerate(leaves):
            rare = alike[leaf.shape, leaf.dtype] < ALIKE
            if rare and leaf.size <= SMALL and not any(jax.typeof(leaf).sharding.spec):
                small.setdefault(leaf.dtype, []).append(number)
            else:
                groups.append((number,))
        together = tuple(map(tuple, small.values()))
        return cls(structure, tuple(leaf.shape for leaf in leaves), (*groups, *together))

    def pack(self, tree: Tree) -> "Packed":
        """Return the tree's arrays, packed. All of them may have the same further axes in front."""
        leaves = jax.tree.leaves(tree)
        lead = leaves[0].ndim - len(self.shapes[0])

        def together(group: tuple[int, ...]) -> Array:
            if len(group) == 1:
                return leaves[group[0]]
            flat = [leaves[number].reshape(*leaves[number].shape[:lead], -1) for number in group]
            return jnp.concatenate(flat, axis=-1)

        return Packed(tuple(map(together, self.groups)), self)

    def unpack(self, arrays: tuple[Array, ...]) -> Tree:
        """Return the tree again."""
        leaves: list[Any] = [None] * len(self.shapes)
        for array, group in zip(arrays, self.groups, strict=True):
            if len(group) == 1:
                leaves[group[0]] = array
                continue
            sizes = [math.prod(self.shapes[number]) for number in group]
            parts = jnp.split(array, list(accumulate(sizes))[:-1], axis=-1)
            for number, part in zip(group, parts, strict=True):
                leaves[number] = part.reshape(*array.shape[:-1], *self.shapes[number])
        return jax.tree.unflatten(self.structure, leaves)


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["layout"])
@dataclass(frozen=True)
class Packed:
    """A packed tree: a pytree of a few arrays that knows how it was packed."""

    arrays: tuple[Array, ...]
    layout: Layout


def on_one_device(tree: Tree) -> bool:
    """Tell whether arrays are known to lie on one device. With several devices, traced arrays are not."""
    try:
        return all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(tree))
    except (AttributeError, jax.errors.ConcretizationTypeError):
        return jax.device_count() == 1


def packed(tree: Tree) -> Tree:
    """Return a tree with its small arrays packed, or the tree itself where that would change nothing."""
    layout = Layout.of(tree)
    return layout.pack(tree) if any(len(group) > 1 for group in layout.groups) else tree


def unpacked(tree: Tree) -> Tree:
    """Return the tree with everything in it unpacked."""
    return jax.tree.map(
        lambda node: node.layout.unpack(node.arrays) if isinstance(node, Packed) else node,
        tree,
        is_leaf=_is_packed,
    )


def packed_like(like: Tree, tree: Tree) -> Tree:
    """Return the tree, packed in the same places as `like`."""
    return jax.tree.map(
        lambda node, own: node.layout.pack(own) if isinstance(node, Packed) else own,
        like,
        tree,
        is_leaf=_is_packed,
    )


def on_leaves(function: Callable[[Tree], Tree], tree: Tree) -> Tree:
    """Apply a function that needs the unpacked leaves; return its result packed as the tree was."""
    return packed_like(tree, function(unpacked(tree)))


def _is_packed(node: Any) -> bool:
    return isinstance(node, Packed)
