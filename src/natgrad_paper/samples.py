"""Sample reconstructions out of logs: cases of the data and what each method makes of them, as small images."""

import base64
import binascii
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
    shape: Any = log.samples.get("shape")
    fits = isinstance(shape, list) and len(shape) == 3 and all(type(n) is int and n > 0 for n in shape)
    if not fits or math.prod(shape) > LARGEST:
        raise FieldError(where, "shape", "[number, height, width]", shape)
    return _decoded(where, log.samples, "cases", shape), _decoded(
        where, log.samples, "reconstructions", shape
    )


def _decoded(where: str, record: dict[str, Any], field: str, shape: Sequence[int]) -> np.ndarray:
    try:
        raw = base64.b64decode(str(record.get(field)), validate=True)
    except binascii.Error:
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
    stream = io.BytesIO()
    metadata: Any = {"Software": None}
    matplotlib.image.imsave(stream, np.repeat(row[:, :, None], 3, axis=2), format="png", metadata=metadata)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
