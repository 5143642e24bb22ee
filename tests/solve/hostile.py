"""Seeded hostile systems, each with a preconditioner that is rarely a good one, and a judge who knows rounding."""

from typing import NamedTuple

import numpy as np
import scipy.linalg

from natgrad.solve import Reason

MATRICES = ("hilbert", "kkt", "toeplitz", "laplacian", "spectrum", "asymmetric")
PRECONDITIONERS = ("none", "jacobi", "multiple", "scaled", "dense", "singular", "indefinite")


class Hostile(NamedTuple):
    """Systems A x = b of one size and dtype, and the matrices M⁻¹."""

    A: np.ndarray
    b: np.ndarray
    inverse: np.ndarray
    kind: np.ndarray


def hostile(seed: int, size: int, count: int, dtype: type) -> Hostile:
    """Draw systems of `size` unknowns: every matrix with every preconditioner, in turn."""
    rng = np.random.default_rng([seed, size, np.dtype(dtype).itemsize])
    every = [(matrix, name) for matrix in MATRICES for name in PRECONDITIONERS]
    kinds = [every[i % len(every)] for i in range(count)]
    systems = [_system(rng, *kind, size, dtype) for kind in kinds]
    A, b, inverse = (np.stack(column).astype(dtype) for column in zip(*systems, strict=True))
    return Hostile(A, b, inverse, np.array([" ".join(kind) for kind in kinds]))


def _system(rng: np.random.Generator, matrix: str, name: str, n: int, dtype: type) -> tuple:
    reach = 8 if dtype == np.float64 else 5
    A = _matrix(rng, matrix, n) * 10 ** rng.uniform(-reach, reach)
    b = rng.normal(size=n) + 0.3
    if rng.uniform() < 0.5:
        b = A @ b
    b = b / max(np.linalg.norm(b), 1e-300) * 10 ** rng.uniform(-reach, reach)
    return A, b, _inverse(rng, name, A, reach)


def _matrix(rng: np.random.Generator, name: str, n: int) -> np.ndarray:
    if name == "hilbert":
        return scipy.linalg.hilbert(n)
    if name == "toeplitz":
        return scipy.linalg.toeplitz(rng.normal(size=n) / np.arange(1, n + 1) ** rng.integers(0, 3))
    if name == "laplacian":
        return np.diag(np.r_[1, 2 * np.ones(n - 2), 1]) - np.eye(n, k=1) - np.eye(n, k=-1)
    if name == "kkt":
        few = n // 3
        rows = rng.normal(size=(few, n - few))
        rows[-1] = rows[0] if rng.uniform() < 0.5 else rows[-1]
        H = np.diag(10 ** rng.uniform(-3, 0, n - few))
        return np.block([[H, rows.T], [rows, np.zeros((few, few))]])
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    d = 10 ** -rng.uniform(0, rng.uniform(0, 8), n)
    d *= rng.choice([-1, 1], n) if rng.uniform() < 0.5 else 1
    d[: rng.integers(0, n // 2 + 1)] = 0
    A = (Q * d) @ Q.T
    if name == "asymmetric":
        return A + 10 ** rng.uniform(-9, -2) * np.linalg.norm(A) / n * rng.normal(size=(n, n))
    return (A + A.T) / 2


def _inverse(rng: np.random.Generator, name: str, A: np.ndarray, reach: int) -> np.ndarray:
    n = len(A)
    diagonal = np.abs(np.diag(A))
    diagonal = np.where(diagonal > 0, diagonal, 1)
    if name == "none":
        return np.eye(n)
    if name == "jacobi":
        return np.diag(1 / diagonal)
    if name == "multiple":
        return np.eye(n) * 10 ** rng.uniform(-reach, reach)
    scales = 10 ** rng.uniform(-reach / 2, reach / 2, n)
    if name == "singular":
        scales[rng.permutation(n)[: n // 2]] = 0
    if name == "indefinite":
        scales[rng.permutation(n)[: n // 2]] *= -1
    if name == "dense":
        Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
        return (Q * scales) @ Q.T
    return np.diag(scales)


def wrong(systems: Hostile, x: np.ndarray, reason: np.ndarray, rtol: float) -> np.ndarray:
    """Tell which claims A, b and x deny in float64, beyond what rounding in the systems' own dtype hides.

    Rounding moves Ax by about eps √n ‖|A||x|‖: no solver of that precision can see less.
    """
    eps = np.finfo(systems.A.dtype).eps * np.sqrt(systems.b.shape[1])
    A, b, x = (np.asarray(v, np.float64) for v in (systems.A, systems.b, x))
    reason = np.asarray(reason)

    def times(A, v):
        return np.einsum("kij,kj->ki", A, v)

    def norm(v):
        return np.linalg.norm(v, axis=1)

    r = b - times(A, x)
    blur = eps * (times(np.abs(A), np.abs(x)) + np.abs(b))
    solved = norm(r) <= rtol * norm(b) + norm(blur)
    A_norm = np.linalg.norm(A, 2, axis=(1, 2))
    normal_blur = times(np.abs(A), blur + eps * np.abs(r))
    least = norm(times(A, r)) <= rtol * A_norm * (norm(r) + norm(blur)) + norm(normal_blur)
    zero = (norm(b) == 0) & (norm(x) == 0)
    denied = ((reason == Reason.SOLVED) & ~solved) | ((reason == Reason.LEAST_SQUARES) & ~least)
    return denied | ((reason == Reason.ZERO_RHS) & ~zero) | ~np.isfinite(x).all(1)
