"""Which metric: a choice of the small matrix M_i at each example's outputs, in F = Σ_i c_i J_iᵀ M_i J_i.

The Fisher information of the model's own distribution, the Hessian of the loss, the outer product of a score.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.custom import densely_rooted, hessian_at_outputs
from natgrad.likelihood import AtOutputs, Bernoulli, Likelihood
from natgrad.operator import (
    Centered,
    Damper,
    DiagonalOperator,
    HessianOperator,
    JacobianOperator,
    Operator,
    Place,
    SumOperator,
    Use,
    example_keys,
)
from natgrad.problem import Chunk, Model, Pass, Problem
from natgrad.tree import Tree


class Metric:
    """A choice of M. Add metrics with `+`."""

    def needs_targets(self, problem: Problem) -> bool:
        """Tell whether the metric's definition involves labels."""
        return False

    def takes_targets(self, problem: Problem) -> bool:
        """Tell whether labels may be given; a metric of the model's own distribution has no place for them."""
        return self.needs_targets(problem)

    def operator(self, place: Place, linear: Pass | None = None) -> Operator:
        """Return v ↦ Fv at a place; `linear` is a linearization already made there."""
        key = place.key_for(Use.SAMPLES)
        return JacobianOperator(place, lambda chunk: self.at(place.problem, chunk, key), linear)

    def at(self, problem: Problem, chunk: Chunk, key: Array) -> AtOutputs:
        """Return M at a chunk's outputs."""
        raise NotImplementedError

    def __add__(self, other: "Metric") -> "Metric":
        return Sum((*_terms(self), *_terms(other)))


@dataclass(frozen=True)
class Sum(Metric):
    """The sum of metrics, made by `+`."""

    terms: tuple[Metric, ...]

    def needs_targets(self, problem: Problem) -> bool:
        """Tell whether any term does."""
        return any(term.needs_targets(problem) for term in self.terms)

    def takes_targets(self, problem: Problem) -> bool:
        """Tell whether any term does."""
        return any(term.takes_targets(problem) for term in self.terms)

    def operator(self, place: Place, linear: Pass | None = None) -> Operator:
        """Return the sum of the terms' operators."""
        keys = jax.random.split(place.key_for(Use.TERMS), len(self.terms))
        places = (replace(place, key=key) for key in keys)
        return SumOperator(
            *(term.operator(own, linear) for term, own in zip(self.terms, places, strict=True))
        )


@dataclass(frozen=True)
class Fisher(Metric):
    """M = E_{t ~ p(·|r)}[∇ log p ∇ log pᵀ]: the model's own distribution, so no label can enter."""

    def at(self, problem: Problem, chunk: Chunk, key: Array) -> AtOutputs:
        """Return the likelihood's Fisher information."""
        return problem.likelihood.information(chunk.outputs)


@dataclass(frozen=True)
class MonteCarloFisher(Metric):
    """M estimated from random scores s with E[ssᵀ] = M: Fisher in the mean, of rank `samples` an example."""

    samples: int = 1

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"MonteCarloFisher(samples={self.samples}): at least one sample is needed.")

    def at(self, problem: Problem, chunk: Chunk, key: Array) -> AtOutputs:
        """Return (1/S) Σ s sᵀ."""

        def draw(key: Array) -> Tree:
            return problem.likelihood.score(example_keys(key, chunk.examples.index), chunk.outputs)

        return _outer_products(jax.vmap(draw)(jax.random.split(key, self.samples)), chunk)


