"""Searches by bracketing: along one row, and over the plane of two, with probes of the loss alone."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions import Proposal
from natgrad.metric.here import Here
from natgrad.part import require
from natgrad.search.base import Found, Probe, Search, if_seen, one_row

LONGEST = 10.0
"""The longest step along a line, as a multiple of the quadratic model's, and the largest coefficient in a plane: on a
flat loss ever longer steps look a little lower."""


@dataclass(frozen=True)
class LineSearch(Search):
    """The best step length along one row: bracket by doubling or halving from `initial`, then fit parabolas.

    It needs no gradients, only probes: typically four, at most `maxprobes`. A probe that is not finite counts as too
    far. The search returns the best point seen, or 0.
    """

    initial: float = 1.0
    maxprobes: int = 25
    refinements: int = 2
    """How many parabolas are fitted once the minimum is bracketed."""

    measures = True

    def __post_init__(self) -> None:
        require(
            lambda: self.initial > 0 and self.maxprobes > 0 and self.refinements >= 0,
            "LineSearch needs initial > 0, maxprobes > 0 and refinements >= 0.",
        )

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return the best length seen."""
        one_row(self, proposal)
        zero = jnp.zeros_like(proposal.slopes[0])
        # The search looks forward only: 0 is the low end, and the middle is not known yet.
        start = Bracket(low=Point.origin(zero), middle=Point.unknown(zero), high=Point.unknown(zero))
        limit, curvature = self._limit(here, proposal)

        def within(at: Array) -> Array:
            return jnp.where(at <= limit, probe(at[None]), jnp.inf)

        best = minimize(within, start, self.initial, self.maxprobes, self.refinements).middle
        found = if_seen(here, best.at[None], best.change)
        return found if curvature is None else found._replace(curvature=found.z[0] ** 2 * curvature)

    def _limit(self, here: Here, proposal: Proposal) -> tuple[Any, Array | None]:
        """Return the longest length and dᵀFd of the row; without a metric there is no model, and no limit."""
        if here.metric is None:
            return jnp.inf, None
        row = tree.first(proposal.rows)
        curvature = here.metric.divergence(row)
        bend = here.metric.quadratic(row) if here.metric.damps else curvature
        bend = bend + here.shift * tree.vdot(row, row)
        own = jnp.where(bend > 0, -proposal.slopes[0] / jnp.where(bend > 0, bend, 1), jnp.inf)
        return LONGEST * jnp.maximum(own, self.initial), curvature


