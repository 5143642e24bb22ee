"""The faults `ng.check` looks for. Each has one function, which returns what it found and what to do, or None."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import frozen, tree, validate
from natgrad.custom import LogProb
from natgrad.examples import Examples
from natgrad.likelihood import Bernoulli, Categorical, Likelihood, Poisson, Product
from natgrad.metric import Metric
from natgrad.metric.here import Here
from natgrad.problem import Model, Problem, Stateful, check_model, run, with_signs, working
from natgrad.tree import Tree


class Finding(NamedTuple):
    """A fault, or something that makes training hard."""

    check: str
    """Which check found it."""
    found: str
    advice: str


class Stop(Exception):
    """The remaining checks cannot run."""


Remark = tuple[str, str] | None
"""What was found, and what to do about it; None if there is nothing to say."""

SCALES = (1.0, -3.0, 3.0)
"""The outputs are computed at the parameters times each of these. If the factor is not 1, small numbers of both signs
are added, because parameters that start at 0 would stay there."""
# These programs run once or twice, so they are compiled fast rather than well.
_quickly = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)


@dataclass(frozen=True)
class Case:
    """A problem on its data, and the model's outputs there."""

    problem: Problem
    params: Tree
    examples: Examples
    weights: Tree
    scaled: Tree
    """The outputs at the parameters themselves, and far from them, stacked."""
    again: Tree
    """The outputs of a second call of the model."""

    @property
    def outputs(self) -> Tree:
        """The outputs at the parameters themselves."""
        return jax.tree.map(lambda leaf: leaf[0], self.scaled)

    def run(self, params: Tree, inputs: Tree) -> Tree:
        """Return the model's outputs, on the host."""
        return jax.device_get(_run(self.problem, params, inputs))

    def factors(self) -> list[tuple[Likelihood, Any, Any, Any]]:
        """Return (likelihood, outputs, targets, coefficients) for each factor."""
        likelihood = self.problem.likelihood
        rest = self.outputs, self.examples.targets, self.examples.coefficients
        if not isinstance(likelihood, Product):
            return [(likelihood, *rest)]
        return list(zip(likelihood.factors, *rest, strict=True))


def prepare(
    model: Model,
    likelihood: Likelihood,
    params: Tree,
    batch: Any,
    objective: Any,
    context: Tree,
    trainable: Any,
    has_aux: bool,
) -> Case:
    """Return the case, or stop: without parameters, shapes and outputs there is nothing to look at."""
    try:
        rest = None
        if trainable is not None:
            params, rest = frozen.split(frozen.predicate("trainable", trainable), params)
        validate.parameters(params)
    except (TypeError, ValueError) as error:
        raise Stop(Finding("parameters", str(error), "Give params that hold floating arrays only.")) from None
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not np.isfinite(np.asarray(leaf, np.float64)).all():
            found = f"params{jax.tree_util.keystr(path)} holds a number that is not finite."
            raise Stop(Finding("parameters", found, "Look at how the parameters are initialized."))
    try:
        check_model(model)
    except TypeError as error:
        raise Stop(
            Finding("model", str(error), "Give the arrays as params, and a function of them.")
        ) from None
    problem = Problem(model, likelihood, objective, has_aux=has_aux, rest=rest, context=context)
    try:
        inputs, targets, weights = validate.batch("batch", batch)
        if targets is None:
            raise ValueError("the batch has no targets.")
        examples = problem.examples(params, inputs, targets, weights)
        scaled, again = jax.device_get(_runs(problem, params, inputs))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise Stop(Finding("shapes", found, _advice(problem, params, batch))) from error
    return Case(problem, params, examples, weights, scaled, again)


@_quickly
def _runs(problem: Problem, params: Tree, inputs: Tree) -> tuple[Tree, Tree]:
    """Return the outputs at the parameters and far from them, and once more at the parameters themselves.

    The model's Python code runs twice, so a model that draws its own random numbers draws new ones.
    """
    signs = with_signs(jax.tree.map(jnp.ones_like, params))
    scaled = jax.lax.map(
        lambda a: _called(problem, tree.axpy((a - 1) / 20, signs, tree.scale(a, params)), inputs),
        jnp.asarray(SCALES, tree.dtype(working(params))),
    )
    return scaled, _called(problem, params, inputs)


def _called(problem: Problem, params: Tree, inputs: Tree) -> Tree:
    outputs, _ = run(problem.model, problem.has_aux, params, problem.rest, inputs, problem.context)
    return working(outputs)


_run = _quickly(_called)


def _advice(problem: Problem, params: Tree, batch: Any) -> str:
    """Return what to do about shapes: the advice depends on whether the batch, the call or the outputs are wrong."""
    try:
        validate.batch("batch", batch)
    except (TypeError, ValueError):
        return "Give the batch as (inputs, targets) or (inputs, targets, weights), all of them arrays."
    try:
        jax.eval_shape(partial(_called, problem), params, batch[0])
    except Exception:
        return "The model is called as model(params, inputs), or with context= as model(params, inputs, context)."
    return "The model runs. Make its outputs, the targets and the weights fit: one row each per example."


