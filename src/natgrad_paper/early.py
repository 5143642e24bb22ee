"""Early stopping: a training whose validation error has not fallen for a while ends before its budget."""

import math
from dataclasses import dataclass

from natgrad_paper.log import EARLY


@dataclass(frozen=True)
class Patience:
    """How long a training has been without a lower validation error."""

    allowed: int | None
    """Evaluations in a row; None for a training that is not stopped early."""
    lowest: float | None = None
    """The lowest validation error so far, once there is a finite one."""
    waited: int = 0
    """Evaluations since then."""

    def after(self, errors: dict[str, float]) -> "Patience":
        """Return the patience after an evaluation: the first of the validation errors counts."""
        if self.allowed is None:
            return self
        error = next(value for name, value in errors.items() if name.startswith("valid_"))
        if math.isfinite(error) and (self.lowest is None or error < self.lowest):
            return Patience(self.allowed, error, 0)
        return Patience(self.allowed, self.lowest, self.waited + 1)

    @property
    def ended(self) -> str | None:
        """Why training ends here, if it does."""
        if self.allowed is None or self.waited < self.allowed:
            return None
        return f"{EARLY}: no lower validation error in {self.waited} evaluations"
