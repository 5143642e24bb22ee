"""p(t | outputs): what the numbers a model returns mean.

A likelihood turns outputs r (logits, means, log-rates: no output activation) into a loss and a metric. With
M = E_t[∇ᵣ log p ∇ᵣ log pᵀ], the Fisher information at the outputs of one example, it offers

    nll(r, t)                 −log p(t | r), without terms free of r, summed over outputs: shape (batch,)
    change(r, r′, t)          nll(r′, t) − nll(r, t), as accurate as r′ − r
    at(r)                     M, by its products, and a square root C with C Cᵀ = M
    kl(r, r′)                 KL(p(·|r) ‖ p(·|r′)), shape (batch,)
    mean(r), sample(key, r)   E[t | r] and a draw of t

Everything is at the logits: the paper's form J_yᵀ diag(1/y) J_y is 0/0 where a unit saturates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad.part import Part, require
from natgrad.tree import Tree, at_least_single


class AtOutputs(NamedTuple):
    """M at a chunk's outputs: u ↦ Mu, and a square root C of it, e ↦ Ce and u ↦ Cᵀu."""

    product: Callable[[Tree], Tree]
    factor: Callable[[Tree], Tree]
    factor_transpose: Callable[[Tree], Tree]

    def random_score(self, keys: Tree, outputs: Tree) -> Tree:
        """Return C e for random signs e, from one key per example (and per factor of a `Product`)."""
        space = jax.eval_shape(self.factor_transpose, outputs)
        return self.factor(jax.tree.map(random_signs, keys, space))


