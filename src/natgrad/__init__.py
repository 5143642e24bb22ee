"""Natural-gradient training for JAX with the full Fisher metric, matrix-free."""

import importlib
import typing

from natgrad._version import __version__
from natgrad.averaging import Averaged
from natgrad.check import check
from natgrad.damping import Answer, Constant, LevenbergMarquardt
from natgrad.directions import (
    Natural,
    PolakRibiere,
    Preconditioned,
)
from natgrad.kronecker import Kronecker
from natgrad.likelihood import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, Product
from natgrad.loop import loop, scalars
from natgrad.metric import (
    DiagonalFisher,
    EmpiricalFisher,
    Fisher,
    GaussNewton,
    Hessian,
    MonteCarloFisher,
    StructuralDamping,
    metric_product,
)
from natgrad.optimizer import Optimizer
from natgrad.precondition import Diagonal, Identity, Jacobi
from natgrad.problem import Stateful
from natgrad.recipes import (
    gauss_newton,
    hessian_free,
    kncg,
    krylov_subspace_descent,
    natural_conjugate_gradient,
    natural_gradient,
    sgd,
    tonga,
)
from natgrad.search import (
    Cobyla,
    FixedRate,
    KLRadius,
    LineSearch,
    PlaneSearch,
    QuadraticModel,
)
from natgrad.solve import CG, MINRES, Direct, MinresQLP, TruncatedCG
from natgrad.solve.result import Reason
from natgrad.state import Batches, Info, Outcome, State


def __getattr__(name: str) -> typing.Any:
    """Import `ng.optax` when it is first asked for: optax takes as long to import as the rest of natgrad.

    This function also returns `ng.fast`, the old name of `ng.kncg`, so that `dir(ng)` does not list it.
    """
    if name == "optax":
        return importlib.import_module("natgrad.optax")
    if name == "fast":
        return importlib.import_module("natgrad.recipes").fast
    raise AttributeError(f"module 'natgrad' has no attribute {name!r}")
