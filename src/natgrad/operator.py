"""A symmetric matrix on parameter space, known by its products: v ↦ Fv, one linearization a step.

    F = Σ_i c_i J_iᵀ M_i J_i = AᵀA,     A_i = √c_i C_iᵀ J_i,     C_i C_iᵀ = M_i

J_i is the Jacobian of example i's outputs, c_i its coefficient, M_i a small symmetric matrix at the outputs.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from enum import IntEnum

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.likelihood import AtOutputs, random_signs
from natgrad.problem import Chunk, Examples, Pass, Problem, drawn, over_groups
from natgrad.tree import Tree

Measure = Callable[[Array, Tree], tuple[Tree, Tree]]
"""From a group's own key and its score."""


class Use(IntEnum):
    """What a step draws random numbers for: each use has a key of its own, and so shares no bits with another."""

    SAMPLES = 0
    """A metric's scores at the outputs."""
    DIAGONAL_FISHER = 1
    DIAGONAL = 2
    JACOBI = 3
    KRONECKER = 4
    TERMS = 5
    """The terms of a sum of metrics."""


@dataclass(frozen=True)
class Place:
    """Where a metric is taken: a problem, parameters, examples, and a key for what is random."""

    problem: Problem
    params: Tree
    examples: Examples
    context: Tree
    key: Array
    damping: Array | None = None
    """λ, for the metrics that are tied to it."""

    def key_for(self, use: Use) -> Array:
        """Return the key of a use."""
        return jax.random.fold_in(self.key, use)

    def linearize(self) -> Pass:
        """Return the model linearized here."""
        return self.problem.linearize(self.params, self.examples, self.context)


class Operator:
    """A symmetric matrix on parameter space, known by its products."""

    damps: bool = False
    """Whether a part of it only damps, and so is no part of the divergence."""

    def __call__(self, v: Tree) -> Tree:
        """Return F v."""
        raise NotImplementedError

    def quadratic(self, v: Tree) -> Array:
        """Return vᵀ F v. Half of it is, to second order, the KL divergence a step v makes."""
        return tree.vdot(v, self(v))

    def divergence(self, v: Tree) -> Array:
        """Return what of vᵀ F v is the model's own: twice the KL, without terms that only damp."""
        return self.quadratic(v)

    def gram(self, rows: Tree) -> Array:
        """Return B F Bᵀ for rows stacked on a leading axis."""
        return tree.inner(rows, jax.lax.map(self, rows))

    def factor(self, v: Tree) -> Tree:
        """Return A v, where F = AᵀA: one row an example, A_i = √c_i C_iᵀ J_i."""
        raise TypeError(f"{type(self).__name__} has no factor.")

    def factor_transpose(self, e: Tree) -> Tree:
        """Return Aᵀ e."""
        raise TypeError(f"{type(self).__name__} has no factor.")

    def rooted(self) -> "Operator":
        """Return the same matrix, with square roots of M computed once: for many products with A and Aᵀ."""
        return self

    def scores(self, key: Array, blocks: int, measure: Measure, size: int | None = None) -> tuple[Tree, Tree]:
        """Measure S_b = Σ_{i∈b} A_iᵀ e_i, e random signs, for each b of `blocks` groups of examples.

        E[Σ_b S_b S_bᵀ] = F: the cross terms vanish on average (Chapelle & Erhan 2011). Of the two things `measure`
        returns, the first is summed over groups, the second stacked. With `size`, a group has at most that many
        examples, and they stand for the ones left out too.
        """
        raise TypeError(f"{type(self).__name__} has no scores.")

    def diagonal(self, key: Array, blocks: int = 100) -> Tree:
        """Return an unbiased estimate of diag(F) from random signs, in `blocks` groups of examples."""
        return self.scores(key, blocks, lambda _, score: (jax.tree.map(jnp.square, score), None))[0]


