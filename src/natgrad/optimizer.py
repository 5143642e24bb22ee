"""One natural-gradient step, written once: every method of the paper is a choice of its parts.

z  ≈ argmin_z L(θ + zᵀB)        θ ← θ + zᵀB
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import frozen, tree, validate
from natgrad.damping import Constant, Damping, Evidence, LastStep, calibrated, ratio, unresolved
from natgrad.directions import Direction, Here
from natgrad.likelihood import Likelihood
from natgrad.metric import Fisher, Metric
from natgrad.operator import Operator, Place
from natgrad.problem import Before, Chunk, Examples, Model, Pass, Problem, Start, Stateful, working
from natgrad.search import FixedRate, Found, Local, Search
from natgrad.solve.result import Reason
from natgrad.state import Data, Info, Outcome, Proposal, State
from natgrad.tree import Tree


@dataclass(frozen=True)
class Optimizer:
    """A direction, a search and a damping rule on a problem. Recipes assemble it; `init` and `step` run it."""

    model: Model
    likelihood: Likelihood
    direction: Direction
    search: Search = FixedRate()
    metric: Metric = Fisher()
    damping: Damping = Constant(0.0)
    objective: Callable[[Tree, Tree], Array] | None = None
    """A loss (outputs, targets) → (batch,) in place of the likelihood's; the metric stays the likelihood's."""
    l2: float = 0.0
    """Adds (l2/2)‖θ‖² to the loss."""
    microbatch: int | None = None
    """Examples in memory at a time, on every path; None takes the whole batch at once."""
    reject: float | None = None
    """Refuse a step whose ρ is below this: 0 refuses every rise of the loss on the step's own batch. By default a
    rule that measures ρ refuses what is below −1, a loss that rose by more than it should have fallen."""
    max_norm: float | None = None
    """The longest step, in Euclidean norm."""
    trainable: Any = None
    """Which parameters move: a function (path, leaf) → bool, the path as in "layer/kernel", or a tree of booleans."""

    def __post_init__(self) -> None:
        validate.optimizer(self)
        if self.trainable is not None:
            object.__setattr__(self, "trainable", frozen.predicate(self.trainable))

    @property
    def problem(self) -> Problem:
        """The model, its likelihood and its loss."""
        return Problem(self.model, self.likelihood, self.objective, self.microbatch)

    @property
    def least_ratio(self) -> float | None:
        """The ρ below which a step is refused; None takes every finite step."""
        if self.reject is not None:
            return self.reject
        return -1.0 if self.damping.needs_ratio else None

    def init(self, params: Tree, key: Array | None = None) -> State:
        """Return the state before the first step. `key` seeds what is random (Monte-Carlo metrics)."""
        if self.trainable is not None:
            params, _ = frozen.split(self.trainable, params)
        validate.parameters(params)
        theta = working(params)
        return State(
            steps=jnp.zeros((), jnp.int32),
            key=jax.random.key(0) if key is None else key,
            damping=self.damping.init(tree.dtype(theta)),
            record=self.damping.record(tree.dtype(theta)),
            last=LastStep.none(theta) if self.damping.needs_stretch and self.direction.needs_metric else (),
            direction=self.direction.init(theta),
        )

    def step(
        self,
        params: Tree,
        state: State,
        batch: Any,
        *,
        metric_inputs: Tree = None,
        metric_weights: Tree = None,
        metric_targets: Tree = None,
        search_batch: Any = None,
        ratio_batch: Any = None,
        context: Tree = None,
        gradient: Tree = None,
        learning_rate: Any = None,
    ) -> tuple[Tree, State, Info]:
        """Return (params, state, info) after one step.

        Args:
            params: Any pytree of floating arrays; what `trainable` leaves out may hold other arrays too.
            state: From `init` or the last step.
            batch: `(inputs, targets)` or `(inputs, targets, weights)`: where the gradient is taken.
            metric_inputs: Where the metric is taken, without labels; default: the batch's inputs and weights.
            metric_weights: Weights of the metric's examples: a biased q̃(x).
            metric_targets: Labels, for the metrics that are defined by them; `Fisher` refuses them.
            search_batch: Where the search probes the loss; default: the batch.
            ratio_batch: Where ρ is measured; default: the batch, wherever the search looks.
            context: A third argument of the model, one fixed value for the whole step.
            gradient: A gradient computed elsewhere, in place of the batch's.
            learning_rate: The rate of this step, in place of `FixedRate`'s.
        """
        data = Data(
            batch,
            metric_inputs,
            metric_weights,
            metric_targets,
            search_batch,
            ratio_batch,
            context,
            gradient,
            learning_rate,
        )
        if self.trainable is None:
            return self._run(params, state, data)
        own, rest = frozen.split(self.trainable, params)
        if gradient is not None:
            data = data._replace(gradient=frozen.like(own, gradient))
        own, state, info = self._run(own, state, data._replace(context=frozen.Frozen(rest, context)))
        return frozen.merge(own, rest), state, info

    def _run(self, params: Tree, state: State, data: Data) -> tuple[Tree, State, Info]:
        validate.step(self, params, data)
        if data.learning_rate is not None:
            rate = jnp.asarray(data.learning_rate).astype(tree.at_least_single(tree.dtype(params)))
            data = data._replace(learning_rate=rate)
        if not self.search.on_host:
            return _step(self, params, state, data)
        validate.not_traced(self.search, (params, state, data))
        proposal = _propose(self, params, state, data)
        probe_here = partial(_probe, self, params, data, proposal.start, proposal.rows.rows)
        found = self.search(probe_here, _local(self, proposal, state, data, None))
        return _commit(self, params, state, data, proposal, found)


@partial(jax.jit, static_argnums=0)
def _step(opt: Optimizer, params: Tree, state: State, data: Data) -> tuple[Tree, State, Info]:
    if opt.damping.calibrates:
        return calibrated(opt.damping, lambda trial: once(opt, params, trial, data), state)
    return once(opt, params, state, data)


def once(opt: Optimizer, params: Tree, state: State, data: Data) -> tuple[Tree, State, Info]:
    """Return one step: propose, search, commit."""
    proposal, metric = propose(opt, params, state, data)
    probe_here = partial(probe, opt, params, data, proposal.start, proposal.rows.rows)
    found = opt.search(probe_here, _local(opt, proposal, state, data, metric))
    return commit(opt, params, state, data, proposal, found, metric)


def propose(opt: Optimizer, params: Tree, state: State, data: Data) -> tuple[Proposal, Operator | None]:
    """Return the gradient, the rows and the metric at θ."""
    problem, theta = opt.problem, working(params)
    key = jax.random.fold_in(state.key, state.steps)

    # The loss and its gradient on the gradient batch, from the model linearized there once.
    examples = _examples(opt, params, data, data.batch)
    linear = problem.linearize(params, examples, data.context)
    if data.gradient is None:
        loss, gradient, context = problem.loss_and_gradient(linear)
        loss = loss + _penalty(opt, theta)
    else:
        loss = jnp.full((), jnp.nan, tree.dtype(theta))
        context = frozen.unwrap(data.context) if isinstance(opt.model, Stateful) else None
        gradient = tree.cast_like(data.gradient, theta)
    gradient = tree.axpy(opt.l2, theta, gradient) if opt.l2 else gradient

    # The metric at θ: on the same linearization when it shares the batch's inputs.
    place = Place(problem, params, examples, data.context, key, state.damping)
    metric = _metric(opt, data, place, linear) if opt.direction.needs_metric else None

    # The rows, from g, F + λI and what the last step left behind.
    here = Here(gradient, metric, state.damping + opt.l2, place, state.steps)
    rows = opt.direction.rows(here, state.direction)
    slopes = tree.along(rows.rows, gradient)

    # Where changes of the loss are measured from.
    searched = opt.search.measures and data.search_batch is None
    # Without targets the loss is measured elsewhere, by whoever gave the gradient.
    compared = _wants_ratio(opt) and data.ratio_batch is None and data.batch[1] is not None
    own = problem.start(linear) if searched or compared else None
    start = own if searched else None
    if opt.search.measures and not searched:
        start = _start(opt, params, data, data.search_batch)
    if start is not None and metric is not None and _rounds(params):
        start = start._replace(resolution=start.resolution + _rounding(opt, params, rows.rows, metric))
    return Proposal(loss, gradient, rows, slopes, start, own, context), metric


def probe(opt: Optimizer, params: Tree, data: Data, start: Start | None, rows: Tree, z: Array) -> Array:
    """Return the change of the loss on the search batch from θ to θ + zᵀB."""
    assert start is not None
    moved, _, _ = _move(opt, params, rows, z)
    return _change(opt, params, moved, data, data.search_batch, start)


def commit(
    opt: Optimizer,
    params: Tree,
    state: State,
    data: Data,
    proposal: Proposal,
    found: Found,
    metric: Operator | None,
) -> tuple[Tree, State, Info]:
    """Take the step or refuse it, and let the damping rule answer."""
    moved, step, slope = _move(opt, params, proposal.rows.rows, found.z)
    slope = tree.vdot(proposal.gradient, step) if slope is None else jnp.sum(slope * proposal.slopes)
    curvature = _curvature(opt, metric, params, step, found)
    lengths = tree.norm(proposal.gradient), tree.norm(step)

    # ρ: actual / predicted change of the loss, on the ratio batch.
    start, change = _measured(opt, params, moved, data, proposal, found)
    actual = change + _slope_gap(opt, params, step, slope, data)
    bend = jnp.zeros_like(slope) if metric is None else curvature
    predicted = opt.damping.predict(slope, bend + opt.l2 * lengths[1] ** 2)
    rho = ratio(actual, predicted, start.resolution)

    outcome = _judge(opt, data, proposal, found, moved, lengths, curvature, start, actual, predicted)
    # Where a search stayed there is nothing to compare.
    rho = jnp.where(outcome == Outcome.NO_DECREASE, jnp.nan, rho)
    unmeasurable = outcome == Outcome.UNMEASURABLE
    accepted = (outcome == Outcome.ACCEPTED) | (unmeasurable & jnp.any(found.z != 0))

    # λ's answer.
    stretch = _stretch(state, metric)
    seen = Evidence(
        rho=rho,
        taken=accepted,
        unmeasurable=unmeasurable,
        blameless=_blameless(opt, data, outcome, proposal, start),
        suspect=outcome == Outcome.NONFINITE_METRIC,
        stretch=stretch,
        fresh=_fresh(state, proposal),
        share=_share(state, proposal),
        steps=state.steps,
    )
    damping, record, answer = opt.damping.answer(state.damping, state.record, seen)

    new_params = tree.where(accepted, moved, params)
    new_state = State(
        steps=state.steps + 1,
        key=state.key,
        damping=damping,
        record=record,
        last=_last(state, accepted, step, curvature, _own_loss(proposal) + actual),
        direction=tree.where(
            accepted,
            opt.direction.remember(proposal.rows.memory, step),
            opt.direction.forget(state.direction, proposal.rows.memory),
        ),
    )
    info = Info(
        loss=start.loss,
        new_loss=start.loss + change,
        resolution=start.resolution,
        rho=rho,
        stretch=stretch,
        damping=state.damping,
        answer=answer,
        accepted=accepted,
        outcome=outcome,
        step_size=found.z,
        grad_norm=lengths[0],
        step_norm=lengths[1],
        kl=curvature / 2,
        solver=proposal.rows.solver,
        context=_usable(proposal.context, frozen.unwrap(data.context)),
    )
    return new_params, new_state, info


def _judge(
    opt: Optimizer,
    data: Data,
    proposal: Proposal,
    found: Found,
    moved: Tree,
    lengths: tuple[Array, Array],
    curvature: Array,
    start: Start,
    actual: Array,
    predicted: Array,
) -> Array:
    """Return the outcome: finite first, compared after; the earliest cause is the one that is named."""
    # A length is finite only if every entry is, and a slope only if its row is: no further passes are needed.
    grad_norm, step_norm = lengths
    gradient_ok = tree.is_finite(grad_norm, proposal.loss if data.gradient is None else ())
    metric_ok = tree.is_finite(proposal.slopes, step_norm, curvature if opt.direction.needs_metric else ())
    # In half precision a sum can overflow where its terms do not.
    metric_ok &= tree.is_finite([leaf for leaf in jax.tree.leaves(moved) if leaf.dtype.itemsize < 4])
    if proposal.rows.solver is not None:
        metric_ok &= proposal.rows.solver.reason != Reason.NONFINITE
    loss_ok = _starts_finite(opt, proposal, start) & tree.is_finite(found.change)
    if _wants_ratio(opt):
        loss_ok &= jnp.isfinite(actual)

    outcome = jnp.asarray(Outcome.ACCEPTED, jnp.int32)
    if opt.least_ratio is not None:
        # Not "below": a ρ that is not a number is no promise kept either.
        kept = ratio(actual, predicted, start.resolution) >= opt.least_ratio
        outcome = jnp.where(kept, outcome, Outcome.REJECTED)
    if _wants_ratio(opt):
        unseen = unresolved(actual, predicted, start.resolution)
        outcome = jnp.where(unseen, Outcome.UNMEASURABLE, outcome)
    if proposal.start is not None:
        # Along the first row the model promises half the slope, at the most.
        unseen = jnp.abs(proposal.slopes[0]) / 2 <= proposal.start.resolution
        nothing = jnp.where(unseen, Outcome.UNMEASURABLE, Outcome.NO_DECREASE)
        outcome = jnp.where(jnp.any(found.z != 0), outcome, nothing)
    if proposal.rows.solver is not None:
        stuck = (proposal.rows.solver.reason == Reason.INDEFINITE) & (step_norm == 0)
        outcome = jnp.where(stuck, Outcome.NO_DIRECTION, outcome)
    outcome = jnp.where(loss_ok, outcome, Outcome.NONFINITE_LOSS)
    outcome = jnp.where(metric_ok, outcome, Outcome.NONFINITE_METRIC)
    return jnp.where(gradient_ok, outcome, Outcome.NONFINITE_GRADIENT)


def _examples(opt: Optimizer, params: Tree, data: Data, batch: Any) -> Examples:
    inputs, targets, weights = (*batch, None)[:3]
    return opt.problem.examples(params, inputs, targets, weights, data.context)


def _metric(opt: Optimizer, data: Data, place: Place, linear: Pass | None = None) -> Operator:
    """Return the metric at θ: on the gradient's own linearization when it shares the batch's inputs."""
    if data.metric_inputs is None and data.metric_weights is None:
        return opt.metric.operator(place, linear)
    inputs, targets = data.metric_inputs, data.metric_targets
    if inputs is None:
        inputs, targets = data.batch[0], data.batch[1]
    examples = opt.problem.examples(place.params, inputs, targets, data.metric_weights, data.context)
    return opt.metric.operator(replace(place, examples=examples))


def _metric_at(opt: Optimizer, params: Tree, state: State, data: Data) -> Operator:
    """Return the metric at any parameters, on this step's examples."""
    key = jax.random.fold_in(state.key, state.steps)
    examples = _examples(opt, params, data, data.batch)
    return _metric(opt, data, Place(opt.problem, params, examples, data.context, key, state.damping))