class Likelihood(Part):
    """The interface, and what every likelihood over one example axis shares."""

    of_log_prob: ClassVar[Callable[..., "Likelihood"]]
    """What `from_log_prob` calls. `natgrad.custom` defines this function and `of_loss`, and assigns both."""
    of_loss: ClassVar[Callable[..., "Likelihood"]]
    """What `from_loss` calls."""

    @property
    def matching(self) -> bool:
        """Whether the Hessian of nll at the outputs is M whatever the target, so that Gauss–Newton = Fisher."""
        return False

    def nll(self, outputs: Tree, targets: Tree) -> Array:
        """Return −log p(targets | outputs) per example, without terms free of the outputs."""
        raise NotImplementedError

    def change(self, outputs: Tree, new_outputs: Tree, targets: Tree) -> Array:
        """Return nll(new_outputs, targets) − nll(outputs, targets) per example.

        If possible, a likelihood computes it from new_outputs − outputs, so that a small change keeps its digits.
        """
        return self.nll(new_outputs, targets) - self.nll(outputs, targets)

    def at(self, outputs: Tree) -> AtOutputs:
        """Return M at these outputs. What its products share is computed once."""
        raise NotImplementedError

    def residual(self, outputs: Tree, targets: Tree) -> Tree:
        """Return e with C e = ∇ᵣ nll, if the loss is ½‖e‖² per example; None otherwise."""
        return None

    def fisher(self, outputs: Tree, u: Tree) -> Tree:
        """Return M u, the Fisher information at the outputs times u."""
        return self.at(outputs).product(u)

    def score(self, keys: Array, outputs: Tree) -> Tree:
        """Return a random s with E[s sᵀ] = M for each example, from one key per example.

        s is C times random signs. It is unbiased, like the score of a sampled target, and has less variance.
        """
        return self.at(outputs).random_score(keys, outputs)

    def kl(self, outputs: Tree, new_outputs: Tree) -> Array:
        """Return KL(p(·|outputs) ‖ p(·|new_outputs)) per example."""
        raise NotImplementedError

    def mean(self, outputs: Tree) -> Tree:
        """Return E[t | outputs]."""
        raise NotImplementedError

    def sample(self, key: Array, outputs: Tree) -> Tree:
        """Draw t ~ p(· | outputs)."""
        raise NotImplementedError

    def check(self, outputs: Tree, targets: Tree) -> None:
        """Refuse, in one sentence, outputs and targets (or their shapes) that do not belong together."""
        _expect_same_shape(self, outputs, targets)

    def parts(self) -> tuple["Likelihood", ...]:
        """Return the independent factors; only `Product` has more than one."""
        return (self,)

    def coefficients(self, outputs: Tree, weights: Tree) -> Tree:
        """Return c with Σ c = 1: each example's share in a mean. The metric and the loss each have their own.

        Weights may also have one number per position, (batch, time). The mean is then over positions, and a weight of
        0 masks a position.
        """
        first = jax.tree.leaves(outputs)[0]
        wide = at_least_single(first.dtype)
        if weights is None:
            return jnp.full(first.shape[0], 1 / first.shape[0], wide)
        shape = jnp.shape(weights)
        if not shape or shape != first.shape[: len(shape)] or len(shape) > self.positions(outputs):
            raise ValueError(
                f"weights have shape {shape}; one number per example is {first.shape[:1]}, and one per position "
                f"{first.shape[: self.positions(outputs)]}."
            )
        weights = jnp.asarray(weights).astype(wide)
        return weights / jnp.sum(weights)

    def positions(self, outputs: Tree) -> int:
        """Return how many leading axes count independent targets."""
        leaves = jax.tree.leaves(outputs)
        return leaves[0].ndim if len(leaves) == 1 else 1

    def weigh(self, coefficients: Tree, u: Tree) -> Tree:
        """Return c_i u_i: each example's outputs times its coefficient."""
        return jax.tree.map(lambda leaf: _broadcast(coefficients, leaf) * leaf, u)

    @staticmethod
    def from_log_prob(
        log_prob: Callable[[Tree, Tree], Array],
        *,
        kl: Callable[[Tree, Tree], Array] | None = None,
        log_partition: Callable[[Tree], Array] | None = None,
        support: Any = None,
        sample: Callable[[Array, Tree], Tree] | None = None,
        mean: Callable[[Tree], Tree] | None = None,
    ) -> "Likelihood":
        """Build a likelihood from `log_prob(outputs, targets) -> (batch,)` and what else is known about it.

        For the exact Fisher give one of the first three, for `ng.MonteCarloFisher` give `sample`:

        * `kl(outputs, new_outputs) -> (batch,)`;
        * `log_partition(outputs) -> (batch,)`, of an exponential family in its natural parameters;
        * `support`, an array of all targets, if they are few;
        * `sample(key, outputs)`.

        `mean(outputs)` is optional.
        """
        return Likelihood.of_log_prob(
            log_prob, kl=kl, log_partition=log_partition, support=support, sample=sample, mean=mean
        )

    @staticmethod
    def from_loss(loss: Callable[[Tree, Tree], Array]) -> "Likelihood":
        """Wrap `loss(outputs, targets) -> (batch,)`, convex in the outputs, for `ng.GaussNewton`."""
        return Likelihood.of_loss(loss)


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """t ~ N(outputs, scale²): nll = Σ (t − r)² / (2 scale²), M = I / scale²."""

    scale: float = 1.0
    """The standard deviation."""

    def __post_init__(self) -> None:
        require(
            lambda: self.scale > 0, f"Gaussian(scale={self.scale}): the standard deviation must be positive."
        )

    matching = True

    def nll(self, outputs: Array, targets: Array) -> Array:
        """Return Σ (t − r)² / (2 scale²)."""
        return _sum((targets.astype(outputs.dtype) - outputs) ** 2) / (2 * self.scale**2)

    def change(self, outputs: Array, new_outputs: Array, targets: Array) -> Array:
        """Return Σ δ (δ + 2(r − t)) / (2 scale²), δ = r′ − r."""
        moved = new_outputs - outputs
        return _sum(moved * (moved + 2 * (outputs - targets.astype(outputs.dtype)))) / (2 * self.scale**2)

    def at(self, outputs: Array) -> AtOutputs:
        """Return M = I / scale², C = I / scale."""
        return AtOutputs(lambda u: u / self.scale**2, lambda e: e / self.scale, lambda u: u / self.scale)

    def residual(self, outputs: Array, targets: Array) -> Array:
        """Return (r − t) / scale."""
        return (outputs - targets.astype(outputs.dtype)) / self.scale

    def kl(self, outputs: Array, new_outputs: Array) -> Array:
        """Return Σ (r − r′)² / (2 scale²)."""
        return self.nll(new_outputs, outputs)

    def mean(self, outputs: Array) -> Array:
        """Return the outputs."""
        return outputs

    def sample(self, key: Array, outputs: Array) -> Array:
        """Draw from N(outputs, scale²)."""
        return outputs + self.scale * jax.random.normal(key, outputs.shape, outputs.dtype)


