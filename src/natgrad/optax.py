"""The bridge to optax: the natural gradient as a gradient transformation.

    n = (F + λI)⁻¹ g

comes out where g went in, with g's sign, as with every `optax.scale_by_…`: what follows in the chain sets the
rate and turns it downhill.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from natgrad import frozen, tree, validate
from natgrad.damping import Answer, Constant, Damping, Evidence, LevenbergMarquardt, calibrated
from natgrad.directions import Natural, SolverInfo
from natgrad.likelihood import Likelihood
from natgrad.metric import Fisher, Metric
from natgrad.optimizer import Optimizer, _commit, _move, _wants_ratio, propose
from natgrad.precondition import Identity, Preconditioner
from natgrad.problem import Model, Start, working
from natgrad.search import Found
from natgrad.solve import CG
from natgrad.state import Data, Info, Outcome, Proposal, State
from natgrad.tree import Tree

Schedule = Callable[[Any], Any]

STATIC = ("model", "likelihood", "solver", "metric", "precondition", "reject", "microbatch", "seed")
"""What is no hyperparameter to inject: `optax.inject_hyperparams(..., static_args=ng.optax.STATIC)`."""


class NaturalGradientState(NamedTuple):
    """What the next update needs, and what the last one showed: `optax.tree.get(opt_state, "info")`."""

    steps: State
    info: Info


def scale_by_natural_gradient(
    model: Model,
    likelihood: Likelihood,
    *,
    damping: float | Schedule | Damping | None = None,
    solver: Any = None,
    metric: Metric | None = None,
    precondition: Preconditioner | None = None,
    trial_rate: float | Schedule = 1.0,
    reject: float | None = None,
    microbatch: int | None = None,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Replace the gradient by the natural gradient (F + λI)⁻¹ g; its sign is the gradient's.

    `update(updates, state, params, **extra)` takes these extra arguments, and ignores all others:

    * `inputs` (always): where the metric is taken. It carries no labels.
    * `weights`: one number an example of the inputs.
    * `value_fn` (with Levenberg–Marquardt damping, or `reject`): `value_fn(params) -> loss`; further parameters of
      it are filled from the extra arguments of the same name.
    * `value`: the loss at `params`, if it is known; it saves one call of `value_fn`.
    * `context`: the model's third argument, one fixed value for the step.
    * `targets`: for the metrics and preconditioners that are defined by them.
    * `full_params`: the whole parameters, when `optax.masked` hides some of them from this transformation.

    A step that is refused (`info.outcome` says why: a number that is not finite, or ρ below `reject`) gives updates
    of zero.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        damping: λ: a number, a schedule, or a rule; default `LevenbergMarquardt(1.0)`. A number can be injected by
            `optax.inject_hyperparams(..., static_args=ng.optax.STATIC)`.
        solver: Default `CG(maxiter=20, rtol=1e-4)`.
        metric: Default `Fisher()`.
        precondition: Default none.
        trial_rate: The rate the rest of the chain steps with, a number or a schedule: ρ is measured for the step
            −trial_rate · n. The direction itself comes out unscaled.
        reject: Refuse a step whose ρ is below this.
        microbatch: Examples held in memory at a time.
        seed: Of what is random (Monte-Carlo metrics, preconditioners).
    """
    rule, held = _rule(LevenbergMarquardt() if damping is None else damping)
    natural = Natural(
        CG() if solver is None else solver, Identity() if precondition is None else precondition
    )
    opt = Optimizer(
        model,
        likelihood,
        natural,
        metric=Fisher() if metric is None else metric,
        damping=rule,
        microbatch=microbatch,
        reject=reject,
    )

    def init(params: Tree) -> NaturalGradientState:
        own = _own(params)
        steps = _hold(opt.init(own, jax.random.key(seed)), held)
        return NaturalGradientState(steps, _nothing_yet(working(own), steps.damping))

    def update(
        updates: Tree,
        state: NaturalGradientState,
        params: Tree = None,
        *,
        inputs: Tree = None,
        weights: Tree = None,
        targets: Tree = None,
        context: Tree = None,
        value: Any = None,
        value_fn: Callable[..., Any] | None = None,
        full_params: Tree = None,
        **extra: Any,
    ) -> tuple[Tree, NaturalGradientState]:
        if params is None:
            raise ValueError(
                "The metric is taken at the parameters: call update(updates, state, params, ...)."
            )
        _require(opt, inputs, targets, value_fn)
        own, whole, carried = _with_frozen(params, full_params, context)
        validate.parameters(own)
        data = Data((inputs, targets, weights), context=carried, gradient=_own(updates))
        steps = _hold(state.steps, held)
        dtype = tree.dtype(working(own))
        rate = trial_rate(steps.steps) if callable(trial_rate) else trial_rate
        z = jnp.asarray(rate).astype(dtype).reshape(1)

        measure = None
        if value_fn is not None and _wants_ratio(opt):
            known = dict(inputs=inputs, weights=weights, targets=targets, context=context, **extra)
            call = partial(value_fn, **_arguments(value_fn, known))
            measure = _Measure(lambda p: jnp.asarray(call(whole(p))).astype(dtype), value)

        attempt = partial(_attempt, opt, own, data=data, z=z, measure=measure)
        step = calibrated(opt.damping, attempt, steps) if opt.damping.calibrates else attempt(steps)
        direction, steps, info = step
        out = jax.tree.map(lambda n, g: n.astype(g.dtype), direction, data.gradient)
        info = tree.cast_like(info, state.info)
        return _shaped_like(updates, out), NaturalGradientState(steps, info)

    return optax.GradientTransformationExtraArgs(init, update)


