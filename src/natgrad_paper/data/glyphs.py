"""Characters before deformation: 32×32 pictures of the 62 digits and letters, embedded or from a file.

The embedded ones are rendered from 201 handwriting fonts under the SIL Open Font License 1.1 or the Apache License
2.0, as distributed in the npm packages @fontsource/<name>; `glyphs.npz` lists each font with its licence, and
`embed_glyphs.py` says how it was made.
"""

import functools
import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from natgrad_paper.data.arrays_file import open_arrays
from natgrad_paper.data.deform import SIDE
from natgrad_paper.errors import FieldError

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CLASSES = len(CHARACTERS)
EMBEDDED = "handwriting fonts"
LEVELS = 16
"""Grey levels of the embedded pictures."""
LARGEST_FILE = 1 << 30
LARGEST_COUNT = 1_000_000
"""As pixels, a gigabyte. The NIST characters are 800,000."""


@dataclass(frozen=True, eq=False)
class Glyphs:
    """Pictures sorted by class, ink bright on 0."""

    name: str
    images: np.ndarray
    """uint8, of shape (n, 32, 32)."""
    counts: np.ndarray
    """int32, of shape (62,): how many pictures each class has, at least one."""

    @property
    def starts(self) -> np.ndarray:
        """Where each class begins."""
        return np.cumsum(self.counts, dtype=np.int32) - self.counts

    def sha256(self) -> str:
        """Return the hash of the pixels and of the sizes of the classes."""
        digest = hashlib.sha256(repr(self.counts.tolist()).encode())
        digest.update(np.ascontiguousarray(self.images).tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return what a log records about the source."""
        return {"name": self.name, "sha256": self.sha256(), "glyphs": list(self.images.shape)}


def sort(name: str, images: np.ndarray, labels: np.ndarray) -> Glyphs:
    """Return pictures with labels 0..61 as a source; every class must occur."""
    order = np.argsort(labels, kind="stable")
    return Glyphs(name, images[order], np.bincount(labels, minlength=CLASSES).astype(np.int32))


@functools.cache
def embedded() -> Glyphs:
    """Return the embedded glyphs."""
    with (
        resources.files("natgrad_paper.data").joinpath("glyphs.npz").open("rb") as stream,
        np.load(stream, allow_pickle=False) as archive,
    ):
        packed, labels = archive["packed"], archive["labels"]
    images = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1, SIDE, SIDE) * np.uint8(
        255 // (LEVELS - 1)
    )
    return sort(EMBEDDED, images, labels)


def read(path: Path) -> Glyphs:
    """Return the glyphs of an `.npz` or `.mat` file with `images` (n, 32, 32) uint8 and `labels` (n,), 0..61.

    Labels follow the order 0-9 A-Z a-z. Types and shapes are checked before anything is loaded.
    """
    file = open_arrays(path, "characters", LARGEST_FILE)
    expected = f"shape (n, {SIDE}, {SIDE}), uint8, n from {CLASSES} to {LARGEST_COUNT}"
    count = file.count_images("images", SIDE, range(CLASSES, LARGEST_COUNT + 1), expected)
    shape = file.header("labels", f"shape ({count},)").shape
    # MATLAB has no arrays of one axis.
    if shape not in ((count,), (count, 1), (1, count)):
        raise FieldError(file.where, "labels", f"shape ({count},)", f"shape {shape}")
    file.numbers("labels", shape)
    loaded = file.load(["images", "labels"])
    images, labels = (
        loaded["images"],
        file.whole_numbers("labels", np.ravel(loaded["labels"]), range(CLASSES)),
    )
    if images.dtype != np.uint8:
        raise FieldError(file.where, "images", "uint8", str(images.dtype))
    empty = np.flatnonzero(images.reshape(count, -1).max(axis=1) == 0)
    if len(empty):
        raise FieldError(file.where, "images", "ink in every picture", f"none in picture {empty[0]}")
    missing = np.flatnonzero(np.bincount(labels, minlength=CLASSES) == 0)
    if len(missing):
        raise FieldError(
            file.where, "labels", f"each of 0 to {CLASSES - 1} at least once",
            f"no {missing[0]} (the character {CHARACTERS[missing[0]]})",
        )  # fmt: skip
    return sort(path.name, images, labels)
