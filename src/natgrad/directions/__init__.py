"""The rows B: what a step may combine, from the gradient, the metric and what the last step left behind."""

from natgrad.directions.base import Descent, Direction, Gradient, Proposal, SolverInfo
from natgrad.directions.conjugate import Conjugate, PolakRibiere, WithLastStep
from natgrad.directions.fan import Fan
from natgrad.directions.krylov import Krylov
from natgrad.directions.natural import Natural, Preconditioned, TruncatedNewton
from natgrad.directions.spring import Spring
from natgrad.directions.tonga import Tonga
