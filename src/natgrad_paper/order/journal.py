"""What is kept of a method and a seed: a line in the log for every finished training, and outputs until compared."""

import hashlib
import io
import os
import shutil
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from natgrad_paper import log
from natgrad_paper.checkpoint import digest
from natgrad_paper.errors import FieldError, UserError
from natgrad_paper.log import FINISHED, Writer


class Journal:
    """The log of a method and a seed, written as trainings finish and read when a run goes on.

    Records are evaluations of `natgrad_paper.log`; their `what` is training, variance or trace, and their `name` says
    of which training. A name that occurs again replaces what was said before.
    """

    def __init__(self, path: Path, header: dict[str, Any], resume: bool, tell: Callable[[str], None]) -> None:
        """Begin a log, or go on with one; `tell` hears of damage to it."""
        self.path = path
        self.header = header
        self._outputs = path.parents[1] / "outputs" / path.stem
        self._done: dict[tuple[str, str], dict[str, Any]] = {}
        going_on = resume and mend(path, tell)
        self.finished = going_on and finished(path)
        """Whether nothing is missing."""
        self.pictured = False
        """Whether it shows what the examples look like."""
        keep = None
        if going_on:
            lines, records = before_end(path)
            for field in ("config", "data"):
                if digest(records[0].get(field)) != digest(header[field]):
                    raise UserError(f"{path}: {field}: expected that of the run to go on with, found another")
            said = [record for record in records if record.get("record") == "evaluation"]
            self._done = {(record["what"], record["name"]): record for record in said}
            self.pictured = any(record.get("record") == "samples" for record in records)
            keep = path.stat().st_size if self.finished else len(lines)
        self.writer = Writer(path, header, keep)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        # Whatever ends the run later, a finished log is finished.
        self.writer.__exit__(*((None, None, None) if self.finished else (kind, value, traceback)))

    def found(self, what: str, name: str) -> dict[str, Any] | None:
        """Return a record written before, if there is one."""
        return self._done.get((what, name))

    def write(self, what: str, name: str, **fields: Any) -> dict[str, Any]:
        """Append a record and return it; what was said before, but for the clocks, is not said again."""
        record = {"record": "evaluation", "what": what, "name": name, **fields}
        before = self.found(what, name)
        if before is not None and log.without_times(before) == log.without_times(record):
            return before
        self.writer.write(record)
        self._done[what, name] = record
        return record

    def finish(self) -> None:
        """Say that nothing is missing; outputs, whose variance is in the log by now, go."""
        self.writer.write({"record": "end", "reason": FINISHED})
        self.finished = True
        shutil.rmtree(self._outputs, ignore_errors=True)

    def keep_outputs(self, name: str, outputs: np.ndarray) -> str:
        """Keep a training's outputs, whole or not at all, and return their hash."""
        stream = io.BytesIO()
        np.save(stream, outputs, allow_pickle=False)
        self._outputs.mkdir(parents=True, exist_ok=True)
        aside = self._outputs / f".{name}.npy"
        aside.write_bytes(stream.getvalue())
        os.replace(aside, self._outputs / f"{name}.npy")
        return hashlib.sha256(stream.getvalue()).hexdigest()

    def outputs(self, name: str) -> np.ndarray | None:
        """Return the outputs of a finished training, None unless they are those that the log speaks of."""
        record = self.found("training", name)
        try:
            raw = (self._outputs / f"{name}.npy").read_bytes()
        except OSError:
            return None
        if record is None or hashlib.sha256(raw).hexdigest() != record.get("outputs"):
            return None
        return np.asarray(np.load(io.BytesIO(raw), allow_pickle=False))

    def drop_outputs(self, names: list[str]) -> None:
        """Remove outputs that have been compared."""
        for name in names:
            (self._outputs / f"{name}.npy").unlink(missing_ok=True)


def mend(path: Path, tell: Callable[[str], None]) -> bool:
    """Cut a damaged log off before its first damaged line; return whether there is a log to go on with.

    Trainings are done in the order of their lines, and again to the same end: nothing is lost but time.
    """
    if not path.exists():
        return False
    try:
        log.read(path)
    except FieldError as damage:
        if damage.field == "format":  # Another version's, and in order.
            raise
        good = sum(len(line) for line, _ in log.sound(path))
        tell(f"{damage}: what was done from there on is done again")
        os.truncate(path, good)
        return good > 0
    return True


def before_end(path: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the lines of a log up to where it says that it ended, and their records."""
    found = list(takewhile(lambda pair: pair[1].get("record") != "end", log.sound(path)))
    return b"".join(line for line, _ in found), [record for _, record in found]


def finished(path: Path) -> bool:
    """Whether a log says that nothing is missing; one that is damaged says nothing."""
    try:
        return path.exists() and log.read(path).end == FINISHED
    except FieldError:
        return False