@dataclass(frozen=True)
class EmpiricalFisher(Metric):
    """M = ∇ℓ ∇ℓᵀ at the data's own targets: TONGA's U. It is F only if the model is right.

    Centered, it is the covariance of the gradients: U − ḡḡᵀ. With a `Product` each factor's examples are its own.
    """

    centered: bool = False

    def needs_targets(self, problem: Problem) -> bool:
        """Say yes: the gradients are those of the data."""
        return True

    def at(self, problem: Problem, chunk: Chunk, key: Array) -> AtOutputs:
        """Return ∇ℓ ∇ℓᵀ."""
        scores = jax.grad(lambda r: tree.total(problem.losses(r, chunk.examples.targets)))(chunk.outputs)
        return _outer_products(jax.tree.map(lambda s: s[None], scores), chunk)

    def operator(self, place: Place, linear: Pass | None = None) -> Operator:
        """Return v ↦ Uv, or v ↦ Uv − ḡ(ḡᵀv)."""
        linear = place.linearize() if linear is None else linear
        uncentered = super().operator(place, linear)
        if not self.centered:
            return uncentered
        if len(place.problem.likelihood.parts()) > 1:
            raise ValueError("A centered EmpiricalFisher needs one example axis; this Product has several.")
        _, mean, _ = place.problem.loss_and_gradient(linear)
        return Centered(uncentered, mean)


@dataclass(frozen=True)
class GaussNewton(Metric):
    """M = ∂²ℓ/∂r²: the extended Gauss–Newton matrix; Fisher's M for a matching likelihood without an objective."""

    def needs_targets(self, problem: Problem) -> bool:
        """Say yes unless the Hessian at the outputs is known to be free of the targets."""
        return problem.objective is not None or not problem.likelihood.matching

    def takes_targets(self, problem: Problem) -> bool:
        """Say yes: the Hessian is the loss's, even where it is free of them."""
        return True

    def at(self, problem: Problem, chunk: Chunk, key: Array) -> AtOutputs:
        """Return ∂²ℓ/∂r²: in closed form where it is free of the targets, else forward over reverse."""
        if not self.needs_targets(problem):
            return problem.likelihood.information(chunk.outputs)
        targets = chunk.examples.targets

        def product(u: Tree) -> Tree:
            return hessian_at_outputs(lambda r: tree.total(problem.losses(r, targets)), chunk.outputs, u)

        return densely_rooted(product, chunk.outputs)


@dataclass(frozen=True)
class Hessian(Metric):
    """∇²L itself: indefinite in general, so for MINRES and for study."""

    def needs_targets(self, problem: Problem) -> bool:
        """Say yes: it is the loss's."""
        return True

    def operator(self, place: Place, linear: Pass | None = None) -> Operator:
        """Return v ↦ Hv on the linearized gradient."""
        return HessianOperator(place.problem.linearize_gradient(place.params, place.examples, place.context))


@dataclass(frozen=True)
class DiagonalFisher(Metric):
    """diag(F), estimated from random signs: the control the paper argues against."""

    blocks: int = 100
    """Groups of examples in the estimate: more groups, less noise."""

    def operator(self, place: Place, linear: Pass | None = None) -> Operator:
        """Return v ↦ diag(F) ∘ v."""
        full = Fisher().operator(place, linear)
        return DiagonalOperator(full.diagonal(place.key_for(Use.DIAGONAL_FISHER), self.blocks))


