"""Solvers for symmetric linear systems known only through their products with a vector."""

from natgrad.solve.cg import CG
from natgrad.solve.direct import Direct
from natgrad.solve.minres_qlp import MINRES, MinresQLP
from natgrad.solve.result import Reason, Solution, Space
from natgrad.solve.truncated import Snapshots, TruncatedCG

__all__ = ["CG", "MINRES", "Direct", "MinresQLP", "Reason", "Snapshots", "Solution", "Space", "TruncatedCG"]