def _local(opt: Optimizer, proposal: Proposal, state: State, data: Data, metric: Operator | None) -> Local:
    return Local(
        rows=proposal.rows.rows,
        slopes=proposal.slopes,
        resolution=None if proposal.start is None else proposal.start.resolution,
        shift=state.damping + opt.l2,
        metric=metric,
        steps=state.steps,
        learning_rate=data.learning_rate,
    )


def _curvature(opt: Optimizer, metric: Operator | None, params: Tree, step: Tree, found: Found) -> Array:
    """Return dᵀFd: the search's, if it has it and the step is as found, else by one JVP."""
    if metric is None:
        return jnp.full((), jnp.nan, tree.dtype(step))
    if found.curvature is not None and opt.max_norm is None and not _rounds(params):
        return found.curvature
    return metric.divergence(step)


def _move(opt: Optimizer, params: Tree, rows: Tree, z: Array) -> tuple[Tree, Tree, Array | None]:
    """Return θ + d in the dtypes of the parameters, d, and the coefficients that made it.

    d = zᵀB, kept within its bound. In half precision it is what rounding left of that, and no coefficients made it.
    """
    if opt.max_norm is not None:
        length = tree.norm(tree.combine(z, rows))
        # At z = 0 a length has no derivative.
        z = z * jax.lax.stop_gradient(jnp.where(length > opt.max_norm, opt.max_norm / length, 1))
    step: Tree = tree.combine(z, rows)
    moved = tree.cast_like(tree.add(working(params), step), params)
    if _rounds(params):
        return moved, tree.sub(working(moved), working(params)), None
    return moved, step, z


