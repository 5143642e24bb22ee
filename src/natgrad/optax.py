"""The bridge to optax: the natural gradient as a gradient transformation.

    n = (F + λI)⁻¹ g

replaces g and keeps its sign, as with every `optax.scale_by_…`: the links that follow in the chain set the rate and
the sign of the step.
"""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from natgrad import frozen, recipes, tree, validate
from natgrad.averaging import Averaged
from natgrad.calibration import calibrated
from natgrad.damping import Constant, Damping
from natgrad.directions import SolverInfo
from natgrad.directions.natural import Solver
from natgrad.likelihood import Likelihood
from natgrad.metric import Metric
from natgrad.optimizer import Optimizer, commit, moved, propose
from natgrad.packed import unpacked
from natgrad.precondition import Preconditioner
from natgrad.problem import Model, Start, working
from natgrad.state import Batches, Data, Info, Outcome, State
from natgrad.tree import Tree
from natgrad.trial import penalty_change

Schedule = Callable[[Any], Any]

STATIC = (
    "model",
    "likelihood",
    "solver",
    "metric",
    "preconditioner",
    "reject",
    "microbatch",
    "trainable",
    "has_aux",
    "seed",
)
"""The arguments that cannot be injected: `optax.inject_hyperparams(..., static_args=ng.optax.STATIC)`."""

VARIADIC = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


class NaturalGradientState(NamedTuple):
    """What the next update needs, and what the last one reported: `optax.tree.get(opt_state, "info")`."""

    steps: State
    info: Info


