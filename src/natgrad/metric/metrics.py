"""Which metric: a choice of the small matrix M_i at each example's outputs, in F = Σ_i c_i J_iᵀ M_i J_i.

M may be the Fisher information of the model's own distribution, the Hessian of the loss, or the outer product of a
score.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.custom import densely_rooted, hessian_at_outputs
from natgrad.examples import OverExamples
from natgrad.likelihood import AtOutputs, Bernoulli, Likelihood, Product, side_by_side
from natgrad.metric.here import Here, Use
from natgrad.metric.operator import DiagonalTerm, JacobianTerm, Operator, ProductTerm, Term, example_keys
from natgrad.part import Part, require
from natgrad.problem import Linearization, Model, Problem, check_model
from natgrad.tree import Tree


class Metric(Part):
    """A choice of M. Add metrics with `+`."""

    def needs_targets(self, problem: Problem) -> bool:
        """Tell whether the metric's definition involves labels."""
        return False

    def takes_targets(self, problem: Problem) -> bool:
        """Tell whether labels may be given; a metric of the model's own distribution has no place for them."""
        return self.needs_targets(problem)

    def terms(self, here: Here, linear: OverExamples[Linearization]) -> tuple[Term, ...]:
        """Return the summands of F at θ, on the examples of a linearization."""
        key = here.key_for(Use.SAMPLES)
        problem = here.problem
        return (
            JacobianTerm(
                problem,
                here.params,
                linear,
                lambda seen: self.at(problem, seen, key),
                lambda seen: self.residual(problem, seen),
            ),
        )

    def at(self, problem: Problem, seen: Linearization, key: Array) -> AtOutputs:
        """Return M at some examples' outputs."""
        raise NotImplementedError

    def residual(self, problem: Problem, seen: Linearization) -> Tree:
        """Return e with C e = ∇ᵣℓ at some examples' outputs, or None where M's root has nothing to do with the loss."""
        return None

    def operator(self, here: Here, linear: OverExamples[Linearization]) -> Operator:
        """Return v ↦ Fv at θ, on the examples of a linearization."""
        return Operator(self.terms(here, linear))

    def __add__(self, other: "Metric") -> "Metric":
        return Sum((*_summands(self), *_summands(other)))


@dataclass(frozen=True)
class Sum(Metric):
    """The sum of metrics, made by `+`."""

    summands: tuple[Metric, ...]

    def needs_targets(self, problem: Problem) -> bool:
        """Tell whether any summand does."""
        return any(metric.needs_targets(problem) for metric in self.summands)

    def takes_targets(self, problem: Problem) -> bool:
        """Tell whether any summand does."""
        return any(metric.takes_targets(problem) for metric in self.summands)

    def terms(self, here: Here, linear: OverExamples[Linearization]) -> tuple[Term, ...]:
        """Return the terms of all summands."""
        keys = jax.random.split(here.key_for(Use.TERMS), len(self.summands))
        return tuple(
            term
            for metric, key in zip(self.summands, keys, strict=True)
            for term in metric.terms(replace(here, key=key), linear)
        )


@dataclass(frozen=True)
class Fisher(Metric):
    """M = E_{t ~ p(·|r)}[∇ log p ∇ log pᵀ]: the model's own distribution, so no label can enter."""

    def at(self, problem: Problem, seen: Linearization, key: Array) -> AtOutputs:
        """Return the likelihood's Fisher information."""
        return problem.likelihood.at(seen.outputs)

    def residual(self, problem: Problem, seen: Linearization) -> Tree:
        """Return the likelihood's residual."""
        return problem.residual(seen)


@dataclass(frozen=True)
class MonteCarloFisher(Metric):
    """An estimate of M from random scores s with E[ssᵀ] = M; the mean is Fisher's M, the rank is `samples`."""

    samples: int = 1

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"MonteCarloFisher(samples={self.samples}): at least one sample is needed.")

    def at(self, problem: Problem, seen: Linearization, key: Array) -> AtOutputs:
        """Return (1/S) Σ s sᵀ."""

        def draw(key: Array) -> Tree:
            return problem.likelihood.score(example_keys(key, seen.examples.index), seen.outputs)

        return _outer_products(jax.vmap(draw)(jax.random.split(key, self.samples)), seen)


