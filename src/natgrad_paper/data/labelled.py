"""Faces with their expressions, split as an experiment uses them, under the name that figures repeat."""

import hashlib
from dataclasses import dataclass

import numpy as np

from natgrad_paper.errors import UserError

FACE_SIDE = 48
EXPRESSIONS = ("anger", "disgust", "fear", "happy", "sad", "surprise", "neutral")
"""In the order of the labels 0..6; files count them from 1."""


@dataclass(frozen=True)
class Labelled:
    """Images with a label each."""

    images: np.ndarray
    """uint8, of shape (n, 48, 48)."""
    labels: np.ndarray
    """int32, 0..6, of shape (n,)."""

    def first(self, count: int) -> "Labelled":
        """Return the first `count` of them."""
        return Labelled(self.images[:count], self.labels[:count])

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Faces:
    """Labelled faces in three parts, and faces whose expression nobody wrote down."""

    name: str
    """What the data is: drawn faces never pass for photographs."""
    train: Labelled
    valid: Labelled
    test: Labelled
    unlabelled: np.ndarray
    """uint8, of shape (n, 48, 48)."""

    def first(self, train: int, valid: int, test: int, unlabelled: int) -> "Faces":
        """Return the first faces of each part."""
        for what, count, part in (
            ("training", train, self.train.images),
            ("validation", valid, self.valid.images),
            ("test", test, self.test.images),
            ("unlabelled", unlabelled, self.unlabelled),
        ):
            if count > len(part):
                raise UserError(f"{self.name}: {count} {what} images wanted, the data has {len(part)}")
        return Faces(
            self.name,
            self.train.first(train),
            self.valid.first(valid),
            self.test.first(test),
            self.unlabelled[:unlabelled],
        )

    def sha256(self) -> str:
        """Return the hash of all pixels and labels, with their shapes."""
        digest = hashlib.sha256()
        for part in (self.train, self.valid, self.test):
            for array, kind in ((part.images, "u1"), (part.labels, "<i4")):
                digest.update(repr(array.shape).encode())
                digest.update(np.ascontiguousarray(array, dtype=kind).tobytes())
        digest.update(repr(self.unlabelled.shape).encode())
        digest.update(np.ascontiguousarray(self.unlabelled, dtype="u1").tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return what a log records about the data."""
        return {
            "name": self.name,
            "sha256": self.sha256(),
            "train": list(self.train.images.shape),
            "valid": list(self.valid.images.shape),
            "test": list(self.test.images.shape),
            "unlabelled": list(self.unlabelled.shape),
        }
