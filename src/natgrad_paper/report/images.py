"""Images from logs: pictures of the data, and cases with each method's reconstructions."""

import base64
import math
from typing import Any

import numpy as np

from natgrad_paper.errors import FieldError
from natgrad_paper.report.load import Runs
from natgrad_paper.report.parts import Picture, Table
from natgrad_paper.training.log import RunLog

SHOWN = 12
LARGEST = 1 << 22
"""The most pixels of a record; pictures of a few samples need no more."""


def data(runs: Runs) -> list[Picture | Table]:
    """Return what the data look like, from the first log that has pictures: one for each stage."""
    found = next((each for log in runs.logs if (each := _of(log, "data"))), [])
    return [_shown(record, images) for record, images in found]


def reconstructed(runs: Runs) -> Table | None:
    """Return some cases, and each method's reconstructions of them; None if the logs hold no such pictures."""
    cases: np.ndarray | None = None
    rows: list[tuple[str, Picture]] = []
    for name in runs.methods:
        for log in runs.method(name):
            originals, made = (
                [images for _, images in _of(log, what)] for what in ("original", "reconstruction")
            )
            if not originals or not made:
                continue
            if cases is None:
                cases = originals[0]
                rows.append(("original", strip(cases[0, :SHOWN], "cases of the data", dark(cases))))
            if np.array_equal(originals[0], cases):
                words = f"the same cases as {runs.label(name)} reconstructs them, seed {log.seed}"
                rows.append((runs.label(name), strip(made[0][0, :SHOWN], words, dark(cases))))
                break
    return Table(["method", "at the end of the run"], rows) if rows else None


def dark(images: np.ndarray) -> bool:
    """Whether images are mostly black; such images are shown inverted, as ink on white."""
    return bool(np.median(images) < 64)


def strip(images: np.ndarray, words: str, ink: bool) -> Picture:
    """Return images (number, height, width) side by side on white."""
    shown = np.pad(255 - images if ink else images, ((0, 0), (0, 0), (0, 2)), constant_values=255)
    return Picture(np.hstack(list(shown)), alt=words)


def _shown(record: dict[str, Any], images: np.ndarray) -> Picture | Table:
    title, labels, ink = str(record.get("title")), record.get("labels") or (), dark(images)
    if len(labels) == len(images):
        named = [(str(label), each) for label, each in zip(labels, images, strict=True)]
        return Table(["", title], [(label, strip(each, f"{label}, {title}", ink)) for label, each in named])
    lines, columns, height, width = images.shape
    joined = images.swapaxes(1, 2).reshape(lines * height, columns * width)
    return Picture(255 - joined if ink else joined, title, f"cases of the data, {title}")


def _of(log: RunLog, what: str) -> list[tuple[dict[str, Any], np.ndarray]]:
    """Return a log's pictures of a sort, and their images: bytes of shape (lines, columns, height, width)."""
    where = f"log of {log.method}, seed {log.seed}: pictures"
    return [(record, _decoded(record, where)) for record in log.pictures if record.get("what") == what]


def _decoded(record: dict[str, Any], where: str) -> np.ndarray:
    shape: Any = record.get("shape")
    fits = isinstance(shape, list) and len(shape) == 4 and all(type(n) is int and n > 0 for n in shape)
    if not fits or math.prod(shape) > LARGEST:
        raise FieldError(where, "shape", "[lines, columns, height, width]", shape)
    try:
        raw = base64.b64decode(str(record.get("images")), validate=True)
    except ValueError:  # Not base64, or not even ASCII.
        raise FieldError(where, "images", "bytes in base64", record.get("images")) from None
    if len(raw) != math.prod(shape):
        raise FieldError(where, "images", f"{math.prod(shape)} bytes", len(raw))
    return np.frombuffer(raw, np.uint8).reshape(shape)
