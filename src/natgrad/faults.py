"""The faults `ng.check` looks for: one function each, which returns what it found and what to do, or None."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import frozen, tree, validate
from natgrad.likelihood import Bernoulli, Categorical, Likelihood, Poisson, Product
from natgrad.metric import OWN, Metric
from natgrad.operator import Operator, Place
from natgrad.problem import Examples, Model, Problem, Stateful, _evaluate, working
from natgrad.tree import Tree


class Fault(NamedTuple):
    """Something wrong."""

    check: str
    """Which check found it."""
    found: str
    advice: str


class Stop(Exception):
    """The rest cannot be looked at."""


Found = tuple[str, str] | None


@dataclass(frozen=True)
class Case:
    """A problem on its data, and the model's outputs there."""

    problem: Problem
    params: Tree
    context: Tree
    examples: Examples
    weights: Tree
    outputs: Tree

    def run(self, params: Tree, inputs: Tree) -> Tree:
        # Not jitted: a jitted function would draw its random numbers once, when it is traced.
        return _evaluate(self.problem.model, params, inputs, self.context)[0]

    def pairs(self) -> list[tuple[Likelihood, Any, Any]]:
        """Return (likelihood, outputs, targets) for each factor."""
        likelihood = self.problem.likelihood
        if not isinstance(likelihood, Product):
            return [(likelihood, self.outputs, self.examples.targets)]
        return list(zip(likelihood.factors, self.outputs, self.examples.targets, strict=True))


def prepare(
    model: Model,
    likelihood: Likelihood,
    params: Tree,
    batch: Any,
    objective: Any,
    context: Tree,
    trainable: Any,
) -> Case:
    """Return the case, or stop: without parameters, shapes and outputs there is nothing to look at."""
    try:
        if trainable is not None:
            params, rest = frozen.split(frozen.predicate(trainable), params)
            context = frozen.Frozen(rest, context)
        validate.parameters(params)
    except (TypeError, ValueError) as error:
        raise Stop(Fault("parameters", str(error), "Give params that hold floating arrays only.")) from None
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not np.isfinite(np.asarray(leaf, np.float64)).all():
            found = f"params{jax.tree_util.keystr(path)} holds a number that is not finite."
            raise Stop(Fault("parameters", found, "Look at how the parameters are initialized."))
    try:
        validate._batch("batch", batch, True)
        inputs, targets, weights = (*batch, None)[:3]
        problem = Problem(model, likelihood, objective)
        examples = problem.examples(params, inputs, targets, weights, context)
        outputs = _evaluate(model, params, inputs, context)[0]
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        advice = "The model is called as model(params, inputs), or with context= as model(params, inputs, context)."
        raise Stop(Fault("shapes", found, advice)) from error
    return Case(problem, params, context, examples, weights, outputs)


def data(case: Case) -> Found:
    """Look for numbers that are not finite, and weights that are no weights."""
    named = (("inputs", case.examples.inputs), ("targets", case.examples.targets), ("weights", case.weights))
    for name, values in named:
        if not bool(tree.is_finite(jax.tree.map(jnp.asarray, values))):
            return (
                f"{name} hold a number that is not finite.",
                "Clean the data: such a step would be refused.",
            )
    for weights in jax.tree.leaves(case.weights):
        if np.min(weights) < 0 or not np.sum(weights) > 0:
            return "weights are negative, or all 0.", "Give each example a weight of 0 or more, not all 0."
    if not bool(tree.is_finite(case.outputs)):
        return (
            "the model's outputs are not all finite.",
            "Look at the initialization, and at logs and divisions.",
        )
    return None


def targets(case: Case) -> Found:
    """Look at the values of the targets, where the likelihood restricts them."""
    if case.problem.objective is not None:
        return None
    for likelihood, outputs, targets in case.pairs():
        found = _target_values(likelihood, outputs, targets)
        if found is not None:
            return found
    return None


