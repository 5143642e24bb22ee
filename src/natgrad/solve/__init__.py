"""Solvers for symmetric linear systems known only through their products with a vector."""

from natgrad.solve.cg import CG, Snapshots
from natgrad.solve.minres import MINRES
from natgrad.solve.minres_qlp import MinresQLP
from natgrad.solve.result import Reason, Solution

__all__ = ["CG", "MINRES", "MinresQLP", "Reason", "Snapshots", "Solution"]