def scale_by_natural_gradient(
    model: Model,
    likelihood: Likelihood,
    *,
    damping: float | Schedule | Damping | None = None,
    solver: Solver | None = None,
    metric: Metric | None = None,
    preconditioner: Preconditioner | None = None,
    trial_rate: float | Schedule = 1.0,
    reject: float | None = None,
    microbatch: int | None = None,
    trainable: Any = None,
    has_aux: bool = False,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Replace the gradient by the natural gradient (F + λI)⁻¹ g; its sign is the gradient's.

    `update(updates, state, params, **extra)` takes these extra arguments, and ignores all others:

    * `inputs` (always): where the metric is taken. It carries no labels.
    * `weights`: one number per example of the inputs, or per position.
    * `value_fn` (with Levenberg–Marquardt damping, or `reject`): `value_fn(params) -> loss`; its further parameters
      get the extra arguments of the same name.
    * `value`: the loss at `params`, if it is known; it saves one call of `value_fn`.
    * `context`: the model's third argument, one fixed value for the step.
    * `targets`: for the metrics and preconditioners that are defined by them.
    * `full_params`: the whole parameters, when `optax.masked` hides some of them from this transformation.

    A refused step gives updates of zero; `info.outcome` says why: a number is not finite, or ρ is below `reject`.

    This transformation cannot see what follows in the chain. If a later link sets updates to zero
    (`optax.transforms.freeze`, `optax.set_to_zero`), the metric, ρ and λ do not know it: freeze by `trainable=`.

    Args:
        model: `model(params, inputs) -> outputs`, without an output activation.
        likelihood: What the outputs mean.
        damping: λ: a number, a schedule, or a rule; default `LevenbergMarquardt(1.0)`. A number can be injected by
            `optax.inject_hyperparams(..., static_args=ng.optax.STATIC)`.
        solver: Default `CG(maxiter=20, rtol=1e-4)`.
        metric: Default `Fisher()`.
        preconditioner: Default none.
        trial_rate: The rate the rest of the chain steps with, a number or a schedule: ρ is measured for the step
            −trial_rate · n. The direction itself comes out unscaled.
        reject: Refuse a step whose ρ is below this.
        microbatch: Examples held in memory at a time.
        trainable: Which parameters move; the others get updates of zero.
        has_aux: Whether the model returns something else after its outputs, which is ignored here.
        seed: The seed for what is random (Monte-Carlo metrics, preconditioners).
    """
    if damping is not None and not isinstance(damping, Damping):
        damping = Constant(damping)
    opt = recipes.natural_gradient(
        model,
        likelihood,
        learning_rate=trial_rate,
        solver=solver,
        preconditioner=preconditioner,
        metric=metric,
        damping=damping,
        microbatch=microbatch,
        reject=reject,
        trainable=trainable,
        has_aux=has_aux,
    )
    return _transformation(opt, seed, natural=True)


def from_optimizer(opt: Optimizer, seed: int = 0) -> optax.GradientTransformationExtraArgs:
    """Return an optimizer's own steps as a transformation. The updates are the steps d, to be added unchanged.

    It takes any optimizer whose search does not probe the loss: `ng.natural_gradient` with a rate or `KLRadius`,
    `ng.kncg(average=None)`. The extra arguments of `update` are those of `scale_by_natural_gradient`. Put it last in
    a chain.
    """
    if isinstance(opt, Averaged):
        raise TypeError(
            "optax has no place for averaged parameters: give average=None, or take ng.optax.kncg."
        )
    if opt.search.measures or opt.search.on_host:
        raise ValueError(
            f"{type(opt.search).__name__} probes the loss, which optax does not hand over: take opt.step itself."
        )
    return _transformation(opt, seed, natural=False)


def kncg(
    model: Model,
    likelihood: Likelihood,
    *,
    preconditioner: Preconditioner | None = None,
    metric: Metric | None = None,
    damping: Damping | None = None,
    floor: float | None = None,
    probe: int | None = 512,
    reject: float | None = 0.0,
    weight_decay: float | None = None,
    decayed: Any = None,
    max_norm: float | None = None,
    microbatch: int | None = None,
    trainable: Any = None,
    has_aux: bool = False,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Return `ng.kncg` as an optax optimizer, by `from_optimizer`; `ng.kncg` describes the arguments.

    The loss is `value_fn`'s, so a penalty or another objective belongs there. A link does not see the parameters that
    the whole chain leads to, so this one keeps no average: `optax.incremental_update` after `apply_updates` makes one.
    """
    opt = recipes.kncg(
        model,
        likelihood,
        preconditioner=preconditioner,
        metric=metric,
        damping=damping,
        floor=floor,
        probe=probe,
        average=None,
        reject=reject,
        weight_decay=weight_decay,
        decayed=decayed,
        max_norm=max_norm,
        microbatch=microbatch,
        trainable=trainable,
        has_aux=has_aux,
    )
    return from_optimizer(opt, seed)


def _fast(*arguments: Any, **options: Any) -> optax.GradientTransformationExtraArgs:
    """Return `kncg` with the defaults it had under this name in natgrad 0.1, and warn."""
    warnings.warn(
        "ng.optax.fast is now called ng.optax.kncg: natgrad 0.3 drops the old name.",
        DeprecationWarning,
        stacklevel=2,
    )
    return kncg(*arguments, **recipes.with_former(options))


def __getattr__(name: str) -> Any:
    """Return the old name of `kncg`, which is not listed."""
    if name == "fast":
        return _fast
    raise AttributeError(f"module 'natgrad.optax' has no attribute {name!r}")


def natural_gradient(
    learning_rate: float | Schedule,
    model: Model,
    likelihood: Likelihood,
    *,
    damping: float | Schedule | Damping | None = None,
    solver: Solver | None = None,
    metric: Metric | None = None,
    preconditioner: Preconditioner | None = None,
    reject: float | None = None,
    microbatch: int | None = None,
    trainable: Any = None,
    has_aux: bool = False,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Natural gradient descent as an optax optimizer: `scale_by_natural_gradient`, then −learning_rate.

    The arguments, and the extra ones of `update`, are those of `scale_by_natural_gradient`.
    """
    link = scale_by_natural_gradient(
        model,
        likelihood,
        damping=damping,
        solver=solver,
        metric=metric,
        preconditioner=preconditioner,
        trial_rate=learning_rate,
        reject=reject,
        microbatch=microbatch,
        trainable=trainable,
        has_aux=has_aux,
        seed=seed,
    )
    return optax.chain(link, optax.scale_by_learning_rate(learning_rate))


def _transformation(opt: Optimizer, seed: int, natural: bool) -> optax.GradientTransformationExtraArgs:
    """Return the transformation whose updates are the optimizer's steps, or the natural gradients they come from."""
    trainable, opt = opt.trainable, replace(opt, trainable=None)

    def init(params: Tree) -> NaturalGradientState:
        own, _ = _parted(params, None, trainable)
        steps = opt.init(own, jax.random.key(seed))
        return NaturalGradientState(steps, _nothing_yet(opt, working(own), steps.damping))

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
        own, rest = _parted(params, _whole(params, full_params), trainable)
        validate.parameters(own)
        gradient = frozen.like(own, _own(updates))
        data = Data(Batches((inputs, targets, weights)), rest, context, gradient)
        dtype = tree.dtype(working(own))

        loss: Callable[[Tree], Array] | None = None
        if value_fn is not None and opt.measures_ratio:
            known = dict(inputs=inputs, weights=weights, targets=targets, context=context, **extra)
            call = partial(value_fn, **_arguments(value_fn, known))

            def loss(p: Tree) -> Array:
                return jnp.asarray(call(p if rest is None else frozen.merge(p, rest))).astype(dtype)

        attempt = partial(_attempt, opt, own, data=data, loss=loss, value=value, natural=natural)
        try:
            direction, steps, info = (
                calibrated(opt.damping, attempt, state.steps)
                if opt.damping.calibrates
                else attempt(state.steps)
            )
        except (TypeError, AttributeError, ValueError) as error:
            if isinstance(inputs, (tuple, list)) and len(inputs) == 2 and targets is None:
                raise TypeError(
                    "inputs= is a pair, and the model cannot take it: give update inputs=x alone, as the model takes "
                    "them, and targets= apart, if the metric asks for them."
                ) from error
            raise
        out = _shaped_like(updates, tree.cast_like(direction, gradient))
        return out, NaturalGradientState(steps, tree.cast_like(info, state.info))

    return optax.GradientTransformationExtraArgs(init, update)


def _attempt(
    opt: Optimizer,
    own: Tree,
    steps: State,
    *,
    data: Data,
    loss: Callable[[Tree], Array] | None,
    value: Any,
    natural: bool,
) -> tuple[Tree, State, Info]:
    """Return (d or n or zeros, state, info): the optimizer's own step, its loss measured by `value_fn`."""
    here, proposal, found = propose(opt, own, steps, data, opt.packs(own))
    assert found is not None
    if loss is not None:
        before = jnp.asarray(loss(own) if value is None else value).astype(found.z.dtype)
        here = replace(here, own=Start.of_value(before))
        there = moved(opt, here, proposal.rows, found.z)
        found = found._replace(change=loss(there) - before + penalty_change(opt, own, there))
    after, steps, info = commit(opt, here, proposal, found, steps)
    if natural:
        direction = unpacked(tree.scale(-1, tree.first(proposal.rows)))
        direction = tree.where(info.accepted, direction, tree.zeros_like(direction))
    else:
        direction = tree.sub(working(after), working(own))
    return direction, steps, info._replace(context=None, aux=None)


def _require(opt: Optimizer, inputs: Tree, targets: Tree, value_fn: Any) -> None:
    """Name what is missing."""
    if inputs is None:
        raise ValueError(
            "The metric needs the extra argument inputs=, where the metric is taken: "
            "update(grads, state, params, inputs=x)."
        )
    if value_fn is None and opt.measures_ratio:
        cause = "reject=" if opt.reject is not None else type(opt.damping).__name__
        raise ValueError(
            f"{cause} measures the loss after the step: give update the extra argument "
            "value_fn=lambda params: loss, or set damping= to a number or a schedule."
        )
    needed = opt.direction.needs_metric and opt.metric.needs_targets(opt.problem)
    if targets is None and needed:
        raise ValueError(f"{type(opt.metric).__name__} needs the extra argument targets=.")


def _arguments(value_fn: Callable[..., Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return what `value_fn` asks for beside the parameters, as optax's own line searches do."""
    own = list(inspect.signature(value_fn).parameters.values())[1:]
    found = {each.name: extra[each.name] for each in own if extra.get(each.name) is not None}
    for each in own:
        if each.name not in found and each.default is each.empty and each.kind not in VARIADIC:
            raise ValueError(
                f"value_fn takes {each.name}: give update the extra argument {each.name}=, beside value_fn=."
            )
    return found


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _own(params: Tree) -> Tree:
    """Return the tree with None for what `optax.masked` hides."""
    return jax.tree.map(lambda leaf: None if _is_masked(leaf) else leaf, params, is_leaf=_is_masked)


def _whole(params: Tree, full_params: Tree) -> Tree:
    """Return the parameters that the model needs, whatever `optax.masked` hides."""
    if not any(_is_masked(leaf) for leaf in jax.tree.leaves(params, is_leaf=_is_masked)):
        return params
    if full_params is None:
        raise ValueError(
            "optax.masked hides parameters that the model needs: give update the extra argument full_params=params."
        )
    return full_params


def _parted(params: Tree, whole: Tree, trainable: Any) -> tuple[Tree, Tree]:
    """Return the trained parameters and the rest; None for the rest if all are trained."""
    own = _own(params)
    hidden = len(jax.tree.leaves(own)) < len(jax.tree.leaves(params, is_leaf=_is_masked))
    if trainable is not None:
        own, _ = frozen.split(trainable, own)
    elif not hidden:
        return params, None
    if whole is None:
        return own, None
    rest = jax.tree.map(
        lambda leaf, other: other if leaf is None else None, own, whole, is_leaf=lambda node: node is None
    )
    return own, rest


def _shaped_like(updates: Tree, own: Tree) -> Tree:
    """Return the updates in their original structure, with the entries that are hidden or not trained."""

    def one(update: Any, new: Any) -> Any:
        if _is_masked(update):
            return update
        return jnp.zeros_like(update) if new is None else new

    return jax.tree.map(one, updates, own, is_leaf=_is_masked)


def _nothing_yet(opt: Optimizer, theta: Tree, damping: Array) -> Info:
    """Return an `Info` before the first update: the same arrays, nothing measured."""
    nan = jnp.full((), jnp.nan, tree.dtype(theta))
    none = jnp.zeros((), jnp.int32)
    info = Info(
        loss=nan,
        ratio_loss=nan,
        new_loss=nan,
        resolution=nan,
        rho=nan,
        stretch=nan,
        damping=damping,
        answer=none,
        accepted=jnp.array(False),
        outcome=jnp.asarray(Outcome.ACCEPTED, jnp.int32),
        step_size=jnp.full(opt.direction.width, jnp.nan, nan.dtype),
        grad_norm=nan,
        step_norm=nan,
        kl=nan,
        solver=SolverInfo(none, nan, none, none) if opt.direction.solves else None,
        context=None,
    )
    return jax.tree.map(jnp.array, info)  # Every array has a buffer of its own, so that all can be donated.
