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
from natgrad.damping import Constant, Damping, calibrated, ratio
from natgrad.directions import Direction, Here
from natgrad.likelihood import Likelihood
from natgrad.metric import Fisher, Metric
from natgrad.operator import Operator, Place
from natgrad.problem import Examples, Model, Pass, Problem, working
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
    """Refuse a step whose ρ is below this: 0 refuses every rise of the loss on the ratio batch."""
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
            ratio_batch: Where ρ is measured; default: the search batch.
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
        probe_here = partial(_probe, self, params, data, proposal.rows.rows)
        found = self.search(probe_here, _local(self, proposal, state, data, None))
        return _commit(self, params, state, data, proposal, found)


@partial(jax.jit, static_argnums=0)
def _step(opt: Optimizer, params: Tree, state: State, data: Data) -> tuple[Tree, State, Info]:
    if opt.damping.calibrates:
        return calibrated(lambda trial: once(opt, params, trial, data), state)
    return once(opt, params, state, data)


def once(opt: Optimizer, params: Tree, state: State, data: Data) -> tuple[Tree, State, Info]:
    """Return one step: propose, search, commit."""
    proposal, metric = propose(opt, params, state, data)
    probe_here = partial(probe, opt, params, data, proposal.rows.rows)
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
        loss, context = jnp.full((), jnp.nan, tree.dtype(theta)), None
        gradient = tree.cast_like(data.gradient, theta)
    gradient = tree.axpy(opt.l2, theta, gradient) if opt.l2 else gradient

    # The metric at θ: on the same linearization when it shares the batch's inputs.
    place = Place(problem, params, examples, data.context, key, state.damping)
    metric = _metric(opt, data, place, linear) if opt.direction.needs_metric else None

    # The rows, from g, F + λI and what the last step left behind.
    here = Here(gradient, metric, state.damping + opt.l2, place, state.steps)
    rows = opt.direction.rows(here, state.direction)
    slopes = tree.along(rows.rows, gradient)
    start = None
    if opt.search.measures:
        known = data.search_batch is None and data.gradient is None
        start = loss if known else _loss(opt, params, data, data.search_batch)
    return Proposal(loss, gradient, rows, slopes, start, context), metric


