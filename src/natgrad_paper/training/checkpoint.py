"""Checkpoints of a training: each is one npz file, written under another name and renamed when complete.

A checkpoint is `<iteration>.<sha256>.npz`. The hash of the file is in its name: a changed byte is noticed. One of its
arrays is a manifest: where the training stood and what it belongs to. A checkpoint that does not match is refused
with the reason, and the one before it, which is kept, is used. `numpy.load` opens a checkpoint; it stores no code.
"""

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import ConfigDict

from natgrad_paper.errors import UserError, naming
from natgrad_paper.training.log import Mark
from natgrad_paper.training.loop import Position
from natgrad_paper.training.problem import Tree
from natgrad_paper.training.settings import LONGEST, Section, build

FORMAT: Literal[3] = 3
BESIDES = 1000
"""Bytes per array beside its own: the overhead of the file, and the array's name in the manifest."""
KEPT = 2
MANIFEST = "manifest"
NAME = re.compile(r"(\d{9})\.([0-9a-f]{64})\.npz")


class Refused(Exception):
    """Why a checkpoint cannot be used."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds."""

    position: Position
    log: Mark
    """How far the log was; the steps after that are done again."""
    trained: tuple[Tree, Tree]
    """Parameters and optimizer state."""


class Manifest(Section):
    """What a checkpoint says about itself."""

    model_config = ConfigDict(strict=False)  # A dataclass may come as a table.
    format: Literal[3]
    identity: dict[str, Any]
    surroundings: dict[str, Any]
    position: Position
    log: Mark
    kinds: dict[str, str]


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one training, in a directory of its own."""

    directory: Path
    identity: dict[str, Any]
    """What must be the same for a training to continue: plain data, such as method, seed and settings."""
    surroundings: dict[str, Any]
    """What should be the same for it to continue to the bit: versions and cores, as plain data."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint. If that fails, the last good one stays, and the incomplete one is removed."""
        raw = self._packed(checkpoint)
        name = f"{checkpoint.position.iteration:09d}.{hashlib.sha256(raw).hexdigest()}.npz"
        aside = self.directory / f".writing-{name}"
        try:
            with naming(aside):
                self.directory.mkdir(parents=True, exist_ok=True)
                with aside.open("wb") as stream:
                    stream.write(raw)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(aside, self.directory / name)
                _sync(self.directory)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        for leftover in self.directory.glob(".writing-*"):
            _remove(leftover)
        # Newer checkpoints were refused when the training resumed; otherwise it would be further by now.
        found = self._found()
        place = found.index(self.directory / name)
        for stale in found[:place] + found[place + KEPT :]:
            _remove(stale)

    def load(self, like: tuple[Tree, Tree], tell: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest good checkpoint, if there is one; `tell` gets a sentence for each refused one.

        `like` is a tree of the same structure, shapes and dtypes as what was saved.
        """
        for path in self._found():
            try:
                return self._read(path, like, tell)
            except Refused as refusal:
                reason = str(refusal)
            except OSError as problem:
                reason = f"expected a file that can be read, found: {problem.strerror or problem}"
            tell(f"{path}: checkpoint refused: {' '.join(reason.split())}")
        return None

    def discard(self) -> None:
        """Remove all checkpoints, because the training is finished; after the last training, remove the folder too."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):
            self.directory.parent.rmdir()

    def _found(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        if not self.directory.is_dir():
            return []
        return sorted((path for path in self.directory.iterdir() if NAME.fullmatch(path.name)), reverse=True)

    def _packed(self, checkpoint: Checkpoint) -> bytes:
        arrays, kinds = _flat(checkpoint.trained)
        manifest = Manifest(
            format=FORMAT,
            identity=self.identity,
            surroundings=self.surroundings,
            position=checkpoint.position,
            log=checkpoint.log,
            kinds=kinds,
        )
        text = json.dumps(manifest.model_dump(mode="json"))
        contents: dict[str, Any] = {MANIFEST: np.frombuffer(text.encode(), np.uint8), **arrays}
        stream = io.BytesIO()
        np.savez(stream, **contents)
        return stream.getvalue()

    def _read(self, path: Path, like: tuple[Tree, Tree], tell: Callable[[str], None]) -> Checkpoint:
        if path.is_symlink() or not path.is_file():
            raise Refused("expected a file, found something else")
        usual, kinds = _flat(like)
        most = sum(array.nbytes + BESIDES for array in usual.values()) + BESIDES * len(kinds) + LONGEST
        if (size := path.stat().st_size) > most:
            raise Refused(f"expected at most {most} bytes, found {size}")
        raw, (iteration, wanted, _) = path.read_bytes(), path.name.split(".")
        if (found := hashlib.sha256(raw).hexdigest()) != wanted:
            raise Refused(f"sha256: expected {wanted[:16]}…, found {found[:16]}…")
        manifest, arrays = _unpacked(raw, most)
        for name, value in json.loads(json.dumps(self.identity)).items():
            if (other := manifest.identity.get(name)) != value:
                raise Refused(f"identity: {name}: expected {value!r:.60}, found {other!r:.60}")
        if manifest.position.iteration != int(iteration):
            raise Refused(f"iteration: expected {int(iteration)}, found {manifest.position.iteration}")
        if manifest.kinds != kinds or _shapes(arrays) != _shapes(usual):
            raise Refused("kinds: expected the arrays of this optimizer, found others")
        for name, now in self.surroundings.items():
            if (then := manifest.surroundings.get(name)) != now:
                tell(f"{path}: written with {name} {then!s:.60}, now {now}: the last digits may differ")
        return Checkpoint(manifest.position, manifest.log, _restored(arrays, like))


def _unpacked(raw: bytes, most: int) -> tuple[Manifest, dict[str, np.ndarray]]:
    """Return the manifest and the arrays in a file, whatever the file may be."""
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as packed:
            if sum(member.file_size for member in packed.zip.infolist()) > most:
                raise ValueError
            arrays = {name: packed[name] for name in packed.files}
        table = json.loads(arrays.pop(MANIFEST).tobytes())
    except Exception as problem:  # A file made by hand, with the right hash in its name, can raise any error.
        raise Refused(f"expected a checkpoint of format {FORMAT}, found {type(problem).__name__}") from None
    try:
        return build(Manifest, table, MANIFEST), arrays
    except UserError as problem:
        raise Refused(str(problem)) from None


def _shapes(arrays: dict[str, np.ndarray]) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}


def _flat(trained: tuple[Tree, Tree]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the leaves by number, and what each is: its place, dtype and shape, in words."""
    arrays, kinds = {}, {}
    for number, (place, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(trained)):
        key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        name, value = f"{number:04d}", np.asarray(jax.device_get(jax.random.key_data(leaf) if key else leaf))
        # npz has no bfloat16 or similar types: their bits are stored.
        arrays[name] = value if value.dtype.isbuiltin == 1 else value.view(f"u{value.dtype.itemsize}")
        kinds[name] = f"{jax.tree_util.keystr(place)} {leaf.dtype}{list(leaf.shape)}"
    return arrays, kinds


def _restored(arrays: dict[str, np.ndarray], like: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """Return the tree of `like` made of these leaves."""
    leaves, structure = jax.tree.flatten(like)
    values = [_leaf(arrays[f"{number:04d}"], leaf) for number, leaf in enumerate(leaves)]
    params, state = jax.tree.unflatten(structure, values)
    return params, state


def _leaf(array: np.ndarray, like: Any) -> jax.Array:
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return jnp.asarray(array.view(like.dtype))


def digest(plain: Any) -> str:
    """Return a hash of plain data, such as the settings of a run."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _remove(path: Path) -> None:
    """Remove a checkpoint, or whatever has the name of one."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _sync(directory: Path) -> None:
    """Make sure that a rename is on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
