"""Solvers for symmetric linear systems known only through their products with a vector."""

from natgrad.solve.arrays import cg, minres, minres_qlp
from natgrad.solve.cg import CG, Snapshots
from natgrad.solve.dual import Dual
from natgrad.solve.minres import MINRES
from natgrad.solve.minres_qlp import MinresQLP
from natgrad.solve.result import Reason, Solution
from natgrad.solve.spectrum import Density, extreme_eigenvalues, spectral_density, trace

__all__ = [
    "CG",
    "MINRES",
    "Density",
    "Dual",
    "MinresQLP",
    "Reason",
    "Snapshots",
    "Solution",
    "cg",
    "extreme_eigenvalues",
    "minres",
    "minres_qlp",
    "spectral_density",
    "trace",
]
