"""The form of a problem: as it is, smaller, or with one change that should not hurt a robust method."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Variant = Literal["plain", "inputs", "targets", "batch", "float64"]
PLAIN = "plain"
VARIANTS = {
    PLAIN: "as it is",
    "inputs": "input columns × powers of ten",
    "targets": "targets × 10",
    "batch": "a quarter of the batch",
    "float64": "double precision",
}
"""What the sensitivity runs change, one thing at a time."""
POWERS = (-2, -1, 0, 1, 2)
FACTOR = 10.0
"""The factor of the targets in the variant `targets`."""
QUARTER = 4


@dataclass(frozen=True)
class Form:
    """A variant, and the most cases that a problem may have."""

    variant: str = PLAIN
    train: int | None = None
    test: int | None = None
    batch: int | None = None

    @property
    def float64(self) -> bool:
        """Whether everything is in double precision."""
        return self.variant == "float64"

    @property
    def dtype(self) -> Any:
        """The type of data and parameters."""
        return np.float64 if self.float64 else np.float32

    @property
    def factor(self) -> float:
        """The factor by which targets are multiplied."""
        return FACTOR if self.variant == "targets" else 1.0

    def scales(self, columns: int) -> np.ndarray:
        """Return the factor of each column of the inputs."""
        powers = np.resize(POWERS, columns) if self.variant == "inputs" else np.zeros(columns)
        return (10.0**powers).astype(self.dtype)

    def inputs(self, values: np.ndarray) -> np.ndarray:
        """Return inputs in this form; their last axis has the columns."""
        return values.astype(self.dtype) * self.scales(values.shape[-1])

    def targets(self, values: np.ndarray) -> np.ndarray:
        """Return targets that are numbers in this form."""
        return (values * self.factor).astype(self.dtype)

    def size(self, usual: int) -> int:
        """Return how many cases a batch has."""
        wanted = max(1, usual // QUARTER) if self.variant == "batch" else usual
        return wanted if self.batch is None else min(wanted, self.batch)

    def counts(self, train: int, test: int) -> tuple[int, int]:
        """Return how many training and test cases there are."""
        wanted = (train, self.train), (test, self.test)
        few, more = (usual if most is None else min(usual, most) for usual, most in wanted)
        return few, more
