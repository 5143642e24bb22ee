"""Truncated conjugate gradients, after Martens (2010): stop when the quadratic stops improving, keep iterates."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from natgrad import tree
from natgrad.solve.cg import Observer, observed
from natgrad.solve.problem import Iterative
from natgrad.solve.result import LinearMap, Solution
from natgrad.tree import Tree


@dataclass(frozen=True)
class TruncatedCG(Iterative):
    """Conjugate gradients without a test of the residual, as Hessian-Free uses them.

    It stops when q(x) = ½ xᵀAx − bᵀx gained less than a fraction ε per iteration over the last K = max(10, ⌈k/10⌉):
    when k > K, q_k < 0 and (q_k − q_{k−K})/q_k < Kε (Martens 2010). It keeps the iterates k = ⌈5·1.3ʲ⌉ and the last
    one in `Solution.snapshots`.
    """

    maxiter: int = 250
    """Most iterations."""
    progress: float | None = 5e-4
    """Martens' ε; None runs exactly `maxiter` iterations."""

    def run(self, product: LinearMap, b: Tree, x0: Tree | None, preconditioner: LinearMap | None) -> Solution:
        """Minimize q for a given product."""
        habits = _Habits(self.maxiter, self.progress)
        return observed(habits, self.maxiter, 0.0, product, b, x0, preconditioner)


class Snapshots(NamedTuple):
    """Iterates on a geometric grid, oldest first, the last iterate last."""

    iterates: Tree
    """Stacked along a new leading axis of static length; rows from `stored` on mean nothing."""
    iterations: Array
    """The iteration each row belongs to."""
    stored: Array
    """How many rows are valid."""


class _Memory(NamedTuple):
    values: Array | None
    """q_0 … q_k; None without a progress stop."""
    snapshots: Snapshots


@dataclass(frozen=True)
class _Habits(Observer):
    maxiter: int
    progress: Any

    def start(self, x: Tree, r: Tree, b: Tree) -> _Memory:
        values = None
        if self.progress is not None:
            # q(x) = ½xᵀAx − bᵀx = −½ xᵀ(r + b).
            value = -tree.vdot(x, tree.add(r, b)) / 2
            values = jnp.zeros(self.maxiter + 1, value.dtype).at[0].set(value)
        rows = len(snapshot_iterations(self.maxiter)) + 1
        stack = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype).at[0].set(leaf), x)
        return _Memory(values, Snapshots(stack, jnp.zeros(rows, jnp.int32), jnp.array(0, jnp.int32)))

    def look(self, memory: _Memory, iteration: Array, x: Tree, fall: Array) -> tuple[_Memory, Array]:
        values, stop = memory.values, jnp.array(False)
        if values is not None:
            values = values.at[iteration].set(values[iteration - 1] - fall)
            stop = stagnates(values, iteration, self.progress)
        # x takes the first free row, which is kept only if the iteration is on the grid.
        stack, iterations, row = memory.snapshots
        stack = jax.tree.map(lambda rows, leaf: rows.at[row].set(leaf), stack, x)
        kept = jnp.any(iteration == jnp.array(snapshot_iterations(self.maxiter), jnp.int32))
        stored = row + kept.astype(row.dtype)
        return _Memory(values, Snapshots(stack, iterations.at[row].set(iteration), stored)), stop

    def finish(self, memory: _Memory, iteration: Array, unit: Array) -> Snapshots:
        # The last iterate waits in the first free row, unless it was on the grid.
        stack, iterations, stored = memory.snapshots
        waiting = (stored == 0) | (iterations[jnp.maximum(stored - 1, 0)] != iteration)
        return Snapshots(tree.scale(unit, stack), iterations, stored + waiting.astype(stored.dtype))


def stagnates(values: Array, k: Array, epsilon: Any) -> Array:
    """Return Martens' verdict on the recorded values q_0 … q_k."""
    window = jnp.maximum(10, -(-k // 10))
    gained = values[k] - values[jnp.maximum(k - window, 0)]
    bound = window.astype(values.dtype) * jnp.asarray(epsilon, values.dtype)
    return (k > window) & (values[k] < 0) & (gained / values[k] < bound)


def snapshot_iterations(maxiter: int) -> tuple[int, ...]:
    """Return the grid ⌈5·1.3ʲ⌉ ≤ maxiter (Martens' code; his paper has ⌈1.3ʲ⌉)."""
    grid: list[int] = []
    while (k := math.ceil(5 * 1.3 ** len(grid))) <= maxiter:
        grid.append(k)
    return tuple(grid)