def data(case: Case) -> Remark:
    """Look for numbers that are not finite, and for weights that are negative or all 0."""
    named = (("inputs", case.examples.inputs), ("targets", case.examples.targets), ("weights", case.weights))
    for name, values in named:
        if not _finite(values):
            return (
                f"{name} hold a number that is not finite.",
                "Clean the data: such a step would be refused.",
            )
    for weights in jax.tree.leaves(case.weights):
        if np.min(weights) < 0 or not np.sum(weights) > 0:
            return "weights are negative, or all 0.", "Give each example a weight of 0 or more, not all 0."
    if not _finite(case.outputs):
        return (
            "the model's outputs are not all finite.",
            "Look at the initialization, and at logs and divisions.",
        )
    return None


def _finite(values: Tree) -> bool:
    """Tell whether all floats are finite. This runs on the host and compiles nothing."""
    floating = (leaf for leaf in jax.tree.leaves(values) if jnp.issubdtype(leaf.dtype, jnp.floating))
    return all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in floating)


def targets(case: Case) -> Remark:
    """Look at the values of the targets, where the likelihood restricts them."""
    if case.problem.objective is not None:
        return None
    for likelihood, outputs, targets, coefficients in case.factors():
        counted = np.asarray(coefficients) != 0
        found = _target_values(likelihood, outputs, targets, counted)
        if found is None and isinstance(likelihood, LogProb) and counted.ndim == 1:
            found = _probabilities(likelihood, outputs, targets, counted)
        if found is not None:
            return found
    return None


def _target_values(likelihood: Likelihood, outputs: Any, targets: Any, counted: np.ndarray) -> Remark:
    if not isinstance(likelihood, (Bernoulli, Categorical, Poisson)):
        return None
    hard = np.ndim(targets) < outputs.ndim
    values = np.asarray(targets)[counted]  # What has a weight of 0 may have any target.
    low, high = values.min(), values.max()
    if isinstance(likelihood, Bernoulli) and not (low >= 0 and high <= 1):
        return (
            f"Bernoulli targets must lie in [0, 1]; these run from {low} to {high}.",
            "Scale them to [0, 1], or choose ng.Gaussian() or ng.Poisson().",
        )
    if isinstance(likelihood, Poisson) and not low >= 0:
        return f"Poisson targets are counts; the smallest is {low}.", "Use ng.Gaussian() for signed numbers."
    if isinstance(likelihood, Categorical):
        classes = outputs.shape[-1]
        if hard and not (low >= 0 and high < classes):
            return (
                f"Class indices must lie in 0…{classes - 1}; these run from {low} to {high}.",
                "Count classes from 0, one logit per class. Mask a position by a weight of 0, not by a target of −1.",
            )
        if not hard and not (low >= 0 and np.allclose(values.sum(-1), 1, atol=1e-3)):
            return (
                "One-hot (or soft) targets must be non-negative rows that sum to 1.",
                "Give integer classes, or divide each row by its sum.",
            )
    return None


def _probabilities(likelihood: LogProb, outputs: Any, targets: Any, counted: np.ndarray) -> Remark:
    losses = np.asarray(likelihood.nll(outputs, targets))
    bad = np.flatnonzero(~np.isfinite(losses) & counted)
    if not len(bad):
        return None
    return (
        f"log_prob is not finite for {len(bad)} of {len(losses)} examples, the first of them number {bad[0]}.",
        "Look at its target: it may lie outside of what the distribution allows.",
    )


def outputs(case: Case) -> Remark:
    """Look for an output activation: outputs in the range of an activation, however the parameters are scaled."""
    probes = [jax.tree.map(lambda leaf, k=k: leaf[k], case.scaled) for k in range(len(SCALES))]
    several = isinstance(case.problem.likelihood, Product)
    for k, likelihood in enumerate(case.problem.likelihood.parts()):
        if not isinstance(likelihood, (Bernoulli, Categorical, Poisson)):
            continue
        runs = [np.asarray(p[k] if several else p) for p in probes if _finite(p)]
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


def determinism(case: Case) -> Remark:
    """Compare the outputs of two calls of the model."""
    if _close(case.outputs, case.again):
        return None
    return (
        "the model gives different outputs for the same parameters and inputs.",
        "Give its randomness as context= (a dropout key): one fixed value for a whole step.",
    )


