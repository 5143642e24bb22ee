"""Faces from a file: the Toronto Face Database as `TFD_48x48.mat`, or any file with the same fields."""

from pathlib import Path

import numpy as np

from natgrad_paper.data.arrays_file import ArrayFile
from natgrad_paper.data.labelled import EXPRESSIONS, FACE_SIDE, Faces, Labelled
from natgrad_paper.errors import FieldError

FOLDS = 5
UNLABELLED, TRAIN, VALID, TEST = range(4)
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
    file = ArrayFile(path, "faces")
    count = file.count_images("images", FACE_SIDE, range(1, LARGEST_COUNT + 1), "N")
    file.numbers("labs_ex", (count, 1))
    file.numbers("folds", (count, FOLDS))
    images, labels, folds = file.load("images", "labs_ex", "folds")
    # MATLAB stores the first axis contiguously; here images lie one after another.
    images = np.ascontiguousarray(images)
    part = file.whole_numbers("folds", folds, range(UNLABELLED, TEST + 1))[:, fold - 1]
    label = _labels(file, labels)
    unmarked = np.flatnonzero((part != UNLABELLED) & (label < 0))
    if len(unmarked):
        expected = f"1 to {len(EXPRESSIONS)} where folds says train, valid or test"
        raise FieldError(file.where, "labs_ex", expected, f"-1 at row {unmarked[0]}")
    split = {}
    for name, number in (("train", TRAIN), ("valid", VALID), ("test", TEST)):
        rows = part == number
        if not rows.any():
            raise FieldError(file.where, f"folds, column {fold}", f"some rows for {name} ({number})", "none")
        split[name] = Labelled(images[rows], label[rows])
    name = "Toronto Face Database" if count == TFD_COUNT else f"faces of {path.name}"
    return Faces(f"{name}, fold {fold}", **split, unlabelled=images[part == UNLABELLED])


def _labels(file: ArrayFile, values: np.ndarray) -> np.ndarray:
    """Return labels 0..6, or −1 for none. The original stores −1 in a type without signs."""
    if values.dtype.kind == "u":
        values = values.view(f"i{values.dtype.itemsize}")
    allowed = range(-1, len(EXPRESSIONS) + 1)
    signed = file.whole_numbers("labs_ex", values, allowed, besides=0)[:, 0]
    return np.where(signed > 0, signed - 1, -1).astype(np.int32)
