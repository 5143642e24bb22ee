"""Refusals: one clear sentence for a call that cannot mean what it says."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from natgrad.problem import Stateful
from natgrad.tree import Tree

if TYPE_CHECKING:
    from natgrad.optimizer import Optimizer
    from natgrad.search import Search
    from natgrad.state import Data


def optimizer(opt: "Optimizer") -> None:
    """Refuse parts that do not fit."""
    model(opt.model)
    if isinstance(opt.likelihood, type):
        raise TypeError(
            f"likelihood is the class {opt.likelihood.__name__}: give an instance, with parentheses."
        )
    if not hasattr(opt.likelihood, "nll"):
        raise TypeError(
            "likelihood must be a natgrad likelihood, such as ng.Bernoulli() or ng.Categorical()."
        )
    if not opt.l2 >= 0:
        raise ValueError(f"l2={opt.l2}: a penalty cannot be negative.")
    if opt.max_norm is not None and not opt.max_norm > 0:
        raise ValueError(f"max_norm={opt.max_norm}: give a positive length, or None.")
    _ = opt.problem


def model(model: Any) -> None:
    """Refuse what is no function, and a module that holds its own parameters."""
    if not callable(model):
        raise TypeError("model must be a function: model(params, inputs) -> outputs.")
    inner = model.fn if isinstance(model, Stateful) else model
    # A Partial is a function, with arrays bound to it on purpose.
    holds = not isinstance(inner, jax.tree_util.Partial) and any(
        hasattr(leaf, "dtype") for leaf in jax.tree.leaves(inner)
    )
    if holds or not _hashable(inner):
        raise TypeError(
            f"model is a {type(inner).__name__} that holds arrays, or cannot be hashed: give a function, "
            "lambda params, x: eqx.combine(params, static)(x) or nnx.merge(graph, params)(x)."
        )


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def parameters(params: Tree) -> None:
    """Refuse parameters that are not floating arrays."""
    leaves = jax.tree.leaves(params)
    if not leaves:
        raise ValueError("params has no arrays.")
    for leaf in leaves:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            found = type(leaf).__name__ if dtype is None else f"an array of {dtype}"
            raise TypeError(
                f"params holds {found}: every leaf must be a floating array; split the rest off first, "
                "with eqx.partition(model, eqx.is_inexact_array) or nnx.split(model, nnx.Param, ...), or freeze "
                "it with trainable=."
            )


def step(opt: "Optimizer", params: Tree, data: "Data") -> None:
    """Refuse batches and options that do not belong to this optimizer."""
    from natgrad.search import FixedRate

    parameters(params)
    _batch("batch", data.batch, _uses_targets(opt, data))
    for name in ("search_batch", "ratio_batch"):
        if getattr(data, name) is not None:
            _batch(name, getattr(data, name), True)
    if data.learning_rate is not None and not isinstance(opt.search, FixedRate):
        raise ValueError(
            f"learning_rate= was given, but {type(opt.search).__name__} chooses the step length."
        )
    if data.gradient is not None:
        _same_shapes("gradient", data.gradient, "params", params)
    if opt.direction.needs_metric:
        _metric(opt, data)


def not_traced(search: "Search", values: Any) -> None:
    """Refuse to trace a search that runs on the host."""
    try:
        for leaf in jax.tree.leaves(values):
            _ = leaf.is_fully_addressable if isinstance(leaf, jax.Array) else None
    except jax.errors.ConcretizationTypeError:
        name = type(search).__name__
        raise TypeError(f"{name} runs on the host and cannot be traced: use ng.PlaneSearch().") from None


def _uses_targets(opt: "Optimizer", data: "Data") -> bool:
    """Tell whether anything in this step asks for the loss, or a metric of the loss, on the gradient batch."""
    searched = opt.search.measures and data.search_batch is None
    wants_ratio = opt.damping.needs_ratio or opt.reject is not None
    compared = wants_ratio and data.ratio_batch is None
    measured = opt.direction.needs_metric and data.metric_inputs is None
    return (
        data.gradient is None or searched or compared or (measured and opt.metric.needs_targets(opt.problem))
    )


def _batch(name: str, batch: Any, needs_targets: bool) -> None:
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise TypeError(f"{name} must be (inputs, targets) or (inputs, targets, weights).")
    if batch[1] is None and needs_targets:
        raise ValueError(f"{name} has no targets, and its loss is needed.")
    for leaf in jax.tree.leaves(batch):
        if not hasattr(leaf, "dtype"):
            raise TypeError(
                f"{name} holds {type(leaf).__name__}: inputs, targets and weights must be arrays."
            )


def _metric(opt: "Optimizer", data: "Data") -> None:
    kind = type(opt.metric).__name__
    if data.metric_targets is not None and not opt.metric.takes_targets(opt.problem):
        raise ValueError(f"{kind} takes no labels: its expectation is over the model's own distribution.")
    if data.metric_inputs is None:
        if data.metric_targets is not None:
            raise ValueError("metric_targets= was given without metric_inputs=.")
        return
    inputs = data.batch[0]
    if not _alike(data.metric_inputs, inputs):
        raise ValueError(
            "metric_inputs must look like the batch's inputs, without labels: "
            f"found {jax.tree.structure(data.metric_inputs)}, expected {jax.tree.structure(inputs)}."
        )
    for own, other in zip(jax.tree.leaves(data.metric_inputs), jax.tree.leaves(inputs), strict=True):
        if jnp.shape(own)[1:] != jnp.shape(other)[1:]:
            raise ValueError(
                f"metric_inputs have shape {jnp.shape(own)}; the batch's inputs {jnp.shape(other)}."
            )
    if data.metric_targets is None and opt.metric.needs_targets(opt.problem):
        raise ValueError(f"{kind} is defined by labels: give metric_targets= beside metric_inputs=.")


def _same_shapes(name: str, x: Tree, like_name: str, like: Tree) -> None:
    if not _alike(x, like) or any(
        jnp.shape(a) != jnp.shape(b) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(like), strict=True)
    ):
        raise ValueError(f"{name} must have the structure and shapes of {like_name}.")


def _alike(x: Tree, y: Tree) -> bool:
    return jax.tree.structure(x) == jax.tree.structure(y)  # type: ignore[operator]