@dataclass(frozen=True)
class EmpiricalFisher(Metric):
    """M = ∇ℓ ∇ℓᵀ at the data's own targets: TONGA's U. It is F only if the model is right.

    Centered, it is the covariance of the gradients: U − ḡḡᵀ. With a `Product` each factor's examples are its own.
    """

    centered: bool = False

    def needs_targets(self, problem: Problem) -> bool:
        """Say yes: the gradients are those of the data."""
        return True

    def at(self, problem: Problem, seen: Linearization, key: Array) -> AtOutputs:
        """Return ∇ℓ ∇ℓᵀ."""
        scores = jax.grad(lambda r: tree.total(problem.losses(r, seen.examples)))(seen.outputs)
        return _outer_products(jax.tree.map(lambda s: s[None], scores), seen)

    def terms(self, here: Here, linear: OverExamples[Linearization]) -> tuple[Term, ...]:
        """Return U, or U − ḡḡᵀ."""
        (uncentered,) = super().terms(here, linear)
        if not self.centered:
            return (uncentered,)
        if len(here.problem.likelihood.parts()) > 1:
            raise ValueError("A centered EmpiricalFisher needs one example axis; this Product has several.")
        _, mean, _ = here.problem.loss_and_gradient(linear)

        def product(v: Tree) -> Tree:
            return tree.axpy(-tree.vdot(mean, v), mean, uncentered.product(v))

        return (ProductTerm("A centered EmpiricalFisher", product),)


@dataclass(frozen=True)
class GaussNewton(Metric):
    """M = ∂²ℓ/∂r²: the extended Gauss–Newton matrix; Fisher's M for a matching likelihood without an objective."""

    def needs_targets(self, problem: Problem) -> bool:
        """Say yes unless the Hessian at the outputs is known to be free of the targets."""
        return problem.objective is not None or not problem.likelihood.matching

    def takes_targets(self, problem: Problem) -> bool:
        """Say yes: the Hessian is the loss's, even where it is free of them."""
        return True

    def at(self, problem: Problem, seen: Linearization, key: Array) -> AtOutputs:
        """Return ∂²ℓ/∂r²: in closed form where it is free of the targets, else forward over reverse."""
        if not self.needs_targets(problem):
            return problem.likelihood.at(seen.outputs)

        likelihood = problem.likelihood
        if problem.objective is None and isinstance(likelihood, Product):
            parts = zip(likelihood.factors, seen.outputs, seen.examples.targets, strict=True)
            return side_by_side(tuple(_of_factor(*part) for part in parts))

        def product(u: Tree) -> Tree:
            return hessian_at_outputs(lambda r: tree.total(problem.losses(r, seen.examples)), seen.outputs, u)

        return densely_rooted(product, seen.outputs)

    def residual(self, problem: Problem, seen: Linearization) -> Tree:
        """Return the likelihood's residual, where M is the likelihood's."""
        return None if self.needs_targets(problem) else problem.residual(seen)


@dataclass(frozen=True)
class Hessian(Metric):
    """∇²L itself. It is indefinite in general, so it is for MINRES and for study."""

    def needs_targets(self, problem: Problem) -> bool:
        """Say yes: it is the loss's."""
        return True

    def terms(self, here: Here, linear: OverExamples[Linearization]) -> tuple[Term, ...]:
        """Return v ↦ Hv on the linearized gradient."""
        gradient = here.problem.linearize_gradient(here.params, linear.examples)
        return (ProductTerm("Hessian", lambda v: gradient.sum(lambda hvp: hvp(v))),)


@dataclass(frozen=True)
class DiagonalFisher(Metric):
    """diag(F), estimated from random signs: the control the paper argues against."""

    blocks: int = 100
    """Groups of examples in the estimate: more groups, less noise."""

    def terms(self, here: Here, linear: OverExamples[Linearization]) -> tuple[Term, ...]:
        """Return v ↦ diag(F) ∘ v."""
        key = here.key_for(Use.DIAGONAL_FISHER)
        return (DiagonalTerm(Fisher().operator(here, linear).diagonal(key, self.blocks)),)