def _rounds(params: Tree) -> bool:
    """Tell whether parameters are kept in less precision than steps are computed in."""
    return any(leaf.dtype.itemsize < 4 for leaf in jax.tree.leaves(params))


def _rounding(opt: Optimizer, params: Tree, rows: Tree, metric: Operator) -> Array:
    """Return ½eᵀFe, what rounding makes of the loss: e is its error in the step along the first row, taken whole."""
    first = jax.nn.one_hot(0, tree.count(rows), dtype=tree.dtype(rows))
    _, left, _ = _move(opt, params, rows, first)
    return metric.divergence(tree.sub(left, tree.combine(first, rows))) / 2


def _start(opt: Optimizer, params: Tree, data: Data, batch: Any) -> Start:
    """Return the loss at θ on another batch, to measure changes from."""
    examples = _examples(opt, params, data, batch)
    return opt.problem.start(opt.problem.forward(params, examples, data.context))


def _change(opt: Optimizer, params: Tree, moved: Tree, data: Data, batch: Any, start: Start) -> Array:
    """Return the change of the loss, with its l2 term; `batch` None is the gradient batch."""
    examples = _examples(opt, params, data, data.batch if batch is None else batch)
    change = opt.problem.change(moved, examples, data.context, start)
    if not opt.l2:
        return change
    theta, there = working(params), working(moved)
    return change + opt.l2 / 2 * tree.vdot(tree.sub(there, theta), tree.add(there, theta))


