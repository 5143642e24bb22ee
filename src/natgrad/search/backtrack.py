"""Hessian-Free's search: pick among the rows by backtracking, then shorten until the loss has fallen enough."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad.search.base import Found, Local, Probe, Search


@dataclass(frozen=True)
class Armijo(Search):
    """Shorten a row until L(θ + αd) ≤ L(θ) + c α gᵀd: α = initial, ×0.8, … (Martens 2010: c = 10⁻², 60 trials)."""

    decrease: float = 1e-2
    shorten: float = 0.8
    maxprobes: int = 60
    initial: float | Callable[[Any], Any] = 1.0
    """The first length, or a schedule of it."""

    measures = True

    def __post_init__(self) -> None:
        if not (0 <= self.decrease < 1 and 0 < self.shorten < 1 and self.maxprobes > 0):
            raise ValueError("Armijo needs 0 <= decrease < 1, 0 < shorten < 1 and maxprobes > 0.")

    def __call__(self, probe: Probe, local: Local) -> Found:
        """Return the first length that is good enough, or 0."""
        if local.slopes.shape != (1,):
            raise ValueError(f"Armijo needs one row; this direction gives {local.slopes.shape[0]}.")
        return self.along(jnp.ones_like(local.slopes), probe, local, None)

    def along(self, row: Array, probe: Probe, local: Local, loss: Array | None) -> Found:
        """Search along zᵀB for z = α·row; `loss` is the value at α = 1, if known and if that is where to start."""
        assert local.loss is not None
        start, slope = local.loss, row @ local.slopes
        initial = self.initial(local.steps) if callable(self.initial) else self.initial
        first = jnp.asarray(initial).astype(row.dtype)
        loss = probe(first * row) if loss is None or self.initial != 1.0 else loss

        def enough(alpha: Array, loss: Array) -> Array:
            return jnp.isfinite(loss) & (loss < start) & (loss <= start + self.decrease * alpha * slope)

        def unfinished(carry: tuple[Array, Array, Array]) -> Array:
            probes, alpha, loss = carry
            return (probes < self.maxprobes) & ~enough(alpha, loss)

        def shorten(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            probes, alpha, _ = carry
            alpha = self.shorten * alpha
            return probes + 1, alpha, probe(alpha * row).astype(start.dtype)

        carry = (jnp.ones((), jnp.int32), first, loss.astype(start.dtype))
        _, alpha, loss = jax.lax.while_loop(unfinished, shorten, carry)
        found = enough(alpha, loss)
        return Found(jnp.where(found, alpha, 0) * row, jnp.where(found, loss, start))


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
            loss = probe(row(i))
            return jnp.where(jnp.isfinite(loss), loss, jnp.inf)

        def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            i, loss, _ = carry
            earlier = value(i + 1)
            better = earlier < loss
            return jnp.where(better, i + 1, i), jnp.where(better, earlier, loss), better

        def unfinished(carry: tuple[Array, Array, Array]) -> Array:
            return carry[2] & (carry[0] + 1 < count)

        first = jnp.zeros((), jnp.int32)
        i, loss, _ = jax.lax.while_loop(unfinished, step, (first, value(first), jnp.array(True)))
        return self.shorten.along(row(i), probe, local, loss)
