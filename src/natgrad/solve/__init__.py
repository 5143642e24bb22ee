"""Solvers for symmetric linear systems known only through their products with a vector."""

from natgrad.solve.cg import CG, Snapshots
from natgrad.solve.result import Reason, Solution

__all__ = ["CG", "Reason", "Snapshots", "Solution"]
