"""Pictures out of logs: what the data look like, and cases with what each method makes of them, as small images."""

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib.image
import numpy as np

from natgrad_paper.errors import FieldError
from natgrad_paper.log import RunLog
from natgrad_paper.series import Runs

SHOWN = 12
LARGEST = 1 << 22
"""Pixels of a record; more is not a handful of samples."""


def images(log: RunLog) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (cases, reconstructions) as bytes of shape (n, height, width), if the log has them."""
    if log.samples is None:
        return None
    where = f"log of {log.header['method']['name']}, seed {log.header['seed']}: samples"
    shape = _shape(where, log.samples, "[number, height, width]", 3)
    return _decoded(where, log.samples, "cases", shape), _decoded(
        where, log.samples, "reconstructions", shape
    )


def sights(logs: Sequence[RunLog]) -> list[tuple[str, np.ndarray]]:
    """Return (stage, images) of what the data look like, from the first log that has them.

    The images are bytes of shape (lines, columns, height, width).
    """
    for log in logs:
        where = f"log of {log.header['method']['name']}, seed {log.header['seed']}: sight"
        found = []
        for record in log.sights:
            shape = _shape(where, record, "[lines, columns, height, width]", 4)
            found.append((str(record.get("stage")), _decoded(where, record, "images", shape)))
        if found:
            return found
    return []


def _shape(where: str, record: dict[str, Any], words: str, length: int) -> list[int]:
    shape: Any = record.get("shape")
    fits = isinstance(shape, list) and len(shape) == length and all(type(n) is int and n > 0 for n in shape)
    if not fits or math.prod(shape) > LARGEST:
        raise FieldError(where, "shape", words, shape)
    return list(shape)


def _decoded(where: str, record: dict[str, Any], field: str, shape: Sequence[int]) -> np.ndarray:
    try:
        raw = base64.b64decode(str(record.get(field)), validate=True)
    except ValueError:  # Not base64, or not even ASCII.
        raise FieldError(where, field, "bytes in base64", record.get(field)) from None
    if len(raw) != math.prod(shape):
        raise FieldError(where, field, f"{math.prod(shape)} bytes", len(raw))
    return np.frombuffer(raw, np.uint8).reshape(shape)


def strips(runs: Sequence[Runs]) -> tuple[np.ndarray, list[tuple[Runs, int, np.ndarray]]] | None:
    """Return some cases, and for each method with samples of them (method, seed, reconstructions)."""
    cases: np.ndarray | None = None
    rows = []
    for group in runs:
        for log in group.logs:
            found = images(log)
            if found is None:
                continue
            if cases is None:
                cases = found[0]
            if np.array_equal(found[0], cases):
                rows.append((group, int(log.header["seed"]), found[1][:SHOWN]))
                break
    return None if cases is None else (cases[:SHOWN], rows)


def address(strip: np.ndarray) -> str:
    """Return images side by side, ink dark on white, as a data address for a page."""
    count, height, width = strip.shape
    row = np.full((height, count * (width + 2) - 2), 255, np.uint8)
    for k, image in enumerate(strip):
        row[:, k * (width + 2) : k * (width + 2) + width] = 255 - image
    return _png(row)


def montage(images: np.ndarray) -> str:
    """Return images in lines and columns, as bright as they are, as a data address for a page."""
    lines, columns, height, width = images.shape
    return _png(images.swapaxes(1, 2).reshape(lines * height, columns * width))


def _png(picture: np.ndarray) -> str:
    """Return a picture of gray levels as a data address."""
    stream = io.BytesIO()
    metadata: Any = {"Software": None}
    matplotlib.image.imsave(
        stream, np.repeat(picture[:, :, None], 3, axis=2), format="png", metadata=metadata
    )
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
