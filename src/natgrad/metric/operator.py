"""A symmetric matrix on parameter space, known by its products: v ↦ Fv, one linearization per step.

    F = Σ_k s_k F_k,     F_k = Σ_i c_i J_iᵀ M_i J_i = AᵀA,     A_i = √c_i C_iᵀ J_i,     C_i C_iᵀ = M_i

J_i is the Jacobian of example i's outputs, c_i its coefficient, M_i a small symmetric matrix at the outputs.
"""

import math
from collections.abc import Callable, Iterable
from copy import copy
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.examples import Examples, OverExamples, drawn, one_by_one, over_groups
from natgrad.likelihood import AtOutputs
from natgrad.problem import Linearization, Problem, Stateful
from natgrad.tree import Rows, Stack, Tree

Measure = Callable[[Array, Tree], tuple[Tree, Tree]]
"""(key, score) of a group of examples ↦ what is summed over the groups, and what is stacked."""
AT_ONCE = 32
"""Columns of A computed at a time."""
AT_ONCE_NUMBERS = 2**18
"""Numbers of A computed at a time, if A is computed by rows."""


class Term:
    """One summand of a metric, known by its products."""

    scale: Array | None = None
    """A factor of the whole term; None is 1."""
    name: str
    """Its name in error messages, if it has no root."""
    damps: bool = False
    """Whether the term only damps: it is part of the solver's matrix, but of no prediction and no divergence."""

    def product(self, v: Tree) -> Tree:
        """Return F v."""
        raise NotImplementedError

    def quadratic(self, v: Tree) -> Array:
        """Return vᵀ F v."""
        return tree.vdot(v, self.product(v))

    def gram(self, rows: Rows) -> Array:
        """Return B F Bᵀ."""
        if isinstance(rows, Stack):
            return tree.inner(rows, Stack(jax.lax.map(self.product, rows.leaves)))
        return tree.inner(rows, tree.each(self.product, rows))

    def as_damping(self, scale: Array) -> "Term":
        """Return scale · F, as a term that only damps."""
        other = copy(self)
        other.scale, other.damps = scale, True
        return other


class ProductTerm(Term):
    """A matrix known by its product alone."""

    def __init__(self, name: str, product: Callable[[Tree], Tree]):
        self.name = name
        self.product = product  # type: ignore[method-assign, assignment]


class RootedTerm(Term):
    """A matrix with a known root A: F = AᵀA."""

    def factor(self, v: Tree) -> Tree:
        """Return A v."""
        raise NotImplementedError

    def factor_transpose(self, e: Tree) -> Tree:
        """Return Aᵀ e."""
        raise NotImplementedError

    def height(self, like: Tree) -> int:
        """Return the number of rows of A; `like` is any vector."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(self.factor, like)))

    def matrix(self, like: Tree) -> Array:
        """Return A itself, one column per number of `like`."""
        raise NotImplementedError

    def residual(self) -> Array | None:
        """Return r with ∇L = Aᵀr on the term's own examples, where the loss is ½‖r‖²; None otherwise."""
        return None

    def bend(self, v: Tree) -> Tree:
        """Return Σ c Jᵀ M f″, f″ the second derivative of the outputs along v."""
        return self.factor_transpose(self.second(v))

    def second(self, v: Tree) -> Array:
        """Return √c Cᵀ f″, in the order of A's rows."""
        raise NotImplementedError

    def diagonal(self, key: Array, groups: int) -> Tree:
        """Return diag(F), or an unbiased estimate of it, for which the examples are divided into `groups`."""
        raise NotImplementedError


class DiagonalTerm(RootedTerm):
    """A diagonal matrix."""

    def __init__(self, entries: Tree):
        self.entries = entries

    def product(self, v: Tree) -> Tree:
        """Return F v."""
        return jax.tree.map(jnp.multiply, self.entries, v)

    def factor(self, v: Tree) -> Tree:
        """Return A v: A is the root of each entry."""
        return jax.tree.map(lambda d, own: jnp.sqrt(d) * own, self.entries, v)

    def factor_transpose(self, e: Tree) -> Tree:
        """Return Aᵀ e, which is A e."""
        return self.factor(e)

    def matrix(self, like: Tree) -> Array:
        """Return A."""
        return jnp.diag(jnp.sqrt(tree.ravel(self.entries)))

    def bend(self, v: Tree) -> Tree:
        """Return 0."""
        return tree.zeros_like(v)

    def second(self, v: Tree) -> Array:
        """Return 0."""
        return jnp.zeros_like(tree.ravel(v))

    def diagonal(self, key: Array, groups: int) -> Tree:
        """Return the entries."""
        return self.entries


