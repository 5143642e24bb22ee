"""Natural-gradient training for JAX with the full Fisher metric, matrix-free."""

from natgrad._version import __version__
from natgrad.damping import Constant, LevenbergMarquardt
from natgrad.directions import Gradient, Natural
from natgrad.likelihood import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, Product
from natgrad.metric import (
    DiagonalFisher,
    EmpiricalFisher,
    Fisher,
    GaussNewton,
    Hessian,
    MonteCarloFisher,
    ggnvp,
    hvp,
    metric_product,
)
from natgrad.optimizer import Info, Optimizer, Outcome, State
from natgrad.problem import Stateful
from natgrad.recipes import natural_gradient, sgd
from natgrad.search import FixedRate, KLRadius, LineSearch
from natgrad.solve import CG
from natgrad.solve.result import Reason, Solution
