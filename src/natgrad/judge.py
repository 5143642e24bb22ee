"""What a step did: its outcome, and the evidence for the damping rule."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.damping import Evidence, unresolved
from natgrad.directions import Proposal
from natgrad.metric.here import Here, LastStep
from natgrad.problem import working
from natgrad.search import Found
from natgrad.solve.result import Reason
from natgrad.state import Outcome
from natgrad.trial import Trial, penalty


def outcome(opt: Any, here: Here, proposal: Proposal, found: Found, trial: Trial) -> Array:
    """Return the `Outcome`. Finiteness is tested first, numbers are compared after; the earliest cause is named."""
    # A length is finite only if every entry is, and a slope only if its row is, so no further passes are needed.
    gradient_ok = tree.is_finite(trial.grad_norm, () if here.loss is None else here.loss)
    curvature = () if here.metric is None else trial.curvature
    metric_ok = tree.is_finite(proposal.slopes, trial.step_norm, curvature)
    # In half precision a sum can overflow where its terms do not.
    metric_ok &= tree.is_finite([leaf for leaf in jax.tree.leaves(trial.moved) if leaf.dtype.itemsize < 4])
    loss_ok = _starts_finite(here, trial, opt.measures_ratio) & tree.is_finite(found.change)
    if opt.measures_ratio:
        loss_ok &= jnp.isfinite(trial.actual)

    result = jnp.asarray(Outcome.ACCEPTED, jnp.int32)
    if opt.least_ratio is not None:
        # The test is not "below": a ρ of NaN counts as a broken promise too.
        result = jnp.where(trial.rho >= opt.least_ratio, result, Outcome.REJECTED)
    if opt.measures_ratio:
        unseen = unresolved(trial.actual, trial.predicted, trial.start.resolution)
        result = jnp.where(unseen, Outcome.UNMEASURABLE, result)
    if here.search is not None:
        # Along the first row the model promises at most half the slope.
        unseen = jnp.abs(proposal.slopes[0]) / 2 <= here.search.resolution
        nothing = jnp.where(unseen, Outcome.UNMEASURABLE, Outcome.NO_DECREASE)
        result = jnp.where(jnp.any(found.z != 0), result, nothing)
    if proposal.solver is not None:
        metric_ok &= proposal.solver.reason != Reason.NONFINITE
        stuck = (proposal.solver.reason == Reason.INDEFINITE) & (trial.step_norm == 0)
        result = jnp.where(stuck, Outcome.NO_DIRECTION, result)
    result = jnp.where(loss_ok, result, Outcome.NONFINITE_LOSS)
    result = jnp.where(metric_ok, result, Outcome.NONFINITE_METRIC)
    return jnp.where(gradient_ok, result, Outcome.NONFINITE_GRADIENT)


def evidence(
    opt: Any, here: Here, proposal: Proposal, trial: Trial, outcome: Array, taken: Array, loss: Array
) -> Evidence:
    """Return what the step tells the damping rule."""
    stretch, slope = _again(here) if opt.judges_last else (jnp.zeros_like(trial.rho),) * 2
    last = here.last if opt.judges_last else None
    return Evidence(
        # If a search stayed at θ, there is nothing to compare.
        rho=jnp.where(outcome == Outcome.NO_DECREASE, jnp.nan, trial.rho),
        taken=taken,
        unmeasurable=outcome == Outcome.UNMEASURABLE,
        blameless=_blameless(here, trial, outcome, opt.measures_ratio),
        suspect=outcome == Outcome.NONFINITE_METRIC,
        stretch=stretch,
        slope=slope,
        fresh=jnp.array(False) if last is None else fresh(loss, last),
        steepness=trial.grad_norm / tree.norm(working(here.params)),
        share=_share(here, proposal),
        steps=here.steps,
    )


def own_loss(opt: Any, here: Here) -> Array:
    """Return the loss on the gradient batch, with its penalty; NaN if a gradient was given without it."""
    if here.loss is not None:
        return here.loss
    bare = jnp.full_like(here.damping, jnp.nan) if here.own is None else here.own.loss
    return bare + penalty(opt, working(here.params))


def _starts_finite(here: Here, trial: Trial, measured: bool) -> Array:
    """Tell whether the losses at θ that this step uses are finite."""
    return tree.is_finite(
        () if here.search is None else here.search.loss, trial.start.loss if measured else ()
    )


def _blameless(here: Here, trial: Trial, outcome: Array, measured: bool) -> Array:
    """Tell whether λ is not the cause of a refusal.

    Either the gradient or a loss was not finite at θ itself, or a search on other examples found that the loss rises
    along the row at any length.
    """
    theta = outcome == Outcome.NONFINITE_GRADIENT
    theta |= (outcome == Outcome.NONFINITE_LOSS) & ~_starts_finite(here, trial, measured)
    if here.search_examples is not None:
        theta |= outcome == Outcome.NO_DECREASE
    return theta


def _again(here: Here) -> tuple[Array, Array]:
    """Return dᵀFd and gᵀd of the last step d on this batch, divided by dᵀFd on its own; 0 if they are not known."""
    assert here.last is not None
    assert here.metric is not None
    step, curvature, _ = here.last
    # A λ far above the metric's own size sets the length of steps, but not how much they stretch.
    known = (curvature > 0) & (here.damping * tree.vdot(step, step) < 10 * curvature)

    def compared(now: Array) -> Array:
        return jnp.where(known & jnp.isfinite(now), now / jnp.where(known, curvature, 1), 0)

    return compared(here.metric.divergence(step)), compared(tree.vdot(here.gradient, step))


def fresh(loss: Array, last: LastStep) -> Array:
    """Tell whether this batch's loss differs by more than a part in 1000 from the one the last step ended with."""
    left = last.loss
    known = (last.curvature > 0) & jnp.isfinite(loss)
    return known & (jnp.abs(loss - left) > 1e-3 * jnp.maximum(jnp.abs(loss), jnp.abs(left)))


def _share(here: Here, proposal: Proposal) -> Array:
    """Return λ‖s∘n‖² / gᵀn for the first row n, or 0 if gᵀn = 0.

    If n solves (F + λS)n = g, this is λ's share in nᵀ(F + λS)n.
    """
    length = tree.norm(tree.first(proposal.scaled))
    slope = jnp.abs(proposal.slopes[0])
    # The order matters: the square of a length may be too small for its dtype.
    return jnp.where(slope > 0, here.damping * length * (length / jnp.where(slope > 0, slope, 1)), 0)
