"""Checkpoints of a training: one npz file each, written aside and renamed when whole; the one before is kept.

A checkpoint is `<iteration>.<sha256>.npz`. The hash of the file is in its name: a changed byte is noticed. Among
its arrays is a manifest: where the training stood and what it belongs to. What does not match is refused with the
reason, and the one before it is taken. `numpy.load` opens it; no code is stored in it.
"""

import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from natgrad_paper.errors import naming
from natgrad_paper.training.log import Mark
from natgrad_paper.training.loop import Position
from natgrad_paper.training.problem import Tree

FORMAT = 3
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
    """How far the log was: what came after is done again."""
    trained: tuple[Tree, Tree]
    """Parameters and optimizer state."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one training, in a directory of its own."""

    directory: Path
    identity: dict[str, Any]
    """What must be the same for a training to go on: plain data, such as method, seed and settings."""
    surroundings: dict[str, Any]
    """What should be the same for it to go on bit by bit: versions and cores. Plain data."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint. Whatever happens meanwhile, the last good one stays; half of one is removed."""
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
        # Newer ones were refused when the training was resumed, or it would be further by now.
        found = self._found()
        place = found.index(self.directory / name)
        for stale in found[:place] + found[place + KEPT :]:
            _remove(stale)

    def load(self, like: tuple[Tree, Tree], tell: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest good checkpoint, if there is one; `tell` hears of those refused, and why.

        Args:
            like: A tree of the same structure, shapes and dtypes as what was saved.
            tell: Called with a sentence for each refused checkpoint.
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
        """Remove all: the training is finished."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _found(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        if not self.directory.is_dir():
            return []
        return sorted((path for path in self.directory.iterdir() if NAME.fullmatch(path.name)), reverse=True)

    def _packed(self, checkpoint: Checkpoint) -> bytes:
        arrays, kinds = _flat(checkpoint.trained)
        manifest = {
            "format": FORMAT,
            "identity": self.identity,
            "surroundings": self.surroundings,
            "position": asdict(checkpoint.position),
            "log": asdict(checkpoint.log),
            "kinds": kinds,
        }
        stream = io.BytesIO()
        np.savez(stream, **{MANIFEST: np.frombuffer(json.dumps(manifest).encode(), np.uint8)}, **arrays)
        return stream.getvalue()

    def _read(self, path: Path, like: tuple[Tree, Tree], tell: Callable[[str], None]) -> Checkpoint:
        if path.is_symlink() or not path.is_file():
            raise Refused("expected a file, found something else")
        raw, wanted = path.read_bytes(), path.name.split(".")[1]
        if (found := hashlib.sha256(raw).hexdigest()) != wanted:
            raise Refused(f"expected sha256 {wanted[:16]}…, found {found[:16]}…")
        try:
            with np.load(io.BytesIO(raw), allow_pickle=False) as packed:
                arrays = {name: packed[name] for name in packed.files}
            manifest = json.loads(arrays.pop(MANIFEST).tobytes())
            position, mark = Position.of(manifest["position"]), Mark(**manifest["log"])
            form, identity, around = manifest["format"], manifest["identity"], manifest["surroundings"]
            kinds = manifest["kinds"]
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            zipfile.BadZipFile,
        ) as problem:
            raise Refused(
                f"expected a checkpoint of format {FORMAT}, found {type(problem).__name__}"
            ) from None
        if form != FORMAT:
            raise Refused(f"format: expected {FORMAT}, found {form!r}")
        if position.iteration != int(path.name.split(".")[0]):
            raise Refused(f"position: iteration: expected that of the name, found {position.iteration}")
        for name, value in self.identity.items():
            if identity.get(name) != value:
                raise Refused(f"{name}: expected {value!r:.60}, found {identity.get(name)!r:.60}")
        wanted_arrays, wanted_kinds = _flat(like)
        if kinds != wanted_kinds or arrays.keys() != wanted_arrays.keys():
            raise Refused("arrays: expected those of this optimizer, found others")
        for name, now in self.surroundings.items():
            if (then := around.get(name)) != now:
                tell(f"{path}: written with {name} {then}, now {now}: the last digits may differ")
        return Checkpoint(position, mark, _restored(arrays, like))


def _flat(trained: tuple[Tree, Tree]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the leaves by number, and what each is: its place, dtype and shape, in words."""
    arrays, kinds = {}, {}
    for number, (place, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(trained)):
        name, value = f"{number:04d}", np.asarray(jax.device_get(leaf))
        # npz has no bfloat16 and its like: their bits are stored.
        arrays[name] = value if value.dtype.isbuiltin == 1 else value.view(f"u{value.dtype.itemsize}")
        kinds[name] = f"{jax.tree_util.keystr(place)} {value.dtype}{list(value.shape)}"
    return arrays, kinds


def _restored(arrays: dict[str, np.ndarray], like: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """Return the tree of `like` made of these leaves."""
    leaves, structure = jax.tree.flatten(like)
    values = (arrays[f"{number:04d}"].view(leaf.dtype) for number, leaf in enumerate(leaves))
    params, state = jax.tree.unflatten(structure, [jax.numpy.asarray(value) for value in values])
    return params, state


def digest(plain: Any) -> str:
    """Return a hash of plain data, such as the settings of a run."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _remove(path: Path) -> None:
    """Remove a checkpoint, or whatever stands in the place of one."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _sync(directory: Path) -> None:
    """Make sure that a rename is on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
