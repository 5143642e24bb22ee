"""λ, and its answer to ρ = actual / predicted change of the loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from jax import Array


class Damping:
    """The interface: λ lives in the optimizer's state, the rule is static."""

    needs_ratio: bool = False
    """Whether the rule asks for ρ, which costs an evaluation of the loss."""

    def init(self, dtype: Any) -> Array:
        """Return the first λ."""
        raise NotImplementedError

    def predict(self, slope: Array, curvature: Array) -> Array:
        """Return the predicted change of the loss from gᵀd and dᵀ(F + l2·I)d: the quadratic model, without λ."""
        return slope + curvature / 2

    def update(self, damping: Array, rho: Array, count: Array) -> Array:
        """Return the λ of the step after one that was taken; `count` is that step's number."""
        raise NotImplementedError

    def refuse(self, damping: Array, count: Array) -> Array:
        """Return the λ of the step after one that was refused."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Damping):
    """λ fixed, or a schedule of the step count."""

    value: float | Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.value) and not self.value >= 0:
            raise ValueError(f"Constant({self.value}): damping cannot be negative.")

    def init(self, dtype: Any) -> Array:
        """Return λ at step 0."""
        return self._at(0, dtype)

    def update(self, damping: Array, rho: Array, count: Array) -> Array:
        """Return λ at the next step."""
        return self._at(count + 1, damping.dtype)

    def refuse(self, damping: Array, count: Array) -> Array:
        """Return what any other step would: constant stays constant."""
        return self._at(count + 1, damping.dtype)

    def _at(self, count: Any, dtype: Any) -> Array:
        value = self.value(count) if callable(self.value) else self.value
        return jnp.asarray(value).astype(dtype)


@dataclass(frozen=True)
class LevenbergMarquardt(Damping):
    """Raise λ where the model of the loss promised too much, lower it where it can be trusted.

        ρ < low: λ ← raise_by · λ        ρ > high: λ ← lower_by · λ

    `reduction` says which promise ρ divides by. "quadratic" (Martens 2010): gᵀd + ½dᵀ(F + l2·I)d. "linear" (the
    paper): gᵀd alone; on a quadratic it is twice the true change, so ρ tends to ½ where the other tends to 1.
    """

    initial: float = 1.0
    reduction: Literal["quadratic", "linear"] = "quadratic"
    bounds: tuple[float, float] = (1e-8, 1e8)
    low: float = 0.25
    high: float = 0.75
    raise_by: float = 3 / 2
    lower_by: float = 2 / 3

    needs_ratio = True

    def __post_init__(self) -> None:
        if self.reduction not in ("quadratic", "linear"):
            raise ValueError(f'reduction={self.reduction!r}: choose "quadratic" or "linear".')
        if not 0 < self.bounds[0] <= self.initial <= self.bounds[1]:
            raise ValueError(
                f"initial damping {self.initial} is outside its bounds {self.bounds}, or not positive."
            )
        if not (self.low < self.high and 0 < self.lower_by <= 1 <= self.raise_by):
            raise ValueError("LevenbergMarquardt needs low < high and lower_by <= 1 <= raise_by.")

    def init(self, dtype: Any) -> Array:
        """Return the initial λ."""
        return jnp.asarray(self.initial, dtype)

    def predict(self, slope: Array, curvature: Array) -> Array:
        """Return the change the chosen model promises."""
        return slope if self.reduction == "linear" else slope + curvature / 2

    def update(self, damping: Array, rho: Array, count: Array) -> Array:
        """Return λ moved by ρ; a ρ that is not a number (a step of length 0) moves nothing."""
        factor = jnp.where(rho < self.low, self.raise_by, jnp.where(rho > self.high, self.lower_by, 1.0))
        return self._scale(damping, factor)

    def refuse(self, damping: Array, count: Array) -> Array:
        """Return λ raised."""
        return self._scale(damping, jnp.asarray(self.raise_by))

    def _scale(self, damping: Array, factor: Array) -> Array:
        return jnp.clip(damping * factor.astype(damping.dtype), *self.bounds)


def ratio(actual: Array, predicted: Array) -> Array:
    """Return ρ = actual / predicted: positive where the loss fell, NaN where nothing was promised.

    A long step of a line search can leave the region where the model falls; a loss that fell all the same
    counts for the model, so the promise enters by its magnitude.
    """
    promise = -jnp.abs(predicted)
    return jnp.where(promise < 0, actual / jnp.where(promise < 0, promise, -1), jnp.nan)