@dataclass(frozen=True)
class PlaneSearch(Search):
    """The lowest point in the plane of two rows: NCG-L's (α, β), natively.

    Four line searches (Powell 1964): along row 1, row 2, row 1 again, and the line through the two minima along row 1.
    That line is conjugate to row 1. On a quadratic they end at its minimum.
    """

    maxprobes: int = 12
    """Probes per line search; a plane takes four line searches."""

    measures = True

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return the best point seen."""
        if proposal.slopes.shape != (2,):
            raise ValueError(f"PlaneSearch needs two rows; this direction gives {proposal.slopes.shape[0]}.")
        origin, zero = jnp.zeros_like(proposal.slopes), jnp.zeros_like(proposal.slopes[0])
        first, second = jnp.eye(2, dtype=origin.dtype)

        def within(z: Array) -> Array:
            return jnp.where(jnp.all(jnp.abs(z) <= LONGEST), probe(z), jnp.inf)

        def line(carry: tuple[Array, Array, Array], turn: Array) -> tuple[tuple[Array, Array, Array], None]:
            z, change, first_minimum = carry
            along = jnp.select([turn == 1, turn == 3], [second, z - first_minimum], first)
            # The first row leads down from 0, so some length along it is lower. The other lines are searched in both
            # directions: undoing a part of the last step may help.
            forward = turn == 0
            start = Bracket(
                low=Point(zero, change, forward),
                middle=Point(zero, change, ~forward),
                high=Point.unknown(zero),
            )
            best = minimize(lambda at: within(z + at * along), start, 1.0, self.maxprobes).middle
            moved = z + jnp.where(best.known, best.at, 0) * along
            change = jnp.where(best.known, best.change, change)
            return (moved, change, jnp.where(turn == 0, moved, first_minimum)), None

        (z, change, _), _ = jax.lax.scan(line, (origin, zero, origin), jnp.arange(4))
        return if_seen(here, z, change)


class Point(NamedTuple):
    """A place on the line and the change of the loss there, once known."""

    at: Array
    change: Array
    known: Array

    @classmethod
    def origin(cls, zero: Array) -> "Point":
        """Return 0, where nothing changes."""
        return cls(zero, zero, jnp.array(True))

    @classmethod
    def unknown(cls, zero: Array) -> "Point":
        """Return a point yet to be found."""
        return cls(zero, zero, jnp.array(False))


class Bracket(NamedTuple):
    """low < middle < high, where middle is the lowest point seen. A search first looks for the points not yet known."""

    low: Point
    middle: Point
    high: Point

    def closed(self) -> Array:
        """Tell whether the minimum lies inside."""
        return self.low.known & self.middle.known & self.high.known

    def next(self, initial: float) -> Array:
        """Return the next place to probe: the first one, further on, back, nearer, or the minimum of the parabola."""
        low, middle, high = self
        forward = jnp.where(middle.at > 0, 2 * middle.at, initial)
        backward = jnp.where(middle.at < 0, 2 * middle.at, -initial)
        without_middle = jnp.where(high.known, (low.at + high.at) / 2, initial)
        return jnp.select(
            [~middle.known, ~high.known, ~low.known], [without_middle, forward, backward], self._vertex()
        )

    def with_point(self, new: Point) -> "Bracket":
        """Return the bracket narrowed (or, while it is open, moved) by one more value."""
        low, middle, high = self
        better = new.change < jnp.where(middle.known, middle.change, low.change)
        beyond = ~middle.known | (new.at > middle.at)
        # A new best becomes the middle, and the old one bounds it; a worse point bounds the old middle.
        new_low = _choose(better & beyond & middle.known, middle, _choose(~better & ~beyond, new, low))
        new_high = _choose(better & ~beyond, middle, _choose(~better & beyond, new, high))
        return Bracket(new_low, _choose(better, new, middle), new_high)

    def _vertex(self) -> Array:
        """Return the minimum of the parabola through the three points, kept inside the bracket."""
        (a, fa, _), (b, fb, _), (c, fc, _) = self
        left, right = (b - a) * (fb - fc), (b - c) * (fb - fa)
        vertex = b - ((b - a) * left - (b - c) * right) / (2 * (left - right))
        longer = jnp.where(b - a > c - b, (a + b) / 2, (b + c) / 2)
        # The loss cannot tell points apart that are nearer to b than √eps (Brent 1973).
        margin = jnp.sqrt(jnp.finfo(b.dtype).eps) * (c - a)
        inside = (vertex > a + margin) & (vertex < c - margin) & (jnp.abs(vertex - b) > margin)
        return jnp.where(jnp.isfinite(vertex) & inside, vertex, longer)


def minimize(phi: Probe, start: Bracket, initial: float, maxprobes: int, refinements: int = 2) -> Bracket:
    """Return the bracket after looking for the minimum of phi from `start`."""

    def unfinished(carry: tuple[Array, Array, Bracket]) -> Array:
        probes, fits, _ = carry
        return (probes < maxprobes) & (fits < refinements)

    def look(carry: tuple[Array, Array, Bracket]) -> tuple[Array, Array, Bracket]:
        probes, fits, bracket = carry
        at = bracket.next(initial)
        change = phi(at).astype(at.dtype)
        change = jnp.where(jnp.isfinite(change), change, jnp.inf)
        fits = fits + bracket.closed().astype(fits.dtype)
        return probes + 1, fits, bracket.with_point(Point(at, change, jnp.array(True)))

    none = jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(unfinished, look, (none, none, start))[2]


def _choose(condition: Array, x: Point, y: Point) -> Point:
    return Point(*(jnp.where(condition, u, v) for u, v in zip(x, y, strict=True)))
