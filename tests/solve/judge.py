"""The judge: everything recomputed in float64 with NumPy, nothing taken from a solver but x and its claim."""

from typing import NamedTuple

import numpy as np
from corpus import Batch

from natgrad.solve import Reason

CONSISTENT = ("definite", "indefinite", "singular consistent", "clustered", "dead rows", "diagonal")
POSITIVE = ("definite", "clustered", "dead rows", "semidefinite inconsistent")


class Verdict(NamedTuple):
    wrong: np.ndarray
    """Claims that the recomputed residuals deny, and answers that are not finite."""
    solved: np.ndarray
    shortest: np.ndarray
    """Relative distance from the pseudo-inverse solution, for the inconsistent systems."""


def judge(batch: Batch, x: np.ndarray, reason: np.ndarray, rtol: float) -> Verdict:
    A, b, x = (np.asarray(v, np.float64) for v in (batch.A, batch.b, x))
    reason = np.asarray(reason)
    r = b - np.einsum("kij,kj->ki", A, x)
    Ar = np.einsum("kij,kj->ki", A, r)
    r_norm, b_norm, Ar_norm = (np.linalg.norm(v, axis=1) for v in (r, b, Ar))
    A_norm = np.abs(np.linalg.eigvalsh(A)).max(axis=1)
    wrong = ~np.isfinite(x).all(1)
    wrong |= (reason == Reason.SOLVED) & ~(r_norm <= 10 * rtol * b_norm)
    wrong |= (reason == Reason.LEAST_SQUARES) & ~(Ar_norm <= 10 * rtol * A_norm * r_norm)
    wrong |= (reason == Reason.ZERO_RHS) & ~((b_norm == 0) & (np.linalg.norm(x, axis=1) == 0))
    solved = np.isin(reason, (Reason.SOLVED, Reason.ZERO_RHS)) & (r_norm <= 10 * rtol * b_norm)
    return Verdict(
        wrong, solved, np.array([_distance(*item) for item in zip(A, b, x, batch.rank, strict=True)])
    )


def easy(batch: Batch, limit: float) -> np.ndarray:
    """The consistent systems that must be solved."""
    return np.isin(batch.kind, (*CONSISTENT, "zero right-hand side")) & (batch.condition <= limit)


def inconsistent(batch: Batch) -> np.ndarray:
    return np.array([kind.endswith(" inconsistent") for kind in batch.kind]) & (batch.condition <= 1e3)


def _distance(A: np.ndarray, b: np.ndarray, x: np.ndarray, rank: int) -> float:
    d, Q = np.linalg.eigh(A)
    kept = np.argsort(-np.abs(d))[:rank]
    expected = Q[:, kept] @ ((Q[:, kept].T @ b) / d[kept])
    length = np.linalg.norm(expected)
    return float(np.linalg.norm(x - expected) / length) if length > 0 else float(np.linalg.norm(x))
