"""The coefficients z: how far to go along the rows.

A search gets `probe(z)`, the change of the loss on the search batch from θ to θ + zᵀB, and the `Local` picture of
the loss at θ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.operator import Operator
from natgrad.orthogonal import eigenvectors
from natgrad.tree import Tree

Probe = Callable[[Array], Array]
"""z ↦ L(θ + zᵀB) − L(θ)."""
# Not in the reduced precision that accelerators take for products.
_exactly = partial(jnp.matmul, precision="highest")


class Local(NamedTuple):
    """What is known at θ before any probe."""

    rows: Tree
    slopes: Array
    """gᵀB, one number a row."""
    resolution: Array | None
    """The least change of the loss on the search batch that can be seen; None unless the search measures it."""
    shift: Array
    """λ + l2, what the solver adds to the metric's diagonal."""
    metric: Operator | None
    """The metric at θ; None for a direction without one, and for a search on the host."""
    steps: Array
    """The number of the step, for schedules."""
    learning_rate: Array | None = None
    """A rate given to this step."""


class Found(NamedTuple):
    """The end of a search."""

    z: Array
    change: Array | None = None
    """The change of the loss on the search batch, if measured."""
    curvature: Array | None = None
    """dᵀFd for d = zᵀB, if the search computed it on the way."""


class Search:
    """The interface."""

    measures: bool = False
    """Whether it probes the loss. If so it never raises it, and z = 0 means that nothing visibly lower was found."""
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
        curvature = metric_of(local, self).divergence(tree.combine(one, local.rows))
        # dᵀFd can be 0 (a dead direction): then the bound on the rate decides.
        rate = jnp.sqrt(2 * self.radius / jnp.maximum(curvature, jnp.finfo(one.dtype).tiny))
        rate = jnp.where(jnp.isfinite(curvature), jnp.minimum(rate, self.max_rate), jnp.nan)
        return Found(rate * one, curvature=rate**2 * curvature)


@dataclass(frozen=True)
class QuadraticModel(Search):
    """z from the model of the loss itself: argmin c·z + ½ zᵀQz, Q = B(F + (λ + l2)I)Bᵀ, c = gᵀB.

    One JVP a row gives the exact metric on the subspace: no probe of the loss, no solve beyond rows × rows.
    """

    cutoff: float | None = None
    """Directions whose scaled curvature is below this part of the largest are left alone; default √eps / 300."""

    def __call__(self, probe: Probe, local: Local) -> Found:
        """Return −Q⁻¹c, scaled to a unit diagonal first: the rows' lengths differ by orders of magnitude."""
        metric = metric_of(local, self)
        metric_part = metric.gram(local.rows)
        model = metric_part + local.shift * tree.gram(local.rows)
        scale = jnp.sqrt(jnp.diagonal(model))
        scale = jnp.where(scale == 0, 1, scale)
        values, vectors = eigenvectors(model / jnp.outer(scale, scale))
        cutoff = jnp.sqrt(jnp.finfo(values.dtype).eps) / 300 if self.cutoff is None else self.cutoff
        kept = ~(values <= cutoff * jnp.max(values))
        inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)
        z = -_exactly(vectors, inverse * _exactly(vectors.T, local.slopes / scale)) / scale
        return Found(z, curvature=None if metric.damps else _exactly(z, _exactly(metric_part, z)))


def if_seen(local: Local, z: Array, change: Array) -> Found:
    """Return z if the loss falls visibly there, else 0."""
    assert local.resolution is not None
    seen = jnp.isfinite(change) & (change < -local.resolution)
    return Found(jnp.where(seen, z, 0), jnp.where(seen, change, 0))


def metric_of(local: Local, search: Search) -> Operator:
    """Return the metric, or say which search cannot do without one."""
    if local.metric is None:
        raise ValueError(
            f"{type(search).__name__} measures steps in the metric, and this direction has none."
        )
    return local.metric
