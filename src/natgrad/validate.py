"""Refusals: one clear sentence for a call that cannot mean what it says."""

from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from natgrad.part import require
from natgrad.problem import check_model
from natgrad.search import FixedRate, Search
from natgrad.state import Batches, Data, State
from natgrad.tree import Tree


def optimizer(opt: Any) -> None:
    """Refuse parts that do not fit."""
    check_model(opt.model)
    if isinstance(opt.likelihood, type):
        raise TypeError(
            f"likelihood is the class {opt.likelihood.__name__}: give an instance, with parentheses."
        )
    if not hasattr(opt.likelihood, "nll"):
        raise TypeError(
            "likelihood must be a natgrad likelihood, such as ng.Bernoulli() or ng.Categorical()."
        )
    require(lambda: opt.l2 is None or opt.l2 >= 0, f"l2={opt.l2}: a penalty cannot be negative.")
    require(
        lambda: opt.weight_decay is None or 0 <= opt.weight_decay < 1,
        f"weight_decay={opt.weight_decay}: give a part of the weights, from 0 to 1.",
    )
    require(
        lambda: opt.max_norm is None or opt.max_norm > 0,
        f"max_norm={opt.max_norm}: give a positive length, or None.",
    )
    require(
        lambda: opt.microbatch is None or opt.microbatch >= 1,
        f"microbatch={opt.microbatch}: give a positive number of examples, or None.",
    )
    require(
        lambda: opt.probe is None or opt.probe >= 1,
        f"probe={opt.probe}: give a positive number of examples, or None.",
    )


def not_optax(opt: Any) -> NoReturn:
    """Refuse to stand in the place of an optax transformation, whose `update` was asked for."""
    raise AttributeError(
        f"{type(opt).__name__} has no update, because it is no optax transformation: call its step, or take "
        "ng.optax.kncg or ng.optax.from_optimizer."
    )


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


def batches(given: Batches) -> Batches:
    """Return every batch as (inputs, targets, weights); refuse what is not a batch. A ratio of () is the search's."""
    gradient, metric = batch("batch", given.gradient), _metric_batch(given)
    search = None if given.search is None else batch("search_batch", given.search)
    ratio = None if given.ratio is None else batch("ratio_batch", given.ratio)
    # Within a traced step nothing tells that two batches are one object.
    one = search is not None and given.ratio is given.search
    return Batches(gradient, metric, search, () if one else ratio)


def batch(name: str, given: Any) -> tuple[Tree, Tree, Tree]:
    """Return (inputs, targets, weights)."""
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
        raise TypeError(f"{name} must be (inputs, targets) or (inputs, targets, weights).")
    for leaf in jax.tree.leaves(given):
        if not hasattr(leaf, "dtype"):
            raise TypeError(
                f"{name} holds {type(leaf).__name__}: inputs, targets and weights must be arrays."
            )
    inputs, targets, weights = (*given, None)[:3]
    return inputs, targets, weights


def _metric_batch(given: Batches) -> tuple[Tree, Tree, Tree] | None:
    """Return the metric's own batch; if only weights are given, it takes the gradient's inputs and targets."""
    inputs, targets, weights = _metric_parts(given)
    if inputs is not None:
        return inputs, targets, weights
    if targets is not None:
        raise ValueError("metric_targets= was given without metric_inputs=.")
    return None if weights is None else (given.gradient[0], given.gradient[1], weights)


def _metric_parts(given: Batches) -> tuple[Tree, Tree, Tree]:
    """Return (inputs, targets, weights), each as given: a tuple like the gradient's inputs is inputs alone."""
    if given.metric is None:
        return None, None, None
    alone = not isinstance(given.metric, tuple) or _alike(given.metric, given.gradient[0])
    return batch("metric", (given.metric, None) if alone else given.metric)


def metric(opt: Any, given: Batches) -> None:
    """Refuse a metric batch that this metric cannot use."""
    if given.metric is None or not opt.direction.needs_metric:
        return
    own, targets, _ = _metric_parts(given)
    kind, inputs = type(opt.metric).__name__, given.gradient[0]
    if targets is not None and not opt.metric.takes_targets(opt.problem):
        raise ValueError(f"{kind} takes no labels: its expectation is over the model's own distribution.")
    if own is None:
        return
    if not _alike(own, inputs):
        raise ValueError(
            "metric_inputs must look like the batch's inputs, without labels: "
            f"found {jax.tree.structure(own)}, expected {jax.tree.structure(inputs)}."
        )
    for one, other in zip(jax.tree.leaves(own), jax.tree.leaves(inputs), strict=True):
        if jnp.shape(one)[1:] != jnp.shape(other)[1:]:
            raise ValueError(
                f"metric_inputs have shape {jnp.shape(one)}; the batch's inputs have shape {jnp.shape(other)}."
            )
    if targets is None and opt.metric.needs_targets(opt.problem):
        raise ValueError(f"{kind} is defined by labels: give metric_targets= beside metric_inputs=.")


def step(opt: Any, params: Tree, data: Data) -> None:
    """Refuse batches and options that do not belong to this optimizer."""
    parameters(params)
    gradient, _, search, ratio = data.batches
    if gradient[1] is None and _uses_targets(opt, data):
        raise ValueError("batch has no targets, and its loss is needed.")
    for name, other in (("search_batch", search), ("ratio_batch", ratio)):
        if other and other[1] is None:
            raise ValueError(f"{name} has no targets, and its loss is needed.")
    if data.rate is not None and not isinstance(opt.search, FixedRate):
        raise ValueError(
            f"learning_rate= was given, but {type(opt.search).__name__} chooses the step length."
        )
    if data.gradient is not None:
        _same_shapes("gradient", data.gradient, "params", params)


def state(wanted: State, found: State) -> None:
    """Refuse the state of another optimizer, or of other parameters."""
    if not _same(found, wanted):
        raise ValueError(
            "state does not belong to this optimizer and these parameters: start from opt.init(params), or continue "
            "with the recipe, the settings and the parameters it was made with."
        )


def not_traced(search: Search, values: Any) -> None:
    """Refuse to trace a search that runs on the host."""
    try:
        for leaf in jax.tree.leaves(values):
            _ = leaf.is_fully_addressable if isinstance(leaf, jax.Array) else None
    except jax.errors.ConcretizationTypeError:
        name = type(search).__name__
        raise TypeError(f"{name} runs on the host and cannot be traced: use ng.PlaneSearch().") from None


def _uses_targets(opt: Any, data: Data) -> bool:
    """Tell whether anything in this step asks for the loss, or a metric of the loss, on the gradient batch."""
    _, metric, search, ratio = data.batches
    searched = opt.search.measures and search is None
    compared = opt.measures_ratio and ratio is None
    measured = opt.direction.needs_metric and metric is None and opt.metric.needs_targets(opt.problem)
    return data.gradient is None or searched or compared or measured


def _same_shapes(name: str, x: Tree, like_name: str, like: Tree) -> None:
    if not _same(x, like):
        raise ValueError(f"{name} must have the structure and shapes of {like_name}.")


def _same(x: Tree, y: Tree) -> bool:
    return _alike(x, y) and all(
        jnp.shape(a) == jnp.shape(b) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    )


def _alike(x: Tree, y: Tree) -> bool:
    return jax.tree.structure(x) == jax.tree.structure(y)  # type: ignore[operator]
