"""SPRING (Goldshlager, Abrahamsen & Lin 2024): momentum in the regularizer, not in the step."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from natgrad import tree
from natgrad.directions.base import Around, Descent, Proposal
from natgrad.directions.natural import Natural
from natgrad.metric.here import Here
from natgrad.part import require
from natgrad.solve.direct import Direct
from natgrad.tree import Tree


class SpringMemory(NamedTuple):
    """What SPRING starts from."""

    inner: Tree
    direction: Tree
    """d₋, before its length was chosen."""


@dataclass(frozen=True)
class Spring(Around):
    """d = argmin gᵀd + ½ dᵀFd + (λ/2) ‖d − μd₋‖², that is d = −(F + λI)⁻¹ (g − λμ d₋).

    Along F's null space, where the batch has no information, d keeps μ times the last direction, so what earlier
    batches said is not forgotten. μ = 0 is the natural gradient. Any search may choose the length.
    """

    momentum: float = 0.9
    """μ."""
    inner: Descent = Natural(Direct())

    def __post_init__(self) -> None:
        require(lambda: 0 <= self.momentum < 1, f"Spring({self.momentum}): give a momentum from 0 to 1.")

    def init(self, theta: Tree) -> SpringMemory:
        """Return no direction."""
        return SpringMemory(self.inner.init(theta), tree.zeros_like(theta))

    def propose(self, here: Here, memory: SpringMemory) -> Proposal:
        """Return d."""
        pulled = tree.axpy(-here.damping * self.momentum, memory.direction, here.gradient)
        natural, inner, solver = self.inner.natural(replace(here, gradient=pulled), memory.inner)
        row = tree.scale(-1, natural)
        return Proposal.along(here, (row,), SpringMemory(inner, row), solver)

    def forget(self, before: SpringMemory, after: SpringMemory) -> SpringMemory:
        """Start again from the natural gradient."""
        return SpringMemory(self.inner.forget(before.inner, after.inner), tree.zeros_like(before.direction))