class JacobianOperator(Operator):
    """F = Σ_i c_i J_iᵀ M_i J_i: one JVP, M at the outputs, one VJP."""

    def __init__(self, place: Place, at: Callable[[Chunk], AtOutputs], linear: Pass | None = None):
        self._place = place
        self._at = at
        self._linear = place.linearize() if linear is None else linear
        self._weigh = place.problem.likelihood.weigh
        # M at a batch held whole, computed here: not in each of a solver's products.
        whole = self._linear.whole
        self._known = None if whole is None else at(whole)

    @property
    def examples(self) -> Examples:
        """The examples the metric averages over."""
        return self._place.examples

    def rooted(self) -> Operator:
        """Return F with C at hand, unless the batch is held in chunks: then C is computed for each again."""
        if self._known is None or self._known.rooted is None:
            return self
        other = copy(self)
        other._known = self._known.rooted()
        return other

    def __call__(self, v: Tree) -> Tree:
        """Return F v."""
        return self._linear.sum(lambda chunk: chunk.vjp(self._weighted(chunk, chunk.jvp(v))))

    def quadratic(self, v: Tree) -> Array:
        """Return vᵀ F v from one JVP, without the transpose."""

        def part(chunk: Chunk) -> Array:
            u = chunk.jvp(v)
            return tree.vdot(u, self._weighted(chunk, u))

        return self._linear.sum(part)

    def gram(self, rows: Tree) -> Array:
        """Return B F Bᵀ: one JVP a row, no transpose."""

        def part(chunk: Chunk) -> Array:
            u = tree.map_rows(chunk.jvp, rows)
            weighted = tree.map_rows(lambda row: self._weighted(chunk, row), u)
            return tree.map_rows(lambda row: tree.along(weighted, row), u)

        return self._linear.sum(part)

    def factor(self, v: Tree) -> Tree:
        """Return A v, A_i = √c_i C_iᵀ J_i."""
        return self._linear.map(
            lambda chunk: self._here(chunk).factor_transpose(self._weigh(_roots(chunk), chunk.jvp(v)))
        )

    def factor_transpose(self, e: Tree) -> Tree:
        """Return Aᵀ e."""

        def part(chunk: Chunk, own: Tree) -> Tree:
            return chunk.vjp(self._weigh(_roots(chunk), self._here(chunk).factor(own)))

        return self._linear.sum(part, e)

    def scores(self, key: Array, blocks: int, measure: Measure, size: int | None = None) -> tuple[Tree, Tree]:
        """Measure the groups' scores: one backward pass in all."""
        for_examples, for_signs, for_groups = jax.random.split(key, 3)
        examples = self.examples if size is None else drawn(self.examples, for_examples, blocks, size)

        def part(chunk: Chunk) -> Tree:
            keys = example_keys(for_signs, chunk.examples.index)
            at = self._at(chunk)
            space = jax.eval_shape(at.factor_transpose, chunk.outputs)
            signs = jax.tree.map(random_signs, keys, space)
            return chunk.vjp(self._weigh(_roots(chunk), at.factor(signs)))

        def group(examples: Examples) -> tuple[Tree, Tree]:
            own = jax.random.fold_in(for_groups, jnp.min(jax.tree.leaves(examples.index)[0]))
            return measure(own, replace(self._place, examples=examples).linearize().sum(part))

        return over_groups(group, examples, blocks)

    def _weighted(self, chunk: Chunk, u: Tree) -> Tree:
        return self._weigh(chunk.examples.coefficients, self._here(chunk).product(u))

    def _here(self, chunk: Chunk) -> AtOutputs:
        return self._at(chunk) if self._known is None else self._known


class SumOperator(Operator):
    """F₁ + F₂ + …"""

    def __init__(self, *terms: Operator):
        self._terms = terms
        self.damps = any(term.damps for term in terms)

    def __call__(self, v: Tree) -> Tree:
        """Return Σ F_k v."""
        products = [term(v) for term in self._terms]
        return jax.tree.map(lambda *leaves: sum(leaves), *products)

    def quadratic(self, v: Tree) -> Array:
        """Return Σ vᵀ F_k v."""
        return sum((term.quadratic(v) for term in self._terms), start=jnp.zeros((), tree.dtype(v)))

    def divergence(self, v: Tree) -> Array:
        """Return the sum of the terms' divergences."""
        return sum((term.divergence(v) for term in self._terms), start=jnp.zeros((), tree.dtype(v)))

    def gram(self, rows: Tree) -> Array:
        """Return Σ B F_k Bᵀ."""
        return jnp.sum(jnp.stack([term.gram(rows) for term in self._terms]), axis=0)

    def factor(self, v: Tree) -> Tree:
        """Return the terms' A v, stacked as a tuple."""
        return tuple(term.factor(v) for term in self._terms)

    def factor_transpose(self, e: Tree) -> Tree:
        """Return Σ A_kᵀ e_k."""
        products = [term.factor_transpose(part) for term, part in zip(self._terms, e, strict=True)]
        return jax.tree.map(lambda *leaves: sum(leaves), *products)

    def rooted(self) -> Operator:
        """Return the sum of the terms with their roots."""
        return SumOperator(*(term.rooted() for term in self._terms))

    def scores(self, key: Array, blocks: int, measure: Measure, size: int | None = None) -> tuple[Tree, Tree]:
        """Measure the terms' scores, one term after another."""
        keys = jax.random.split(key, len(self._terms))
        parts = [term.scores(k, blocks, measure, size) for term, k in zip(self._terms, keys, strict=True)]
        totals, kept = zip(*parts, strict=True)
        return (
            jax.tree.map(lambda *leaves: sum(leaves), *totals),
            jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *kept),
        )


