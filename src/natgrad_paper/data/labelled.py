"""Faces with their expressions, split as an experiment uses them, under the name that figures repeat."""

from dataclasses import dataclass

import numpy as np

from natgrad_paper.data.images import hash_of
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
    """Labelled faces in three parts, and faces without labels."""

    name: str
    """What the data is: drawn faces never pass for photographs."""
    train: Labelled
    valid: Labelled
    test: Labelled
    unlabelled: np.ndarray
    """uint8, of shape (n, 48, 48)."""

    def first(self, train: int, valid: int, test: int, unlabelled: int) -> "Faces":
        """Return the first faces of each part."""
        wanted = {"training": train, "validation": valid, "test": test, "unlabelled": unlabelled}
        sizes = (len(self.train), len(self.valid), len(self.test), len(self.unlabelled))
        for (what, count), size in zip(wanted.items(), sizes, strict=True):
            if count > size:
                raise UserError(f"{self.name}: {count} {what} images wanted, the data has {size}")
        parts = (self.train.first(train), self.valid.first(valid), self.test.first(test))
        return Faces(self.name, *parts, self.unlabelled[:unlabelled])

    def sha256(self) -> str:
        """Return the hash of all pixels and labels, with their shapes."""
        parts = (self.train, self.valid, self.test)
        arrays = [pair for part in parts for pair in ((part.images, "u1"), (part.labels, "<i4"))]
        return hash_of(*arrays, (self.unlabelled, "u1"))

    def describe(self) -> dict[str, object]:
        """Return what a log records about the data."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        shapes = {name: list(part.images.shape) for name, part in parts.items()}
        shapes["unlabelled"] = list(self.unlabelled.shape)
        return {"name": self.name, "sha256": self.sha256(), **shapes}