def _measured(
    opt: Optimizer, params: Tree, moved: Tree, data: Data, proposal: Proposal, found: Found
) -> tuple[Start, Array]:
    """Return the loss on the ratio batch, its l2 term included, and its change by the step, if they are asked for."""
    nan = jnp.full_like(proposal.loss, jnp.nan)
    if data.ratio_batch is not None and _wants_ratio(opt):
        start = _start(opt, params, data, data.ratio_batch)
        change = _change(opt, params, moved, data, data.ratio_batch, start)
    elif proposal.own is None:
        return Start(proposal.loss, Before(None, None), nan), nan
    elif data.search_batch is None and found.change is not None:
        start, change = proposal.own, found.change
    elif _wants_ratio(opt):
        start, change = proposal.own, _change(opt, params, moved, data, None, proposal.own)
    else:
        start, change = proposal.own, nan
    return start._replace(loss=start.loss + _penalty(opt, working(params))), change


def _slope_gap(opt: Optimizer, params: Tree, step: Tree, slope: Array, data: Data) -> Any:
    """Return how much steeper the step is on the gradient batch than on a ratio batch of its own.

    On other examples a step does less than on those it was made from, however good the model: their slope is
    another. With the difference made up, what is left is the model's error, and that is what ρ asks for.
    """
    if data.ratio_batch is None or data.gradient is not None or not _wants_ratio(opt):
        return 0.0
    problem, examples = opt.problem, _examples(opt, params, data, data.ratio_batch)

    def part(chunk: Chunk) -> Array:
        pull = jax.grad(problem.total)(chunk.outputs, chunk.examples)
        return tree.vdot(pull, chunk.jvp(step))

    there = problem.linearize(params, examples, data.context).sum(part)
    return slope - there - (opt.l2 * tree.vdot(working(params), step) if opt.l2 else 0.0)