class _Elementwise(Likelihood):
    """One-parameter exponential families, one independent target per output: A(r) − t r, with M = diag(A″(r))."""

    def log_partition(self, r: Array) -> Array:
        raise NotImplementedError

    def variance(self, r: Array) -> Array:
        raise NotImplementedError

    def near(self, r: Array, by: Array, t: Array) -> Array:
        """Return A(r + by) − A(r) − t by for |by| ≤ 1, as accurate as `by`."""
        raise NotImplementedError

    matching = True

    def nll(self, outputs: Array, targets: Array) -> Array:
        """Return Σ A(r) − t r."""
        return _sum(self.log_partition(outputs) - targets.astype(outputs.dtype) * outputs)

    def change(self, outputs: Array, new_outputs: Array, targets: Array) -> Array:
        """Return Σ A(r′) − A(r) − t δ, δ = r′ − r, output by output."""
        targets = targets.astype(outputs.dtype)
        moved = new_outputs - outputs
        near = jnp.abs(moved) <= 1
        far = self.log_partition(new_outputs) - self.log_partition(outputs) - targets * moved
        return _sum(jnp.where(near, self.near(outputs, jnp.where(near, moved, 0), targets), far))

    def at(self, outputs: Array) -> AtOutputs:
        """Return M = diag(A″(r)) and its root."""
        variance = self.variance(outputs)

        def times_root(u: Array) -> Array:
            return jnp.sqrt(variance) * u

        return AtOutputs(lambda u: variance * u, times_root, times_root)

    def kl(self, outputs: Array, new_outputs: Array) -> Array:
        """Return the Bregman divergence A(r′) − A(r) − A′(r)(r′ − r)."""
        gap = self.log_partition(new_outputs) - self.log_partition(outputs)
        return _sum(gap - self.mean(outputs) * (new_outputs - outputs))


@dataclass(frozen=True)
class Bernoulli(_Elementwise):
    """t ∈ [0, 1] with logit r, independent per output: nll = Σ log(1 + eʳ) − t r, M = diag(y(1 − y)), y = σ(r)."""

    def log_partition(self, r: Array) -> Array:
        """Return log(1 + eʳ)."""
        return jnp.logaddexp(r, jnp.zeros_like(r))

    def near(self, r: Array, by: Array, t: Array) -> Array:
        """Return log(1 + y(eᵇʸ − 1)) − t by for the less likely outcome: nothing cancels if t is nearly certain."""
        flip = jnp.where(t > 0.5, -1, 1).astype(r.dtype)
        less = jnp.where(t > 0.5, 1 - t, t)
        return jnp.log1p(jax.nn.sigmoid(flip * r) * jnp.expm1(flip * by)) - less * flip * by

    def variance(self, r: Array) -> Array:
        """Return y(1 − y), as σ(r) σ(−r): exact where y rounds to 1."""
        return jax.nn.sigmoid(r) * jax.nn.sigmoid(-r)

    def mean(self, outputs: Array) -> Array:
        """Return σ(r)."""
        return jax.nn.sigmoid(outputs)

    def sample(self, key: Array, outputs: Array) -> Array:
        """Draw zeros and ones."""
        return jax.random.bernoulli(key, self.mean(outputs)).astype(outputs.dtype)