def probe(opt: Optimizer, params: Tree, data: Data, rows: Tree, z: Array) -> Array:
    """Return the loss on the search batch at θ + zᵀB."""
    moved, _, _ = _move(opt, params, rows, z)
    return _loss(opt, moved, data, data.search_batch)


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
    moved, step, shrink = _move(opt, params, proposal.rows.rows, found.z)
    slope = shrink * (found.z @ proposal.slopes)
    curvature = _curvature(opt, metric, step, found)
    lengths = tree.length(proposal.gradient), tree.length(step)

    # ρ: actual / predicted change of the loss, on the ratio batch.
    loss, new_loss = _losses(opt, params, moved, data, proposal, found)
    bend = jnp.zeros_like(slope) if metric is None else curvature
    predicted = opt.damping.predict(slope, bend + opt.l2 * lengths[1] ** 2)
    rho = ratio(new_loss - loss, predicted)

    reason = _judge(opt, data, proposal, found, moved, lengths, curvature, (loss, new_loss), rho)
    accepted = reason == Outcome.ACCEPTED

    new_params = tree.where(accepted, moved, params)
    new_state = State(
        steps=state.steps + 1,
        key=state.key,
        damping=jnp.where(
            accepted,
            opt.damping.update(state.damping, rho, state.steps),
            opt.damping.refuse(state.damping, state.steps),
        ),
        direction=tree.where(
            accepted,
            opt.direction.remember(proposal.rows.memory, step),
            opt.direction.forget(state.direction, proposal.rows.memory),
        ),
    )
    info = Info(
        loss=loss,
        new_loss=new_loss,
        rho=rho,
        damping=state.damping,
        accepted=accepted,
        outcome=reason,
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
    losses: tuple[Array, Array],
    rho: Array,
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
    loss_ok = tree.is_finite(proposal.start, found.loss, losses if _wants_ratio(opt) else ())

    reason = jnp.asarray(Outcome.ACCEPTED, jnp.int32)
    if opt.reject is not None:
        reason = jnp.where(rho < opt.reject, Outcome.REJECTED, reason)
    if opt.search.measures:
        reason = jnp.where(jnp.any(found.z != 0), reason, Outcome.NO_DECREASE)
    if proposal.rows.solver is not None:
        stuck = (proposal.rows.solver.reason == Reason.INDEFINITE) & (step_norm == 0)
        reason = jnp.where(stuck, Outcome.NO_DIRECTION, reason)
    reason = jnp.where(loss_ok, reason, Outcome.NONFINITE_LOSS)
    reason = jnp.where(metric_ok, reason, Outcome.NONFINITE_METRIC)
    return jnp.where(gradient_ok, reason, Outcome.NONFINITE_GRADIENT)


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


def _local(opt: Optimizer, proposal: Proposal, state: State, data: Data, metric: Operator | None) -> Local:
    return Local(
        rows=proposal.rows.rows,
        slopes=proposal.slopes,
        loss=proposal.start,
        shift=state.damping + opt.l2,
        metric=metric,
        steps=state.steps,
        learning_rate=data.learning_rate,
    )


def _curvature(opt: Optimizer, metric: Operator | None, step: Tree, found: Found) -> Array:
    """Return dᵀFd: the search's, if it has it and the step is as found, else by one JVP."""
    if metric is None:
        return jnp.full((), jnp.nan, tree.dtype(step))
    if found.curvature is not None and opt.max_norm is None:
        return found.curvature
    return metric.divergence(step)


def _move(opt: Optimizer, params: Tree, rows: Tree, z: Array) -> tuple[Tree, Tree, Any]:
    """Return θ + d in the dtypes of the parameters, d = zᵀB, and the factor that kept d within its bound."""
    step: Tree = tree.combine(z, rows)
    shrink: Any = 1.0
    if opt.max_norm is not None:
        length = tree.norm(step)
        shrink = jnp.where(length > opt.max_norm, opt.max_norm / length, 1)
        step = tree.scale(shrink, step)
    return tree.cast_like(tree.add(working(params), step), params), step, shrink


def _loss(opt: Optimizer, params: Tree, data: Data, batch: Any) -> Array:
    """Return the loss with its l2 term; `batch` None is the gradient batch."""
    examples = _examples(opt, params, data, data.batch if batch is None else batch)
    return opt.problem.loss(params, examples, data.context) + _penalty(opt, working(params))


def _usable(new: Tree, old: Tree) -> Tree:
    """Return the new context, or the old one where the new is not finite: a bad batch must not outlive its step."""
    if jax.tree.structure(new) != jax.tree.structure(old):  # type: ignore[operator]
        return new
    return tree.where(tree.is_finite(new), new, old)


def _penalty(opt: Optimizer, theta: Tree) -> Any:
    return opt.l2 / 2 * tree.vdot(theta, theta) if opt.l2 else 0.0


def _wants_ratio(opt: Optimizer) -> bool:
    return opt.damping.needs_ratio or opt.reject is not None


def _losses(
    opt: Optimizer, params: Tree, moved: Tree, data: Data, proposal: Proposal, found: Found
) -> tuple[Array, Array]:
    """Return the loss on the ratio batch before and after: from what is known, or by a forward pass if asked."""
    nan = jnp.full_like(proposal.loss, jnp.nan)
    if data.ratio_batch is None and proposal.start is not None and found.loss is not None:
        return proposal.start, found.loss
    batch = data.search_batch if data.ratio_batch is None else data.ratio_batch
    known = batch is None and data.gradient is None
    if not _wants_ratio(opt):
        return (proposal.loss if known else nan), nan
    before = proposal.loss if known else _loss(opt, params, data, batch)
    return before, _loss(opt, moved, data, batch)


@partial(jax.jit, static_argnums=0)
def _propose(opt: Optimizer, params: Tree, state: State, data: Data) -> Proposal:
    return propose(opt, params, state, data)[0]


_probe = jax.jit(probe, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _commit(
    opt: Optimizer, params: Tree, state: State, data: Data, proposal: Proposal, found: Found
) -> tuple[Tree, State, Info]:
    metric = None
    if opt.direction.needs_metric:
        key = jax.random.fold_in(state.key, state.steps)
        examples = _examples(opt, params, data, data.batch)
        metric = _metric(opt, data, Place(opt.problem, params, examples, data.context, key, state.damping))
    return commit(opt, params, state, data, proposal, found, metric)
