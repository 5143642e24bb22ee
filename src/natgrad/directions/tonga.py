"""TONGA (Le Roux, Manzagol & Bengio 2008): −(C + λI)⁻¹g, C the covariance of past gradients, low rank, online."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.directions.base import Direction, Proposal
from natgrad.metric.here import Here
from natgrad.part import require
from natgrad.tree import Stack, Tree


class Covariance(NamedTuple):
    """C = Σ_j w_j² x_j x_jᵀ: past gradients (or leading eigenvectors of them), and their weights."""

    rows: Stack
    """x_j: `rank` eigenvectors, then up to `block` gradients. Unused rows are 0."""
    weights: Array
    """w_j: a gradient's weight falls by √γ per step."""
    products: Array
    """⟨x_i, x_j⟩."""


class TongaMemory(NamedTuple):
    """The covariance, the running mean of the gradients, and the count of gradients seen."""

    covariance: Covariance
    mean: Tree
    seen: Array


@dataclass(frozen=True)
class Tonga(Direction):
    """−(C + λI)⁻¹ g with C_t = γ C_{t−1} + g_t g_tᵀ, times (1 − γᵗ)/(1 − γ), C's normalization.

    Every `block` steps C is cut to its `rank` leading eigenvectors. Storage: rank + block vectors.
    """

    rank: int = 5
    block: int = 50
    decay: float = 0.995
    centered: bool = False
    """Whether the running mean is subtracted from each gradient before it enters C."""

    needs_metric = False

    def __post_init__(self) -> None:
        require(
            lambda: self.rank >= 1 and self.block >= 1 and 0 < self.decay <= 1,
            "Tonga needs rank >= 1, block >= 1 and 0 < decay <= 1.",
        )

    def init(self, theta: Tree) -> TongaMemory:
        """Return an empty covariance."""
        size, wide = self.rank + self.block, tree.dtype(theta)
        rows = Stack(jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), theta))
        covariance = Covariance(rows, jnp.zeros(size, wide), jnp.zeros((size, size), wide))
        return TongaMemory(
            covariance, tree.zeros_like(theta) if self.centered else (), jnp.zeros((), jnp.int32)
        )

    def propose(self, here: Here, memory: TongaMemory) -> Proposal:
        """Return −(C + λI)⁻¹g and the covariance with g in it."""
        gradient, seen, mean = here.gradient, memory.seen + 1, memory.mean
        age = seen.astype(here.shift.dtype)
        # 1 + γ + … + γ^{t−1}: what the weights in C sum to.
        lost = jnp.asarray(1 - self.decay, age.dtype)
        total = jnp.where(lost > 0, (1 - self.decay**age) / jnp.where(lost > 0, lost, 1), age)
        sample = gradient
        if self.centered:
            mean = jax.tree.map(lambda m, g: m + (g - m) / total.astype(g.dtype), mean, gradient)
            sample = tree.sub(gradient, mean)
        slot = self.rank + memory.seen % self.block
        covariance = self._append(memory.covariance, sample, slot)
        row = tree.scale(-total, self._solve(covariance, gradient, slot, here.shift))
        return Proposal.along(here, (row,), TongaMemory(self._cut(covariance, slot), mean, seen))

    def _append(self, covariance: Covariance, x: Tree, slot: Array) -> Covariance:
        rows = Stack(jax.tree.map(lambda rows, leaf: rows.at[slot].set(leaf), covariance.rows.leaves, x))
        overlaps = tree.onto(rows, x)
        products = covariance.products.at[slot].set(overlaps).at[:, slot].set(overlaps)
        weights = (covariance.weights * self.decay**0.5).at[slot].set(1)
        return Covariance(rows, weights, products)

    def _solve(self, covariance: Covariance, g: Tree, slot: Array, damping: Array) -> Tree:
        """Return (XᵀX + λI)⁻¹g with X = diag(w)·rows, by a solve as small as the number of rows."""
        rows, w, products = covariance
        small = w[:, None] * products * w[None, :] + damping * jnp.eye(w.shape[0], dtype=w.dtype)
        factor = jax.scipy.linalg.cho_factor(small)
        if not self.centered:
            # g is itself a row of X, and (XᵀX + λ)⁻¹Xᵀ = Xᵀ(XXᵀ + λ)⁻¹: no division by λ.
            last = (jnp.arange(w.shape[0], dtype=jnp.int32) == slot).astype(w.dtype)
            return tree.combine(w * jax.scipy.linalg.cho_solve(factor, last), rows)
        overlap = w * tree.onto(rows, g)
        inside = tree.combine(w * jax.scipy.linalg.cho_solve(factor, overlap), rows)
        return tree.scale(1 / damping, tree.sub(g, inside))

    def _cut(self, covariance: Covariance, slot: Array) -> Covariance:
        """Keep the leading eigenvectors once the block is full."""

        def truncate(covariance: Covariance) -> Covariance:
            rows, w, products = covariance
            values, vectors = jnp.linalg.eigh(w[:, None] * products * w[None, :])
            lead, top = vectors[:, -self.rank :] * w[:, None], values[-self.rank :]

            def project(leaf: Array) -> Array:
                kept = jnp.tensordot(lead.T.astype(leaf.dtype), leaf, axes=1, precision="highest")
                return jnp.zeros_like(leaf).at[: self.rank].set(kept)

            index = jnp.arange(w.shape[0], dtype=jnp.int32)
            weights = (index < self.rank).astype(w.dtype)
            diagonal = jnp.zeros_like(w).at[: self.rank].set(jnp.maximum(top, 0))
            return Covariance(jax.tree.map(project, rows), weights, jnp.diag(diagonal))

        full = slot == self.rank + self.block - 1
        return jax.lax.cond(full, truncate, lambda covariance: covariance, covariance)