def _target_values(likelihood: Likelihood, outputs: Any, targets: Any) -> Found:
    if not isinstance(likelihood, (Bernoulli, Categorical, Poisson)):
        return None
    values = np.asarray(targets)
    low, high = values.min(), values.max()
    if isinstance(likelihood, Bernoulli) and not (low >= 0 and high <= 1):
        return (
            f"Bernoulli targets must lie in [0, 1]; these run from {low} to {high}.",
            "Scale them to [0, 1], or say with ng.Gaussian() or ng.Poisson() what they are.",
        )
    if isinstance(likelihood, Poisson) and not low >= 0:
        return f"Poisson targets are counts; the smallest is {low}.", "Use ng.Gaussian() for signed numbers."
    if isinstance(likelihood, Categorical):
        classes = outputs.shape[-1]
        if values.ndim < outputs.ndim and not (low >= 0 and high < classes):
            return (
                f"Class indices must lie in 0…{classes - 1}; these run from {low} to {high}.",
                "Count classes from 0, and give the model one logit a class.",
            )
        if values.ndim == outputs.ndim and not (low >= 0 and np.allclose(values.sum(-1), 1, atol=1e-3)):
            return (
                "One-hot (or soft) targets must be non-negative rows that sum to 1.",
                "Give integer classes, or divide each row by its sum.",
            )
    return None


def outputs(case: Case) -> Found:
    """Look for an output activation: outputs in the range of an activation, however the parameters are scaled."""
    probes = [case.outputs] + [
        case.run(tree.scale(a, case.params), case.examples.inputs) for a in (-3.0, 3.0)
    ]
    several = isinstance(case.problem.likelihood, Product)
    for k, likelihood in enumerate(case.problem.likelihood.parts()):
        if not isinstance(likelihood, (Bernoulli, Categorical, Poisson)):
            continue
        runs = [np.asarray(p[k] if several else p) for p in probes if bool(tree.is_finite(p))]
        if all((r == runs[0]).all() for r in runs[1:]):
            continue
        name = type(likelihood).__name__
        if isinstance(likelihood, Categorical) and all(
            (r >= 0).all() and np.allclose(r.sum(-1), 1, atol=1e-3) for r in runs
        ):
            return f"{name} wants logits; the model returns probabilities.", "Drop the softmax at its end."
        if isinstance(likelihood, Bernoulli) and all(((r >= 0) & (r <= 1)).all() for r in runs):
            return (
                f"{name} wants logits; the model returns numbers in [0, 1].",
                "Drop the sigmoid at its end.",
            )
        if isinstance(likelihood, Poisson) and all((r >= 0).all() for r in runs):
            return (
                f"{name} wants log-rates; the model returns no negative numbers.",
                "Drop the exponential at its end.",
            )
    return None


def determinism(case: Case) -> Found:
    """Run the model again."""
    if _close(case.outputs, case.run(case.params, case.examples.inputs)):
        return None
    return (
        "the model gives different outputs for the same parameters and inputs.",
        "Give its randomness as context= (a dropout key): one fixed value for a whole step.",
    )


