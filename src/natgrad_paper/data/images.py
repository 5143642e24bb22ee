"""A set of images with its name and its hash: an experiment trains on it, and the log records both."""

import hashlib
from dataclasses import dataclass

import numpy as np

from natgrad_paper.errors import FieldError


def hash_of(*arrays: tuple[np.ndarray, str]) -> str:
    """Return the hash of arrays with their shapes, each as numbers of the given type."""
    digest = hashlib.sha256()
    for array, kind in arrays:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, dtype=kind).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Images:
    """Training and test images, one per row, float32 in [0, 1]."""

    name: str
    """What the data is, in the words every figure repeats: generated data never passes for the original."""
    train: np.ndarray
    test: np.ndarray

    def first(self, train: int, test: int, where: str = "") -> "Images":
        """Return the first `train` training and `test` test images; `where` names their source in errors."""
        for wanted, have, what in ((train, self.train, "training"), (test, self.test, "test")):
            if wanted > len(have):
                expected = f"at least {wanted} (data.{what.removesuffix('ing')})"
                raise FieldError(where or self.name, f"{what} images", expected, len(have))
        return Images(self.name, self.train[:train], self.test[:test])

    def sha256(self) -> str:
        """Return the hash of the pixels, as little-endian float32, with both shapes."""
        return hash_of((self.train, "<f4"), (self.test, "<f4"))

    def describe(self) -> dict[str, object]:
        """Return what a log records about the data."""
        shapes = {"train": list(self.train.shape), "test": list(self.test.shape)}
        return {"name": self.name, "sha256": self.sha256(), **shapes}
