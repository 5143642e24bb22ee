"""The coefficients z: how far to go along the rows.

A search gets `probe(z)`, the loss on the search batch at θ + zᵀB, and the `Local` picture of the loss at θ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad.tree import Tree

Probe = Callable[[Array], Array]


class Local(NamedTuple):
    """What is known at θ before any probe."""

    rows: Tree
    slopes: Array
    """gᵀB, one number a row."""
    loss: Array | None
    """The loss on the search batch; None unless the search measures it."""
    curvature: Callable[[Array], Array]
    """z ↦ dᵀFd for d = zᵀB: one JVP."""
    steps: Array
    """The number of the step, for schedules."""
    learning_rate: Array | None = None
    """A rate given to this step."""


class Found(NamedTuple):
    """The end of a search."""

    z: Array
    loss: Array | None = None
    """The loss on the search batch at z, if measured."""


class Search:
    """The interface."""

    measures: bool = False
    """Whether it probes the loss. If so it never raises it, and z = 0 means that nothing lower was found."""
    on_host: bool = False
    """Whether it runs outside JAX, between jitted probes: such a step cannot be traced."""

    def __call__(self, probe: Probe, local: Local) -> Found:
        """Return z."""
        raise NotImplementedError


@dataclass(frozen=True)
class FixedRate(Search):
    """z = rate: a float, or an optax schedule of the step count."""

    rate: float | Callable[[Any], Any] = 1.0

    def __call__(self, probe: Probe, local: Local) -> Found:
        """Return the rate for each row."""
        rate = self.rate(local.steps) if callable(self.rate) else self.rate
        rate = rate if local.learning_rate is None else local.learning_rate
        return Found(jnp.full_like(local.slopes, rate))


@dataclass(frozen=True)
class KLRadius(Search):
    """The paper's "KL = constant": z = √(2δ / dᵀFd), so that ½ dᵀFd = δ, and at most max_rate."""

    radius: float
    max_rate: float = 1.0

    def __post_init__(self) -> None:
        if not (self.radius > 0 and self.max_rate > 0):
            raise ValueError(f"KLRadius({self.radius}, {self.max_rate}): both must be positive.")

    def __call__(self, probe: Probe, local: Local) -> Found:
        """Return the largest rate whose KL is within the radius."""
        one = jnp.ones_like(local.slopes)
        curvature = local.curvature(one)
        # dᵀFd can be 0 (a dead direction): then the bound on the rate decides.
        rate = jnp.sqrt(2 * self.radius / jnp.maximum(curvature, jnp.finfo(one.dtype).tiny))
        return Found(jnp.where(jnp.isfinite(curvature), jnp.minimum(rate, self.max_rate), jnp.nan) * one)


@dataclass(frozen=True)
class LineSearch(Search):
    """The best step length along one row: bracket by doubling or halving from `initial`, then fit parabolas.

    Needs no gradients, only probes: typically four, at most `maxprobes`. A probe that is not finite counts as
    too far. Returns the best point seen, or 0.
    """

    initial: float = 1.0
    maxprobes: int = 25
    refinements: int = 2
    """Parabolas fitted once the minimum is bracketed."""

    measures = True

    def __post_init__(self) -> None:
        if not (self.initial > 0 and self.maxprobes > 0 and self.refinements >= 0):
            raise ValueError("LineSearch needs initial > 0, maxprobes > 0 and refinements >= 0.")

    def __call__(self, probe: Probe, local: Local) -> Found:
        """Return the best length seen."""
        assert local.loss is not None
        if local.slopes.shape != (1,):
            raise ValueError(f"LineSearch needs one row; this direction gives {local.slopes.shape[0]}.")
        zero = jnp.zeros((), local.slopes.dtype)
        start = _Bracket(*(_Point(zero, local.loss.astype(zero.dtype), jnp.array(i == 0)) for i in range(3)))

        def unfinished(carry: tuple[Array, Array, _Bracket]) -> Array:
            probes, fits, _ = carry
            return (probes < self.maxprobes) & (fits < self.refinements)

        def body(carry: tuple[Array, Array, _Bracket]) -> tuple[Array, Array, _Bracket]:
            probes, fits, bracket = carry
            closed = bracket.middle.known & bracket.high.known
            at = bracket.next(self.initial)
            loss = probe(at[None]).astype(zero.dtype)
            loss = jnp.where(jnp.isfinite(loss), loss, jnp.inf)
            return (
                probes + 1,
                fits + closed.astype(fits.dtype),
                bracket.with_point(_Point(at, loss, jnp.array(True))),
            )

        count = jnp.zeros((), jnp.int32)
        _, _, bracket = jax.lax.while_loop(unfinished, body, (count, count, start))
        best = bracket.middle
        return Found(jnp.where(best.known, best.at, 0)[None], jnp.where(best.known, best.loss, local.loss))


class _Point(NamedTuple):
    at: Array
    loss: Array
    known: Array


class _Bracket(NamedTuple):
    """low < middle < high with the middle one the lowest; middle and high are unknown at first."""

    low: _Point
    middle: _Point
    high: _Point

    def next(self, initial: float) -> Array:
        """Return where to look: first, further, nearer, or at the bottom of the parabola."""
        low, middle, high = self
        opened = jnp.where(high.known, (low.at + high.at) / 2, jnp.asarray(initial, low.at.dtype))
        return jnp.where(middle.known, jnp.where(high.known, self._vertex(), 2 * middle.at), opened)

    def with_point(self, new: _Point) -> "_Bracket":
        """Return the bracket narrowed (or, while it is open, moved) by one more value."""
        low, middle, high = self
        better = new.loss < jnp.where(middle.known, middle.loss, low.loss)
        beyond = ~middle.known | (new.at > middle.at)
        # A new best becomes the middle, and the old one bounds it; a worse point bounds the old middle.
        new_low = _choose(better & beyond & middle.known, middle, _choose(~better & ~beyond, new, low))
        new_high = _choose(better & ~beyond, middle, _choose(~better & beyond, new, high))
        return _Bracket(new_low, _choose(better, new, middle), new_high)

    def _vertex(self) -> Array:
        """Return the minimum of the parabola through the three points, kept inside the bracket."""
        (a, fa, _), (b, fb, _), (c, fc, _) = self
        left, right = (b - a) * (fb - fc), (b - c) * (fb - fa)
        vertex = b - ((b - a) * left - (b - c) * right) / (2 * (left - right))
        longer = jnp.where(b - a > c - b, (a + b) / 2, (b + c) / 2)
        margin = 0.05 * jnp.minimum(b - a, c - b)
        inside = (vertex > a + margin) & (vertex < c - margin) & (jnp.abs(vertex - b) > margin)
        return jnp.where(jnp.isfinite(vertex) & inside, vertex, longer)


def _choose(condition: Array, x: _Point, y: _Point) -> _Point:
    return _Point(*(jnp.where(condition, u, v) for u, v in zip(x, y, strict=True)))