def _stretch(state: State, metric: Operator | None) -> Array:
    """Return the last step's dᵀFd on this batch over that on its own; 0 where there is nothing to compare."""
    last, zero = state.last, jnp.zeros_like(state.damping)
    if metric is None or not isinstance(last, LastStep):
        return zero
    # Far above the metric's own size λ sets the length of steps alone, not how they stretch.
    known = (last.curvature > 0) & (state.damping * tree.vdot(last.step, last.step) < 10 * last.curvature)
    now = metric.divergence(last.step)
    return jnp.where(known & jnp.isfinite(now), now / jnp.where(known, last.curvature, 1), zero)


def _share(state: State, proposal: Proposal) -> Array:
    """Return λ‖n‖² / gᵀn for the first row n: λ's part in nᵀ(F + λI)n, if n solves (F + λI)n = g; 0 for no row."""
    length = tree.norm(jax.tree.map(lambda leaf: leaf[0], proposal.rows.rows))
    slope = jnp.abs(proposal.slopes[0])
    # In this order: the square of a length may be too small for its dtype.
    return jnp.where(slope > 0, state.damping * length * (length / jnp.where(slope > 0, slope, 1)), 0)


def _fresh(state: State, proposal: Proposal) -> Array:
    """Tell whether the loss on this batch is another than the last step left behind, by more than a part in 1000."""
    if not isinstance(state.last, LastStep):
        return jnp.array(False)
    loss, left = _own_loss(proposal), state.last.loss
    known = (state.last.curvature > 0) & jnp.isfinite(loss)
    return known & (jnp.abs(loss - left) > 1e-3 * jnp.maximum(jnp.abs(loss), jnp.abs(left)))


