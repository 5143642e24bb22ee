"""λ, and its answer to what a step did: ρ = actual / predicted change of the loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from natgrad.part import Named, Part, require

CALM = 32
"""After this many falls in a row, λ falls as fast as if no minibatch had ever raised it."""

RECENT = 0.9
"""The weight that the average over the last steps keeps after one more step."""

GROWTH = 1.01
"""The factor by which the bound on λ, in units of ‖g‖ / ‖θ‖, grows or falls per step if `shrink` is given."""


class Answer(Named):
    """What λ did after a step, and why. `info.answer` holds it; print it with `ng.Answer.name_of`."""

    KEPT = 0
    """λ stays: ρ lies between the thresholds, or the rule is constant."""
    LOWERED = 1
    """The step kept its promise: ρ is above `high`."""
    RAISED = 2
    """The step broke its promise: ρ is below `low`."""
    LOWERED_UNMEASURABLE = 3
    """The promised and the actual change are too small for the loss to resolve: a smaller λ makes a longer step."""
    RAISED_REFUSED = 4
    """The step was refused, and a shorter one might be accepted."""
    RAISED_STRETCHED = 5
    """dᵀFd of the last step is much larger on this batch than on its own: F was too uncertain for so small a λ."""
    KEPT_REFUSED = 6
    """The step was refused, and not because of λ: a number is not finite at θ, or a search on other examples failed."""
    KEPT_NEGLIGIBLE = 7
    """The step kept its promise, and λ contributes no more to it than rounding: a smaller λ changes nothing."""
    KEPT_UNDONE = 8
    """The step kept its promise, but recent steps have not lowered the loss of the batches that followed."""
    KEPT_LEAST = 9
    """The step kept its promise, and λ is as small as the gradient allows: `least` times ‖g‖ / ‖θ‖, or more."""
    RAISED_SHRUNK = 10
    """dᵀFd of recent steps was much smaller on the next batches than on their own: the steps fit their own batch."""


class Evidence(NamedTuple):
    """What a step tells the rule."""

    rho: Array
    """Actual over predicted change of the loss; 1 if the loss can resolve neither."""
    taken: Array
    """Whether the parameters moved."""
    unmeasurable: Array
    """Whether the loss can resolve neither the promised nor the actual change."""
    blameless: Array
    """Whether λ is not to blame for the refusal: a number was not finite at θ itself, or a search on other examples
    found that the loss rises along the row."""
    suspect: Array
    """Whether the metric's numbers were not finite. The cause may be θ itself or too small a λ."""
    stretch: Array
    """dᵀFd of the last step d on this batch, divided by dᵀFd on its own batch; 0 if it is not known."""
    slope: Array
    """gᵀd of the last step d, with this batch's gradient, over dᵀFd on its own batch; positive if d went too far."""
    fresh: Array
    """Whether this batch differs from the last one: its loss is not the one the last step ended with."""
    steepness: Array
    """‖g‖ / ‖θ‖: with this λ and no curvature, the step −g / λ is as long as θ."""
    share: Array
    """λ's part in the curvature that set the step's length, λ‖d‖² / dᵀ(F + λI)d."""
    steps: Array
    """The number of the step."""


class Record(NamedTuple):
    """What the rule remembers."""

    rises: Array
    """How many times in a row λ has just risen, up to 3."""
    sure: Array
    """λ of the last step that was taken; 0 before the first."""
    calm: Array
    """How freely λ falls, from 0 to 32: a fall adds 1, a rise on a fresh batch takes 16 away."""
    slope: Array
    """A running average of the `slope` of steps on the batches after them."""
    stretch: Array
    """A running average of their `stretch`."""
    home: Array
    """The λ that the first of several rises in a row left, or a smaller one since; 0 before the first step. From
    above, λ falls back to it as quickly as it rose."""
    least: Array
    """λ does not stay below this multiple of ‖g‖ / ‖θ‖."""