def natural_gradient(
    learning_rate: float | Schedule, model: Model, likelihood: Likelihood, **options: Any
) -> optax.GradientTransformationExtraArgs:
    """Natural gradient descent as an optax optimizer: `scale_by_natural_gradient`, then −learning_rate.

    `options` and the extra arguments of `update` are those of `scale_by_natural_gradient`.
    """
    return optax.chain(
        scale_by_natural_gradient(model, likelihood, trial_rate=learning_rate, **options),
        optax.scale_by_learning_rate(learning_rate),
    )


@dataclass(frozen=True)
class Held(Damping):
    """λ as the state holds it, a number from outside: possibly traced, so no part of a static object."""

    def init(self, dtype: Any) -> Array:
        """Return 0, until the number is put in its place."""
        return jnp.zeros((), dtype)

    def answer(self, damping: Array, record: Any, seen: Evidence) -> tuple[Array, Any, Array]:
        """Return λ."""
        return damping, record, jnp.asarray(Answer.KEPT, jnp.int32)


@dataclass(frozen=True)
class _Measure:
    """The loss at trained parameters; `before` is the loss where the step starts, if it was given."""

    at: Callable[[Tree], Array]
    before: Any


def _attempt(
    opt: Optimizer, own: Tree, steps: State, *, data: Data, z: Array, measure: _Measure | None
) -> tuple[Tree, State, Info]:
    """Return (n or zeros, state, info): the optimizer's own step at a fixed rate, its loss measured by `value_fn`."""
    proposal, trial, curvature = _direction(opt, own, steps, data, z)
    found = Found(z, curvature=curvature)
    if measure is not None:
        before = measure.at(own) if measure.before is None else measure.before
        before = jnp.asarray(before).astype(z.dtype)
        proposal = proposal._replace(own=Start.of_value(before))
        found = found._replace(change=measure.at(trial) - before)
    _, after, info = _commit(opt, own, steps, data, proposal, found)
    natural = jax.tree.map(lambda row: -row[0], proposal.rows.rows)
    return tree.where(info.accepted, natural, tree.zeros_like(natural)), after, info


