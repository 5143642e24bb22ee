"""A step as tried: θ + zᵀB, and what it does to the loss. `opt` is the `Optimizer` throughout."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import frozen, tree
from natgrad.damping import ratio
from natgrad.directions import Proposal
from natgrad.examples import Examples
from natgrad.metric.here import Here
from natgrad.packed import on_leaves
from natgrad.problem import Start, working
from natgrad.search import Found
from natgrad.tree import Rows, Tree


class Trial(NamedTuple):
    """A step as tried, and what was measured of it."""

    moved: Tree
    """θ + d, in the dtypes of the parameters."""
    step: Tree
    """d."""
    grad_norm: Array
    step_norm: Array
    curvature: Array
    """dᵀFd; NaN without a metric."""
    start: Start
    """The loss on the ratio batch; NaN if it is not measured."""
    change: Array
    """Its change by the step."""
    actual: Array
    """The same change, corrected for the slope on other examples: the numerator of ρ."""
    predicted: Array
    rho: Array


def tried(opt: Any, here: Here, proposal: Proposal, found: Found) -> Trial:
    """Return the step, its length, the predicted change of the loss, and the actual one on the ratio batch."""
    moved, step, z = move(opt, here.params, proposal.rows, found.z)
    slope = tree.vdot(here.gradient, step) if z is None else jnp.sum(z * proposal.slopes)
    step_norm = tree.norm(step)
    curvature = jnp.full_like(slope, jnp.nan)
    as_found = opt.max_norm is None and z is not None
    if found.curvature is not None and as_found:
        curvature = found.curvature
    elif here.metric is not None:
        curvature = here.metric.divergence(step)

    start, change, gap = _measured(opt, here, moved, step, slope, found)
    bend = jnp.zeros_like(slope) if here.metric is None else curvature
    bend = bend if opt.l2 is None else bend + tree.vdot(step, pull(opt, step))
    promised = found.predicted if as_found else None
    predicted = opt.damping.predict(slope, bend) if promised is None else promised
    return Trial(
        moved=moved,
        step=step,
        grad_norm=tree.norm(here.gradient),
        step_norm=step_norm,
        curvature=curvature,
        start=start,
        change=change,
        actual=change + gap,
        predicted=predicted,
        rho=ratio(change + gap, predicted, start.resolution),
    )


def _measured(
    opt: Any, here: Here, moved: Tree, step: Tree, slope: Array, found: Found
) -> tuple[Start, Array, Any]:
    """Return the loss on the ratio batch, its change by the step, and what to add to it for ρ; NaN if not asked for.

    On other examples a step achieves less than on those it was made from, however good the model, because their slope
    differs. After a correction for the slope, what is left is the model's error, which ρ is meant to measure.
    """
    nan = jnp.full_like(slope, jnp.nan)
    if here.ratio_examples is not None and opt.measures_ratio:
        linear = here.metric_linear
        if linear is None or here.ratio_examples is not here.metric_examples:
            linear = here.problem.linearize(here.params, here.ratio_examples)
        start = here.problem.start(linear, here.params)
        start = here.problem.refined(start, linear, here.params, jnp.abs(slope) / 2)
        change = change_of_loss(opt, here, moved, here.ratio_examples, start)
        if here.loss is None:
            return start, change, 0.0
        there = here.problem.slope(linear, step)
        if opt.l2 is not None:
            there = there + tree.vdot(pull(opt, working(here.params)), step)
        return start, change, slope - there
    if here.own is None:
        return Start(nan, nan), nan, 0.0
    if here.search_examples is None and found.change is not None:
        return here.own, found.change, 0.0
    if opt.measures_ratio:
        return here.own, change_of_loss(opt, here, moved, here.examples, here.own), 0.0
    return here.own, nan, 0.0


def change_of_loss(opt: Any, here: Here, moved: Tree, examples: Examples, start: Start) -> Array:
    """Return the change of the loss, with its l2 term."""
    return here.problem.change(moved, examples, start) + penalty_change(opt, here.params, moved)


def penalty_change(opt: Any, params: Tree, moved: Tree) -> Any:
    """Return the change of the l2 term."""
    if opt.l2 is None:
        return 0.0
    theta, there = working(params), working(moved)
    return tree.vdot(pull(opt, tree.sub(there, theta)), tree.add(there, theta)) / 2


def move(opt: Any, params: Tree, rows: Rows, z: Array) -> tuple[Tree, Tree, Array | None]:
    """Return θ + d in the dtypes of the parameters, d, and the coefficients that made it.

    d = zᵀB, cut to the bound on its length. In half precision d is rounded, and then no coefficients give it exactly.
    """
    if opt.max_norm is not None:
        length = tree.norm(tree.combine(z, rows))
        # At z = 0 a length has no derivative.
        z = z * jax.lax.stop_gradient(jnp.where(length > opt.max_norm, opt.max_norm / length, 1))
    step: Tree = tree.combine(z, rows)
    moved = tree.cast_like(tree.add(working(params), step), params)
    if rounds(params):
        return moved, tree.sub(working(moved), working(params)), None
    return moved, step, z


def rounds(params: Tree) -> bool:
    """Tell whether parameters have less precision than the steps."""
    return any(leaf.dtype.itemsize < 4 for leaf in jax.tree.leaves(params))


def rounding(opt: Any, here: Here, proposal: Proposal) -> Array:
    """Return ½eᵀFe, the effect of rounding on the loss; e is the rounding error of a whole step along the first row."""
    assert here.metric is not None
    first = jax.nn.one_hot(0, tree.count(proposal.rows), dtype=proposal.slopes.dtype)
    _, left, _ = move(opt, here.params, proposal.rows, first)
    return here.metric.divergence(tree.sub(left, tree.combine(first, proposal.rows))) / 2


def penalty(opt: Any, theta: Tree) -> Any:
    """Return the l2 term of the loss."""
    return 0.0 if opt.l2 is None else tree.vdot(theta, pull(opt, theta)) / 2


def pull(opt: Any, v: Tree) -> Tree:
    """Return l2 · v for the parameters that the penalty acts on, and 0 for the others."""
    if opt.decayed is None:
        return tree.scale(opt.l2, v)

    def chosen(whole: Tree) -> Tree:
        marks = frozen.marks(opt.decayed, whole)
        return jax.tree.map(lambda leaf, own: leaf if own else jnp.zeros_like(leaf), whole, marks)

    return tree.scale(opt.l2, on_leaves(chosen, v))