class Damping(Part):
    """The interface: λ and a record live in the optimizer's state."""

    needs_ratio: bool = False
    """Whether the rule asks for ρ, which costs an evaluation of the loss."""
    needs_stretch: bool = False
    """Whether the rule asks for the last step's length on the next batch, which costs one JVP."""
    bounds: tuple[float, float] = (0.0, math.inf)
    """The least and the largest λ."""

    @property
    def calibrates(self) -> bool:
        """Whether the first step looks for its own λ."""
        return False

    def init(self, dtype: Any) -> Array:
        """Return the first λ."""
        raise NotImplementedError

    def record(self, dtype: Any) -> Any:
        """Return the record before the first step."""
        return ()

    def predict(self, slope: Array, curvature: Array) -> Array:
        """Return the predicted change of the loss from gᵀd and dᵀ(F + l2·I)d: the quadratic model, without λ."""
        return slope + curvature / 2

    def now(self, damping: Array, steps: Array) -> Array:
        """Return λ of this step from the state's λ: the rule's numbers may have changed since the last step."""
        return damping

    def answer(self, damping: Array, record: Any, seen: Evidence) -> tuple[Array, Any, Array]:
        """Return λ of the next step, the record, and an `Answer`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Damping):
    """λ is fixed, or follows a schedule of the step count."""

    value: float | Callable[[Any], Any]

    def __post_init__(self) -> None:
        require(
            lambda: callable(self.value) or self.value >= 0,
            f"Constant({self.value}): damping cannot be negative.",
        )

    def init(self, dtype: Any) -> Array:
        """Return λ at step 0."""
        return self._at(0, dtype)

    def now(self, damping: Array, steps: Array) -> Array:
        """Return λ at this step. The state holds no NaN, whatever a schedule may say."""
        value = self._at(steps, damping.dtype)
        return jnp.where(jnp.isfinite(value) & (value >= 0), value, damping)

    def answer(self, damping: Array, record: Any, seen: Evidence) -> tuple[Array, Any, Array]:
        """Return λ at the next step, whatever this one did."""
        return self.now(damping, seen.steps + 1), record, jnp.asarray(Answer.KEPT, jnp.int32)

    def _at(self, count: Any, dtype: Any) -> Array:
        value = self.value(count) if callable(self.value) else self.value
        return jnp.asarray(value).astype(dtype)


@dataclass(frozen=True)
class LevenbergMarquardt(Damping):
    """Raise λ where the model of the loss promised too much, lower it where it can be trusted.

        ρ < low: λ ← raise_by · λ        ρ > high: λ ← lower_by · λ

    If ρ > 0.9, λ ← lower_by³ · λ. A second rise in a row multiplies λ by raise_by², every further one by raise_by³: a
    few steps correct a λ that is far off. Further rules keep λ from getting stuck:

    * If the loss can resolve neither the promised nor the actual change, that is no evidence against the model: ρ =
      1, λ falls.
    * A refusal raises λ only if a shorter step might have been accepted.
    * λ stops falling once it contributes no more to the step than rounding: the bounds need no knowledge of F's scale.
    * On minibatches ρ is too optimistic: it judges a step on the batch the step was made for. So a step d is measured
      again on the next batch. If dᵀFd is more than `stretch` times as large there, F was too uncertain for so small a
      λ, and λ rises.
    * If dᵀFd of recent steps is on average less than `shrink` times as large on the next batch, steps fit their own
      batch. Then `least` grows by 1% per step, to 1 at most, and lifts λ; otherwise it falls back by 1% per step.
    * λ does not fall while steps do not help the batches that follow. Taking d back would lower the next batch's loss
      by gᵀd − ½dᵀFd. λ stops falling while the average of that over the last steps is positive.
    * Several rises in a row go far beyond what one place asks for. As soon as steps keep their promise, λ falls by
      1 / raise_by per step, until it is near what the first of these rises left.
    * After rises on minibatches λ otherwise falls slowly. The slowest fall multiplies it by the eighth root of 1 /
      raise_by. After every eight falls log λ falls twice as fast. One failure in about seven steps keeps λ where it is
      (Rechenberg's rule has one success in five).

    `reduction` says which promise ρ divides by. "quadratic" (Martens 2010): gᵀd + ½dᵀ(F + l2·I)d. "linear" (the
    paper): gᵀd alone. On a quadratic loss gᵀd is twice the true change, so ρ tends to ½ where the quadratic promise
    gives 1. With an exact line search that ρ is ½ at every step, and λ never moves.
    """

    initial: float | Literal["calibrate"] = 1.0
    """The first λ; "calibrate" tries the first step with one λ after another until ρ lies in [0.75, 0.95]."""
    reduction: Literal["quadratic", "linear"] = "quadratic"
    bounds: tuple[float, float] = (1e-12, 1e12)
    low: float = 0.25
    high: float = 0.75
    raise_by: float = 3 / 2
    lower_by: float = 2 / 3
    stretch: float | None = 2.0
    """The largest ratio of dᵀFd on the next batch to dᵀFd on the step's own batch; None does not measure it."""
    least: float = 0.0
    """λ does not fall below `least` · ‖g‖ / ‖θ‖. This bound has F's own units. It is large as long as batches
    disagree on the gradient, and it vanishes where the model can fit all examples."""
    shrink: float | None = None
    """The ratio of dᵀFd on the next batch to dᵀFd on the step's own batch, averaged over about ten steps, below which
    `least` grows. None leaves `least` alone; `ng.kncg` uses 0.6."""

    needs_ratio = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", tuple(self.bounds))
        if self.reduction not in ("quadratic", "linear"):
            raise ValueError(f'reduction={self.reduction!r}: choose "quadratic" or "linear".')
        if isinstance(self.initial, str) and self.initial != "calibrate":
            raise ValueError(f'initial={self.initial!r}: give a positive number or "calibrate".')
        low, high = self.bounds
        require(
            lambda: 0 < low <= high and (isinstance(self.initial, str) or low <= self.initial <= high),
            f"initial damping {self.initial} is outside its bounds {self.bounds}, or not positive.",
        )
        require(
            lambda: self.low < self.high and 0 < self.lower_by <= 1 <= self.raise_by,
            "LevenbergMarquardt needs low < high and lower_by <= 1 <= raise_by.",
        )
        require(
            lambda: self.stretch is None or self.stretch > 1,
            f"stretch={self.stretch}: give a number above 1, or None.",
        )
        require(lambda: self.least >= 0, f"least={self.least}: give a part of ‖g‖ / ‖θ‖, from 0.")
        require(
            lambda: (
                self.shrink is None
                or (self.stretch is not None and 0 < self.shrink < 1 and 0 < self.least <= 1)
            ),
            f"shrink={self.shrink}: give a number between 0 and 1, beside stretch= and a least= above 0, at most 1.",
        )

    @property
    def needs_stretch(self) -> bool:  # type: ignore[override]
        """Whether `stretch` is given."""
        return self.stretch is not None

    def init(self, dtype: Any) -> Array:
        """Return the initial λ."""
        return jnp.asarray(self._first()).astype(dtype)

    def record(self, dtype: Any) -> Record:
        """Return a record of no moves."""
        sure, slope, stretch, home = (jnp.zeros((), dtype) for _ in range(4))
        rises, calm = jnp.zeros((), jnp.int32), jnp.full((), CALM, jnp.int32)
        return Record(rises, sure, calm, slope, stretch, home, jnp.asarray(self.least).astype(dtype))

    @property
    def calibrates(self) -> bool:
        """Whether `initial` is "calibrate"."""
        return isinstance(self.initial, str)

    def _first(self) -> Any:
        # The search for a λ starts from 1, or as near as the bounds allow.
        return jnp.clip(1.0, *self.bounds) if isinstance(self.initial, str) else self.initial

    def now(self, damping: Array, steps: Array) -> Array:
        """Return λ within the bounds."""
        return jnp.clip(damping, *self.bounds)

    def predict(self, slope: Array, curvature: Array) -> Array:
        """Return the change the chosen model promises."""
        return slope if self.reduction == "linear" else slope + curvature / 2

    def answer(self, damping: Array, record: Record, seen: Evidence) -> tuple[Array, Record, Array]:
        """Return λ moved by what was seen. A ρ that is not a number (a step of length 0) moves nothing."""
        slope, stretch = self._recent(record, seen)
        grown = self._grown(record.least, stretch, seen)
        least = jnp.where(jnp.isfinite(seen.steepness), grown * seen.steepness, 0)
        why = self._why(damping, record, seen, slope > stretch / 2, least)
        falls = (why == Answer.LOWERED) | (why == Answer.LOWERED_UNMEASURABLE)
        rises = (why == Answer.RAISED) | (why == Answer.RAISED_REFUSED) | (why == Answer.RAISED_STRETCHED)

        # Only rises that the step itself causes count as rises in a row.
        own = (why == Answer.RAISED) | (why == Answer.RAISED_REFUSED)
        aside = (why == Answer.KEPT_REFUSED) | (why == Answer.RAISED_STRETCHED)
        row = jnp.where(own, jnp.minimum(record.rises + 1, 3), jnp.where(aside, record.rises, 0))
        # Two batches may have the same loss by chance; four equal losses in a row mean one batch.
        same = (seen.stretch > 0) & ~seen.fresh
        calm = record.calm + jnp.where(falls, 1, 0) - jnp.where(rises & seen.fresh, CALM // 2, 0)
        calm = jnp.clip(calm + jnp.where(same, CALM // 4, 0), 0, CALM).astype(jnp.int32)
        free = jnp.where(seen.rho > 0.9, self.lower_by**3, self.lower_by)
        wary = self.raise_by ** (-(2 ** (calm.astype(damping.dtype) / 8)) / 8)
        fall = jnp.where(calm == CALM, free, jnp.maximum(free, wary))
        home = self._home(damping, record, why, own, falls)
        fall = jnp.where(damping > self.raise_by * home, jnp.minimum(fall, 1 / self.raise_by), fall)
        rise = self.raise_by ** jnp.where(own, row, 1).astype(damping.dtype)
        factor = jnp.where(falls, fall, jnp.where(rises, rise, 1)).astype(damping.dtype)
        moved = jnp.where(
            why == Answer.RAISED_SHRUNK, jnp.minimum(damping / self.lower_by, least), damping * factor
        )
        moved = jnp.clip(moved, *self.bounds).astype(damping.dtype)
        # λ may not be the cause of metric numbers that are not finite, so such steps raise it only so far.
        known = jnp.where(record.sure > 0, record.sure, self._first())
        limit = jnp.maximum(jnp.maximum(3 * known, 1e-6 * self._first()), damping)
        moved = jnp.where(seen.suspect, jnp.minimum(moved, limit), moved)
        sure = jnp.where(seen.taken, damping, record.sure)
        return moved, Record(row, sure, calm, slope, stretch, home, grown), why

    def _home(self, damping: Array, record: Record, why: Array, own: Array, falls: Array) -> Array:
        """Return where λ falls back to after several rises in a row. Evidence of other kinds raises that, too."""
        home = jnp.where(record.home > 0, record.home, damping)
        first = own & (record.rises == 0)
        home = jnp.where(first | (why == Answer.RAISED_STRETCHED), self.raise_by * damping, home)
        home = jnp.where(why == Answer.RAISED_SHRUNK, jnp.maximum(home, damping), home)
        return jnp.where(falls, jnp.minimum(home, damping), home).astype(damping.dtype)

    def _recent(self, record: Record, seen: Evidence) -> tuple[Array, Array]:
        """Return the slope and the stretch of steps on the batches after them, averaged over about ten steps."""
        known = seen.fresh & (seen.stretch > 0) & jnp.isfinite(seen.stretch) & jnp.isfinite(seen.slope)
        # What is beyond raises λ by itself. One odd batch must not rule the averages for long.
        most = 2.0 if self.stretch is None else self.stretch

        def averaged(old: Array, new: Array) -> Array:
            return jnp.where(known, RECENT * old + (1 - RECENT) * new, old).astype(old.dtype)

        slope, stretch = jnp.clip(seen.slope, -most, most), jnp.minimum(seen.stretch, most)
        return averaged(record.slope, slope), averaged(record.stretch, stretch)

    def _grown(self, least: Array, stretch: Array, seen: Evidence) -> Array:
        """Return the multiple of ‖g‖ / ‖θ‖ below which λ does not stay."""
        if self.shrink is None:
            return least
        factor = jnp.where(stretch < self.shrink, GROWTH, 1 / GROWTH)
        moved = jnp.where(seen.fresh & (stretch > 0), jnp.clip(least * factor, self.least, 1), least)
        return moved.astype(least.dtype)

    def _why(self, damping: Array, record: Record, seen: Evidence, undone: Array, least: Array) -> Array:
        """Return the `Answer`: the last cause that applies."""
        why = jnp.asarray(Answer.KEPT, jnp.int32)
        why = jnp.where(seen.rho > self.high, Answer.LOWERED, why)
        why = jnp.where((why == Answer.LOWERED) & seen.fresh & undone, Answer.KEPT_UNDONE, why)
        why = jnp.where((why == Answer.LOWERED) & (damping <= least), Answer.KEPT_LEAST, why)
        if self.shrink is not None:
            why = jnp.where(seen.fresh & (damping < least), Answer.RAISED_SHRUNK, why)
        if self.stretch is not None:
            # The stretch belongs to the last step's λ: a λ that has risen since is not raised again.
            stretched = seen.fresh & (seen.stretch > self.stretch) & (damping <= record.sure)
            why = jnp.where(stretched, Answer.RAISED_STRETCHED, why)
        why = jnp.where(seen.rho < self.low, Answer.RAISED, why)
        why = jnp.where(seen.taken, why, Answer.RAISED_REFUSED)
        why = jnp.where(seen.unmeasurable, Answer.LOWERED_UNMEASURABLE, why)
        lowers = (why == Answer.LOWERED) | (why == Answer.LOWERED_UNMEASURABLE)
        negligible = seen.share < 10 * jnp.finfo(seen.share.dtype).eps
        why = jnp.where(lowers & negligible, Answer.KEPT_NEGLIGIBLE, why)
        return jnp.where(seen.blameless, Answer.KEPT_REFUSED, why).astype(jnp.int32)


def ratio(actual: Array, predicted: Array, resolution: Array | float = 0.0) -> Array:
    """Return ρ = actual / predicted: positive if the loss fell, NaN if the promise is 0 but the change is not.

    If the loss can resolve neither change, ρ is 1 (Conn, Gould & Toint 2000, §17.4.2): rounding is no evidence
    against the model. A long step of a line search can leave the region where the model falls. If the loss fell all
    the same, that counts for the model, so ρ uses the magnitude of the promise.
    """
    promise = -jnp.abs(predicted)
    rho = jnp.where(promise < 0, actual / jnp.where(promise < 0, promise, -1), jnp.nan)
    return jnp.where(unresolved(actual, predicted, resolution), jnp.ones_like(rho), rho)


def unresolved(actual: Array, predicted: Array, resolution: Array | float) -> Array:
    """Tell whether the loss can resolve neither change."""
    return (jnp.abs(actual) <= resolution) & (jnp.abs(predicted) <= resolution)
