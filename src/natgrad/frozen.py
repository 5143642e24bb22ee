"""Parameters that stay as they are: a tree is cut in two, the trained leaves and the rest.

A step binds the rest to its model: F is then the block of the trained parameters alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from natgrad.tree import Tree

Predicate = Callable[[Any, Any], bool]
SHOWN = 5
"""Paths in a message, at most."""


@dataclass(frozen=True)
class Mask:
    """The trained places of a tree of booleans: a mask that can be a static argument."""

    chosen: frozenset[tuple[Any, ...]]

    def __call__(self, path: tuple[Any, ...], leaf: Any) -> bool:
        """Tell whether the mask is true here or above."""
        return any(path[:depth] in self.chosen for depth in range(len(path) + 1))


def predicate(name: str, chosen: Any) -> Predicate:
    """Return a hashable rule: a function stays as it is; a tree of booleans, or a prefix of one, becomes a `Mask`."""
    marks = jax.tree_util.tree_leaves_with_path(chosen)
    if not marks or any(not isinstance(mark, bool) for _, mark in marks):
        # A module of booleans may be callable, too.
        if callable(chosen):
            return chosen
        raise TypeError(
            f"{name} must be a function (path, leaf) -> bool, or a tree of True and False shaped like params."
        )
    return Mask(frozenset(tuple(path) for path, mark in marks if mark))


def marks(rule: Predicate | None, params: Tree) -> Tree:
    """Return a tree of booleans: which leaves the rule chooses; None chooses all."""

    def own(path: tuple[Any, ...], leaf: Any) -> bool:
        if rule is None:
            return True
        where = path if isinstance(rule, Mask) else _named(path)
        return bool(rule(where, leaf))

    return jax.tree_util.tree_map_with_path(lambda path, leaf: own(tuple(path), leaf), params)


def _named(path: tuple[Any, ...]) -> str:
    """Return a path as a function of the user's sees it."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def split(trainable: Predicate, params: Tree) -> tuple[Tree, Tree]:
    """Return the trained leaves and the frozen ones, each as the whole tree with None in the other's places."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    chosen = jax.tree.leaves(marks(trainable, params))
    if not any(chosen):
        paths = ", ".join(_named(path) for path, _ in leaves[:SHOWN]) + ", …" * (len(leaves) > SHOWN)
        raise ValueError(f"trainable chose no parameter: nothing would be trained. The paths are {paths}.")
    for (path, leaf), keep in zip(leaves, chosen, strict=True):
        if not keep and not hasattr(leaf, "dtype"):
            raise TypeError(
                f"params{jax.tree_util.keystr(path)} is {type(leaf).__name__}: a frozen leaf must be an array; "
                "split the rest off first, with eqx.partition(model, eqx.is_array)."
            )
    trained = [leaf if keep else None for (_, leaf), keep in zip(leaves, chosen, strict=True)]
    rest = [None if keep else leaf for (_, leaf), keep in zip(leaves, chosen, strict=True)]
    return jax.tree.unflatten(structure, trained), jax.tree.unflatten(structure, rest)


def like(trained: Tree, whole: Tree) -> Tree:
    """Return the leaves of `whole` at the places of the trained ones."""
    return jax.tree.map(
        lambda own, leaf: None if own is None else leaf, trained, whole, is_leaf=lambda node: node is None
    )


def merge(trained: Tree, rest: Tree) -> Tree:
    """Return the whole tree again. A None in `trained` may stand for a whole branch of `rest`."""
    return jax.tree.map(
        lambda own, other: other if own is None else own, trained, rest, is_leaf=lambda node: node is None
    )
