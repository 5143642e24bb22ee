"""Krylov Subspace Descent's search: BFGS over the coefficients of all rows."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from natgrad.directions import Proposal
from natgrad.metric.here import Here
from natgrad.search.base import Found, Probe, Search, if_seen


@dataclass(frozen=True)
class SubspaceBFGS(Search):
    """Minimize L(θ + zᵀB) over z by BFGS from 0: one gradient of the search batch per evaluation.

    It is optax's L-BFGS with a memory as long as the run and no rescaling, which equals BFGS from the identity. The
    search takes its best iterate, and z = 0 is one of them.
    """

    maxiter: int = 20
    maxprobes: int = 20
    """Evaluations in one line search."""

    measures = True

    def __call__(self, here: Here, proposal: Proposal, probe: Probe) -> Found:
        """Return the best point seen."""
        import optax  # here, because it takes as long to import as the rest of natgrad

        linesearch = optax.scale_by_zoom_linesearch(max_linesearch_steps=self.maxprobes)
        bfgs = optax.lbfgs(memory_size=self.maxiter, scale_init_precond=False, linesearch=linesearch)
        evaluate = optax.value_and_grad_from_state(probe)

        def iterate(carry: tuple, _: None) -> tuple[tuple, None]:
            z, state, best, lowest, alive = carry
            change, slope = evaluate(z, state=state)
            better = jnp.isfinite(change) & (change < lowest)
            best, lowest = jnp.where(better, z, best), jnp.where(better, change, lowest)
            alive = alive & jnp.isfinite(change) & jnp.all(jnp.isfinite(slope))
            update, new_state = bfgs.update(slope, state, z, value=change, grad=slope, value_fn=probe)
            moved = optax.apply_updates(z, update)
            keep = alive & jnp.all(jnp.isfinite(moved))
            state = jax.tree.map(lambda new, old: jnp.where(keep, new, old), new_state, state)
            return (jnp.where(keep, moved, z), state, best, lowest, keep), None

        origin = jnp.zeros_like(proposal.slopes)
        start = (origin, bfgs.init(origin), origin, jnp.zeros_like(origin[0]), jnp.array(True))
        # optax mixes integer widths internally, which a user's setting of strict promotion would refuse.
        with jax.numpy_dtype_promotion("standard"):
            (z, state, best, lowest, alive), _ = jax.lax.scan(iterate, start, None, length=self.maxiter)
        last: Array = optax.tree.get(state, "value")
        better = alive & jnp.isfinite(last) & (last < lowest)
        return if_seen(here, jnp.where(better, z, best), jnp.where(better, last, lowest))
