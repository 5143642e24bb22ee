"""One row of many: the longest step that keeps enough of its promise (DSGNAR's rule, Webb, Jerad & Cartis 2026)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions import Proposal
from natgrad.metric.here import Here
from natgrad.part import require
from natgrad.search.base import Found, Probe, Search, if_seen

SHORTEST = 1e-9
"""The smallest fraction of the shortest row that is tried."""


@dataclass(frozen=True)
class Pick(Search):
    """Probe every row of a fan; take the first whose ρ, actual over promised change of the loss, is at least `ratio`.

    The rows run from the longest step, with the smallest λ, to the shortest. If no ρ is that large, or `ratio` is
    None, the search takes the row with the lowest loss. If no row lowers the loss, it takes a fraction of the
    shortest row. To take the lowest loss is greedy: in narrow valleys a longer step, which gains less now, leads
    further.
    """

    ratio: float | None = 0.01
    at_once: int | None = None
    """Rows probed at a time; each takes the memory of one loss evaluation. None: one on a CPU, eight elsewhere."""

    measures = True

    def __post_init__(self) -> None:
        require(
            lambda: self.at_once is None or self.at_once >= 1,
            f"Pick(at_once={self.at_once}): give a positive number of rows.",
        )

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return the row."""
        assert here.search is not None
        promises, dampings = proposal.promises, proposal.dampings
        if promises is None or dampings is None:
            raise ValueError(
                "Pick needs rows with a λ and a promise each: use direction=ng.directions.Fan()."
            )
        basis = jnp.eye(promises.shape[0], dtype=promises.dtype)
        together = tree.at_once(len(basis), self.at_once)
        changes = jax.lax.map(probe, basis, batch_size=together).astype(promises.dtype)
        lower = jnp.isfinite(changes) & (changes < -here.search.resolution)
        # If no row does, take the last row, the shortest.
        chosen = jnp.where(jnp.any(lower), jnp.argmin(jnp.where(lower, changes, jnp.inf)), len(basis) - 1)
        if self.ratio is not None:
            kept = lower & (promises < 0) & (changes <= self.ratio * promises)
            chosen = jnp.where(jnp.any(kept), jnp.argmax(kept), chosen)
        length, change = self._shorter(here, basis[-1], probe, lower, changes[chosen])
        found = if_seen(here, length * basis[chosen], change)
        promised = jnp.where(jnp.any(found.z != 0), length * promises[chosen], 0)
        return found._replace(damping=dampings[chosen], predicted=promised)

    def _shorter(
        self, here: Here, shortest: Array, probe: Probe, lower: Array, change: Array
    ) -> tuple[Array, Array]:
        """Return 1 and the change if a row lowers the loss; else a fraction of the shortest row that does, if any.

        If residuals are large, the loss has more curvature than the metric, and even the largest λ is too small.
        """
        assert here.search is not None
        least = -here.search.resolution

        def again(tried: tuple[Array, Array]) -> tuple[Array, Array]:
            length = tried[0] / 10
            return length, probe(length * shortest).astype(change.dtype)

        def going(tried: tuple[Array, Array]) -> Array:
            return ~(tried[1] < least) & (tried[0] > SHORTEST)

        one = jnp.ones((), change.dtype)
        return jax.lax.while_loop(going, again, (one, jnp.where(jnp.any(lower), change, jnp.inf)))
