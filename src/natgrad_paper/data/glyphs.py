"""Characters before deformation: 32×32 pictures of the 62 digits and letters, embedded or from a file.

The embedded ones are rendered from 201 handwriting fonts under the SIL Open Font License 1.1 or the Apache License
2.0, as distributed in the npm packages @fontsource/<name>; `glyphs.npz` lists each font with its licence, and
`tools/embed_glyphs.py` says how it was made.
"""

import functools
import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from natgrad_paper.data.arrays_file import ArrayFile
from natgrad_paper.data.deform import SIDE
from natgrad_paper.errors import FieldError

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CLASSES = len(CHARACTERS)
EMBEDDED = "handwriting fonts"
LEVELS = 16
"""Grey levels of the embedded pictures."""
LARGEST_COUNT = 1_000_000
"""The most pictures, a gigabyte of pixels. NIST has 800,000 characters."""


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
    file = resources.files("natgrad_paper.data").joinpath("glyphs.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        packed, labels = archive["packed"], archive["labels"]
    levels = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1, SIDE, SIDE)
    return sort(EMBEDDED, levels * np.uint8(255 // (LEVELS - 1)), labels)


def read(path: Path) -> Glyphs:
    """Return the glyphs of an `.npz` or `.mat` file with `images` (n, 32, 32) uint8 and `labels` (n,), 0..61.

    Labels follow the order 0-9 A-Z a-z. Types and shapes are checked before anything is loaded.
    """
    file = ArrayFile(path, "characters")
    count = file.count_images("images", SIDE, range(CLASSES, LARGEST_COUNT + 1), "n")
    file.numbers("labels", (count,), (count, 1), (1, count))  # MATLAB has no arrays of one axis.
    images, labels = file.load("images", "labels")
    labels = file.whole_numbers("labels", labels.ravel(), range(CLASSES))
    empty = np.flatnonzero(images.reshape(count, -1).max(axis=1) == 0)
    if len(empty):
        raise FieldError(file.where, "images", "ink in every picture", f"none in picture {empty[0]}")
    missing = np.flatnonzero(np.bincount(labels, minlength=CLASSES) == 0)
    if len(missing):
        found = f"no {missing[0]} (the character {CHARACTERS[missing[0]]})"
        raise FieldError(file.where, "labels", f"each of 0 to {CLASSES - 1} at least once", found)
    return sort(path.name, images, labels)
