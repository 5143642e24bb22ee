"""The coefficients z: how far to go along the rows.

A search gets what is known at θ, the proposed rows, and `probe(z)`, the change of the loss on the search batch from θ
to θ + zᵀB.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions import Proposal
from natgrad.metric.here import Here
from natgrad.metric.operator import Operator
from natgrad.orthogonal import eigenvectors
from natgrad.part import Part, require

Probe = Callable[[Array], Array]
"""z ↦ L(θ + zᵀB) − L(θ)."""


class Found(NamedTuple):
    """The end of a search."""

    z: Array
    change: Array | None = None
    """The change of the loss on the search batch, if measured."""
    curvature: Array | None = None
    """dᵀFd for d = zᵀB, if the search computed it on the way."""
    damping: Array | None = None
    """λ of the row that was taken, if every row has its own."""
    predicted: Array | None = None
    """The change that this row promised, if it is not the quadratic model's."""


class Search(Part):
    """The interface."""

    measures: bool = False
    """Whether the search probes the loss. If so, it never raises it; z = 0 means that it found nothing lower."""
    on_host: bool = False
    """Whether the search runs outside JAX, between jitted probes: such a step cannot be traced."""

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return z."""
        raise NotImplementedError


@dataclass(frozen=True)
class FixedRate(Search):
    """z = rate: a float, or an optax schedule of the step count."""

    rate: float | Callable[[Any], Any] = 1.0

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return the rate."""
        one_row(self, proposal)
        rate = self.rate(here.steps) if callable(self.rate) else self.rate
        rate = rate if here.rate is None else here.rate
        return Found(jnp.full_like(proposal.slopes, rate))


@dataclass(frozen=True)
class KLRadius(Search):
    """The paper's "KL = constant": z = √(2δ / dᵀFd), so that ½ dᵀFd = δ, and at most max_rate."""

    radius: float
    max_rate: float = 1.0

    def __post_init__(self) -> None:
        require(
            lambda: self.radius > 0 and self.max_rate > 0,
            f"KLRadius({self.radius}, {self.max_rate}): both must be positive.",
        )

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return the largest rate whose KL is within the radius."""
        one_row(self, proposal)
        one = jnp.ones_like(proposal.slopes)
        curvature = metric_of(here, self).divergence(tree.first(proposal.rows))
        # dᵀFd can be 0 (a dead direction): then the bound on the rate decides.
        rate = jnp.sqrt(2 * self.radius / jnp.maximum(curvature, jnp.finfo(one.dtype).tiny))
        rate = jnp.where(jnp.isfinite(curvature), jnp.minimum(rate, self.max_rate), jnp.nan)
        return Found(rate * one, curvature=rate**2 * curvature)


@dataclass(frozen=True)
class QuadraticModel(Search):
    """z from the model of the loss itself: argmin c·z + ½ zᵀQz, Q = B(F + (λ + l2)I)Bᵀ, c = gᵀB.

    For rows from a preconditioner with a `scale`, its λS replaces λI.

    One JVP per row gives the exact metric on the subspace. There is no probe of the loss, and no solve larger than
    rows × rows.
    """

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return −Q⁻¹c, with Q scaled to a unit diagonal: the rows' lengths differ by orders of magnitude."""
        metric = metric_of(here, self)
        metric_part = metric.gram(proposal.rows)
        if proposal.scale is None:
            model = metric_part + here.shift * tree.gram(proposal.rows)
        else:
            model = metric_part + here.damping * tree.gram(proposal.scaled)
            if here.shift is not here.damping:  # The penalty l2 keeps its I.
                model = model + (here.shift - here.damping) * tree.gram(proposal.rows)
        scale = jnp.sqrt(jnp.diagonal(model))
        scale = jnp.where(scale == 0, 1, scale)
        values, vectors = eigenvectors(model / jnp.outer(scale, scale))
        # Of two rows that rounding cannot tell apart, one direction is left out.
        kept = ~(values <= jnp.sqrt(jnp.finfo(values.dtype).eps) / 300 * jnp.max(values))
        inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)
        z = -tree.matmul(vectors, inverse * tree.matmul(vectors.T, proposal.slopes / scale)) / scale
        return Found(z, curvature=None if metric.damps else tree.matmul(z, tree.matmul(metric_part, z)))


def one_row(search: Search, proposal: Proposal) -> None:
    """Refuse several rows: one length does not say how to combine them."""
    if proposal.slopes.shape != (1,):
        raise ValueError(
            f"{type(search).__name__} needs one row; this direction gives {proposal.slopes.shape[0]}."
        )


def if_seen(here: Here, z: Array, change: Array) -> Found:
    """Return z if the loss falls there by more than it can resolve, else 0."""
    assert here.search is not None
    seen = jnp.isfinite(change) & (change < -here.search.resolution)
    return Found(jnp.where(seen, z, 0), jnp.where(seen, change, 0))


def metric_of(here: Here, search: Search) -> Operator:
    """Return the metric, or refuse a search that cannot work without one."""
    if here.metric is None:
        raise ValueError(
            f"{type(search).__name__} measures steps in the metric, and this direction has none."
        )
    return here.metric
