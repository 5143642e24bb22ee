"""The Curves data as a file: the original `digs3pts_1.mat`, or one that `natgrad data` wrote."""

import os
import re
from pathlib import Path

import numpy as np
import scipy.io

from natgrad_paper.data.arrays_file import ArrayFile, open_arrays
from natgrad_paper.data.curves import SIDE, TEST, TRAIN
from natgrad_paper.data.images import Images
from natgrad_paper.errors import FieldError

ORIGINAL = "Curves (original)"
PIXELS = SIDE * SIDE
PARTS = {"bdata": TRAIN, "bdatatest": TEST}
LONGEST_NAME = 60
LARGEST_FILE = 1 << 30
"""Bytes. The original takes 188 MB as doubles, so a gigabyte is something else."""


def read(path: Path) -> Images:
    """Return the images of a `.mat` or `.npz` file after checking shape, type, range and finiteness.

    Shapes are checked before pixels are loaded. A file without a `name` is taken for the original,
    and must then have its exact shape.
    """
    file = open_arrays(path, "the Curves data", LARGEST_FILE)
    where, headers = file.where, file.headers
    regenerated = "name" in headers
    for part, rows in PARTS.items():
        shape = file.header(part, "an array of images").shape
        fits = (
            len(shape) == 2
            and shape[1] == PIXELS
            and (shape[0] == rows or (regenerated and 0 < shape[0] <= rows))
        )
        if not fits:
            raise FieldError(where, part, f"shape ({rows}, {PIXELS})", str(tuple(shape)))
        file.numbers(part, shape)
    name = _name(file) if regenerated else ORIGINAL
    loaded = file.load(list(PARTS))
    return Images(name, *(_checked(where, part, loaded[part]) for part in PARTS))


def write(path: Path, images: Images) -> None:
    """Write the images with their name, as `.mat` or `.npz` by the ending; never half a file."""
    arrays = {"name": np.array([images.name]), "bdata": images.train, "bdatatest": images.test}
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as stream:
            if path.suffix == ".mat":
                scipy.io.savemat(stream, arrays, do_compression=True)
            elif path.suffix == ".npz":
                np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
            else:
                raise FieldError(str(path), "ending", ".mat or .npz", path.suffix or "none")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _name(file: ArrayFile) -> str:
    """Return the name that `write` gave, after checking that it is one: it goes into every figure."""
    expected, header = f"a plain text of at most {LONGEST_NAME} letters", file.headers["name"]
    if header.shape not in ((), (1,)) or header.kind not in (
        "char",
        *(f"<U{n}" for n in range(LONGEST_NAME + 1)),
    ):
        raise FieldError(file.where, "name", expected, f"shape {header.shape}, {header.kind}")
    found = np.asarray(file.load(["name"])["name"]).ravel()
    name = str(found[0]) if found.size else ""
    if not re.fullmatch(rf"[\w ().,-]{{1,{LONGEST_NAME}}}", name):
        raise FieldError(file.where, "name", expected, repr(name))
    if name == ORIGINAL:
        raise FieldError(file.where, "name", "another name than the original's", repr(name))
    return name


def _checked(where: str, part: str, values: object) -> np.ndarray:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        raise FieldError(
            where, part, "an array of real numbers", getattr(values, "dtype", type(values).__name__)
        )
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise FieldError(where, part, "finite pixels", f"{values[row, column]} at row {row}, column {column}")
    if values.min() < 0 or values.max() > 1:
        raise FieldError(where, part, "pixels between 0 and 1", f"{values.min():g} to {values.max():g}")
    return np.ascontiguousarray(values, dtype=np.float32)