class Damper(Operator):
    """scale · F, as a damping term: in the solver's matrix, in no prediction and no divergence."""

    damps = True

    def __init__(self, scale: Array, inner: Operator):
        self._scale = scale
        self._inner = inner

    def __call__(self, v: Tree) -> Tree:
        """Return scale · F v."""
        return tree.scale(self._scale, self._inner(v))

    def quadratic(self, v: Tree) -> Array:
        """Return scale · vᵀ F v."""
        return self._scale * self._inner.quadratic(v)

    def divergence(self, v: Tree) -> Array:
        """Return 0."""
        return jnp.zeros((), tree.dtype(v))

    def gram(self, rows: Tree) -> Array:
        """Return scale · B F Bᵀ."""
        return self._scale * self._inner.gram(rows)

    def factor(self, v: Tree) -> Tree:
        """Return √scale · A v."""
        return tree.scale(jnp.sqrt(self._scale), self._inner.factor(v))

    def factor_transpose(self, e: Tree) -> Tree:
        """Return √scale · Aᵀ e."""
        return tree.scale(jnp.sqrt(self._scale), self._inner.factor_transpose(e))

    def rooted(self) -> Operator:
        """Return the same, of F with its roots."""
        return Damper(self._scale, self._inner.rooted())

    def scores(self, key: Array, blocks: int, measure: Measure, size: int | None = None) -> tuple[Tree, Tree]:
        """Measure √scale · S_b."""
        root = jnp.sqrt(self._scale)
        return self._inner.scores(key, blocks, lambda k, score: measure(k, tree.scale(root, score)), size)


class Centered(Operator):
    """v ↦ Uv − ḡ(ḡᵀv)."""

    def __init__(self, uncentered: Operator, mean: Tree):
        self._uncentered = uncentered
        self._mean = mean

    def __call__(self, v: Tree) -> Tree:
        """Return U v − ḡ (ḡᵀ v)."""
        return tree.axpy(-tree.vdot(self._mean, v), self._mean, self._uncentered(v))


class HessianOperator(Operator):
    """v ↦ ∇²L v."""

    def __init__(self, linear: Pass):
        self._linear = linear

    def __call__(self, v: Tree) -> Tree:
        """Return H v."""
        return self._linear.sum(lambda chunk: chunk.jvp(v))


class DiagonalOperator(Operator):
    """v ↦ d ∘ v."""

    def __init__(self, diagonal: Tree):
        self._diagonal = diagonal

    def __call__(self, v: Tree) -> Tree:
        """Return d ∘ v."""
        return jax.tree.map(jnp.multiply, self._diagonal, v)

    def diagonal(self, key: Array, blocks: int = 100) -> Tree:
        """Return d."""
        return self._diagonal


def example_keys(key: Array, index: Tree) -> Tree:
    """Return one key an example and factor: a function of the example's place alone, not of the chunk's."""
    leaves, structure = jax.tree.flatten(index)
    keys = jax.random.split(key, len(leaves))
    per_example = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.tree.unflatten(structure, [per_example(k, i) for k, i in zip(keys, leaves, strict=True)])


def _roots(chunk: Chunk) -> Tree:
    return jax.tree.map(jnp.sqrt, chunk.examples.coefficients)