@dataclass(frozen=True)
class StructuralDamping(Metric):
    """μ times the Fisher metric of a recurrent net's hidden states: steps that disturb them less (add it with `+`).

    `hidden(params, inputs)` returns the hidden pre-activations of all times, read as logits of independent
    Bernoullis: S = Σ_t J_tᵀ diag(h(1 − h)) J_t. For tanh units return twice the pre-activation: that gives
    diag(1 − h²). With `tied` the factor is λμ, and damping as a whole follows Levenberg–Marquardt (Martens &
    Sutskever 2011). Untied and μ = 1 it is the metric of the joint density p(t, h | x); untied and μ free, the
    paper's two constraints.
    """

    hidden: Model
    mu: float = 1 / 30
    tied: bool = True
    likelihood: Likelihood = Bernoulli()

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ValueError(f"StructuralDamping(mu={self.mu}): the factor cannot be negative.")

    def operator(self, place: Place, linear: Pass | None = None) -> Operator:
        """Return v ↦ μ S v, or λμ S v."""
        problem = Problem(self.hidden, self.likelihood, None, place.problem.microbatch)
        inputs, weights = place.examples.inputs, place.examples.coefficients
        if isinstance(weights, tuple):
            raise ValueError("StructuralDamping needs one example axis; this Product has several.")
        examples = problem.examples(place.params, inputs, None, weights, place.context)
        inner = Fisher().operator(replace(place, problem=problem, examples=examples))
        mu = jnp.asarray(self.mu, weights.dtype)
        if self.tied:
            if place.damping is None:
                raise ValueError(
                    "Tied structural damping needs λ: use it in an optimizer, or set tied=False."
                )
            mu = mu * place.damping.astype(mu.dtype)
        return Damper(mu, inner)


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
    key: Array | None = None,
) -> Operator:
    """Return the operator v ↦ Fv of a metric (default `Fisher`) at params, on these inputs.

    Call it for F·v. `quadratic(v)` is vᵀFv, `factor(v)` is Av with F = AᵀA, `factor_transpose(e)` is Aᵀe,
    `diagonal(key)` estimates diag(F).
    """
    metric = Fisher() if metric is None else metric
    problem = Problem(model, likelihood, objective, microbatch)
    if metric.needs_targets(problem) and targets is None:
        raise ValueError(f"{type(metric).__name__} is defined by the data's targets: give targets=.")
    if targets is not None and not metric.takes_targets(problem):
        name = type(metric).__name__
        raise ValueError(f"{name} takes no targets: its expectation is over the model's own distribution.")
    examples = problem.examples(params, inputs, targets, weights, context)
    key = jax.random.key(0) if key is None else key
    return metric.operator(Place(problem, params, examples, context, key))


def hvp(loss: Callable[[Tree], Array], params: Tree, v: Tree) -> Tree:
    """Return ∇²loss(params) · v for a scalar function of a pytree."""
    return jax.jvp(jax.grad(loss), (params,), (v,))[1]


def ggnvp(model: Callable[[Tree], Tree], loss: Callable[[Tree], Array], params: Tree, v: Tree) -> Tree:
    """Return Jᵀ (∇²loss at the outputs) J · v, the generalized Gauss–Newton product of loss(model(params))."""
    outputs, jvp = jax.linearize(model, params)
    return jax.linear_transpose(jvp, params)(hvp(loss, outputs, jvp(v)))[0]


def _terms(metric: Metric) -> tuple[Metric, ...]:
    return metric.terms if isinstance(metric, Sum) else (metric,)


def _outer_products(scores: Tree, chunk: Chunk) -> AtOutputs:
    """Return (1/S) Σ_k s_k s_kᵀ for scores stacked on a leading axis, each factor of a `Product` on its own."""
    parts = chunk.examples.coefficients

    def dots(_: Array, s: Tree, u: Tree) -> Array:
        rows = jax.tree.map(lambda a, b: jnp.sum((a * b[None]).reshape(*a.shape[:2], -1), axis=-1), s, u)
        return jnp.sum(jnp.stack(jax.tree.leaves(rows)), axis=0).T / jnp.sqrt(
            jnp.asarray(_count(s), tree.dtype(s))
        )

    def blend(_: Array, s: Tree, e: Array) -> Tree:
        scaled = e / jnp.sqrt(jnp.asarray(_count(s), e.dtype))
        return jax.tree.map(lambda a: jnp.einsum("sn...,ns->n...", a, scaled, precision="highest"), s)

    def factor(e: Tree) -> Tree:
        return jax.tree.map(blend, parts, scores, e)

    def factor_transpose(u: Tree) -> Tree:
        return jax.tree.map(dots, parts, scores, u)

    return AtOutputs(lambda u: factor(factor_transpose(u)), factor, factor_transpose)


def _count(s: Tree) -> int:
    return jax.tree.leaves(s)[0].shape[0]
