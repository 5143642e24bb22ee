"""The log of a run: JSON lines, a header first, then steps and evaluations, then why it ended.

Every line is written whole and flushed, so whatever stops a run leaves a log that can be read.
"""

import gzip
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from natgrad_paper.config import WORDS
from natgrad_paper.errors import FieldError, UserError, naming
from natgrad_paper.stop import GivenUp, Stopped

FORMAT = 1
LONGEST = 1 << 28
"""Bytes that a log may have, unpacked."""
FINISHED = "finished"
"""The reason of an end that used up its budget."""
DEAD = "steps in a row"
"""In the reason of an end that came because steps led nowhere."""
EARLY = "stopped early"
"""How the reason of an end begins that the run's own patience decided; any other is an end before its time."""
FIELDS: dict[str, dict[str, type]] = {
    "header": {
        "experiment": str, "preset": str, "seed": int, "config": dict, "versions": dict, "cores": int, "platform": str,
        "method.name": str, "method.label": str, "method.color": str, "method.order": int,
        "data.name": str, "data.sha256": str,
    },
    "evaluation": {
        "iteration": int, "training_seconds": float, "evaluation_seconds": float, "compile_seconds": float
    },
    "part": {"what": str, "name": str},
    "step": {"iteration": int},
    "resumed": {"iteration": int},
    "end": {"reason": str},
}  # fmt: skip
"""What a record of a kind has at least."""
TIMES = frozenset(
    {"started", "training_seconds", "evaluation_seconds", "compile_seconds", "generating_seconds"}
)
"""The fields in which two runs of the same seed may differ."""


@dataclass(frozen=True)
class Mark:
    """A place in a log: how many bytes come before it, and their hash."""

    size: int
    sha256: str

    def fits(self, path: Path) -> bool:
        """Whether the file still begins as it did."""
        try:
            with path.open("rb") as stream:
                if os.fstat(stream.fileno()).st_size < self.size:
                    return False
                start = stream.read(self.size)
        except OSError:
            return False
        return len(start) == self.size and hashlib.sha256(start).hexdigest() == self.sha256


class Writer:
    """Writes a log, one record at a time."""

    def __init__(self, path: Path, header: dict[str, Any], keep: int | None = None) -> None:
        """Begin a log, or go on with one: `keep` is how many of its bytes are good."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        # Unbuffered: what a full disk refused must not be tried again when the file is closed.
        self._stream = path.open("wb" if keep is None else "r+b", buffering=0)
        self._hash = hashlib.sha256()
        try:
            if keep is None:
                self.write({"record": "header", "format": FORMAT, **header})
            else:
                with path.open("rb") as before:
                    self._hash.update(before.read(keep))
                self._stream.truncate(keep)
                self._stream.seek(keep)
        except BaseException:
            self._stream.close()
            raise

    def write(self, record: dict[str, Any]) -> None:
        """Append a record. JSON has no NaN or infinity: they become null."""
        line = (json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n").encode()
        with naming(self._path):
            rest = memoryview(line)
            while rest:  # The first part of a line may still fit on a disk that has no room for the next.
                rest = rest[self._stream.write(rest) :]
        self._hash.update(line)

    @property
    def mark(self) -> "Mark":
        """The log so far, on the disk: a checkpoint must never know more than its log."""
        with naming(self._path):
            os.fsync(self._stream.fileno())
        return Mark(self._stream.tell(), self._hash.hexdigest())

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._stream, suppress(OSError):  # Of a disk that is full the first refusal tells enough.
            if kind is not None:
                self.write({"record": "end", "reason": _reason(kind, value)})


def _reason(kind: type[BaseException], value: BaseException | None) -> str:
    """Return in a word or a sentence what an exception means for a run."""
    if issubclass(kind, KeyboardInterrupt | Stopped):
        return "interrupted"
    return str(value) if issubclass(kind, GivenUp) else kind.__name__


class Silent:
    """Writes nothing: for a process whose log another one writes."""

    def write(self, record: dict[str, Any]) -> None:
        """Leave the record to the other."""

    @property
    def mark(self) -> "Mark":
        """Nothing so far."""
        return Mark(0, "")

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *exception: object) -> None:
        pass


@dataclass(frozen=True)
class RunLog:
    """A log, read."""

    header: dict[str, Any]
    evaluations: tuple[dict[str, Any], ...]
    end: str | None
    """Why the run ended; None when it was cut off."""
    steps: tuple[dict[str, Any], ...] = ()
    """Single steps, in the optimizer's own words: all at first, then fewer and fewer."""
    samples: dict[str, Any] | None = None
    """Pictures of cases and their reconstructions, if the run left any."""
    sights: tuple[dict[str, Any], ...] = ()
    """What the data look like, a record a stage; in one log of a run."""


