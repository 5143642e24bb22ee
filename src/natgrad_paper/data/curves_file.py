"""The Curves data as a file: the original `digs3pts_1.mat`, or one that `natgrad data` wrote."""

import os
import re
from pathlib import Path

import numpy as np
import scipy.io

from natgrad_paper.data.arrays_file import ArrayFile
from natgrad_paper.data.curves import SIDE, TEST, TRAIN
from natgrad_paper.data.images import Images
from natgrad_paper.errors import FieldError

ORIGINAL = "Curves (original)"
PIXELS = SIDE * SIDE
PARTS = {"bdata": TRAIN, "bdatatest": TEST}
LONGEST_NAME = 60


def read(path: Path) -> Images:
    """Return the images of a `.mat` or `.npz` file after checking shape, type, range and finiteness.

    Shapes are checked before pixels are loaded. A file without a `name` is taken for the original,
    and must then have its exact shape.
    """
    file = ArrayFile(path, "the Curves data")
    regenerated = "name" in file.headers
    for part, rows in PARTS.items():
        shape = file.header(part, "an array of images").shape
        counts = range(1, rows + 1) if regenerated else (rows,)
        if len(shape) != 2 or shape[1] != PIXELS or shape[0] not in counts:
            raise FieldError(file.where, part, f"shape ({rows}, {PIXELS})", str(shape))
        file.numbers(part, shape)
    name = _name(file) if regenerated else ORIGINAL
    pixels = zip(PARTS, file.load(*PARTS), strict=True)
    return Images(name, *(_checked(file.where, part, values) for part, values in pixels))


def write(path: Path, images: Images) -> None:
    """Write the images with their name, as `.mat` or `.npz` by the ending; never leave half a file."""
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
    """Return the name that `write` gave, after a check, because it goes into every figure."""
    expected, header = f"a plain text of at most {LONGEST_NAME} letters", file.headers["name"]
    texts = ("char", *(f"<U{n}" for n in range(LONGEST_NAME + 1)))
    if header.shape not in ((), (1,)) or header.kind not in texts:
        raise FieldError(file.where, "name", expected, f"shape {header.shape}, {header.kind}")
    name = "".join(file.load("name")[0].ravel()[:1].tolist())
    if not re.fullmatch(rf"[\w ().,-]{{1,{LONGEST_NAME}}}", name):
        raise FieldError(file.where, "name", expected, repr(name))
    if name == ORIGINAL:
        raise FieldError(file.where, "name", "another name than the original's", repr(name))
    return name


def _checked(where: str, part: str, values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise FieldError(where, part, "finite pixels", f"{values[row, column]} at row {row}, column {column}")
    if values.min() < 0 or values.max() > 1:
        raise FieldError(where, part, "pixels between 0 and 1", f"{values.min():g} to {values.max():g}")
    return np.ascontiguousarray(values, dtype=np.float32)
