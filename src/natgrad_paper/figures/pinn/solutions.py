"""Solutions to compare with: formulas, and numbers good to ten digits for two equations without a usable formula."""

from functools import cache

import numpy as np
from scipy.integrate import solve_ivp
from scipy.interpolate import BarycentricInterpolator

NODES = 1001
"""The number of points of the quadrature."""
REACH = 40.0
"""The quadrature omits terms smaller than exp(−this)."""
MESH = 256
"""Chebyshev nodes on half of the interval; the solution is even."""


def burgers_solution(points: np.ndarray, viscosity: float) -> np.ndarray:
    """Return u at (t, x) for u_t + u u_x = ν u_xx, u(0, x) = −sin πx, by Cole and Hopf.

    u = −∫ sin(πy) w dη / ∫ w dη,  y = x − η,  w = exp(−cos(πy)/2πν − η²/4νt). The integrand is smooth and vanishes at
    both ends, so a sum over equidistant η is exact to rounding.
    """
    t, x = points[:, 0], points[:, 1]
    found = np.empty(len(points))
    for moment in np.unique(t):
        here = t == moment
        if moment == 0:
            found[here] = -np.sin(np.pi * x[here])
            continue
        farthest = np.sqrt(4 * viscosity * moment * (1 / (np.pi * viscosity) + REACH))
        eta = np.linspace(-farthest, farthest, NODES)
        y = x[here, None] - eta
        exponent = -np.cos(np.pi * y) / (2 * np.pi * viscosity) - eta**2 / (4 * viscosity * moment)
        w = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        found[here] = -(np.sin(np.pi * y) * w).sum(axis=1) / w.sum(axis=1)
    return found


def chebyshev(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the Chebyshev points from 1 to −1, and the matrix that differentiates (Trefethen 2000, chapter 6)."""
    x = np.cos(np.pi * np.arange(count + 1) / count)
    c = np.where((np.arange(count + 1) % count) == 0, 2.0, 1.0) * (-1.0) ** np.arange(count + 1)
    matrix = np.outer(c, 1 / c) / (x[:, None] - x + np.eye(count + 1))
    return x, matrix - np.diag(matrix.sum(axis=1))


@cache
def _allen_cahn(moments: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes of [0, 1] and the solution there at some moments: collocation in x, an implicit method in t."""
    x, slope = chebyshev(2 * MESH - 1)
    both = (1e-3 * slope @ slope)[:MESH]
    diffusion = both[:, :MESH] + both[:, : MESH - 1 : -1]  # The left half mirrors the right one.

    def change(t: float, u: np.ndarray) -> np.ndarray:
        found: np.ndarray = diffusion @ u + 5 * u - 5 * u**3
        found[0] = 0  # u(1) = −1 for ever.
        return found

    def jacobian(t: float, u: np.ndarray) -> np.ndarray:
        found: np.ndarray = diffusion + np.diag(5 - 15 * u**2)
        found[0] = 0
        return found

    begin = x[:MESH] ** 2 * np.cos(np.pi * x[:MESH])
    given = {"t_eval": np.asarray(moments), "rtol": 1e-9, "atol": 1e-11, "jac": jacobian}
    with np.errstate(
        invalid="ignore", over="ignore"
    ):  # BDF computes with memory that nothing has written yet.
        solved = solve_ivp(change, (0, 1), begin, "BDF", **given)
    return x, solved.y


def allen_cahn(points: np.ndarray) -> np.ndarray:
    """Return u at (t, x) for u_t = 0.001 u_xx + 5u − 5u³, u(0, x) = x² cos πx, u(t, ±1) = −1."""
    t, x = points[:, 0], points[:, 1]
    moments = np.unique(t)
    nodes, values = _allen_cahn(tuple(moments))
    whole = np.concatenate([values, values[::-1]])
    # The weights of these nodes are known: ±1, halved at both ends.
    weights = (-1.0) ** np.arange(len(nodes))
    weights[[0, -1]] /= 2
    places = np.unique(x)
    found = BarycentricInterpolator(nodes, whole, wi=weights)(places)
    result: np.ndarray = found[np.searchsorted(places, x), np.searchsorted(moments, t)]
    return result
