"""Likelihoods built from a user's functions: the Fisher information by automatic differentiation.

Functions act on a whole batch and are separable over it, so the Hessian of their sum is block-diagonal and one
forward-over-reverse pass gives every example's product at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import tree
from natgrad.likelihood import AtOutputs, Likelihood
from natgrad.tree import Tree

NO_DISTRIBUTION = (
    "from_loss defines no distribution, so it has no {}: build the likelihood with from_log_prob."
)


def hessian_at_outputs(loss: Callable[[Tree], Array], outputs: Tree, u: Tree) -> Tree:
    """Return (∂²/∂r² Σ loss(r)) u for a loss that is separable over examples."""
    return jax.jvp(jax.grad(lambda r: jnp.sum(loss(r))), (outputs,), (u,))[1]


def densely_rooted(product: Callable[[Tree], Tree], outputs: Tree) -> AtOutputs:
    """Return M with a square root V √s of each example's M = V diag(s) Vᵀ, which is computed only where it is used.

    For o outputs this takes o products with M and an o × o eigendecomposition.
    """
    one = jax.tree.map(lambda leaf: leaf[0], outputs)

    def root() -> Array:
        flat = tree.ravel(outputs, lead=1)

        def column(e: Array) -> Array:
            return tree.ravel(product(tree.unravel(jnp.broadcast_to(e, flat.shape), one)), lead=1)

        columns = jax.vmap(column)(jnp.eye(flat.shape[1], dtype=flat.dtype))
        values, vectors = jnp.linalg.eigh(jnp.moveaxis(columns, 0, -1), symmetrize_input=True)
        return vectors * jnp.sqrt(jnp.maximum(values, 0))[:, None, :]

    def factor(e: Array) -> Tree:
        return tree.unravel(_einsum("nij,nj->ni", root(), e), one)

    def factor_transpose(u: Tree) -> Array:
        return _einsum("nij,ni->nj", root(), tree.ravel(u, lead=1))

    return AtOutputs(product, factor, factor_transpose)


@dataclass(frozen=True)
class LogProb(Likelihood):
    """A likelihood known by its log-probability; see `Likelihood.from_log_prob`."""

    log_prob: Callable[[Tree, Tree], Array]
    divergence: Callable[[Tree, Tree], Array] | None
    log_partition: Callable[[Tree], Array] | None
    support: Any
    draw: Callable[[Array, Tree], Tree] | None
    average: Callable[[Tree], Tree] | None

    def __init__(
        self,
        log_prob: Callable[[Tree, Tree], Array],
        *,
        kl: Callable[[Tree, Tree], Array] | None = None,
        log_partition: Callable[[Tree], Array] | None = None,
        support: Any = None,
        sample: Callable[[Array, Tree], Tree] | None = None,
        mean: Callable[[Tree], Tree] | None = None,
    ):
        if all(known is None for known in (kl, log_partition, support, sample)):
            raise ValueError(
                "from_log_prob needs one of kl=, log_partition=, support= (exact Fisher) or sample= (Monte-Carlo)."
            )
        # A tuple of numbers is hashable, so the likelihood can be a static argument.
        support = None if support is None else _nested_tuple(np.asarray(support).tolist())
        fields = (log_prob, kl, log_partition, support, sample, mean)
        for name, value in zip(self.__dataclass_fields__, fields, strict=True):
            object.__setattr__(self, name, value)

    @property
    def matching(self) -> bool:
        """Whether the outputs are natural parameters: then ∂²nll/∂r² = ∇²A = M."""
        return self.log_partition is not None

    def nll(self, outputs: Tree, targets: Tree) -> Array:
        """Return −log p."""
        return -self.log_prob(outputs, targets)

    @property
    def exact(self) -> bool:
        """Whether M is known: by a KL, a log-partition or a finite support."""
        return any(known is not None for known in (self.divergence, self.log_partition, self.support))

    def at(self, outputs: Tree) -> AtOutputs:
        """Return M: the Hessian of the KL, or of the log-partition, or a sum of scores over the support."""
        if not self.exact:
            raise TypeError(
                "This likelihood has only a sampler: the exact Fisher needs kl=, log_partition= or support=; "
                "use metric=ng.MonteCarloFisher(samples)."
            )
        if self.support is None:
            return densely_rooted(partial(self._hessian, outputs), outputs)
        rows = self._scores(outputs)

        def factor(e: Tree) -> Tree:
            return jax.tree.map(lambda s: _einsum("sn...,ns->n...", s, e), rows)

        def factor_transpose(u: Tree) -> Tree:
            dots = jax.tree.map(lambda s, v: _einsum("snk,nk->ns", _flat(s, 2), _flat(v, 1)), rows, u)
            return sum(jax.tree.leaves(dots))

        by_support = self.divergence is None and self.log_partition is None
        product = (lambda u: factor(factor_transpose(u))) if by_support else partial(self._hessian, outputs)
        return AtOutputs(product, factor, factor_transpose)

    def _hessian(self, outputs: Tree, u: Tree) -> Tree:
        if self.divergence is not None:
            kl, here = self.divergence, jax.lax.stop_gradient(outputs)
            return hessian_at_outputs(lambda r: kl(here, r), outputs, u)
        assert self.log_partition is not None
        return hessian_at_outputs(self.log_partition, outputs, u)

    def score(self, keys: Array, outputs: Tree) -> Tree:
        """Return C times random signs; without an exact Fisher, return the score of a sampled target."""
        if self.draw is None or self.exact:
            return self.at(outputs).random_score(keys, outputs)
        draw = self.draw
        one = jax.vmap(
            lambda key, r: jax.tree.map(lambda t: t[0], draw(key, jax.tree.map(lambda x: x[None], r)))
        )
        targets = jax.lax.stop_gradient(one(keys, outputs))
        return jax.grad(lambda r: jnp.sum(self.nll(r, targets)))(outputs)

    def kl(self, outputs: Tree, new_outputs: Tree) -> Array:
        """Return the KL where it is known: given, from the log-partition, or by summing over the support."""
        if self.divergence is not None:
            return self.divergence(outputs, new_outputs)
        if self.log_partition is not None:
            total, pull = jax.vjp(lambda r: self.log_partition(r), outputs)  # type: ignore[misc]
            (mean,) = pull(jnp.ones_like(total))
            inner = jax.tree.map(
                lambda m, a, b: jnp.sum(_flat(m * (b - a), 1), -1), mean, outputs, new_outputs
            )
            return self.log_partition(new_outputs) - total - sum(jax.tree.leaves(inner))
        if self.support is not None:
            before, after = self._log_probs(outputs), self._log_probs(new_outputs)
            return jnp.sum(jnp.exp(before) * (before - after), axis=0)
        raise TypeError("This likelihood has only a sampler: its KL is not known.")

    def mean(self, outputs: Tree) -> Tree:
        """Return E[t] where `mean=` was given."""
        if self.average is None:
            raise TypeError("This likelihood was built without mean=.")
        return self.average(outputs)

    def sample(self, key: Array, outputs: Tree) -> Tree:
        """Draw t where `sample=` was given."""
        if self.draw is None:
            raise TypeError("This likelihood was built without sample=.")
        return self.draw(key, outputs)

    def check(self, outputs: Tree, targets: Tree) -> None:
        """Refuse functions that do not return one number per example."""
        _expect_per_example("log_prob", self.log_prob, outputs, targets)
        if self.divergence is not None:
            _expect_per_example("kl", self.divergence, outputs, outputs)
        if (log_partition := self.log_partition) is not None:
            _expect_per_example("log_partition", lambda r, _: log_partition(r), outputs, None)

    def _log_probs(self, outputs: Tree) -> Array:
        examples = jax.tree.leaves(outputs)[0].shape[0]
        values = self._support(outputs)
        tiled = jnp.broadcast_to(values[:, None], (values.shape[0], examples, *values.shape[1:]))
        return jax.vmap(lambda t: self.log_prob(outputs, t))(tiled)

    def _support(self, outputs: Tree) -> Array:
        """Return all targets; real-valued ones in the precision of the outputs."""
        values = jnp.asarray(self.support)
        return values.astype(tree.dtype(outputs)) if jnp.issubdtype(values.dtype, jnp.floating) else values

    def _scores(self, outputs: Tree) -> Tree:
        """Return √p(t) ∇ᵣ log p(t) for every t of the support: the columns of C."""
        probabilities = jnp.exp(self._log_probs(outputs))
        examples = probabilities.shape[1]
        score = jax.vmap(
            lambda t: jax.grad(
                lambda r: jnp.sum(self.log_prob(r, jnp.broadcast_to(t, (examples, *t.shape))))
            )(outputs)
        )
        root = jnp.sqrt(probabilities)
        return jax.tree.map(
            lambda s: s * root.reshape(root.shape + (1,) * (s.ndim - 2)), score(self._support(outputs))
        )


@dataclass(frozen=True)
class Loss(Likelihood):
    """A loss convex in the outputs, with no probabilistic reading: for `ng.GaussNewton`."""

    loss: Callable[[Tree, Tree], Array]

    def nll(self, outputs: Tree, targets: Tree) -> Array:
        """Return the loss per example."""
        return self.loss(outputs, targets)

    def at(self, outputs: Tree) -> AtOutputs:
        """Refuse: a bare loss defines no distribution."""
        raise TypeError("from_loss defines no distribution, so no Fisher: use metric=ng.GaussNewton().")

    def kl(self, outputs: Tree, new_outputs: Tree) -> Array:
        """Refuse, as `at` does."""
        raise TypeError(NO_DISTRIBUTION.format("KL"))

    def mean(self, outputs: Tree) -> Tree:
        """Refuse, as `at` does."""
        raise TypeError(NO_DISTRIBUTION.format("mean"))

    def sample(self, key: Array, outputs: Tree) -> Tree:
        """Refuse, as `at` does."""
        raise TypeError(NO_DISTRIBUTION.format("sample"))

    def check(self, outputs: Tree, targets: Tree) -> None:
        """Refuse a loss that does not return one number per example."""
        _expect_per_example("loss", self.loss, outputs, targets)


Likelihood.of_log_prob, Likelihood.of_loss = LogProb, Loss


def _expect_per_example(name: str, function: Callable[..., Any], outputs: Tree, targets: Tree) -> None:
    examples = jax.tree.leaves(outputs)[0].shape[:1]
    for leaf in jax.tree.leaves(targets):
        if jnp.shape(leaf)[:1] != examples:
            raise ValueError(
                f"targets have shape {jnp.shape(leaf)}; the outputs have {examples[0]} examples."
            )
    found = jax.eval_shape(function, outputs, targets)
    if jnp.shape(found) != examples:
        raise ValueError(
            f"{name} returned shape {jnp.shape(found)}; it must give one number per example, {examples}."
        )


def _einsum(subscripts: str, x: Array, y: Array) -> Array:
    """Return the sums in full precision; accelerators use less for products of matrices by default."""
    return jnp.einsum(subscripts, x, y, precision="highest")


def _nested_tuple(values: Any) -> Any:
    return tuple(_nested_tuple(v) for v in values) if isinstance(values, list) else values


def _flat(x: Array, lead: int) -> Array:
    return x.reshape(*x.shape[:lead], -1)
