"""The dual solve: invert in the space of outputs, when that is smaller than the space of parameters."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from natgrad import tree
from natgrad.part import Part
from natgrad.solve.problem import meets, residual, verdict
from natgrad.solve.result import Reason, Solution
from natgrad.tree import Tree


class FactoredOperator(Protocol):
    """F = AᵀA: a metric that offers its factor A (parameters → outputs, weights included)."""

    def __call__(self, v: Tree) -> Tree:
        """Return Fv."""
        ...

    def factor(self, v: Tree) -> Tree:
        """Return Av."""
        ...

    def factor_transpose(self, e: Tree) -> Tree:
        """Return Aᵀe."""
        ...


@runtime_checkable
class RootedOperator(Protocol):
    """An operator that can make its factor's products cheaper."""

    def rooted(self) -> Any:
        """Return the same operator, ready for many of them."""
        ...


@dataclass(frozen=True)
class Dual(Part):
    """Solve (AᵀA + λI) n = g exactly through the m×m Gram matrix K = AAᵀ, m = examples × outputs.

    n = (g − Aᵀ(K + λI)⁻¹A g)/λ (Woodbury). One step of refinement with the product itself follows, because the
    difference cancels when λ is small. λ is the `shift` and must be positive.

    K costs m products with Aᵀ and A: it pays against k Krylov iterations only when examples × outputs² is well
    below 8k, that is for small batches and few outputs. It is never chosen silently.
    """

    rtol: float = 1e-4
    """Relative residual that counts as solved."""
    block: int = 32
    """Rows of K computed at a time: memory is `block` parameter vectors beside K."""

    def __call__(
        self, operator: FactoredOperator, b: Tree, shift: Any, *, x0: Any = None, preconditioner: Any = None
    ) -> Solution:
        """Solve (F + shift·I) x = b."""
        if x0 is not None or preconditioner is not None:
            raise ValueError("Dual solves at once: it takes no warm start, x0= or preconditioner=.")
        _refuse_zero(shift)
        # A metric of natgrad's may have to compute its factor first: once, not for each row of K.
        operator = operator.rooted() if isinstance(operator, RootedOperator) else operator
        wide = tree.dtype(b)
        shift = jnp.asarray(shift, wide)
        b_norm = tree.norm(b)
        unit = tree.power_of_two(b_norm)
        scaled = tree.scale(1 / unit, b)

        template, unravel = ravel_pytree(operator.factor(scaled))
        gram = _gram(operator, template, unravel, self.block)
        factored = jax.scipy.linalg.cho_factor(gram + shift * jnp.eye(template.size, dtype=gram.dtype))

        def woodbury(r: Tree) -> Tree:
            e = jax.scipy.linalg.cho_solve(factored, ravel_pytree(operator.factor(r))[0])
            return tree.scale(1 / shift, tree.sub(r, operator.factor_transpose(unravel(e))))

        def product(v: Tree) -> Tree:
            return tree.axpy(shift, v, operator(v))

        first = woodbury(scaled)
        refined = tree.add(first, woodbury(residual(product, scaled, first)))
        r_norm = tree.norm(residual(product, scaled, refined))
        x = tree.scale(unit, refined)
        finite = tree.is_finite(x, r_norm, b_norm)
        met = meets(r_norm, jnp.asarray(self.rtol, wide) * b_norm / unit)
        return Solution(
            x=tree.where(finite, x, tree.zeros_like(x)),
            iterations=jnp.array(2, jnp.int32),
            residual=unit * r_norm,
            normal_residual=jnp.full_like(b_norm, jnp.nan),
            reason=verdict(jnp.array(Reason.STALLED), met, b_norm, finite),
        )


def _gram(operator: FactoredOperator, template: Array, unravel: Any, block: int) -> Array:
    """Return K = AAᵀ, row i being A(Aᵀeᵢ), in blocks of rows."""

    def row(i: Array) -> Array:
        e = unravel(jnp.zeros_like(template).at[i].set(1))
        return ravel_pytree(operator.factor(operator.factor_transpose(e)))[0]

    gram = jax.lax.map(row, jnp.arange(template.size), batch_size=min(block, template.size))
    return (gram + gram.T) / 2


def _refuse_zero(shift: Any) -> None:
    try:
        value = float(shift)
    except jax.errors.ConcretizationTypeError:
        return  # Inside a transformation the number is unknown: the residual will tell.
    if not value > 0:
        raise ValueError(f"Dual divides by the shift: it must be positive, got {value}.")