def _own_loss(proposal: Proposal) -> Array:
    """Return the loss on the gradient batch; NaN where a gradient came without it."""
    return proposal.loss if proposal.own is None else proposal.own.loss


def _last(state: State, accepted: Array, step: Tree, curvature: Array, loss: Array) -> Any:
    """Return the step for the next batch to judge, if it was taken."""
    if not isinstance(state.last, LastStep):
        return state.last
    usable = accepted & tree.is_finite(curvature, loss)
    after = LastStep(step, curvature, loss)
    return tree.where(usable, tree.cast_like(after, state.last), tree.zeros_like(state.last))


def _blameless(opt: Optimizer, data: Data, outcome: Array, proposal: Proposal, start: Start) -> Array:
    """Tell whether a refusal is no fault of λ's.

    What was not finite was so at θ: the gradient, or a loss. Or a search on other cases found that the row leads up
    there, at any length.
    """
    theta = outcome == Outcome.NONFINITE_GRADIENT
    theta |= (outcome == Outcome.NONFINITE_LOSS) & ~_starts_finite(opt, proposal, start)
    if data.search_batch is not None:
        theta |= outcome == Outcome.NO_DECREASE
    return theta


def _starts_finite(opt: Optimizer, proposal: Proposal, start: Start) -> Array:
    """Tell whether the losses at θ that this step looks at are finite."""
    return tree.is_finite(
        () if proposal.start is None else proposal.start.loss, start.loss if _wants_ratio(opt) else ()
    )


def _usable(new: Tree, old: Tree) -> Tree:
    """Return the new context, or the old one where the new is not finite: a bad batch must not outlive its step."""
    if jax.tree.structure(new) != jax.tree.structure(old):  # type: ignore[operator]
        return new
    return tree.where(tree.is_finite(new), new, old)


def _penalty(opt: Optimizer, theta: Tree) -> Any:
    return opt.l2 / 2 * tree.vdot(theta, theta) if opt.l2 else 0.0


def _wants_ratio(opt: Optimizer) -> bool:
    return opt.damping.needs_ratio or opt.reject is not None


@partial(jax.jit, static_argnums=0)
def _propose(opt: Optimizer, params: Tree, state: State, data: Data) -> Proposal:
    return propose(opt, params, state, data)[0]


_probe = jax.jit(probe, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _commit(
    opt: Optimizer, params: Tree, state: State, data: Data, proposal: Proposal, found: Found
) -> tuple[Tree, State, Info]:
    metric = _metric_at(opt, params, state, data) if opt.direction.needs_metric else None
    return commit(opt, params, state, data, proposal, found, metric)
