"""The paper's search for (α, β): scipy's COBYLA, between jitted probes."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from natgrad import tree
from natgrad.directions import Proposal
from natgrad.metric.here import Here
from natgrad.search.base import Found, Probe, Search, if_seen


@dataclass(frozen=True)
class Cobyla(Search):
    """Minimize L(θ + zᵀB) by COBYLA (Powell 1994) from z = (1, 0, …).

    COBYLA itself does not promise a decrease. This search does: it takes the best point seen, and z = 0 is one of
    them. It runs on the host, so the step cannot be traced; `ng.PlaneSearch` is the native search.
    """

    initial_radius: float = 1.0
    final_radius: float = 1e-4
    maxprobes: int = 100

    measures = True
    on_host = True

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return the best point seen."""
        from scipy.optimize import minimize

        assert here.search is not None
        # The last step is 0 at first. A row of zeros is left out of the search.
        alive = np.flatnonzero(np.diagonal(np.asarray(tree.gram(proposal.rows))) > 0)
        best_z, best_change = np.zeros(proposal.slopes.shape[0]), 0.0
        # COBYLA builds linear models of the values it gets, so it gets a large finite number in place of an infinity.
        wall = 1e3 * (1 + float(np.sum(np.abs(proposal.slopes))))

        def phi(part: np.ndarray) -> float:
            nonlocal best_z, best_change
            z = np.zeros_like(best_z)
            z[alive] = part
            change = float(probe(jnp.asarray(z, proposal.slopes.dtype)))
            if np.isfinite(change) and change < best_change:
                best_z, best_change = z, change
            return change if np.isfinite(change) else wall

        if alive.size and np.isfinite(float(here.search.resolution)):
            start = np.zeros(alive.size)
            start[0] = 1.0
            options = {"rhobeg": float(self.initial_radius), "maxiter": self.maxprobes}
            minimize(phi, start, method="COBYLA", tol=float(self.final_radius), options=options)
        kind = proposal.slopes.dtype
        return if_seen(here, jnp.asarray(best_z, kind), jnp.asarray(best_change, kind))
