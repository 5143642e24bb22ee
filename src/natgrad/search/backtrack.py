"""Hessian-Free's search: pick among the rows by backtracking, then shorten until the loss has fallen enough."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad.directions import Proposal
from natgrad.metric.here import Here
from natgrad.part import require
from natgrad.search.base import Found, Probe, Search, if_seen, one_row


@dataclass(frozen=True)
class Armijo(Search):
    """Shorten a row until L(θ + αd) ≤ L(θ) + c α gᵀd (Martens 2010: c = 10⁻², by 0.8 at a time, 60 trials).

    A length that is far too long is cut to the minimum of the parabola through the known values, but to no less than
    a tenth.
    """

    decrease: float = 1e-2
    shorten: float = 0.8
    maxprobes: int = 60
    initial: float | Callable[[Any], Any] | None = None
    """The first length, or a schedule of it; None is 1, the whole row."""

    measures = True

    def __post_init__(self) -> None:
        require(
            lambda: 0 <= self.decrease < 1 and 0.1 <= self.shorten < 1 and self.maxprobes > 0,
            "Armijo needs 0 <= decrease < 1, 0.1 <= shorten < 1 and maxprobes > 0.",
        )

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return the first length that is good enough, or 0."""
        one_row(self, proposal)
        return self.along(jnp.ones_like(proposal.slopes), here, proposal, probe, None)

    def along(self, row: Array, here: Here, proposal: Proposal, probe: Probe, change: Array | None) -> Found:
        """Search along zᵀB for z = α·row; `change` is the change of the loss at α = 1, if the search starts there."""
        slope = jnp.sum(row * proposal.slopes)
        initial = self.initial(here.steps) if callable(self.initial) else self.initial
        first = jnp.asarray(1.0 if initial is None else initial).astype(row.dtype)
        change = probe(first * row) if change is None or initial is not None else change

        def enough(alpha: Array, change: Array) -> Array:
            return jnp.isfinite(change) & (change < 0) & (change <= self.decrease * alpha * slope)

        def unfinished(carry: tuple[Array, Array, Array]) -> Array:
            probes, alpha, change = carry
            # A row that does not lead down is not shortened.
            return (slope < 0) & (probes < self.maxprobes) & ~enough(alpha, change)

        def shorten(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            probes, alpha, change = carry
            # The minimum of α gᵀd + ½κα², with κ from the change at α. A change that is not finite says only "far too
            # long".
            bottom = -slope * alpha**2 / (2 * (change - alpha * slope))
            part = jnp.where(jnp.isfinite(change), bottom / alpha, 0)
            alpha = alpha * jnp.clip(part, 0.1, self.shorten)
            return probes + 1, alpha, probe(alpha * row).astype(row.dtype)

        carry = (jnp.ones((), jnp.int32), first, change.astype(row.dtype))
        _, alpha, change = jax.lax.while_loop(unfinished, shorten, carry)
        return if_seen(here, alpha * row, jnp.where(enough(alpha, change), change, 0))


@dataclass(frozen=True)
class Backtrack(Search):
    """Go from the first row (the solver's last iterate) to earlier ones while the loss falls; then apply Armijo."""

    shorten: Armijo = Armijo()

    measures = True

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return the length along the first row whose successor has no lower loss."""
        count = proposal.slopes.shape[0]

        def row(i: Array) -> Array:
            return (jnp.arange(count, dtype=jnp.int32) == i).astype(proposal.slopes.dtype)

        def value(i: Array) -> Array:
            # The solver did not fill a row of slope 0: it is not an iterate.
            change = probe(row(i)).astype(proposal.slopes.dtype)
            return jnp.where(jnp.isfinite(change) & (proposal.slopes[i] != 0), change, jnp.inf)

        def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            i, change, _ = carry
            earlier = value(i + 1)
            better = earlier < change
            return jnp.where(better, i + 1, i), jnp.where(better, earlier, change), better

        def unfinished(carry: tuple[Array, Array, Array]) -> Array:
            return carry[2] & (carry[0] + 1 < count)

        first = jnp.zeros((), jnp.int32)
        i, change, _ = jax.lax.while_loop(unfinished, step, (first, value(first), jnp.array(True)))
        return self.shorten.along(row(i), here, proposal, probe, change)
