"""The log of a training: JSON lines, a header first, then steps and evaluations, then how it ended.

Every line is written whole and flushed, so a log can be read whatever stopped its run.
"""

import errno
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from natgrad_paper.errors import FieldError, UserError, naming
from natgrad_paper.training.stopping import ROW, Stopped

FORMAT = 2
LONGEST = 1 << 28
"""The most bytes that a log may have, unpacked."""
PACKED = "logs.tar.xz"
"""All logs of a run in one file."""
WORDS = {int: "a whole number", float: "a number", str: "a text", dict: "a table of fields"}
FIELDS: dict[str, dict[str, type]] = {
    "header": {
        "experiment": str, "preset": str, "seed": int, "settings": dict, "versions": dict, "cores": int,
        "platform": str,
        "method.name": str, "method.label": str, "method.color": str, "method.order": int, "training.name": str,
        "data.name": str, "data.sha256": str,
    },
    "evaluation": {
        "iteration": int, "training_seconds": float, "evaluation_seconds": float, "compile_seconds": float
    },
    "measure": {"name": str},
    "step": {"iteration": int},
    "gap": {"iteration": int, "seconds": float},
    "resumed": {"iteration": int},
    "end": {"status": str, "reason": str},
}  # fmt: skip
"""The fields that a record of each kind must have."""
SEVERAL = {
    "evaluation": "evaluations", "step": "steps", "measure": "measures", "pictures": "pictures", "gap": "gaps",
    "resumed": "resumed",
}  # fmt: skip
"""The kinds of records of which a log may have several, and where `RunLog` has them."""
TIMES = frozenset({"started", "training_seconds", "cpu_seconds", "evaluation_seconds", "compile_seconds"})
"""The fields in which two runs of the same seed may differ."""


class Status(StrEnum):
    """How a training ended."""

    FINISHED = "finished"
    """The training used its budget."""
    EARLY = "early"
    """The validation error stopped falling for longer than its patience."""
    GAVE_UP = "gave-up"
    """Its steps achieved nothing."""
    INTERRUPTED = "interrupted"
    """Somebody stopped it; it can be resumed."""
    FAILED = "failed"
    """The machine or the program failed."""


