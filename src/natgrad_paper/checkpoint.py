"""Checkpoints of a training: written aside and renamed when whole, hashed, the one before kept.

A checkpoint is a directory `<iteration>` with orbax's files of the arrays and a `manifest.json`: where
the training stood, what it belongs to, and a hash for every file and every array. What does not match
its manifest, or another run's settings, is refused with the reason, and the one before it is taken.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Set
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from natgrad_paper import storage
from natgrad_paper.errors import naming
from natgrad_paper.experiment import Tree
from natgrad_paper.log import Mark
from natgrad_paper.train import Position

FORMAT = 2
MANIFEST, ARRAYS = "manifest.json", "arrays"
KEPT = 2
LONGEST = 1 << 26
"""Bytes that a manifest may have."""
TABLES: dict[str, type[Position] | type[Mark] | None] = {
    "identity": None, "surroundings": None, "position": Position, "log": Mark,
    "kinds": None, "arrays": None, "files": None,
}  # fmt: skip
"""In a manifest, and of what, where their keys are known: one that is younger than the checkpoint has its default."""


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
        target = self.directory / f"{checkpoint.position.iteration:09d}"
        aside = self.directory / f".writing-{target.name}"
        try:
            with naming(aside):
                self.directory.mkdir(parents=True, exist_ok=True)
                for leftover in self.directory.glob(".writing-*"):
                    _remove(leftover)
                self._write(checkpoint, aside)
                if target.exists():  # One that was refused, or this training would be further by now.
                    _remove(target)
                os.replace(aside, target)
                _sync(self.directory)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        found = self._found()
        place = found.index(target)
        for stale in found[:place] + found[place + KEPT :]:  # Newer ones were refused when it was resumed.
            _remove(stale)

    def _write(self, checkpoint: Checkpoint, aside: Path) -> None:
        """Write a checkpoint's files, down to the disk."""
        aside.mkdir()
        arrays, kinds = storage.flat(checkpoint.trained)
        storage.save(aside / ARRAYS, arrays)
        manifest = {
            "format": FORMAT,
            "identity": self.identity,
            "surroundings": self.surroundings,
            "position": asdict(checkpoint.position),
            "log": asdict(checkpoint.log),
            "kinds": kinds,
            "arrays": {name: storage.digest(value) for name, value in arrays.items()},
            "files": {
                str(path.relative_to(aside)): [path.stat().st_size, _file_hash(path)]
                for path in sorted((aside / ARRAYS).rglob("*"))
                if path.is_file()
            },
        }
        (aside / MANIFEST).write_text(_signed(manifest), encoding="utf-8")
        for path in aside.rglob("*"):
            _sync(path)
        _sync(aside)

    def join(self, checkpoint: Checkpoint) -> None:
        """Take part in what another process saves: orbax writes what is here of the arrays."""
        aside = self.directory / f".writing-{checkpoint.position.iteration:09d}"
        storage.save(aside / ARRAYS, storage.flat(checkpoint.trained)[0])

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
                reason = f"expected files that can be read, found: {problem.strerror or problem}"
            except (KeyError, TypeError, ValueError, AttributeError) as problem:
                reason = f"{MANIFEST}: expected the fields of format {FORMAT}, found {type(problem).__name__}"
            tell(f"{path}: checkpoint refused: {' '.join(reason.split())}")
        return None

    def discard(self) -> None:
        """Remove all: the training is finished."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _found(self) -> list[Path]:
        """Return the checkpoints, newest first."""
        if not self.directory.is_dir():
            return []
        found = (path for path in self.directory.iterdir() if path.name.isascii() and path.name.isdigit())
        return sorted(found, key=lambda path: int(path.name), reverse=True)

    def _read(self, path: Path, like: tuple[Tree, Tree], tell: Callable[[str], None]) -> Checkpoint:
        manifest = self._manifest(path)
        present = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()}
        expected = {*manifest["files"], MANIFEST}
        if present != expected:
            names = ", ".join(sorted(present ^ expected)[:3])
            raise Refused(f"files: expected those of the manifest, found a difference in {names}")
        for name, (size, wanted) in manifest["files"].items():
            file = path / name
            if file.is_symlink() or not file.is_file():
                raise Refused(f"{name}: expected a file, found something else")
            if file.stat().st_size != size:
                raise Refused(f"{name}: expected {size} bytes, found {file.stat().st_size}")
            if _file_hash(file) != wanted:
                raise Refused(f"{name}: expected sha256 {wanted[:16]}…, found another")
        arrays, kinds = storage.flat(like)
        if manifest["kinds"] != kinds:
            raise Refused("kinds: expected the arrays of this optimizer, found others")
        if manifest["arrays"].keys() != arrays.keys():
            raise Refused("arrays: expected a hash for each of this optimizer's, found others")
        try:
            restored = storage.restore(path / ARRAYS, arrays)
        except storage.Unrestorable as problem:
            raise Refused(f"arrays: expected to be restored, found {problem}") from None
        for name, value in restored.items():
            if storage.digest(value) != (wanted := manifest["arrays"][name]):
                raise Refused(f"array {kinds[name]}: expected sha256 {wanted[:16]}…, found another")
        for name, now in self.surroundings.items():
            if (then := manifest["surroundings"].get(name)) != now:
                tell(f"{path}: written with {name} {then}, now {now}: the last digits may differ")
        return Checkpoint(
            Position(**manifest["position"]), Mark(**manifest["log"]), storage.whole(restored, like)
        )

    def _manifest(self, path: Path) -> dict[str, Any]:
        file = path / MANIFEST
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise Refused(f"{MANIFEST}: expected a file, found something else")
        try:
            if file.stat().st_size > LONGEST:
                raise Refused(f"{MANIFEST}: expected at most {LONGEST} bytes, found {file.stat().st_size}")
            text = file.read_text(encoding="utf-8")
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
        for name, kind in TABLES.items():
            keys = manifest[name].keys() if isinstance(manifest.get(name), dict) else None
            if keys is None or (kind is not None and not _fit(keys, kind)):
                found = "none" if name not in manifest else f"{manifest[name]!r:.60}"
                raise Refused(f"{MANIFEST}: {name}: expected a table of format {FORMAT}, found {found}")
        if (iteration := manifest["position"].get("iteration")) != int(path.name):
            raise Refused(f"position: iteration: expected {int(path.name)}, found {iteration}")
        for name, wanted in self.identity.items():
            if manifest["identity"].get(name) != wanted:
                raise Refused(
                    f"{name}: expected {wanted!r:.60}, found {manifest['identity'].get(name)!r:.60}"
                )
        return dict(manifest)


def _fit(keys: Set[str], kind: type[Position] | type[Mark]) -> bool:
    """Whether a dataclass can be made of these: all known, and none missing that has no default."""
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    return needed <= keys <= {field.name for field in fields(kind)}


def digest(plain: Any) -> str:
    """Return a hash of plain data, such as the settings of a run."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _signed(manifest: dict[str, Any]) -> str:
    """Return the text of a manifest, with its own hash."""
    return json.dumps({**manifest, "sha256": digest(manifest)}, indent=1)


def _file_hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remove(path: Path) -> None:
    """Remove a checkpoint, or a stray file in the place of one."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _sync(path: Path) -> None:
    """Make sure that what was written is on the disk, so that a rename never precedes it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