@dataclass(frozen=True)
class StructuralDamping(Metric):
    """μ times the Fisher metric of a recurrent net's hidden states: steps that disturb them less (add it with `+`).

    `hidden(params, inputs)` returns the hidden pre-activations of all times, read as logits of independent
    Bernoullis: S = Σ_t J_tᵀ diag(h(1 − h)) J_t. For tanh units return twice the pre-activation: that gives
    diag(1 − h²). With `tied` the factor is λμ, and damping as a whole follows Levenberg–Marquardt (Martens &
    Sutskever 2011). Untied with μ = 1, it is the metric of the joint density p(t, h | x); untied with any other μ, it
    is the paper's two constraints.
    """

    hidden: Model
    mu: float = 1 / 30
    tied: bool = True

    def __post_init__(self) -> None:
        require(lambda: self.mu >= 0, f"StructuralDamping(mu={self.mu}): the factor cannot be negative.")

    def terms(self, here: Here, linear: OverExamples[Linearization]) -> tuple[Term, ...]:
        """Return μ S, or λμ S, as a term that only damps."""
        problem = replace(
            here.problem, model=self.hidden, likelihood=Bernoulli(), objective=None, has_aux=False
        )
        weights = linear.examples.coefficients
        if isinstance(weights, tuple):
            raise ValueError("StructuralDamping needs one example axis; this Product has several.")
        examples = problem.examples(here.params, linear.examples.inputs, None, weights)
        (states,) = Fisher().terms(replace(here, problem=problem), problem.linearize(here.params, examples))
        scale = jnp.asarray(self.mu, weights.dtype)
        if self.tied:
            if here.damping is None:
                raise ValueError(
                    "Tied structural damping needs λ: use it in an optimizer, or set tied=False."
                )
            scale = scale * here.damping.astype(scale.dtype)
        return (states.as_damping(scale),)


def metric_product(
    model: Model,
    likelihood: Likelihood,
    params: Tree,
    inputs: Tree,
    weights: Tree = None,
    metric: Metric | None = None,
    *,
    targets: Tree = None,
    context: Tree = None,
    objective: Callable[[Tree, Tree], Array] | None = None,
    microbatch: int | None = None,
    has_aux: bool = False,
    key: Array | None = None,
) -> Operator:
    """Return the operator v ↦ Fv of a metric (default `Fisher`) at params, on these inputs.

    Call it for F·v. `quadratic(v)` is vᵀFv, `factor(v)` is Av with F = AᵀA, `factor_transpose(e)` is Aᵀe,
    `diagonal(key)` estimates diag(F).
    """
    metric = Fisher() if metric is None else metric
    check_model(model)
    problem = Problem(model, likelihood, objective, microbatch, has_aux, context=context)
    if metric.needs_targets(problem) and targets is None:
        raise ValueError(f"{type(metric).__name__} is defined by the data's targets: give targets=.")
    if targets is not None and not metric.takes_targets(problem):
        name = type(metric).__name__
        raise ValueError(f"{name} takes no targets: its expectation is over the model's own distribution.")
    examples = problem.examples(params, inputs, targets, weights)
    key = jax.random.key(0) if key is None else key
    return metric.operator(Here(problem, params, examples, key), problem.linearize(params, examples))


def _summands(metric: Metric) -> tuple[Metric, ...]:
    return metric.summands if isinstance(metric, Sum) else (metric,)


def _outer_products(scores: Tree, seen: Linearization) -> AtOutputs:
    """Return (1/S) Σ_k s_k s_kᵀ for scores stacked on a leading axis, each factor of a `Product` on its own.

    With one weight per position, each position has an outer product of its own.
    """
    parts = seen.examples.coefficients

    def dots(c: Array, s: Tree, u: Tree) -> Array:
        lead = 1 + c.ndim
        rows = jax.tree.map(lambda a, b: jnp.sum((a * b[None]).reshape(*a.shape[:lead], -1), axis=-1), s, u)
        total = jnp.sum(jnp.stack(jax.tree.leaves(rows)), axis=0)
        return jnp.moveaxis(total, 0, -1) / jnp.sqrt(jnp.asarray(_count(s), tree.dtype(s)))

    def blend(c: Array, s: Tree, e: Array) -> Tree:
        scaled = jnp.moveaxis(e / jnp.sqrt(jnp.asarray(_count(s), e.dtype)), -1, 0)

        def one(a: Array) -> Array:
            return jnp.sum(a * scaled.reshape(*scaled.shape, *(1,) * (a.ndim - scaled.ndim)), axis=0)

        return jax.tree.map(one, s)

    def factor(e: Tree) -> Tree:
        return jax.tree.map(blend, parts, scores, e)

    def factor_transpose(u: Tree) -> Tree:
        return jax.tree.map(dots, parts, scores, u)

    return AtOutputs(lambda u: factor(factor_transpose(u)), factor, factor_transpose)


def _count(s: Tree) -> int:
    return jax.tree.leaves(s)[0].shape[0]


def _of_factor(factor: Likelihood, outputs: Tree, targets: Tree) -> AtOutputs:
    """Return the Hessian of one factor's loss at its outputs."""
    if factor.matching:
        return factor.at(outputs)

    def product(u: Tree) -> Tree:
        return hessian_at_outputs(lambda r: factor.nll(r, targets), outputs, u)

    return densely_rooted(product, outputs)
