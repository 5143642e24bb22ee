"""Faces from a file: the Toronto Face Database as `TFD_48x48.mat`, or any file with the same fields."""

from pathlib import Path

import numpy as np

from natgrad_paper.data.arrays_file import ArrayFile, open_arrays
from natgrad_paper.data.labelled import EXPRESSIONS, FACE_SIDE, Faces, Labelled
from natgrad_paper.errors import FieldError

CONTENT = "faces"
FOLDS = 5
UNLABELLED, TRAIN, VALID, TEST = range(4)
LARGEST_FILE = 1 << 30
LARGEST_COUNT = 400_000
"""Four times what the Toronto Face Database has; as pixels, a gigabyte."""
TFD_COUNT = 102_236


def read(path: Path, fold: int = 1) -> Faces:
    """Return the faces of a file as one of its five folds splits them, after checking every field.

    `images` (N, 48, 48) uint8; `labs_ex` (N, 1), 1..7 for anger disgust fear happy sad surprise neutral, −1 without
    a label; `folds` (N, 5), 0 without a label, 1 train, 2 valid, 3 test. `fold` counts from 1. Types and shapes are
    checked before anything is loaded. Only a file with the size of the original is called by its name.
    """
    if not 1 <= fold <= FOLDS:
        raise FieldError(str(path), "fold", f"1 to {FOLDS}", fold)
    file = open_arrays(path, CONTENT, LARGEST_FILE)
    count = _count(file)
    loaded = file.load(["images", "labs_ex", "folds"])
    part = file.whole_numbers("folds", loaded["folds"], range(UNLABELLED, TEST + 1))[:, fold - 1]
    label = _labels(file, loaded["labs_ex"])
    # MATLAB keeps the first axis together; here images lie one after another.
    images = np.ascontiguousarray(loaded["images"])
    if images.dtype != np.uint8:
        raise FieldError(file.where, "images", "uint8", str(images.dtype))
    unmarked = np.flatnonzero((part != UNLABELLED) & (label < 0))
    if len(unmarked):
        raise FieldError(
            file.where, "labs_ex", f"1 to {len(EXPRESSIONS)} where folds says train, valid or test",
            f"-1 at row {unmarked[0]}",
        )  # fmt: skip
    split = {}
    for name, number in (("train", TRAIN), ("valid", VALID), ("test", TEST)):
        rows = part == number
        if not rows.any():
            raise FieldError(file.where, f"folds, column {fold}", f"some rows for {name} ({number})", "none")
        split[name] = Labelled(images[rows], label[rows])
    name = "Toronto Face Database" if count == TFD_COUNT else f"faces of {path.name}"
    return Faces(f"{name}, fold {fold}", **split, unlabelled=images[part == UNLABELLED])


def _count(file: ArrayFile) -> int:
    """Return the number of images after comparing all headers with it."""
    expected = f"shape (N, {FACE_SIDE}, {FACE_SIDE}), uint8, N from 1 to {LARGEST_COUNT}"
    count = file.count_images("images", FACE_SIDE, range(1, LARGEST_COUNT + 1), expected)
    for field, columns in (("labs_ex", 1), ("folds", FOLDS)):
        file.numbers(field, (count, columns))
    return count


def _labels(file: ArrayFile, values: object) -> np.ndarray:
    """Return labels 0..6, or −1 for none. The original stores −1 in a type without signs."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "u":
        values = values.view(f"i{values.dtype.itemsize}")
    allowed = range(-1, len(EXPRESSIONS) + 1)
    signed = file.whole_numbers("labs_ex", values, allowed, besides=0)[:, 0]
    return np.where(signed > 0, signed - 1, -1).astype(np.int32)
