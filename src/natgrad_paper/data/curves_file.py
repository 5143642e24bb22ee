"""The Curves data as a file: the original `digs3pts_1.mat`, or one that `natgrad data` wrote."""

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from natgrad_paper.data.curves import SIDE, TEST, TRAIN
from natgrad_paper.data.images import Images
from natgrad_paper.errors import FieldError, UserError

ORIGINAL = "Curves (original)"
PIXELS = SIDE * SIDE
PARTS = {"bdata": TRAIN, "bdatatest": TEST}
LARGEST_FILE = 1 << 30
"""Bytes. The original takes 188 MB as doubles, so a gigabyte is something else."""

Arrays = Mapping[str, Any]
Opened = tuple[dict[str, tuple[int, ...]], Callable[[list[str]], Arrays]]
"""The shapes of a file's arrays, and a function that loads the named ones."""


def read(path: Path) -> Images:
    """Return the images of a `.mat` or `.npz` file after checking shape, type, range and finiteness.

    Shapes are checked before pixels are loaded. A file without a `name` is taken for the original,
    and must then have its exact shape.
    """
    where = str(path)
    if not path.is_file():
        raise UserError(f"{where}: expected a file with the Curves data, found none")
    if path.stat().st_size > LARGEST_FILE:
        raise FieldError(where, "size", f"at most {LARGEST_FILE} bytes", path.stat().st_size)
    shapes, load = _open(path)
    regenerated = "name" in shapes
    for part, rows in PARTS.items():
        if part not in shapes:
            raise FieldError(
                where, part, "an array of images", f"only {', '.join(sorted(shapes)) or 'nothing'}"
            )
        shape = shapes[part]
        fits = (
            len(shape) == 2
            and shape[1] == PIXELS
            and (shape[0] == rows or (regenerated and 0 < shape[0] <= rows))
        )
        if not fits:
            raise FieldError(where, part, f"shape ({rows}, {PIXELS})", str(tuple(shape)))
    loaded = load(["name", *PARTS] if regenerated else list(PARTS))
    name = str(np.asarray(loaded["name"]).ravel()[0]) if regenerated else ORIGINAL
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


def _open(path: Path) -> Opened:
    try:
        if path.suffix == ".npz":
            return _open_npz(path)
        shapes = {name: tuple(shape) for name, shape, _ in scipy.io.whosmat(path)}
        return shapes, lambda names: _guarded(path, lambda: scipy.io.loadmat(path, variable_names=names))
    except UserError:
        raise
    except NotImplementedError:
        raise UserError(f"{path}: expected a MATLAB file of version 5 to 7, found 7.3 (HDF5)") from None
    except Exception as problem:  # scipy raises a dozen types on files that are not what they seem
        raise _unreadable(path, problem) from None


def _open_npz(path: Path) -> Opened:
    shapes = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            with archive.open(entry) as stream:
                version = np.lib.format.read_magic(stream)
                header = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shapes[entry.removesuffix(".npy")] = header(stream)[0]

    def load(names: list[str]) -> Arrays:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}

    return shapes, lambda names: _guarded(path, lambda: load(names))


def _guarded(path: Path, load: Callable[[], Arrays]) -> Arrays:
    try:
        return load()
    except Exception as problem:
        raise _unreadable(path, problem) from None


def _unreadable(path: Path, problem: Exception) -> UserError:
    kind = "an .npz" if path.suffix == ".npz" else "a MATLAB"
    detail = " ".join(str(problem).split()) or type(problem).__name__
    return UserError(
        f"{path}: expected {kind} file with the Curves data, found an unreadable one ({detail[:120]})"
    )


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