class PenaltyTerm(DiagonalTerm):
    """A penalty's curvature: in the solver's matrix and in predictions, but no part of the model's own metric."""

    damps = True


class JacobianTerm(RootedTerm):
    """Σ_i c_i J_iᵀ M_i J_i: one JVP, M at the outputs, one VJP."""

    def __init__(
        self,
        problem: Problem,
        params: Tree,
        linear: OverExamples[Linearization],
        at: Callable[[Linearization], AtOutputs],
        residual: Callable[[Linearization], Tree] = lambda seen: None,
    ):
        self._problem, self._params, self._linear, self._at = problem, params, linear, at
        self._residual = residual
        # M of a batch held whole is computed here, once for all of a solver's products.
        self._known = None if linear.whole is None else at(linear.whole)

    def product(self, v: Tree) -> Tree:
        """Return Σ c Jᵀ M J v."""
        return self._linear.sum(lambda seen: seen.vjp(self._weighted(seen, seen.jvp(v))))

    def quadratic(self, v: Tree) -> Array:
        """Return vᵀ F v from one JVP, without the transpose."""

        def part(seen: Linearization) -> Array:
            u = seen.jvp(v)
            return tree.vdot(u, self._weighted(seen, u))

        return self._linear.sum(part)

    def gram(self, rows: Rows) -> Array:
        """Return B F Bᵀ: one JVP per row, no transpose."""

        def part(seen: Linearization) -> Array:
            u = tree.each(seen.jvp, rows)
            return tree.inner(u, tree.each(lambda row: self._weighted(seen, row), u))

        return self._linear.sum(part)

    def factor(self, v: Tree) -> Tree:
        """Return A v, A_i = √c_i C_iᵀ J_i."""

        def part(seen: Linearization) -> Tree:
            return self._here(seen).factor_transpose(self._times_roots(seen, seen.jvp(v)))

        return self._linear.map(part)

    def factor_transpose(self, e: Tree) -> Tree:
        """Return Aᵀ e."""

        def part(seen: Linearization, own: Tree) -> Tree:
            return seen.vjp(self._times_roots(seen, self._here(seen).factor(own)))

        return self._linear.sum(part, e)

    def matrix(self, like: Tree) -> Array:
        """Return A, computed example by example: the model must not couple examples, unless it is `Stateful`."""
        if isinstance(self._problem.model, Stateful):
            basis = jnp.eye(tree.size(like), dtype=tree.dtype(like))
            columns = jax.lax.map(
                lambda v: self._in_rows(self.factor(tree.unravel(v, like))), basis, batch_size=AT_ONCE
            )
            return columns.T
        lengths = [c.shape[0] for c in jax.tree.leaves(self._linear.examples.coefficients)]
        return jnp.concatenate([self._rows(part, count, like) for part, count in enumerate(lengths)])

    def _rows(self, part: int, count: int, like: Tree) -> Array:
        """Return A's rows of one factor of a `Product`: reverse mode, or forward if there are fewer parameters."""
        examples, columns = self._linear.examples, tree.size(like)

        def rows(alone: Examples) -> Array:
            seen = self._problem.linearize(self._params, alone).whole
            assert seen is not None
            at = self._at(seen)

            def push(v: Tree) -> Array:
                u = at.factor_transpose(self._times_roots(seen, seen.jvp(v)))
                return tree.ravel(self._apart(u)[part])

            outputs = jax.eval_shape(push, like).shape[0]
            if columns < outputs:
                basis = jnp.eye(columns, dtype=tree.dtype(like))
                return jax.vmap(lambda v: push(tree.unravel(v, like)))(basis).T
            pull = jax.linear_transpose(push, like)
            basis = jnp.eye(outputs, dtype=tree.dtype(like))
            return jax.vmap(lambda e: tree.ravel(pull(e)[0]))(basis)

        first = jax.tree.map(lambda leaf: leaf[:1], examples)
        size = math.prod(jax.eval_shape(rows, first).shape)
        at_once = min(AT_ONCE_NUMBERS // size, self._linear.chunking.microbatch)
        return one_by_one(rows, examples, count, at_once).reshape(-1, columns)

    def residual(self) -> Array | None:
        """Return √c e in the order of A's rows."""
        first = jax.tree.map(lambda leaf: leaf[:1], self._linear.examples)
        if jax.eval_shape(self._residual_alone, first) is None:
            return None
        return self._in_rows(self._linear.map(lambda seen: self._times_roots(seen, self._residual(seen))))

    def _residual_alone(self, alone: Examples) -> Tree:
        seen = self._problem.linearize(self._params, alone).whole
        assert seen is not None
        return self._residual(seen)

    def bend(self, v: Tree) -> Tree:
        """Return Σ c Jᵀ M f″: forward mode applied twice, then one backward pass."""

        def part(seen: Linearization) -> Tree:
            return seen.vjp(self._weighted(seen, self._problem.second(self._params, seen.examples, v)))

        return self._linear.sum(part)

    def second(self, v: Tree) -> Array:
        """Return √c Cᵀ f″, with forward mode applied twice. `bend` is Aᵀ times this."""

        def part(seen: Linearization) -> Tree:
            bent = self._problem.second(self._params, seen.examples, v)
            return self._here(seen).factor_transpose(self._times_roots(seen, bent))

        return self._in_rows(self._linear.map(part))

    def _apart(self, u: Tree) -> list[Tree]:
        """Return what belongs to each factor of a `Product`."""
        return list(u) if isinstance(self._linear.examples.coefficients, tuple) else [u]

    def _in_rows(self, e: Tree) -> Array:
        """Return numbers at the outputs in the order of A's rows: factor by factor, example by example."""
        return jnp.concatenate([tree.ravel(own, lead=1).reshape(-1) for own in self._apart(e)])

    def scores(self, key: Array, groups: int, measure: Measure, size: int | None) -> tuple[Tree, Tree]:
        """Measure S_b = Σ_{i∈b} A_iᵀ e_i, e random signs, for each group b, with one backward pass in all."""
        for_examples, for_signs, for_groups = jax.random.split(key, 3)
        examples = self._linear.examples
        examples = examples if size is None else drawn(examples, for_examples, groups, size)

        def part(seen: Linearization) -> Tree:
            signs = example_keys(for_signs, seen.examples.index)
            return seen.vjp(self._times_roots(seen, self._at(seen).random_score(signs, seen.outputs)))

        def group(examples: Examples) -> tuple[Tree, Tree]:
            own = jax.random.fold_in(for_groups, jnp.min(jax.tree.leaves(examples.index)[0]))
            return measure(own, self._problem.linearize(self._params, examples).sum(part))

        return over_groups(group, examples, groups)

    def diagonal(self, key: Array, groups: int) -> Tree:
        """Return the squares of random scores: their mean is diag(F)."""
        return self.scores(key, groups, lambda _, score: (jax.tree.map(jnp.square, score), None), None)[0]

    def _weighted(self, seen: Linearization, u: Tree) -> Tree:
        return self._problem.likelihood.weigh(seen.examples.coefficients, self._here(seen).product(u))

    def _times_roots(self, seen: Linearization, u: Tree) -> Tree:
        roots = jax.tree.map(jnp.sqrt, seen.examples.coefficients)
        return self._problem.likelihood.weigh(roots, u)

    def _here(self, seen: Linearization) -> AtOutputs:
        return self._at(seen) if self._known is None else self._known


class Operator:
    """F, a sum of terms: call it for F·v."""

    def __init__(self, terms: Iterable[Term]):
        self.terms = tuple(terms)

    @property
    def damps(self) -> bool:
        """Whether a term only damps, and so is no part of the divergence."""
        return any(term.damps for term in self.terms)

    @property
    def formed(self) -> bool:
        """Whether A can be formed: every term has a root."""
        return all(isinstance(term, RootedTerm) for term in self.terms)

    @property
    def roots(self) -> tuple[RootedTerm, ...]:
        """The terms, each with its root; a matrix that is known by its product alone is refused."""
        rooted = tuple(term for term in self.terms if isinstance(term, RootedTerm))
        if len(rooted) < len(self.terms):
            name = next(term.name for term in self.terms if not isinstance(term, RootedTerm))
            raise TypeError(f"{name} has no factor.")
        return rooted

    def __call__(self, v: Tree) -> Tree:
        """Return F v."""
        return _added(_scaled(term.scale, term.product(v)) for term in self.terms)

    def quadratic(self, v: Tree) -> Array:
        """Return vᵀ F v. Half of it is, to second order, the KL divergence a step v makes."""
        return _added(_scaled(term.scale, term.quadratic(v)) for term in self.terms)

    def divergence(self, v: Tree) -> Array:
        """Return the model's own part of vᵀ F v, without terms that only damp: twice the KL."""
        own = [term for term in self.terms if not term.damps]
        return Operator(own).quadratic(v) if own else jnp.zeros((), tree.dtype(v))

    def gram(self, rows: Rows) -> Array:
        """Return B F Bᵀ."""
        return _added(_scaled(term.scale, term.gram(rows)) for term in self.terms)

    def factor(self, v: Tree) -> Tree:
        """Return A v, where F = AᵀA: one row per example, a tuple of them for several terms."""
        parts = [_scaled(_root(term.scale), term.factor(v)) for term in self.roots]
        return parts[0] if len(parts) == 1 else tuple(parts)

    def factor_transpose(self, e: Tree) -> Tree:
        """Return Aᵀ e."""
        parts = (e,) if len(self.terms) == 1 else e
        return _added(
            _scaled(_root(term.scale), term.factor_transpose(part))
            for term, part in zip(self.roots, parts, strict=True)
        )

    def height(self, like: Tree) -> int:
        """Return the number of rows of A; `like` is any vector."""
        return sum(term.height(like) for term in self.roots)

    def matrix(self, like: Tree) -> Array:
        """Return A itself, with one column per number of `like`. Its rows have another order than `factor`'s."""
        parts = [_scaled(_root(term.scale), term.matrix(like)) for term in self.roots]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def residual(self) -> Array | None:
        """Return r with ∇L = Aᵀr on the metric's own examples, where the loss is ½‖r‖²; None otherwise."""
        return self.roots[0].residual() if len(self.terms) == 1 else None

    def bend(self, v: Tree) -> Tree:
        """Return Σ c Jᵀ M f″, f″ the second derivative of the outputs along v."""
        return _added(_scaled(term.scale, term.bend(v)) for term in self.roots)

    def second(self, v: Tree) -> Array:
        """Return √c Cᵀ f″, in the order of A's rows."""
        return jnp.concatenate([_scaled(_root(term.scale), term.second(v)) for term in self.roots])

    def scores(self, key: Array, groups: int, measure: Measure, size: int | None = None) -> tuple[Tree, Tree]:
        """Measure S_b = Σ_{i∈b} A_iᵀ e_i, e random signs, for each group b of examples, term after term.

        E[Σ_b S_b S_bᵀ] = F: the cross terms vanish on average (Chapelle & Erhan 2011). `measure` returns two things:
        the first is summed over groups, the second is stacked. With `size`, a group has at most that many examples,
        and they also stand for the examples left out.
        """

        def measured(term: JacobianTerm, key: Array) -> tuple[Tree, Tree]:
            root = _root(term.scale)
            return term.scores(key, groups, lambda own, score: measure(own, _scaled(root, score)), size)

        terms = [term for term in self.roots if isinstance(term, JacobianTerm)]
        if len(terms) + sum(isinstance(term, PenaltyTerm) for term in self.terms) < len(self.terms):
            raise TypeError("A diagonal metric has no examples to score.")
        if len(terms) == 1:
            return measured(terms[0], key)
        keys = jax.random.split(key, len(terms))
        totals, kept = zip(*map(measured, terms, keys), strict=True)
        return _added(totals), jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *kept)

    def diagonal(self, key: Array, groups: int = 100) -> Tree:
        """Return an unbiased estimate of diag(F) from random signs, in `groups` groups of examples."""
        terms = [term for term in self.roots if not isinstance(term, PenaltyTerm)]
        keys = [key] if len(terms) == 1 else list(jax.random.split(key, len(terms)))
        return _added(
            _scaled(term.scale, term.diagonal(own, groups)) for term, own in zip(terms, keys, strict=True)
        )


def example_keys(key: Array, index: Tree) -> Tree:
    """Return one key per example and factor. A key depends on the example's place alone, not on the chunks."""
    leaves, structure = jax.tree.flatten(index)
    keys = jax.random.split(key, len(leaves))
    per_example = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.tree.unflatten(structure, [per_example(k, i) for k, i in zip(keys, leaves, strict=True)])


def _scaled(scale: Any, x: Tree) -> Tree:
    return x if scale is None else tree.scale(scale, x)


def _root(scale: Array | None) -> Array | None:
    return None if scale is None else jnp.sqrt(scale)


def _added(parts: Iterable[Tree]) -> Tree:
    return reduce(tree.add, parts)