@dataclass(frozen=True)
class Poisson(_Elementwise):
    """Counts t with log-rate r: nll = Σ eʳ − t r, M = diag(eʳ).

    Above r = ½ log(largest float), 44 in float32, the tangent replaces the exponential. So a step that goes too far
    gives a large number and not a NaN.
    """

    def _limit(self, r: Array) -> float:
        return 0.5 * math.log(float(jnp.finfo(r.dtype).max))

    def log_partition(self, r: Array) -> Array:
        """Return eʳ."""
        limit = self._limit(r)
        return jnp.exp(jnp.minimum(r, limit)) * (1 + jnp.maximum(r - limit, 0))

    def near(self, r: Array, by: Array, t: Array) -> Array:
        """Return eʳ (eᵇʸ − 1) − t by."""
        far = self.log_partition(r + by) - self.log_partition(r)
        return jnp.where(r < self._limit(r) - 1, self.variance(r) * jnp.expm1(by), far) - t * by

    def variance(self, r: Array) -> Array:
        """Return eʳ."""
        return jnp.exp(jnp.minimum(r, self._limit(r)))

    def mean(self, outputs: Array) -> Array:
        """Return eʳ."""
        return self.variance(outputs)

    def sample(self, key: Array, outputs: Array) -> Array:
        """Draw counts."""
        return jax.random.poisson(key, self.mean(outputs)).astype(outputs.dtype)


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of K classes from K logits on the last axis: nll = −log softmax(r)_t, M = diag(y) − y yᵀ.

    Targets are integer classes or (soft) one-hot rows; other axes between the first and the last (time,
    position) are independent and summed. Weights of shape (batch, time) mask positions. A class of −1 masks nothing:
    it counts as the last class.
    """

    matching = True

    def nll(self, outputs: Array, targets: Array) -> Array:
        """Return log Σ eʳ − r_t."""
        if targets.ndim < outputs.ndim:
            chosen = jnp.take_along_axis(outputs, targets[..., None], axis=-1)
            return _sum(jax.nn.logsumexp(outputs, axis=-1) - chosen.squeeze(-1))
        return -_sum(targets.astype(outputs.dtype) * jax.nn.log_softmax(outputs))

    def change(self, outputs: Array, new_outputs: Array, targets: Array) -> Array:
        """Return log Σ y exp(δ − δ_t), δ = r′ − r, as log(1 + Σ y(exp(δ − δ_t) − 1)) where that is small."""
        moved = new_outputs - outputs
        if targets.ndim < outputs.ndim:
            mass = jnp.ones_like(moved[..., 0])
            own = jnp.take_along_axis(moved, targets[..., None], axis=-1)
        else:
            weights = targets.astype(outputs.dtype)
            mass = jnp.sum(weights, axis=-1)
            total = jnp.where(mass == 0, 1, mass)
            own = (jnp.sum(weights * moved, axis=-1) / total)[..., None]
        apart = moved - own
        near = jnp.max(jnp.abs(apart), axis=-1) <= 1
        small = jnp.where(near[..., None], apart, 0)
        close = jnp.log1p(jnp.sum(jax.nn.softmax(outputs) * jnp.expm1(small), axis=-1))
        far = jax.nn.logsumexp(new_outputs, axis=-1) - jax.nn.logsumexp(outputs, axis=-1) - own.squeeze(-1)
        return _sum(mass * jnp.where(near, close, far))

    def at(self, outputs: Array) -> AtOutputs:
        """Return M = diag(y) − y yᵀ and C = diag(√y) − y √yᵀ."""
        y = jax.nn.softmax(outputs)
        root = jnp.sqrt(y)

        def centered(u: Array) -> Array:
            return u - jnp.sum(y * u, axis=-1, keepdims=True)

        def factor(e: Array) -> Array:
            return root * (e - root * jnp.sum(root * e, axis=-1, keepdims=True))

        return AtOutputs(lambda u: y * centered(u), factor, lambda u: root * centered(u))

    def positions(self, outputs: Array) -> int:
        """Return the axes before the classes'."""
        return outputs.ndim - 1

    def kl(self, outputs: Array, new_outputs: Array) -> Array:
        """Return Σ y (log y − log y′)."""
        gap = jax.nn.log_softmax(outputs) - jax.nn.log_softmax(new_outputs)
        return _sum(jax.nn.softmax(outputs) * gap)

    def mean(self, outputs: Array) -> Array:
        """Return the class probabilities."""
        return jax.nn.softmax(outputs)

    def sample(self, key: Array, outputs: Array) -> Array:
        """Draw integer classes."""
        return jax.random.categorical(key, outputs)

    def check(self, outputs: Any, targets: Any) -> None:
        """Refuse targets that are neither classes nor one-hot rows for these logits."""
        shape, found = jnp.shape(outputs), jnp.shape(targets)
        integer = jnp.issubdtype(targets.dtype, jnp.integer)
        if not (found == shape or (found == shape[:-1] and integer)):
            raise ValueError(
                f"Categorical targets have shape {found} and dtype {targets.dtype}; logits of shape {shape} need "
                f"integer classes of shape {shape[:-1]} or one-hot rows of shape {shape}."
            )


