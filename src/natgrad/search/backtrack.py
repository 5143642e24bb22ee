"""Hessian-Free's search: pick among the rows by backtracking, then shorten until the loss has fallen enough."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad.search.base import Found, Local, Probe, Search, if_seen


@dataclass(frozen=True)
class Armijo(Search):
    """Shorten a row until L(θ + αd) ≤ L(θ) + c α gᵀd (Martens 2010: c = 10⁻², by 0.8 at a time, 60 trials).

    A length that is far too long is cut to the bottom of the parabola through what is known, by a tenth at most.
    """

    decrease: float = 1e-2
    shorten: float = 0.8
    maxprobes: int = 60
    initial: float | Callable[[Any], Any] = 1.0
    """The first length, or a schedule of it."""

    measures = True

    def __post_init__(self) -> None:
        if not (0 <= self.decrease < 1 and 0.1 <= self.shorten < 1 and self.maxprobes > 0):
            raise ValueError("Armijo needs 0 <= decrease < 1, 0.1 <= shorten < 1 and maxprobes > 0.")

    def __call__(self, probe: Probe, local: Local) -> Found:
        """Return the first length that is good enough, or 0."""
        if local.slopes.shape != (1,):
            raise ValueError(f"Armijo needs one row; this direction gives {local.slopes.shape[0]}.")
        return self.along(jnp.ones_like(local.slopes), probe, local, None)

    def along(self, row: Array, probe: Probe, local: Local, change: Array | None) -> Found:
        """Search along zᵀB for z = α·row; `change` is the value at α = 1, if known and if that is where to start."""
        slope = jnp.sum(row * local.slopes)
        initial = self.initial(local.steps) if callable(self.initial) else self.initial
        first = jnp.asarray(initial).astype(row.dtype)
        change = probe(first * row) if change is None or self.initial != 1.0 else change

        def enough(alpha: Array, change: Array) -> Array:
            return jnp.isfinite(change) & (change < 0) & (change <= self.decrease * alpha * slope)

        def unfinished(carry: tuple[Array, Array, Array]) -> Array:
            probes, alpha, change = carry
            # A row that does not lead down gets no shorter.
            return (slope < 0) & (probes < self.maxprobes) & ~enough(alpha, change)

        def shorten(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            probes, alpha, change = carry
            # α gᵀd + ½κα² through the change at α: its bottom. A change that is not finite says only "far too long".
            bottom = -slope * alpha**2 / (2 * (change - alpha * slope))
            part = jnp.where(jnp.isfinite(change), bottom / alpha, 0)
            alpha = alpha * jnp.clip(part, 0.1, self.shorten)
            return probes + 1, alpha, probe(alpha * row).astype(row.dtype)

        carry = (jnp.ones((), jnp.int32), first, change.astype(row.dtype))
        _, alpha, change = jax.lax.while_loop(unfinished, shorten, carry)
        return if_seen(local, alpha * row, jnp.where(enough(alpha, change), change, 0))


@dataclass(frozen=True)
class Backtrack(Search):
    """From the first row (the solver's last iterate) go to earlier ones while the loss keeps falling, then Armijo."""

    shorten: Armijo = Armijo()

    measures = True

    def __call__(self, probe: Probe, local: Local) -> Found:
        """Return the length along the row that its successor does not improve upon."""
        count = local.slopes.shape[0]

        def row(i: Array) -> Array:
            return (jnp.arange(count, dtype=jnp.int32) == i).astype(local.slopes.dtype)

        def value(i: Array) -> Array:
            # A row of slope 0 is one the solver did not fill: no step is no iterate.
            change = probe(row(i)).astype(local.slopes.dtype)
            return jnp.where(jnp.isfinite(change) & (local.slopes[i] != 0), change, jnp.inf)

        def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            i, change, _ = carry
            earlier = value(i + 1)
            better = earlier < change
            return jnp.where(better, i + 1, i), jnp.where(better, earlier, change), better

        def unfinished(carry: tuple[Array, Array, Array]) -> Array:
            return carry[2] & (carry[0] + 1 < count)

        first = jnp.zeros((), jnp.int32)
        i, change, _ = jax.lax.while_loop(unfinished, step, (first, value(first), jnp.array(True)))
        return self.shorten.along(row(i), probe, local, change)
