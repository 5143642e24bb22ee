"""What `ng.check` warns about: nothing is wrong, but training will be hard. Each warning has one function.

The natural gradient itself does not depend on the scale of the inputs. With λI, or a solver that stops early, it does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from natgrad import tree
from natgrad.faults import Case, Remark
from natgrad.likelihood import Categorical, Gaussian
from natgrad.tree import Tree

RATIO = 1e3
"""`scale` warns if the ranges of input columns differ by more than this factor."""
FEW = 4096
"""Up to this many parameters, a hint names `ng.gauss_newton`."""
NAMED = 3
"""A warning names this many columns and counts the rest."""


@dataclass(frozen=True)
class Columns:
    """One array's columns: the least and the greatest value of each over the examples."""

    name: str
    shape: tuple[int, ...]
    """The shape of one example."""
    low: np.ndarray
    high: np.ndarray

    @property
    def constant(self) -> np.ndarray:
        """Which columns have one value for all examples."""
        return self.low == self.high

    def label(self, index: int) -> str:
        """Return a column's name: `inputs[:, 3]`."""
        if not self.shape:
            return self.name
        place = ", ".join(str(int(axis)) for axis in np.unravel_index(index, self.shape))
        return f"{self.name}[:, {place}]"


def scale(case: Case) -> Remark:
    """Compare the ranges of the input columns.

    Ranges are compared, not standard deviations: a pixel that is rarely on has a small deviation, which is ordinary.
    """
    ends = []
    for columns in _columns("inputs", case.examples.inputs):
        span = columns.high - columns.low
        (varying,) = np.nonzero(span > 0)
        for index in varying[[np.argmin(span[varying]), np.argmax(span[varying])]] if varying.size else ():
            ends.append((float(span[index]), columns.label(index)))
    if not ends:
        return None
    (small, least), (large, most) = min(ends), max(ends)
    if large <= RATIO * small:
        return None
    return (
        f"input columns differ in scale by {large / small:.1g}: {least} has range {small:.2g}, {most} {large:.2g}.",
        "Standardize each column: subtract its mean, divide by its standard deviation.",
    )


def inputs(case: Case) -> Remark:
    """Look for input columns with one value for all examples.

    A column of zeros may pass (the border of an image): its weights get no gradient, and nothing else is harmed.
    Any other constant is a second bias, and the metric cannot tell the two apart.
    """
    arrays = _columns("inputs", case.examples.inputs)
    idle = [each.constant if each.constant.all() else each.constant & (each.low != 0) for each in arrays]
    words = _never_vary("input column", arrays, idle)
    if words is None:
        return None
    return words, "A constant that is not 0 acts as a second bias: drop the column, or subtract its mean."


def outputs(case: Case, key: Array) -> Remark:
    """Look for outputs with one value for all examples, here and at parameters nearby.

    A look at one point would not be enough: a last layer that starts at 0 is ordinary, and any step makes it vary.
    """
    arrays = _columns("outputs", case.outputs)
    idle = [each.constant for each in arrays]
    if any(each.any() for each in idle):
        moved = case.run(_nearby(case.params, key), case.examples.inputs)
        idle = [here & there.constant for here, there in zip(idle, _columns("outputs", moved), strict=True)]
    words = _never_vary("output", arrays, idle)
    if words is None:
        return None
    return (
        words,
        "Look for dead units, or inputs that do not reach it. An output that all examples share is fine.",
    )


def batch(case: Case) -> Remark:
    """Compare the number of examples with the number of outputs, where the metric cannot have full rank."""
    parts = case.problem.likelihood.parts()
    several = case.outputs if len(parts) > 1 else (case.outputs,)
    leaves = [(part, leaf) for part, out in zip(parts, several, strict=True) for leaf in jax.tree.leaves(out)]
    rank = sum(leaf.size for _, leaf in leaves)
    count = tree.size(case.params)
    for part, leaf in leaves:
        # Positions in a sequence count as examples: each has its own classes.
        rows = leaf.shape[:-1] if isinstance(part, Categorical) else leaf.shape[:1]
        examples = math.prod(rows)
        if examples < leaf.size // examples and rank < count:
            return (
                f"the batch has {examples} examples for {leaf.size // examples} outputs: "
                f"the metric has rank {rank} at most, for {count} parameters.",
                "Train with more examples per batch, or with a larger λ; if only this check's batch is small, go on.",
            )
    return None


def few_parameters(case: Case) -> Remark:
    """Tell whether a direct solve is cheap: the loss is a sum of squares, and there are few parameters."""
    if not all(isinstance(part, Gaussian) for part in case.problem.likelihood.parts()):
        return None
    count = tree.size(case.params)
    if count > FEW or case.problem.objective is not None:
        return None
    single = any(leaf.dtype.itemsize < 8 for leaf in jax.tree.leaves(case.params))
    return (
        f"{count} parameters and a sum of squares: a step can solve for all of them directly.",
        "If the targets can be met and you want many digits, take ng.gauss_newton on the whole batch, in "
        + ('float64: jax.config.update("jax_enable_x64", True) first.' if single else "float64 as here."),
    )


def _columns(name: str, values: Tree) -> list[Columns]:
    """Return the columns of the floating arrays. Integers are indices, and a single example cannot vary."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(values):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.shape[0] > 1 and leaf.size:
            rows = np.asarray(leaf).reshape(leaf.shape[0], -1)
            ends = (end.astype(np.float64) for end in (rows.min(axis=0), rows.max(axis=0)))
            found.append(Columns(name + jax.tree_util.keystr(path), leaf.shape[1:], *ends))
    return found


def _never_vary(what: str, arrays: Sequence[Columns], idle: Sequence[np.ndarray]) -> str | None:
    """Return one sentence: how many columns do not vary, and the names of a few."""
    count, total = (sum(int(f(each)) for each in idle) for f in (np.sum, np.size))
    if not count:
        return None
    names = [
        each.label(k) for each, marks in zip(arrays, idle, strict=True) for k in np.nonzero(marks)[0][:NAMED]
    ]
    few = ", ".join(names[:NAMED]) + (", …" if count > NAMED else "")
    many = "" if total == 1 else "s"
    return (
        f"{count} of {total} {what}{many} never {'varies' if count == 1 else 'vary'} over the batch: {few}."
    )


def _nearby(params: Tree, key: Array) -> Tree:
    """Return the parameters with noise, a tenth of the size of each array; arrays of zeros get 0.1."""
    leaves, structure = jax.tree.flatten(params)

    def moved(key: Array, leaf: Array) -> Array:
        size = jnp.sqrt(jnp.mean(leaf**2))
        return leaf + 0.1 * jnp.where(size > 0, size, 1) * jax.random.normal(key, leaf.shape, leaf.dtype)

    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [moved(k, leaf) for k, leaf in zip(keys, leaves, strict=True)])
