"""λ, and its answer to ρ = actual / predicted change of the loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Damping:
    """The interface: λ lives in the optimizer's state, the rule is static."""

    needs_ratio: bool = False
    """Whether the rule asks for ρ, which costs an evaluation of the loss."""

    @property
    def calibrates(self) -> bool:
        """Whether the first step looks for its own λ."""
        return False

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
        following = self._at(count + 1, damping.dtype)
        # The state holds no NaN, whatever a schedule may say.
        return jnp.where(jnp.isfinite(following) & (following >= 0), following, damping)

    def refuse(self, damping: Array, count: Array) -> Array:
        """Return what any other step would: constant stays constant."""
        return self.update(damping, damping, count)

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

    initial: float | Literal["calibrate"] = 1.0
    """The first λ; "calibrate" tries the first step with one λ after another until ρ lies in [0.75, 0.95]."""
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
        if isinstance(self.initial, str) and self.initial != "calibrate":
            raise ValueError(f'initial={self.initial!r}: give a positive number or "calibrate".')
        if not 0 < self.bounds[0] <= self._first() <= self.bounds[1]:
            raise ValueError(
                f"initial damping {self.initial} is outside its bounds {self.bounds}, or not positive."
            )
        if not (self.low < self.high and 0 < self.lower_by <= 1 <= self.raise_by):
            raise ValueError("LevenbergMarquardt needs low < high and lower_by <= 1 <= raise_by.")

    def init(self, dtype: Any) -> Array:
        """Return the initial λ."""
        return jnp.asarray(self._first(), dtype)

    @property
    def calibrates(self) -> bool:
        """Whether `initial` is "calibrate"."""
        return self.initial == "calibrate"

    def _first(self) -> float:
        return 1.0 if isinstance(self.initial, str) else self.initial

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


class Calibration(NamedTuple):
    """A search for a λ whose ρ lies in [0.75, 0.95]: trusted, but not so damped that the step is idle.

    Martens' rule of thumb for the first step. λ moves by 8 until it is bracketed, then by bisection of log λ.
    """

    damping: Array
    low: Array
    """The largest λ that was too small; 0 if none."""
    high: Array
    """The smallest λ that was too large; 0 if none."""
    tries: Array
    done: Array

    @classmethod
    def start(cls, damping: Array) -> "Calibration":
        """Start from a first guess."""
        none = jnp.zeros_like(damping)
        return cls(damping, none, none, jnp.zeros((), jnp.int32), jnp.array(False))

    def judge(self, rho: Array, accepted: Array) -> "Calibration":
        """Return the search after one more ρ."""
        small = ~(accepted & jnp.isfinite(rho)) | (rho < 0.75)
        large = ~small & (rho > 0.95)
        low = jnp.where(small, self.damping, self.low)
        high = jnp.where(large, self.damping, self.high)
        between = jnp.sqrt(low) * jnp.sqrt(high)
        outside = jnp.where(small, self.damping * 8, self.damping / 8)
        following = jnp.where((low > 0) & (high > 0), between, outside)
        tries = self.tries + 1
        done = ~(small | large) | (tries >= 20)
        return Calibration(jnp.where(done, self.damping, following), low, high, tries, done)


def calibrated(step: Callable[[Any], tuple[Any, Any, Any]], state: Any) -> tuple[Any, Any, Any]:
    """Return the step of a state; its first is tried with one λ after another until ρ is trusted but not idle."""

    def retry(carry: tuple[Calibration, Any]) -> Array:
        return (state.steps == 0) & ~carry[0].done

    def attempt(carry: tuple[Calibration, Any]) -> tuple[Calibration, Any]:
        search, _ = carry
        params, after, info = step(state._replace(damping=search.damping))
        return search.judge(info.rho, info.accepted), (params, after, info)

    first = attempt((Calibration.start(state.damping), None))
    return jax.lax.while_loop(retry, attempt, first)[1]


def ratio(actual: Array, predicted: Array) -> Array:
    """Return ρ = actual / predicted: positive where the loss fell, NaN where nothing was promised.

    A long step of a line search can leave the region where the model falls; a loss that fell all the same
    counts for the model, so the promise enters by its magnitude.
    """
    promise = -jnp.abs(predicted)
    return jnp.where(promise < 0, actual / jnp.where(promise < 0, promise, -1), jnp.nan)
