"""The coefficients z: how far to go along the rows."""

from natgrad.search.backtrack import Armijo, Backtrack
from natgrad.search.base import FixedRate, Found, KLRadius, Probe, QuadraticModel, Search
from natgrad.search.cobyla import Cobyla
from natgrad.search.line import LineSearch, PlaneSearch
from natgrad.search.pick import Pick
from natgrad.search.subspace import SubspaceBFGS