def independence(case: Case) -> Found:
    """Run the model on half of the examples."""
    if isinstance(case.problem.model, Stateful):
        return None

    def half(values: Tree) -> Tree:
        return jax.tree.map(lambda leaf: leaf[: max(1, leaf.shape[0] // 2)], values)

    if _close(half(case.outputs), case.run(case.params, half(case.examples.inputs))):
        return None
    return (
        "an example's outputs depend on the other examples in the batch, as with batch normalization.",
        "Give the statistics as context=, or wrap the model in ng.Stateful and keep microbatch=None.",
    )


def metric(case: Case, metric: Metric, key: Array) -> Found:
    """Look at uᵀFv, vᵀFu and vᵀFv for random u and v."""
    examples = case.examples
    if isinstance(metric, OWN):
        examples = examples._replace(targets=None)
    place = Place(
        case.problem, case.params, examples, case.context, key, jnp.ones((), tree.dtype(working(case.params)))
    )
    try:
        operator = metric.operator(place)
        probes = [_probe(operator, case.params, k) for k in jax.random.split(key, 3)]
    except (TypeError, ValueError) as error:
        return str(error), "Choose another metric=, or tell the likelihood more."
    name = type(metric).__name__
    if not all(np.isfinite(p).all() for p in probes):
        return f"a product with {name} is not finite.", "Look at the likelihood's second derivatives."
    if all((p == 0).all() for p in probes):
        return f"{name} is 0: the outputs do not depend on the parameters.", "Use params in the model."
    precision = float(np.sqrt(jnp.finfo(tree.dtype(working(case.params))).eps))
    for uv, vu, uu, vv, size in probes:
        if abs(uv - vu) > precision * size:
            return (
                f"{name} is not symmetric: uᵀFv = {uv:.6g}, vᵀFu = {vu:.6g}.",
                "The likelihood's fisher(outputs, u) must be a symmetric matrix times u.",
            )
        if min(uu, vv) < -precision * size:
            return (
                f"{name} is not positive: vᵀFv = {min(uu, vv):.6g}.",
                "The loss must be convex in the outputs; for an indefinite matrix use ng.MINRES.",
            )
    return None


def _probe(operator: Operator, params: Tree, key: Array) -> np.ndarray:
    """Return uᵀFv, vᵀFu, uᵀFu, vᵀFv and their scale ‖u‖‖Fv‖, in float64."""

    def draw(key: Array) -> Tree:
        leaves, structure = jax.tree.flatten(working(params))
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(
            structure, [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)]
        )

    u, v = (draw(k) for k in jax.random.split(key))
    fu, fv = operator(u), operator(v)
    size = tree.norm(u) * tree.norm(fv) + tree.norm(v) * tree.norm(fu)
    numbers = (tree.vdot(u, fv), tree.vdot(v, fu), tree.vdot(u, fu), tree.vdot(v, fv), size)
    return np.array([float(n) for n in numbers])


def loss(case: Case, loss: Callable[[Tree], Any]) -> Found:
    """Compare the gradients of the two losses, here and at a point nearby: equal if they differ by a constant."""
    rest = case.context.rest if isinstance(case.context, frozen.Frozen) else None

    def theirs(params: Tree) -> Array:
        return jnp.asarray(loss(params if rest is None else frozen.merge(params, rest)))

    def ours(params: Tree) -> Array:
        return case.problem.loss(params, case.examples, case.context)

    shape = jax.eval_shape(theirs, case.params).shape
    if shape != ():
        return f"your loss returns shape {shape}.", "Return one number: the mean over the examples."
    nearby = jax.tree.map(lambda a: a * jnp.asarray(1.1, a.dtype) + jnp.asarray(0.01, a.dtype), case.params)
    ratios = []
    for params in (case.params, nearby):
        g, h = jax.grad(ours)(params), jax.grad(theirs)(params)
        gg, gh, hh = (float(tree.vdot(a, b)) for a, b in ((g, g), (g, h), (h, h)))
        if gg == 0 or hh == 0 or gh < 0.999 * np.sqrt(gg * hh):
            return (
                "your loss is not the likelihood's: their gradients point in different directions.",
                "Choose the likelihood whose nll is your loss, or give your loss as objective= to the optimizer.",
            )
        ratios.append(gh / gg)
    ratio = ratios[0]
    if max(abs(r - 1) for r in ratios) > 1e-3:
        return (
            f"your loss is {ratio:.4g} times the likelihood's (summed over outputs, averaged over examples).",
            "A mean over outputs where the metric has a sum rescales every step: use the likelihood's loss, or "
            "choose learning_rate and damping for yours.",
        )
    return None


def _close(x: Tree, y: Tree) -> bool:
    """Tell whether two trees agree up to rounding, relative to their largest number."""

    def close(a: Any, b: Any) -> bool:
        a, b = np.asarray(a), np.asarray(b)
        return bool(
            np.abs(a - b).max(initial=0) <= np.sqrt(np.finfo(a.dtype).eps) * (1 + np.abs(a).max(initial=0))
        )

    return all(close(a, b) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True))