def done(end: str | None) -> bool:
    """Whether a training with this end came to it as it should: nothing is left to do."""
    return end is not None and (end == FINISHED or end.startswith(EARLY))


def dead(end: str | None) -> bool:
    """Whether a training with this end was given up because its steps led nowhere."""
    return end is not None and DEAD in end


def read(path: Path) -> RunLog:
    """Return the log in a file. A last line that is no record, cut short, is left out; other damage is an error."""
    lines = _text(path).removesuffix("\n").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            raise FieldError(str(path), f"line {number}", "a JSON record", repr(line))
    if not records or records[0].get("record") != "header":
        raise FieldError(str(path), "line 1", "a header record", records[0] if records else "none")
    if records[0].get("format") != FORMAT:
        raise FieldError(str(path), "format", str(FORMAT), records[0].get("format"))
    for number, record in enumerate(records, start=1):
        _check(record, str(path), f"line {number}")
    kinds = _by_kind(records)
    ends, samples = kinds.get("end", []), kinds.get("samples", [])
    return RunLog(
        records[0],
        tuple(kinds.get("evaluation", [])),
        ends[-1]["reason"] if ends else None,
        tuple(kinds.get("step", [])),
        samples[-1] if samples else None,
        tuple(kinds.get("sight", [])),
    )


def sound(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the lines of a log and their records, up to the first that is damaged or cut short."""
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        record = _record(line.decode("utf-8", errors="replace"))
        if record is None or (record.get("record") == "header") != (number == 1):
            return
        try:
            _check(record, str(path), f"line {number}")
        except FieldError:
            return
        yield line + b"\n", record


def _record(line: str) -> dict[str, Any] | None:
    """Return the record in a line, None where there is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _check(record: dict[str, Any], where: str, line: str) -> None:
    """Refuse a record that lacks what its readers rely on."""
    # The evaluations of a study are parts of it, with numbers of their own.
    name = "part" if "what" in record else str(record.get("record"))
    for field, kind in FIELDS.get(name, {}).items():
        value: Any = record
        for key in field.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise FieldError(where, f"{line}: {field}", WORDS[kind], value)


def _by_kind(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the records by kind. A resumed run takes back what it had logged beyond the place it resumes at."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record.get("record") == "resumed":
            kinds["end"], kinds["samples"] = [], []
            for kind in ("evaluation", "step"):
                kinds[kind] = [old for old in kinds.get(kind, []) if old["iteration"] <= record["iteration"]]
        kinds.setdefault(record.get("record", ""), []).append(record)
    return kinds


def _text(path: Path) -> str:
    """Return a log's text; one that ends in .gz is unpacked, as far as a log can be long."""
    try:
        with path.open("rb") if path.suffix != ".gz" else gzip.open(path) as stream:
            unpacked = stream.read(LONGEST + 1) if path.stat().st_size <= LONGEST else None
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"{path}: expected a readable log, found none ({reason})") from None
    if unpacked is None or len(unpacked) > LONGEST:
        raise UserError(f"{path}: expected a log of at most {LONGEST} bytes, found a longer one")
    return unpacked.decode("utf-8", errors="replace")


def read_all(directory: Path) -> list[RunLog]:
    """Return the logs below a directory, packed ones included, in the order of their names."""
    paths = sorted(directory.glob("logs/*.jsonl*")) or sorted(directory.glob("*.jsonl*"))
    paths = [path for path in paths if path.name.endswith((".jsonl", ".jsonl.gz"))]
    if not paths:
        raise UserError(f"{directory}: expected logs (*.jsonl) of a run, found none")
    return [read(path) for path in paths]


def times_aside(log: RunLog) -> list[dict[str, Any]]:
    """Return the log's records without clock readings: what two runs of the same seed share."""
    records = [log.header, *log.evaluations, *log.steps, {"end": log.end}]
    return [without_times(record) for record in records]


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as it is written, without clock readings."""
    return {name: _plain(value) for name, value in record.items() if name not in TIMES}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        # Nine digits hold any float32 exactly, and keep logs small.
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
