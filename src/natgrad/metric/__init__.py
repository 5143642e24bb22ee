"""The metric: v ↦ Fv as a list of terms, what is known at θ, and which F.

`operator` holds the terms and their sum, `here` the record that directions and searches read, `metrics` the choices.
"""

from natgrad.metric.metrics import (
    DiagonalFisher,
    EmpiricalFisher,
    Fisher,
    GaussNewton,
    Hessian,
    Metric,
    MonteCarloFisher,
    StructuralDamping,
    metric_product,
)
