"""One natural-gradient step, written once: every method of the paper is a choice of its parts.

    look      the loss, its gradient g and the metric F at θ, in one record, `Here`
    propose   a direction gives the rows B, from g, F + λI and what the last step left behind: −(F + λI)⁻¹g, say
    search    a search gives z ≈ argmin_z L(θ + zᵀB), or a fixed rate
    decide    ρ = actual / predicted change of the loss; the step is taken, or refused; λ answers to ρ

        θ ← θ + zᵀB

A step whose losses are measured elsewhere, on the host or by optax, is cut in two: `propose` and `commit`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import frozen, judge, tree, validate
from natgrad.calibration import calibrated, calibrated_on_host
from natgrad.damping import Constant, Damping
from natgrad.directions import Direction, Proposal
from natgrad.examples import window
from natgrad.likelihood import Likelihood, Product
from natgrad.metric import Fisher, Metric
from natgrad.metric.here import Here, LastStep
from natgrad.metric.operator import Operator, PenaltyTerm
from natgrad.packed import on_one_device, packed, packed_like, unpacked
from natgrad.part import Part, is_built_in
from natgrad.problem import Model, Problem, Stateful, working
from natgrad.search import FixedRate, Found, Search
from natgrad.state import Batches, Data, Info, Outcome, State
from natgrad.tree import Rows, Tree
from natgrad.trial import Trial, change_of_loss, move, penalty, pull, rounding, rounds, tried

IMPL = "threefry2x32"
"""The kind of random numbers, by the name JAX gives it."""


@dataclass(frozen=True)
class Optimizer(Part):
    """A direction, a search and a damping rule on a problem. Recipes assemble it; `init` and `step` run it."""

    model: Model
    likelihood: Likelihood
    direction: Direction
    search: Search = FixedRate()
    metric: Metric = Fisher()
    damping: Damping = Constant(0.0)
    objective: Callable[[Tree, Tree], Array] | None = None
    """A loss (outputs, targets) → (batch,) that replaces the likelihood's; the metric stays the likelihood's."""
    l2: float | None = None
    """Adds (l2/2)‖θ‖² to the loss."""
    weight_decay: float | None = None
    """The fraction of θ that every step subtracts in addition to the step itself: θ ← θ + d − weight_decay · θ."""
    microbatch: int | None = None
    """Examples in memory at a time, on every path; None takes the whole batch at once."""
    reject: float | None = None
    """Refuse a step whose ρ is below this: 0 refuses every rise of the loss on the step's own batch. By default, if ρ
    is measured, a step with ρ below −1 is refused: the loss rose by more than it should have fallen."""
    max_norm: float | None = None
    """The longest step, in Euclidean norm."""
    trainable: Any = None
    """Which parameters move: a function (path, leaf) → bool, with paths like "layer/kernel", or a tree of booleans."""
    decayed: Any = None
    """Which of them `l2` and `weight_decay` act on, in the same form; default: all."""
    has_aux: bool = False
    """Whether the model returns something else after its outputs, for `info.aux`. With `microbatch`, `info.aux` holds
    the mean over chunks of floating arrays, and the last chunk's values of the rest."""
    probe: int | None = None
    """How many examples of the batch the metric and ρ use, different ones at every step; None uses them all. A batch
    with weights, or of a `Product`, is used whole."""

    def __post_init__(self) -> None:
        for name in ("l2", "weight_decay"):
            # A penalty of 0 counts as none, and costs nothing.
            if isinstance(getattr(self, name), (int, float)) and getattr(self, name) == 0:
                object.__setattr__(self, name, None)
        validate.optimizer(self)
        for name in ("trainable", "decayed"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, frozen.predicate(name, getattr(self, name)))

    @property
    def problem(self) -> Problem:
        """The model, its likelihood and its loss."""
        return Problem(self.model, self.likelihood, self.objective, self.microbatch, self.has_aux)

    @property
    def measures_ratio(self) -> bool:
        """Whether a step measures ρ."""
        return self.damping.needs_ratio or self.reject is not None

    @property
    def judges_last(self) -> bool:
        """Whether the damping rule judges the last step again on the next batch."""
        return self.damping.needs_stretch and self.direction.needs_metric

    @property
    def least_ratio(self) -> float | None:
        """The ρ below which a step is refused; None takes every finite step."""
        if self.reject is not None:
            return self.reject
        return -1.0 if self.damping.needs_ratio else None

    @property
    def update(self) -> NoReturn:
        """Name optax's form of the optimizer, if this one stands in an optax chain."""
        validate.not_optax(self)

    def init(self, params: Tree, key: Array | None = None) -> State:
        """Return the state before the first step. `key` seeds what is random (Monte-Carlo metrics)."""
        if self.trainable is not None:
            params, _ = frozen.split(self.trainable, params)
        validate.parameters(params)
        return self.start(working(params), _key_data(jax.random.key(0) if key is None else key))

    def start(self, theta: Tree, key: Array) -> State:
        """Return the state before the first step, from trained parameters in working precision and a key's data."""
        kept = self.judges_last or self.direction.needs_last_step
        return State(
            steps=jnp.zeros((), jnp.int32),
            key=key,
            damping=self.damping.init(tree.dtype(theta)),
            record=self.damping.record(tree.dtype(theta)),
            last=LastStep.none(theta) if kept else (),
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
            batch: `(inputs, targets)` or `(inputs, targets, weights)`: where the gradient is taken. Weights have one
                number per example, or one per position of a sequence, (batch, time): 0 masks a position, and the mean
                is over positions. `ng.Batches(gradient, metric, search, ratio)` gives all batches at once.
            metric_inputs: Where the metric is taken, without labels; default: the batch's inputs and weights.
            metric_weights: Weights of the metric's examples, for a biased q̃(x).
            metric_targets: Labels, for the metrics that are defined by them; `Fisher` refuses them.
            search_batch: Where the search probes the loss; default: the batch.
            ratio_batch: Where ρ is measured; default: the batch, wherever the search looks.
            context: A third argument of the model, one fixed value for the whole step.
            gradient: A gradient computed elsewhere, which replaces the batch's.
            learning_rate: The rate of this step, which replaces `FixedRate`'s.
        """
        if not isinstance(batch, Batches):
            metric = metric_inputs, metric_targets, metric_weights
            batch = Batches(batch, metric, search_batch, ratio_batch)
        elif any(
            each is not None
            for each in (metric_inputs, metric_weights, metric_targets, search_batch, ratio_batch)
        ):
            raise ValueError("Give batches in ng.Batches or as keywords, not both.")
        own, rest = params, None
        if self.trainable is not None:
            own, rest = frozen.split(self.trainable, params)
            gradient = None if gradient is None else frozen.like(own, gradient)
        data = Data(validate.batches(batch), rest, context, gradient, learning_rate)
        validate.metric(self, batch)
        validate.step(self, own, data)
        if learning_rate is not None:
            rate = jnp.asarray(learning_rate).astype(tree.at_least_single(tree.dtype(own)))
            data = data._replace(rate=rate)
        if self.search.on_host:
            own, state, info = self._step_on_host(own, state, data)
        else:
            own, state, info = _step(self, own, state, data, self.packs(own))
        return (own if rest is None else frozen.merge(own, rest)), state, info

    def packs(self, params: Tree) -> bool:
        """Whether a step may pack small arrays: they must lie on one device, and no part of a user's may see them."""
        parts = self.direction, self.search, self.metric
        return on_one_device(params) and all(map(is_built_in, parts))

    def _step_on_host(self, params: Tree, state: State, data: Data) -> tuple[Tree, State, Info]:
        validate.not_traced(self.search, (params, state, data))

        def once(state: State) -> tuple[Tree, State, Info]:
            here, proposal, _ = propose(self, params, state, data, self.packs(params))
            found = self.search(here, proposal, partial(_probe, self, here, proposal.rows))
            return commit(self, here, proposal, found, state)

        return calibrated_on_host(self.damping, once, state) if self.damping.calibrates else once(state)


@partial(jax.jit, static_argnums=4)
def _step(opt: Optimizer, params: Tree, state: State, data: Data, packs: bool) -> tuple[Tree, State, Info]:
    opt, params, state, data = _prepared(opt, params, state, data, packs)

    def once(state: State) -> tuple[Tree, State, Info]:
        here = look(opt, params, state, data)
        here, proposal = _proposed(opt, here, state)
        found = opt.search(here, proposal, partial(probe, opt, here, proposal.rows))
        return decide(opt, here, proposal, found, state)

    taken = calibrated(opt.damping, once, state) if opt.damping.calibrates else once(state)
    return unpacked(taken)


@partial(jax.jit, static_argnums=4)
def propose(
    opt: Optimizer, params: Tree, state: State, data: Data, packs: bool = False
) -> tuple[Here, Proposal, Found | None]:
    """Return what is known at θ, the rows, and the coefficients unless the search measures the loss.

    This is the first half of a step whose losses are measured elsewhere. It returns arrays only, so not the metric
    itself. `packs` says that small arrays may be packed (`Optimizer.packs`).
    """
    opt, params, state, data = _prepared(opt, params, state, data, packs)
    here, proposal = _proposed(opt, look(opt, params, state, data), state)
    found = None if opt.search.measures else opt.search(here, proposal, _no_probe)
    return replace(here, linear=None, metric=None, metric_linear=None), proposal, found


@jax.jit
def commit(
    opt: Optimizer, here: Here, proposal: Proposal, found: Found, state: State
) -> tuple[Tree, State, Info]:
    """Return (params, state, info): the second half of such a step."""
    like = jax.eval_shape(opt.start, working(here.params), state.key)
    state = packed_like(like, state._replace(damping=here.damping))
    opt = _cast(opt, here.params)
    return unpacked(decide(opt, _with_metric(opt, here), proposal, found, state))


def look(opt: Optimizer, params: Tree, state: State, data: Data) -> Here:
    """Return what is known at θ: the loss and its gradient, the metric, where changes are measured from."""
    problem = replace(opt.problem, rest=data.rest, context=data.context)
    theta = working(params)

    def bound(batch: Any) -> Any:
        return None if batch is None else problem.examples(params, *batch)

    batches = _probed(opt, data, state.steps)
    examples, metric_examples, search_examples = map(bound, batches[:3])
    if batches.ratio == ():
        ratio_examples = search_examples
    else:
        # The metric and ρ share the probe as one object, which identifies the metric's linearization.
        ratio_examples = metric_examples if batches.ratio is batches.metric else bound(batches.ratio)

    # The loss and its gradient on the gradient batch, from the model linearized there once.
    linear = problem.linearize(params, examples)
    loss, context, aux = None, data.context if isinstance(opt.model, Stateful) else None, None
    if data.gradient is None:
        loss, gradient, (context, aux) = problem.loss_and_gradient(linear)
        loss = loss + penalty(opt, theta)
    else:
        gradient = tree.cast_like(data.gradient, theta)
    gradient = gradient if opt.l2 is None else tree.add(pull(opt, theta), gradient)

    # Changes of the loss are measured from here. Without targets, the caller who gave the gradient measures them.
    searched = opt.search.measures and search_examples is None
    compared = opt.measures_ratio and ratio_examples is None and examples.targets is not None
    own = problem.start(linear, params) if searched or compared else None
    search = own if searched else None
    if opt.search.measures and search_examples is not None:
        search = problem.start(problem.at(params, search_examples), params)

    here = Here(
        problem=problem,
        params=params,
        examples=examples,
        metric_examples=metric_examples,
        search_examples=search_examples,
        ratio_examples=ratio_examples,
        key=jax.random.fold_in(jax.random.wrap_key_data(state.key, impl=IMPL), state.steps),
        steps=state.steps,
        damping=state.damping,
        shift=state.damping if opt.l2 is None or opt.decayed is not None else state.damping + opt.l2,
        penalty=None if opt.l2 is None else pull(opt, jax.tree.map(jnp.ones_like, theta)),
        rate=data.rate,
        last=state.last or None,
        loss=loss,
        gradient=gradient,
        context=context,
        aux=aux,
        own=own,
        search=search,
        linear=linear,
    )
    return _with_metric(opt, here)


def probe(opt: Optimizer, here: Here, rows: Rows, z: Array) -> Array:
    """Return the change of the loss on the search batch from θ to θ + zᵀB."""
    moved, _, _ = move(opt, here.params, rows, z)
    examples = here.examples if here.search_examples is None else here.search_examples
    assert here.search is not None
    return change_of_loss(opt, here, moved, examples, here.search)


@jax.jit
def _probe(opt: Optimizer, here: Here, rows: Rows, z: Array) -> Array:
    return probe(_cast(opt, here.params), here, rows, z)


@jax.jit
def moved(opt: Optimizer, here: Here, rows: Rows, z: Array) -> Tree:
    """Return θ + zᵀB, as a step would."""
    return unpacked(move(_cast(opt, here.params), here.params, rows, z)[0])


def _no_probe(_: Array) -> Array:
    raise TypeError("This search does not measure the loss.")


def decide(
    opt: Optimizer, here: Here, proposal: Proposal, found: Found, state: State
) -> tuple[Tree, State, Info]:
    """Take the step or refuse it, and let the damping rule answer."""
    trial = tried(opt, here, proposal, found)
    outcome = judge.outcome(opt, here, proposal, found, trial)
    unmeasurable = outcome == Outcome.UNMEASURABLE
    accepted = (outcome == Outcome.ACCEPTED) | (unmeasurable & jnp.any(found.z != 0))

    loss = judge.own_loss(opt, here)
    seen = judge.evidence(opt, here, proposal, trial, outcome, accepted, loss)
    damping, record, answer = opt.damping.answer(state.damping, state.record, seen)

    new_params = tree.where(accepted, _decayed(opt, here.params, trial.moved), here.params)
    new_state = State(
        steps=state.steps + 1,
        key=state.key,
        damping=damping,
        record=record,
        last=_last(state, accepted, trial, loss),
        direction=tree.where(
            accepted, proposal.memory, opt.direction.forget(state.direction, proposal.memory)
        ),
    )
    added = penalty(opt, working(here.params))
    info = Info(
        loss=loss,
        ratio_loss=trial.start.loss + added,
        new_loss=trial.start.loss + added + trial.change,
        resolution=trial.start.resolution,
        rho=seen.rho,
        stretch=seen.stretch,
        damping=state.damping if found.damping is None else found.damping,
        answer=answer,
        accepted=accepted,
        outcome=outcome,
        step_size=found.z,
        grad_norm=trial.grad_norm,
        step_norm=trial.step_norm,
        kl=trial.curvature / 2,
        solver=proposal.solver,
        context=_usable(here.context, here.problem.context),
        aux=here.aux,
    )
    return new_params, new_state, info


def _probed(opt: Optimizer, data: Data, steps: Array) -> Batches:
    """Return the batches. The metric and ρ get a part of the gradient's batch if they have none of their own."""
    gradient, metric, search, ratio = data.batches
    inputs, targets, weights = gradient
    if opt.probe is None or weights is not None or isinstance(opt.likelihood, Product):
        return data.batches
    if jax.tree.leaves(inputs)[0].shape[0] <= opt.probe:
        return data.batches
    part = window(gradient, opt.probe, steps)
    asked = opt.measures_ratio and ratio is None and targets is not None and data.gradient is None
    return Batches(gradient, part if metric is None else metric, search, part if asked else ratio)


def _with_metric(opt: Optimizer, here: Here) -> Here:
    """Return θ with its metric, which uses the gradient's linearization if both share the batch."""
    if not opt.direction.needs_metric:
        return here
    examples = here.examples if here.metric_examples is None else here.metric_examples
    linear = here.linear
    if linear is None or here.metric_examples is not None:
        linear = here.problem.linearize(here.params, examples)
    metric = opt.metric.operator(here, linear)
    if opt.l2 is not None and opt.decayed is not None:
        # A shift of the whole diagonal would penalize every parameter, so a chosen part gets a term of its own.
        metric = Operator((*metric.terms, PenaltyTerm(here.penalty)))
    return replace(here, metric=metric, metric_linear=linear)


def _proposed(opt: Optimizer, here: Here, state: State) -> tuple[Here, Proposal]:
    """Return θ and the rows. What the loss can resolve depends on what they promise."""
    proposal = opt.direction.propose(here, state.direction)
    here = _resolved(here, proposal)
    if here.search is None or here.metric is None or not rounds(here.params):
        return here, proposal
    # Steps that round the parameters resolve less.
    resolution = here.search.resolution + rounding(opt, here, proposal)
    return replace(here, search=here.search._replace(resolution=resolution)), proposal


def _resolved(here: Here, proposal: Proposal) -> Here:
    """Return θ with all that rounding does to the loss on the gradient batch, if the first row promises little."""
    if here.own is None:
        return here
    assert here.linear is not None
    promise = jnp.abs(proposal.slopes[0]) / 2
    own = here.problem.refined(here.own, here.linear, here.params, promise)
    return replace(here, own=own, search=own if here.search is here.own else here.search)


def _decayed(opt: Optimizer, params: Tree, moved: Tree) -> Tree:
    """Return θ + d minus the weight decay, in the dtypes of the parameters."""
    if opt.weight_decay is None:
        return moved
    old, new = unpacked(params), unpacked(moved)
    left = jax.tree.map(
        lambda a, b, own: (b - opt.weight_decay * a).astype(b.dtype) if own else b,
        old,
        new,
        frozen.marks(opt.decayed, old),
    )
    return packed_like(params, left)


def _last(state: State, accepted: Array, trial: Trial, loss: Array) -> Any:
    """Return the step, if it was taken: the next step builds on it, and the next batch judges it."""
    if not isinstance(state.last, LastStep):
        return state.last
    left = loss + trial.actual
    known = accepted & tree.is_finite(trial.curvature, left)
    after = LastStep(
        step=tree.where(accepted, trial.step, tree.zeros_like(trial.step)),
        curvature=jnp.where(known, trial.curvature, 0),
        loss=jnp.where(known, left, 0),
    )
    return tree.cast_like(after, state.last)


def _usable(new: Tree, old: Tree) -> Tree:
    """Return the new context, or the old one where the new is not finite: a bad batch must not outlive its step."""
    if jax.tree.structure(new) != jax.tree.structure(old):  # type: ignore[operator]
        return new
    return tree.where(tree.is_finite(new), new, old)


def _prepared(
    opt: Optimizer, params: Tree, state: State, data: Data, packs: bool
) -> tuple[Optimizer, Tree, State, Data]:
    """Return what a step works with: numbers in its precision, small arrays packed, and the rule's present λ."""
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    validate.state(jax.eval_shape(opt.start, working(params), key), state)
    theta = packed(params) if packs else params
    state = packed_like(jax.eval_shape(opt.start, working(theta), key), state)
    if data.gradient is not None:
        data = data._replace(gradient=packed_like(theta, data.gradient))
    opt = _cast(opt, theta)
    return opt, theta, state._replace(damping=opt.damping.now(state.damping, state.steps)), data


def _cast(opt: Optimizer, params: Tree) -> Optimizer:
    """Return the optimizer with its arrays in the parameters' precision; Python floats adapt to it by themselves."""
    wide = tree.dtype(working(params))

    def cast(leaf: Any) -> Any:
        # Without jit, plain Python floats arrive here.
        strong = isinstance(leaf, jax.Array) and not leaf.weak_type
        return leaf.astype(wide) if strong and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, opt)


def _key_data(key: Array) -> Array:
    """Return two integers, the data of a threefry key, which any tool can save; a key of another kind draws them."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    data = jax.random.key_data(key)
    # This is a copy: when a state's buffers are donated, the caller's key survives.
    return jnp.array(data) if data.shape[-1:] == (2,) else jax.random.bits(key, (2,), jnp.uint32)
