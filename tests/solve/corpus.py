"""A seeded corpus of symmetric systems A x = b with everything the tests want to know about each.

A = Q diag(d) Qᵀ with a random orthogonal Q and the spectrum d of its kind, drawn in float64 and rounded to the
dtype of the batch, so that what is solved is the rounded system: truths are recomputed from it in float64.
"""

from typing import NamedTuple

import numpy as np

KINDS = (
    "definite",
    "indefinite",
    "singular consistent",
    "singular inconsistent",
    "semidefinite inconsistent",
    "clustered",
    "dead rows",
    "zero right-hand side",
    "ill-conditioned",
    "diagonal",
)

SIZES = (1, 2, 3, 5, 8, 13, 21, 40, 75, 120, 200, 300)


class Batch(NamedTuple):
    """Systems of one size and dtype."""

    A: np.ndarray
    b: np.ndarray
    kind: np.ndarray
    condition: np.ndarray
    """Largest over smallest nonzero |d|."""
    rank: np.ndarray


def batch(seed: int, size: int, count: int, dtype: type) -> Batch:
    """Draw `count` systems of `size` unknowns."""
    rng = np.random.default_rng([seed, size, np.dtype(dtype).itemsize])
    kinds = [KINDS[(seed + i) % len(KINDS)] for i in range(count)]
    systems = [_system(rng, kind, size, dtype) for kind in kinds]
    A, b, condition, rank = (np.stack(column) for column in zip(*systems, strict=True))
    return Batch(A.astype(dtype), b.astype(dtype), np.array(kinds), condition, rank)


def _system(rng: np.random.Generator, kind: str, n: int, dtype: type) -> tuple:
    double = dtype == np.float64
    hardest = np.log10(0.1 / np.finfo(dtype).eps)
    decades = rng.uniform(0, 4 if double else 2)
    if kind == "ill-conditioned":
        decades = rng.uniform(4 if double else 2, hardest)
    if kind.endswith("inconsistent"):
        decades = rng.uniform(0, 3 if double else 1.5)
    d = _spectrum(rng, kind, n, decades)
    Q = np.eye(n) if kind == "diagonal" else np.linalg.qr(rng.normal(size=(n, n)))[0]
    dead = np.zeros(n, bool)
    if kind == "dead rows":
        dead[rng.permutation(n)[: max(n // 5, 1)]] = True
        Q = _orthogonal_on(rng, ~dead)
        d[dead] = 0
    A = (Q * d) @ Q.T
    A = (A + A.T) / 2
    scale = 10 ** rng.uniform(-3, 3)
    size = 10.0 ** rng.choice([0, 0, -18 if double else -12, 18 if double else 12])
    if kind == "zero right-hand side":
        b = np.zeros(n)
    elif kind.endswith("inconsistent"):
        b = rng.normal(size=n)
    else:
        # In the range of the rounded matrix, as far as rounding allows.
        b = A.astype(dtype).astype(np.float64) @ (Q @ ((d != 0) * rng.normal(size=n)))
    length = np.linalg.norm(b)
    b = b / length * size if length > 0 else b
    nonzero = np.abs(d[d != 0])
    condition = nonzero.max() / nonzero.min() if nonzero.size else 1.0
    return A * scale, b, condition, int(nonzero.size)


def _spectrum(rng: np.random.Generator, kind: str, n: int, decades: float) -> np.ndarray:
    d = 10 ** -rng.uniform(0, decades, n)
    if n > 1:
        d[0], d[1] = 1, 10**-decades
    if kind == "clustered":
        centers = 10 ** -rng.uniform(0, decades, 3)
        d = rng.choice(centers, n) * (1 + 1e-6 * rng.uniform(-1, 1, n))
    if kind in ("indefinite", "singular consistent", "singular inconsistent", "ill-conditioned", "diagonal"):
        d = d * rng.choice([-1, 1], n)
    if kind.startswith(("singular", "semidefinite")):
        d[rng.permutation(n)[: int(rng.integers(1, max(n // 2, 1) + 1))]] = 0
    return d


def _orthogonal_on(rng: np.random.Generator, alive: np.ndarray) -> np.ndarray:
    Q = np.eye(alive.size)
    block = np.linalg.qr(rng.normal(size=(alive.sum(), alive.sum())))[0]
    Q[np.ix_(alive, alive)] = block
    return Q
