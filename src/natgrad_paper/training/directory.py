"""The directory of a run: prepare it, claim it for one run at a time, remove what a run wrote."""

import os
from contextlib import suppress
from pathlib import Path

from natgrad_paper.errors import UserError
from natgrad_paper.training.log import record_in

WRITTEN = (
    "logs/*.jsonl", "logs/*.jsonl.gz", "outputs/*.npy", "checkpoints/*/[0-9]*.npz", "checkpoints/*/.writing-*",
)  # fmt: skip
"""The files that a run writes."""


class Claimed:
    """A directory that one run has for itself, by a lock that ends with the process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / ".lock"

    def __enter__(self) -> None:
        try:
            import fcntl
        except ImportError:  # A system without such locks refuses nobody.
            return
        self._stream = self._path.open("a")  # Not "w": it may be a link to something that is not empty.
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._stream.close()
            words = "expected a directory that no run uses, found one at work"
            raise UserError(f"{self._path.parent}: {words}") from None

    def __exit__(self, *exception: object) -> None:
        if hasattr(self, "_stream"):
            self._stream.close()


def prepare_directory(directory: Path, overwrite: bool, mark: str) -> None:
    """Create the output directory; refuse one that is not empty, unless it holds an earlier run to overwrite.

    `mark` is the file by which a run is known.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: expected a directory, found a file")
    if directory.is_dir() and any(path.name != ".lock" for path in directory.iterdir()):
        if not overwrite:
            words = "expected an empty directory, found files; choose another or add --overwrite"
            raise UserError(f"{directory}: {words}")
        if not _is_run(directory / mark):
            words = f"expected {mark}, by which a run is known, found none: nothing was removed"
            raise UserError(f"{directory}: {words}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.utime(directory)  # This fails if the directory is not writable: better now than after compiling.
    except OSError as problem:
        words = f"expected a directory that can be written, found: {problem.strerror}"
        raise UserError(f"{directory}: {words}") from None


def _is_run(path: Path) -> bool:
    """Tell whether a file is the request of a run, and not a file of another program."""
    try:
        found = record_in(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None
    except OSError:
        return False
    return found is not None and {"experiment", "preset", "methods", "seeds"} <= found.keys()


def clear(directory: Path) -> None:
    """Remove what a run wrote into its directory, and nothing else; then remove empty folders.

    A folder may be a link to another disk: what the run wrote in it is removed as well.
    """
    for pattern in WRITTEN:
        for path in directory.glob(pattern):
            if not path.is_dir():
                path.unlink()
    folders = ("logs", "outputs", "checkpoints")
    for path in (*directory.glob("checkpoints/*"), *(directory / name for name in folders)):
        with suppress(OSError):  # It is not empty, or a link.
            path.rmdir()