@dataclass(frozen=True)
class RunLog:
    """A log, read."""

    header: dict[str, Any]
    evaluations: tuple[dict[str, Any], ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    """Single steps, as the optimizer reports them: all at first, then fewer and fewer."""
    measures: tuple[dict[str, Any], ...] = ()
    """Numbers that belong to several trainings together."""
    pictures: tuple[dict[str, Any], ...] = ()
    """Pictures of the data, and of cases with the model's reconstructions."""
    gaps: tuple[dict[str, Any], ...] = ()
    """The times at which the process slept."""
    resumed: tuple[dict[str, Any], ...] = ()
    """The iterations at which another process continued."""
    status: Status | None = None
    """How the training ended; None when it was cut off."""
    reason: str = ""
    """The same, in words."""

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.header["method"]["name"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.header["seed"])

    @property
    def training(self) -> str:
        """The name of one of several trainings of a method and a seed; empty for the only one."""
        return str(self.header["training"]["name"])

    @property
    def done(self) -> bool:
        """Whether the training ended as it should: nothing is left to do."""
        return self.status in (Status.FINISHED, Status.EARLY)

    @property
    def gave_up(self) -> bool:
        """Whether the training stopped itself early, without progress or out of patience; its error stays."""
        return self.status in (Status.GAVE_UP, Status.EARLY)

    @property
    def complete(self) -> bool:
        """Whether the training ended by itself: its budget ended, or it made no progress."""
        return bool(self.evaluations) and (self.done or self.gave_up)


@dataclass(frozen=True)
class Mark:
    """A place in a log: how many bytes come before it, and their hash."""

    size: int
    sha256: str

    def fits(self, path: Path) -> bool:
        """Whether the file still begins as it did."""
        try:
            with path.open("rb") as stream:
                start = stream.read(self.size)
        except OSError:
            return False
        return len(start) == self.size and hashlib.sha256(start).hexdigest() == self.sha256


class Writer:
    """Writes a log, one record at a time."""

    def __init__(self, path: Path, header: dict[str, Any], keep: int | None = None) -> None:
        """Begin a log, or continue one: `keep` is how many of its bytes are good."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        # The stream is unbuffered: what a full disk refused must not be written again when the file closes.
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
        line = (json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n").encode()
        with naming(self._path):
            rest = memoryview(line)
            while rest:  # The first part of a line may still fit on a disk that has no room for the rest.
                rest = rest[self._stream.write(rest) :]
        self._hash.update(line)

    def sync(self) -> None:
        """Wait until the log so far is on the disk."""
        with naming(self._path):
            os.fsync(self._stream.fileno())

    @property
    def mark(self) -> Mark:
        """The log so far, on the disk: a checkpoint must never be ahead of its log."""
        self.sync()
        return Mark(self._stream.tell(), self._hash.hexdigest())

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._stream, suppress(OSError):  # If the disk is full, the first error says enough.
            if kind is not None and not issubclass(kind, GeneratorExit):
                stopped = issubclass(kind, KeyboardInterrupt | Stopped)
                status = Status.INTERRUPTED if stopped else Status.FAILED
                self.write({"record": "end", "status": status, "reason": kind.__name__})


def read(path: Path) -> RunLog:
    """Return the log in a file. A last line that was cut short is left out; other damage is an error."""
    try:
        if path.exists() and not path.is_file():  # Reading a pipe would wait forever.
            raise OSError(errno.EINVAL, "not a file", str(path))
        with path.open("rb") if path.suffix != ".gz" else gzip.open(path) as stream:
            raw = stream.read(LONGEST + 1) if path.stat().st_size <= LONGEST else None
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"{path}: expected a readable log, found none ({reason})") from None
    return _read(raw, str(path))


def read_all(directory: Path) -> list[RunLog]:
    """Return the logs of a run, in the order of their names: single files, packed ones, or all in one archive."""
    paths = sorted(directory.glob("logs/*.jsonl*")) or sorted(directory.glob("*.jsonl*"))
    paths = [path for path in paths if path.name.endswith((".jsonl", ".jsonl.gz"))]
    if paths:
        return [read(path) for path in paths]
    archive = directory / PACKED
    if not archive.is_file():
        raise UserError(f"{directory}: expected logs (*.jsonl) of a run, found none")
    try:
        with tarfile.open(archive, "r:xz") as packed:
            found = [_read(raw, f"{archive}: {name}") for name, raw in _members(packed)]
            assert packed.fileobj is not None
            packed.fileobj.seek(packed.offset)
            packed.fileobj.read(tarfile.RECORDSIZE)  # An archive that is cut off has no end: an error.
            return found
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as problem:
        raise UserError(f"{archive}: expected an archive of logs, found none ({problem})") from None


def same_data(directory: Path, sha256: str) -> None:
    """Refuse to resume a run whose logs are of other data."""
    for path in sorted(directory.glob("logs/*.jsonl")):
        with path.open("rb") as stream:
            header = record_in(stream.readline().decode("utf-8", errors="replace")) or {}
        data = header.get("data")
        found = data.get("sha256") if isinstance(data, dict) else None
        if found not in (None, sha256):
            raise UserError(f"{path}: expected the data of the run to resume, found others (--data)")


def _members(packed: tarfile.TarFile) -> Iterator[tuple[str, bytes | None]]:
    for member in sorted(packed.getmembers(), key=lambda member: member.name):
        if not member.isreg() or not member.name.endswith((".jsonl", ".jsonl.gz")):
            continue
        stream = packed.extractfile(member)
        assert stream is not None
        raw = stream.read(LONGEST + 1) if member.size <= LONGEST else None
        if raw is not None and member.name.endswith(".gz"):
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as inner:
                raw = inner.read(LONGEST + 1)
        yield member.name, raw


def _read(raw: bytes | None, where: str) -> RunLog:
    if raw is None or len(raw) > LONGEST:
        raise UserError(f"{where}: expected a log of at most {LONGEST} bytes, found a longer one")
    lines = raw.decode("utf-8", errors="replace").removesuffix("\n").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        record = record_in(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            raise FieldError(where, f"line {number}", "a JSON record", repr(line))
    if not records or records[0].get("record") != "header":
        raise FieldError(where, "line 1", "a header record", records[0] if records else "none")
    if records[0].get("format") == 1:
        records = _translated(records, where)
    if records[0].get("format") != FORMAT:
        raise FieldError(where, "format", str(FORMAT), records[0].get("format"))
    kinds: dict[str, list[dict[str, Any]]] = {}
    for number, record in enumerate(records, start=1):
        _check(record, where, f"line {number}")
        kinds.setdefault(str(record.get("record")), []).append(record)
    end = kinds.get("end", [{}])[-1] if records[-1].get("record") == "end" else {}
    if end and end["status"] not in list(Status):
        raise FieldError(where, "status", " or ".join(Status), end["status"])
    found: dict[str, Any] = {name: tuple(kinds.get(kind, ())) for kind, name in SEVERAL.items()}
    status = Status(end["status"]) if end else None
    return RunLog(records[0], **found, status=status, reason=end.get("reason", ""))


def record_in(line: str) -> dict[str, Any] | None:
    """Return the record in a line; None if there is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _check(record: dict[str, Any], where: str, line: str) -> None:
    """Refuse a record that lacks a field that its readers need."""
    for field, kind in FIELDS.get(str(record.get("record")), {}).items():
        value: Any = record
        for key in field.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise FieldError(where, f"{line}: {field}", WORDS[kind], value)


COLORS = {"ncg-kron": "#D55E00", "nesterov": "#332288", "adam": "#117733", "ksd": "#AA4499"}
"""Colors that could not be told apart in natgrad 0.1, as they are now."""


def _translated(records: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return the records of a log of natgrad 0.1, format 1, in today's format; `kncg` was called `ncg-kron` there."""
    method, settings = records[0].get("method"), records[0].get("config")
    if isinstance(method, dict) and isinstance(name := method.get("name"), str):
        named = {"name": "kncg", "label": "KNCG"} if name == "ncg-kron" else {}
        method = method | named | ({"color": COLORS[name]} if name in COLORS else {})
    if isinstance(settings, dict):
        settings = {"kncg" if name == "kron" else name: value for name, value in settings.items()}
    today = {"training": {"name": ""}, "method": method, "settings": settings}
    translated = [{**records[0], "format": FORMAT, **today}]
    for record in records[1:]:
        match record:
            case {"what": _}:
                raise UserError(
                    f"{where}: expected format {FORMAT}, found figure 2’s format 1, which is read no more"
                )
            case {"record": "end", "reason": str(reason)}:
                early, gave_up = reason.startswith("stopped early"), ROW in reason
                status = "early" if early else "gave-up" if gave_up else reason
                known = status if status in list(Status) else Status.FAILED
                translated.append({"record": "end", "status": str(known), "reason": reason})
            case {"record": "samples", "shape": [int() as count, *size]}:
                for what, field in (("original", "cases"), ("reconstruction", "reconstructions")):
                    shape = {"shape": [1, count, *size], "images": record.get(field)}
                    translated.append({"record": "pictures", "what": what, "title": what, **shape})
            case {"record": "sight"}:
                title = {"what": "data", "title": record.get("stage")}
                translated.append({**record, "record": "pictures", **title})
            case {"method": "ncg-kron"}:
                translated.append({**record, "method": "kncg"})
            case _:
                translated.append(record)
    return translated


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as it is written, without clock readings: what two runs of the same seed share."""
    return {name: plain(value) for name, value in record.items() if name not in TIMES}


def plain(value: Any) -> Any:
    """Return a value as a log holds it."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        # Nine digits hold any float32 exactly, and keep logs small.
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
