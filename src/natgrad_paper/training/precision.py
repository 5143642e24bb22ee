"""Single or double precision, for as long as a problem is trained."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from natgrad_paper.training.problem import Problem

OPTION = "jax_enable_x64"


@contextmanager
def precise(problem: Problem) -> Iterator[None]:
    """Let JAX compute in double precision if the problem asks for it; otherwise change nothing."""
    before = jax.config.read(OPTION)
    jax.config.update(OPTION, before or problem.float64)
    try:
        yield
    finally:
        jax.config.update(OPTION, before)
