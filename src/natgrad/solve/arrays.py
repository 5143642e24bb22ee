"""The solvers for plain arrays and `scipy.sparse` matrices, called as SciPy's are: x, info = minres_qlp(A, b)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from natgrad.solve.cg import CG
from natgrad.solve.minres import MINRES
from natgrad.solve.minres_qlp import MinresQLP
from natgrad.solve.result import Reason, Solution


def minres_qlp(A: Any, b: Any, x0: Any = None, **options: Any) -> tuple[np.ndarray, int]:
    """Return (x, info) for (A − shift·I) x = b, x the minimum-length solution, A symmetric.

    Options are SciPy's `rtol`, `shift`, `maxiter`, `M` (an array or sparse matrix that approximates A⁻¹) and
    the fields of `MinresQLP`. info is 0 for a solution, including the least-squares solution of an
    inconsistent system, and otherwise the number of the `Reason`: `Reason.name_of(info)`. The answer has the
    dtype of b; float64 needs `jax_enable_x64`.
    """
    return _call(MinresQLP, A, b, x0, options)


def minres(A: Any, b: Any, x0: Any = None, **options: Any) -> tuple[np.ndarray, int]:
    """Return (x, info) for (A − shift·I) x = b, A symmetric; the options are those of `minres_qlp`."""
    return _call(MINRES, A, b, x0, options)


def cg(A: Any, b: Any, x0: Any = None, **options: Any) -> tuple[np.ndarray, int]:
    """Return (x, info) for (A − shift·I) x = b, A positive definite; the options are those of `minres_qlp`."""
    return _call(CG, A, b, x0, {"maxiter": 10 * np.size(b), "rtol": 1e-5, **options})


def _call(method: Any, A: Any, b: Any, x0: Any, options: dict[str, Any]) -> tuple[np.ndarray, int]:
    shift, M = options.pop("shift", None), options.pop("M", None)
    b = np.asarray(b)
    precision = b.dtype if np.issubdtype(b.dtype, np.floating) else np.dtype(np.float64)
    if jax.dtypes.canonicalize_dtype(precision) != precision:
        raise ValueError(
            f"b is {precision}: call jax.config.update('jax_enable_x64', True), or pass float32."
        )
    matrix, inverse = _matrix(A, precision), _matrix(M, precision)
    if b.ndim != 1 or matrix.shape != (b.size, b.size):
        raise ValueError(f"A must be square and match b: got A {matrix.shape}, b {b.shape}.")
    start = None if x0 is None else jnp.asarray(x0, precision)
    # SciPy's sign: the solvers themselves add the shift.
    added = None if shift is None else jnp.asarray(-shift, precision)
    solution = _solve(method(**options), matrix, jnp.asarray(b, precision), start, inverse, added)
    reason = int(solution.reason)
    fine = reason in (Reason.SOLVED, Reason.LEAST_SQUARES, Reason.ZERO_RHS)
    return np.asarray(solution.x), 0 if fine else reason


@partial(jax.jit, static_argnums=0)
def _solve(solver: Any, A: Any, b: Any, x0: Any, M: Any, shift: Any) -> Solution:
    # A may be sparse, whose products take no precision of their own.
    with jax.default_matmul_precision("highest"):
        return solver(lambda v: A @ v, b, x0, None if M is None else lambda r: M @ r, shift=shift)


def _matrix(A: Any, dtype: Any) -> Any:
    if A is None:
        return None
    if hasattr(A, "tocsr") and hasattr(A, "nnz"):
        from jax.experimental import sparse  # here, because it imports scipy.sparse, for most users in vain

        return sparse.BCSR.from_scipy_sparse(A.tocsr().astype(dtype))
    return jnp.asarray(A, dtype)