@dataclass(frozen=True, init=False)
class Product(Likelihood):
    """Independent likelihoods of several outputs: L = Σ_k c_k mean_k(nll_k), F = Σ_k c_k F_k.

    Outputs, targets and (if given per factor) weights are tuples. Each factor averages over its own example
    axis, so the axes may differ in length: interior and boundary points, say.
    """

    factors: tuple[Likelihood, ...]
    weights: tuple[float, ...]

    def __init__(self, *factors: Likelihood, weights: tuple[float, ...] | None = None):
        for factor in factors:
            if isinstance(factor, type) or not hasattr(factor, "nll"):
                found = factor if isinstance(factor, type) else type(factor)
                raise TypeError(
                    f"Product got a {found.__name__}: give likelihoods one by one, ng.Product(ng.Gaussian(), …)."
                )
        weights = (1.0,) * len(factors) if weights is None else tuple(weights)
        if not factors or len(weights) != len(factors):
            raise ValueError(f"Product needs one weight for each of its {len(factors)} factors.")
        if any(isinstance(factor, Product) for factor in factors):
            raise ValueError("Product factors must be plain likelihoods: flatten the inner Product.")
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "weights", weights)

    @property
    def matching(self) -> bool:
        """Whether every factor matches."""
        return all(factor.matching for factor in self.factors)

    def parts(self) -> tuple[Likelihood, ...]:
        """Return the factors."""
        return self.factors

    def _each(self, method: str, *trees: Any) -> tuple[Any, ...]:
        return tuple(
            getattr(factor, method)(*args) for factor, *args in zip(self.factors, *trees, strict=True)
        )

    def nll(self, outputs: Any, targets: Any) -> Any:
        """Return one array of losses per factor."""
        return self._each("nll", outputs, targets)

    def change(self, outputs: Any, new_outputs: Any, targets: Any) -> Any:
        """Return one array of changes per factor."""
        return self._each("change", outputs, new_outputs, targets)

    def at(self, outputs: Any) -> AtOutputs:
        """Return every factor's own M."""
        return side_by_side(self._each("at", outputs))

    def residual(self, outputs: Any, targets: Any) -> Any:
        """Return each factor's residual; None if a factor has none."""
        parts = self._each("residual", outputs, targets)
        return None if any(part is None for part in parts) else parts

    def score(self, keys: Any, outputs: Any) -> Any:
        """Return a random score of each factor."""
        return self._each("score", keys, outputs)

    def kl(self, outputs: Any, new_outputs: Any) -> Any:
        """Return one array of divergences per factor."""
        return self._each("kl", outputs, new_outputs)

    def mean(self, outputs: Any) -> Any:
        """Return each factor's mean."""
        return self._each("mean", outputs)

    def sample(self, key: Array, outputs: Any) -> Any:
        """Draw from each factor."""
        return self._each("sample", tuple(jax.random.split(key, len(self.factors))), outputs)

    def check(self, outputs: Any, targets: Any) -> None:
        """Refuse outputs or targets that are not one entry per factor, or do not fit their factor."""
        for name, tree in (("outputs", outputs), ("targets", targets)):
            if not isinstance(tree, (tuple, list)) or len(tree) != len(self.factors):
                raise ValueError(
                    f"Product {name} must be a tuple of {len(self.factors)} entries, one per factor."
                )
        self._each("check", outputs, targets)

    def coefficients(self, outputs: Any, weights: Any) -> Any:
        """Return c_k times each factor's own coefficients."""
        if not isinstance(weights, (tuple, list)):
            weights = (weights,) * len(self.factors)
        own = self._each("coefficients", outputs, weights)
        return tuple(c * share for c, share in zip(self.weights, own, strict=True))

    def weigh(self, coefficients: Any, u: Any) -> Any:
        """Return each factor's outputs times its coefficients."""
        return self._each("weigh", coefficients, u)


def side_by_side(parts: tuple[AtOutputs, ...]) -> AtOutputs:
    """Return several M as one; each acts on its own entry of a tuple of outputs."""

    def each(functions: tuple[Callable[[Tree], Tree], ...]) -> Callable[[Tree], Tree]:
        return lambda u: tuple(function(own) for function, own in zip(functions, u, strict=True))

    products, factors, transposes = zip(*parts, strict=True)
    return AtOutputs(each(products), each(factors), each(transposes))


def _sum(values: Array) -> Array:
    """Sum over everything but the example axis."""
    return jnp.sum(values, axis=tuple(range(1, values.ndim)))


def _broadcast(c: Array, like: Array) -> Array:
    return c.astype(like.dtype).reshape(c.shape + (1,) * (like.ndim - c.ndim))


def random_signs(keys: Array, space: Tree) -> Tree:
    """Return independent ±1 in the shape of `space`, one key per example: they do not depend on the chunking."""

    def draw(number: int, like: Any) -> Array:
        own = keys if number == 0 else jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
        return jax.vmap(lambda key: jax.random.rademacher(key, like.shape[1:], like.dtype))(own)

    leaves, structure = jax.tree.flatten(space)
    return jax.tree.unflatten(structure, list(map(draw, range(len(leaves)), leaves)))


def _expect_same_shape(likelihood: Likelihood, outputs: Tree, targets: Tree) -> None:
    want = [jnp.shape(leaf) for leaf in jax.tree.leaves(outputs)]
    have = [jnp.shape(leaf) for leaf in jax.tree.leaves(targets)]
    if want != have:
        raise ValueError(
            f"{type(likelihood).__name__} targets have shape {_plain(have)}; the model's outputs have {_plain(want)}."
        )


def _plain(shapes: list[Any]) -> Any:
    return shapes[0] if len(shapes) == 1 else shapes