def independence(case: Case) -> Remark:
    """Run the model on half of the examples."""
    if isinstance(case.problem.model, Stateful):
        return None

    def half(values: Tree) -> Tree:
        return jax.tree.map(lambda leaf: leaf[: max(1, leaf.shape[0] // 2)], values)

    try:
        alone = case.run(case.params, half(case.examples.inputs))
    except Exception as error:
        return (
            f"the model does not run on half of the batch: {type(error).__name__}: {error}",
            "Take the number of examples from the inputs, as x.shape[0].",
        )
    if _close(half(case.outputs), alone):
        return None
    return (
        "an example's outputs depend on the other examples in the batch, as with batch normalization.",
        "Give the statistics as context=, or wrap the model in ng.Stateful and keep microbatch=None.",
    )


def metric(case: Case, metric: Metric, key: Array) -> Remark:
    """Look at uᵀFv, vᵀFu and vᵀFv for random u and v."""
    examples = case.examples
    if not metric.takes_targets(case.problem):
        examples = examples._replace(targets=None)

    @_quickly
    def product(problem: Problem, params: Tree, examples: Examples, key: Array, v: Tree) -> Tree:
        one = jnp.ones((), tree.dtype(working(params)))
        here = Here(problem, params, examples, key, damping=one)
        return metric.operator(here, problem.linearize(params, examples))(v)

    random = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    try:
        at = partial(product, case.problem, case.params, examples, key)
        probes = np.array([_probe(at, case.params, random) for _ in range(3)])
    except (TypeError, ValueError) as error:
        if _differentiable(case):
            return str(error), "Choose another metric=, or give the likelihood what the message asks for."
        return (
            str(error),
            "The metric needs forward-mode and reverse-mode derivatives: define custom ones by jax.custom_jvp.",
        )
    name = type(metric).__name__
    if not np.isfinite(probes).all():
        return f"a product with {name} is not finite.", "Look at the likelihood's second derivatives."
    if not probes.any():
        return f"{name} is 0: the outputs do not depend on the parameters.", "Use params in the model."
    precision = _precision(case)
    for uv, vu, uu, vv, size in probes:
        if abs(uv - vu) > precision * size:
            return (
                f"{name} is not symmetric: uᵀFv = {uv:.6g}, vᵀFu = {vu:.6g}.",
                "M, which the likelihood's at(outputs) returns, must be symmetric.",
            )
        if min(uu, vv) < -precision * size:
            return (
                f"{name} is not positive: vᵀFv = {min(uu, vv):.6g}.",
                "The loss must be convex in the outputs; for an indefinite matrix use ng.MINRES.",
            )
    return None


def _precision(case: Case) -> float:
    """Return √ε of the narrowest dtype the model computes with."""
    leaves = jax.tree.leaves((case.params, case.examples.inputs))
    floating = [leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return float(np.sqrt(max(float(jnp.finfo(kind).eps) for kind in floating)))


def _differentiable(case: Case) -> bool:
    """Tell whether JᵀJθ can be computed: one forward-mode and one reverse-mode product."""
    try:
        linear = case.problem.linearize(case.params, case.examples)
        linear.sum(lambda seen: seen.vjp(seen.jvp(working(case.params))))
    except (TypeError, ValueError):
        return False
    return True


def _probe(product: Callable[[Tree], Tree], params: Tree, random: np.random.Generator) -> list[float]:
    """Return uᵀFv, vᵀFu, uᵀFu, vᵀFv and their scale ‖u‖‖Fv‖ + ‖v‖‖Fu‖, in float64."""

    def drawn() -> Tree:
        return jax.tree.map(lambda a: np.asarray(random.standard_normal(a.shape), a.dtype), working(params))

    def flat(x: Tree) -> np.ndarray:
        return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(x)])

    us, vs = drawn(), drawn()
    u, v, fu, fv = (flat(x) for x in (us, vs, product(us), product(vs)))
    size = np.linalg.norm(u) * np.linalg.norm(fv) + np.linalg.norm(v) * np.linalg.norm(fu)
    return [u @ fv, v @ fu, u @ fu, v @ fv, size]


def loss(case: Case, loss: Callable[[Tree], Any]) -> Remark:
    """Compare the gradients of the two losses, here and at a point nearby: equal if they differ by a constant."""
    rest = case.problem.rest

    def theirs(params: Tree) -> Array:
        return jnp.asarray(loss(params if rest is None else frozen.merge(params, rest)))

    def ours(params: Tree) -> Array:
        return case.problem.loss(params, case.examples)

    shape = jax.eval_shape(theirs, case.params).shape
    if shape != ():
        return f"your loss returns shape {shape}.", "Return one number: the mean over the examples."
    nearby = jax.tree.map(lambda a: a * jnp.asarray(1.1, a.dtype) + jnp.asarray(0.01, a.dtype), case.params)
    ratios = []

    @_quickly
    def products(params: Tree) -> Array:
        g, h = jax.grad(ours)(params), jax.grad(theirs)(params)
        return jnp.stack([tree.vdot(a, b) for a, b in ((g, g), (g, h), (h, h))])

    for params in (case.params, nearby):
        gg, gh, hh = map(float, products(params))
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
