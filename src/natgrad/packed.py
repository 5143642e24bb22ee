"""Parameters as the step sees them: small arrays packed into one vector, large ones as they are.

A compiler pays for every array and every operation on it. A network has many small arrays, and packed they cost no more
than one: a step's vector algebra compiles as if the network had two or three arrays. What is large, or lies on several
devices, is never copied or moved.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad.tree import Tree

SMALL = 2**17
"""The most numbers in an array that is packed."""


@dataclass(frozen=True)
class Layout:
    """How a tree is packed."""

    structure: Any = field(compare=False)
    """The tree's, from `jax.tree.structure`. A state may come from another kind of tree with the same arrays."""
    shapes: tuple[tuple[int, ...], ...]
    """Of its leaves."""
    groups: tuple[tuple[int, ...], ...]
    """The leaves in each array: one as it is, or several of one dtype end to end."""

    @classmethod
    def of(cls, tree: Tree) -> "Layout":
        """Return how to pack a tree."""
        leaves, structure = jax.tree.flatten(tree)
        small: dict[Any, list[int]] = {}
        groups = []
        for number, leaf in enumerate(leaves):
            if leaf.size <= SMALL and not any(jax.typeof(leaf).sharding.spec):
                small.setdefault(leaf.dtype, []).append(number)
            else:
                groups.append((number,))
        packed = tuple(map(tuple, small.values()))
        return cls(structure, tuple(leaf.shape for leaf in leaves), (*groups, *packed))

    def pack(self, tree: Tree) -> "Packed":
        """Return the tree's arrays, packed."""
        leaves = jax.tree.leaves(tree)

        def together(group: tuple[int, ...]) -> Array:
            if len(group) == 1:
                return leaves[group[0]]
            return jnp.concatenate([jnp.ravel(leaves[number]) for number in group])

        return Packed(tuple(map(together, self.groups)), self)

    def unpack(self, arrays: tuple[Array, ...]) -> Tree:
        """Return the tree again."""
        leaves: list[Any] = [None] * len(self.shapes)
        for array, group in zip(arrays, self.groups, strict=True):
            if len(group) == 1:
                leaves[group[0]] = array
                continue
            sizes = [math.prod(self.shapes[number]) for number in group]
            parts = jnp.split(array, list(accumulate(sizes))[:-1])
            for number, part in zip(group, parts, strict=True):
                leaves[number] = part.reshape(self.shapes[number])
        return jax.tree.unflatten(self.structure, leaves)


@jax.tree_util.register_pytree_node_class
class Packed:
    """A packed tree: a pytree of a few arrays that knows how it was packed."""

    def __init__(self, arrays: tuple[Array, ...], layout: Layout):
        self.arrays, self.layout = arrays, layout

    def tree_flatten(self) -> tuple[tuple[Array, ...], Layout]:
        """Return the arrays, and the layout as structure."""
        return self.arrays, self.layout

    @classmethod
    def tree_unflatten(cls, layout: Layout, arrays: tuple[Array, ...]) -> "Packed":
        """Return the packed tree again."""
        return cls(arrays, layout)


def packed(tree: Tree) -> Packed:
    """Return a tree with its small arrays packed."""
    return Layout.of(tree).pack(tree)


def unpacked(tree: Tree) -> Tree:
    """Return the tree as it was before it was packed, if it was."""
    return tree.layout.unpack(tree.arrays) if isinstance(tree, Packed) else tree


def on_leaves(function: Callable[[Tree], Tree], tree: Tree) -> Tree:
    """Return function(tree) for a function that wants to see the leaves, packed as the tree was."""
    result = function(unpacked(tree))
    return tree.layout.pack(result) if isinstance(tree, Packed) else result
