"""Checkpoints of a training: written aside and renamed when whole, hashed, the one before kept.

A checkpoint is a directory `<iteration>` with orbax's files of the arrays and a `manifest.json`: where
the training stood, what it belongs to, and a hash for every file and every array. What does not match
its manifest, or another run's settings, is refused with the reason, and the one before it is taken.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from natgrad_paper.experiment import Tree
from natgrad_paper.log import Mark
from natgrad_paper.train import Position

FORMAT = 1
MANIFEST, ARRAYS = "manifest.json", "arrays"
KEPT = 2


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
        """Write a checkpoint. Whatever happens meanwhile, the last good one stays."""
        target = self.directory / f"{checkpoint.position.iteration:09d}"
        aside = self.directory / f".writing-{target.name}"
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob(".writing-*"):
            shutil.rmtree(leftover)
        aside.mkdir()
        arrays, kinds = _arrays(checkpoint.trained)
        _checkpointer().save((aside / ARRAYS).absolute(), arrays)
        manifest = {
            "format": FORMAT,
            "identity": self.identity,
            "surroundings": self.surroundings,
            "position": asdict(checkpoint.position),
            "log": asdict(checkpoint.log),
            "kinds": kinds,
            "arrays": {name: _array_hash(value) for name, value in arrays.items()},
            "files": {
                str(path.relative_to(aside)): _file_hash(path)
                for path in sorted((aside / ARRAYS).rglob("*"))
                if path.is_file()
            },
        }
        (aside / MANIFEST).write_text(_signed(manifest), encoding="utf-8")
        for path in aside.rglob("*"):
            _sync(path)
        _sync(aside)
        if target.exists():  # The same place again, after a resume: it may be a damaged one.
            shutil.rmtree(target)
        os.replace(aside, target)
        _sync(self.directory)
        for old in self._found()[KEPT:]:
            shutil.rmtree(old)

    def join(self, checkpoint: Checkpoint) -> None:
        """Take part in what another process saves: orbax writes what is here of the arrays."""
        aside = self.directory / f".writing-{checkpoint.position.iteration:09d}"
        _checkpointer().save((aside / ARRAYS).absolute(), _arrays(checkpoint.trained)[0])

    def load(self, like: tuple[Tree, Tree], tell: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest good checkpoint, if there is one; `tell` hears of those refused, and why.

        Args:
            like: A tree of the same structure, shapes and dtypes as what was saved.
            tell: Called with a sentence for each refused checkpoint.
        """
        for path in self._found():
            try:
                return self._read(path, like, tell)
            except Refused as reason:
                tell(f"{path}: checkpoint refused: {reason}")
        return None

    def discard(self) -> None:
        """Remove all: the training is finished."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _found(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        if not self.directory.is_dir():
            return []
        return sorted((path for path in self.directory.iterdir() if path.name.isdigit()), reverse=True)

    def _read(self, path: Path, like: tuple[Tree, Tree], tell: Callable[[str], None]) -> Checkpoint:
        manifest = self._manifest(path)
        present = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()}
        expected = {*manifest["files"], MANIFEST}
        if present != expected:
            names = ", ".join(sorted(present ^ expected)[:3])
            raise Refused(f"files: expected those of the manifest, found a difference in {names}")
        for name, wanted in manifest["files"].items():
            if (path / name).is_symlink() or _file_hash(path / name) != wanted:
                raise Refused(f"{name}: expected sha256 {wanted[:16]}…, found another")
        arrays, kinds = _arrays(like)
        if manifest["kinds"] != kinds:
            raise Refused("kinds: expected the arrays of this optimizer, found others")
        kept = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for name, leaf in arrays.items()
        }
        restored = _restore(path / ARRAYS, kept)
        for name, wanted in manifest["arrays"].items():
            if _array_hash(restored[name]) != wanted:
                raise Refused(f"array {kinds[name]}: expected sha256 {wanted[:16]}…, found another")
        for name, now in self.surroundings.items():
            if (then := manifest["surroundings"].get(name)) != now:
                tell(f"{path}: written with {name} {then}, now {now}: the last digits may differ")
        return Checkpoint(Position(**manifest["position"]), Mark(**manifest["log"]), _trained(restored, like))

    def _manifest(self, path: Path) -> dict[str, Any]:
        try:
            text = (path / MANIFEST).read_text(encoding="utf-8")
            manifest = json.loads(text)
            stated = manifest.pop("sha256")
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as problem:
            raise Refused(
                f"{MANIFEST}: expected a readable manifest, found {type(problem).__name__}"
            ) from None
        if stated != digest(manifest) or text != _signed(manifest):
            raise Refused(f"{MANIFEST}: expected sha256 {str(stated)[:16]}…, found another")
        if manifest["format"] != FORMAT:
            raise Refused(f"format: expected {FORMAT}, found {manifest['format']!r}")
        if manifest["position"]["iteration"] != int(path.name):
            raise Refused(f"iteration: expected {int(path.name)}, found {manifest['position']['iteration']}")
        for name, wanted in self.identity.items():
            if manifest["identity"].get(name) != wanted:
                raise Refused(
                    f"{name}: expected {wanted!r:.60}, found {manifest['identity'].get(name)!r:.60}"
                )
        return dict(manifest)


def digest(plain: Any) -> str:
    """Return a hash of plain data, such as the settings of a run."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _signed(manifest: dict[str, Any]) -> str:
    """Return the text of a manifest, with its own hash."""
    return json.dumps({**manifest, "sha256": digest(manifest)}, indent=1)


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp  # Takes a second; only runs that write or read a checkpoint need it.

    return ocp.Checkpointer(ocp.StandardCheckpointHandler())


def _restore(path: Path, arrays: dict[str, Any]) -> dict[str, Any]:
    import orbax.checkpoint as ocp

    try:
        restored = _checkpointer().restore(path.absolute(), args=ocp.args.StandardRestore(arrays))
    except Exception as problem:  # The files are as they were written; orbax's reasons are its own.
        raise Refused(f"arrays: expected to be restored, found {type(problem).__name__}: {problem}") from None
    return dict(restored)


def _arrays(trained: tuple[Tree, Tree]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the leaves as a flat dictionary, and what each is: its place, dtype and shape, in words."""
    arrays, kinds = {}, {}
    for number, (place, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(trained)):
        name = f"{number:04d}"
        if leaf.size:  # orbax refuses empty arrays; their shape says all there is to say.
            arrays[name] = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        kinds[name] = f"{jax.tree_util.keystr(place)} {leaf.dtype}{list(leaf.shape)}"
    return arrays, kinds


def _trained(arrays: dict[str, Any], like: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
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


def _array_hash(value: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(jax.device_get(value)).tobytes()).hexdigest()


def _file_hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Make sure that what was written is on the disk, so that a rename never precedes it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
