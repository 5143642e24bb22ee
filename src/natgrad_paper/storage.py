"""Trees of arrays on the disk, by orbax: no code among them, and errors that say what the machine said."""

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from natgrad_paper.experiment import Tree

Arrays = dict[str, Any]


class Unrestorable(Exception):
    """Why arrays could not be read back."""


def save(path: Path, arrays: Arrays) -> None:
    """Write arrays into a new directory."""
    with _plain_refusals(path):
        _checkpointer().save(path.absolute(), arrays)


def restore(path: Path, like: Arrays) -> Arrays:
    """Return the arrays in a directory, with the shapes, dtypes and places of `like`."""
    import orbax.checkpoint as ocp

    try:
        shapes = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
            for name, leaf in like.items()
        }
        return dict(_checkpointer().restore(path.absolute(), args=ocp.args.StandardRestore(shapes)))
    except Exception as problem:  # The files are as they were written; orbax's reasons are its own.
        if jax.process_count() > 1:  # Perhaps another process is gone: that says nothing about the files.
            raise
        raise Unrestorable(f"{type(problem).__name__}: {problem}") from None


def flat(trained: tuple[Tree, Tree]) -> tuple[Arrays, dict[str, str]]:
    """Return the leaves as a flat dictionary, and what each is: its place, dtype and shape, in words."""
    arrays, kinds = {}, {}
    for number, (place, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(trained)):
        name = f"{number:04d}"
        if leaf.size:  # orbax refuses empty arrays; their shape says all there is to say.
            arrays[name] = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        kinds[name] = f"{jax.tree_util.keystr(place)} {leaf.dtype}{list(leaf.shape)}"
    return arrays, kinds


def whole(arrays: Arrays, like: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """Return the tree of `like` made of these leaves."""
    leaves, structure = jax.tree.flatten(like)
    restored = [arrays.get(f"{number:04d}", leaf) for number, leaf in enumerate(leaves)]
    restored = [
        jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else value
        for value, leaf in zip(restored, leaves, strict=True)
    ]
    params, state = jax.tree.unflatten(structure, restored)
    return params, state


def _is_key(leaf: Any) -> bool:
    return bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def digest(value: Any) -> str:
    """Return the hash of an array's bits."""
    return hashlib.sha256(np.ascontiguousarray(jax.device_get(value)).tobytes()).hexdigest()


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp  # Takes a second; only runs that write or read a checkpoint need it.

    return ocp.Checkpointer(ocp.StandardCheckpointHandler())


@contextmanager
def _plain_refusals(path: Path) -> Iterator[None]:
    """Let a machine's refusal inside orbax be the OSError that it is.

    Orbax also logs, with a traceback, what it raises; and its store, tensorstore, raises ValueErrors that quote
    the number of the operating system's error.
    """
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    except ValueError as problem:
        if (quoted := re.search(r"os_error_code='(\d+)'", str(problem))) is None:
            raise
        number = int(quoted[1])
        raise OSError(number, os.strerror(number), str(path)) from problem
    finally:
        logger.setLevel(before)