@partial(jax.jit, static_argnums=0)
def _direction(opt: Optimizer, own: Tree, steps: State, data: Data, z: Array) -> tuple[Proposal, Tree, Array]:
    """Return the row, θ moved along it at the trial rate, and that step's dᵀFd."""
    proposal, metric = propose(opt, own, steps, data)
    assert metric is not None
    trial, step, _ = _move(opt, own, proposal.rows.rows, z)
    return proposal, trial, metric.divergence(step)


def _rule(damping: Any) -> tuple[Damping, Any]:
    """Return a static rule, and the number λ to hold in the state if that is what was given."""
    if isinstance(damping, Damping):
        return damping, None
    if callable(damping):
        return Constant(damping), None
    if isinstance(damping, (int, float)) and not damping >= 0:
        raise ValueError(f"damping={damping}: it cannot be negative.")
    return Held(), damping


def _hold(steps: State, number: Any) -> State:
    if number is None:
        return steps
    return steps._replace(damping=jnp.asarray(number).astype(steps.damping.dtype))


def _require(opt: Optimizer, inputs: Tree, targets: Tree, value_fn: Any) -> None:
    """Name what is missing."""
    if inputs is None:
        raise ValueError(
            "scale_by_natural_gradient needs the extra argument inputs=, where the metric is taken: "
            "update(grads, state, params, inputs=x)."
        )
    if value_fn is None and _wants_ratio(opt):
        cause = "reject=" if opt.reject is not None else type(opt.damping).__name__
        raise ValueError(
            f"{cause} measures the loss after the step: give update the extra argument "
            "value_fn=lambda params: loss, or set damping= to a number or a schedule."
        )
    if targets is None and opt.metric.needs_targets(opt.problem):
        raise ValueError(f"{type(opt.metric).__name__} needs the extra argument targets=.")


def _arguments(value_fn: Callable[..., Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return what `value_fn` asks for beside the parameters, as optax's own line searches do."""
    names = list(inspect.signature(value_fn).parameters)[1:]
    return {name: extra[name] for name in names if extra.get(name) is not None}


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _own(params: Tree) -> Tree:
    """Return the tree with None for what `optax.masked` hides."""
    return jax.tree.map(lambda leaf: None if _is_masked(leaf) else leaf, params, is_leaf=_is_masked)


def _shaped_like(updates: Tree, own: Tree) -> Tree:
    return jax.tree.unflatten(jax.tree.structure(updates), jax.tree.leaves(own))


def _with_frozen(params: Tree, full_params: Tree, context: Tree) -> tuple[Tree, Callable[[Tree], Tree], Tree]:
    """Return the visible parameters, how to make them whole, and the context that carries the hidden ones."""
    if not any(_is_masked(leaf) for leaf in jax.tree.leaves(params, is_leaf=_is_masked)):
        return params, lambda p: p, context
    if full_params is None:
        raise ValueError(
            "optax.masked hides parameters that the model needs: give update the extra argument full_params=params."
        )
    own = _own(params)
    rest = jax.tree.map(
        lambda leaf, whole: whole if leaf is None else None,
        own,
        full_params,
        is_leaf=lambda node: node is None,
    )
    return own, lambda p: frozen.merge(p, rest), frozen.Frozen(rest, context)


def _nothing_yet(theta: Tree, damping: Array) -> Info:
    """Return an `Info` before the first update: the same arrays, nothing measured."""
    nan = jnp.full((), jnp.nan, tree.dtype(theta))
    none = jnp.zeros((), jnp.int32)
    return Info(
        loss=nan,
        new_loss=nan,
        resolution=nan,
        rho=nan,
        stretch=nan,
        damping=damping,
        answer=none,
        accepted=jnp.array(False),
        outcome=jnp.asarray(Outcome.ACCEPTED, jnp.int32),
        step_size=nan.reshape(1),
        grad_norm=nan,
        step_norm=nan,
        kl=nan,
        solver=SolverInfo(none, nan, none),
        context=None,
    )
