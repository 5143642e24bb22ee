"""The experiment's settings, and its equations as problems that any method can be trained on."""

from typing import Annotated, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import Field, model_validator

from natgrad_paper.figures.arena.entry import ERROR, Entry, data_facts
from natgrad_paper.figures.arena.problems import Suite, suite
from natgrad_paper.figures.pinn.equations import EQUATIONS
from natgrad_paper.training.batches import Batches, FullBatch
from natgrad_paper.training.problem import Budget, Cases
from natgrad_paper.training.settings import Count, Positive, Section, Size, unfit

EquationName = Literal["p1", "p2", "p3", "p4", "p5", "p6", "p7a", "p7b", "p8b"]
NAMES: tuple[EquationName, ...] = get_args(EquationName)
assert tuple(EQUATIONS) == NAMES


class Settings(Section):
    """The settings of the equations."""

    problems: Annotated[tuple[EquationName, ...], Field(strict=False, min_length=1)] = NAMES
    """Which of them run."""
    budget: Budget = Budget(seconds=120.0, evaluations=40, first=0.3)
    turn: Positive = 10.0
    """Seconds of training that each method has before it is the next one's turn."""
    inside: Count | None = None
    """The most points inside, for a quick look; where values are given there are fewer in proportion."""
    redraw: bool | None = None
    """Whether every step has new points. Without it, each equation's own rule."""
    grid: Size | None = None
    """The most points of the error along a coordinate, for the same."""
    evaluation_chunk: Size = 1
    """Cases evaluated at a time."""

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        if len(set(self.problems)) < len(self.problems):
            unfit("problems", "different ones", list(self.problems))
        return self


def prepare(settings: Any, path: Any) -> Suite:
    """Return the equations that the settings name; there is no file of the user's to read."""
    with jax.enable_x64(True):
        rest = settings.inside, settings.grid, settings.redraw
        return suite(tuple(posed(name, *rest) for name in settings.problems))


def posed(name: str, inside: int | None = None, grid: int | None = None, redraw: bool | None = None) -> Entry:
    """Return an equation as a problem; its error is the relative L2 distance to the solution."""
    equation = EQUATIONS[name]
    some = equation.counts[0] if inside is None else min(inside, equation.counts[0])
    counts = some, max(8, equation.counts[1] * some // equation.counts[0])

    def init(seed: int) -> Any:
        return equation.init(jax.random.key(seed))

    def errors(params: Any, points: Array, answers: Array) -> dict[str, Array]:
        found = jax.vmap(lambda each: equation.u(params, each))(points)
        return {ERROR: jnp.linalg.norm(found - answers, axis=-1) / jnp.linalg.norm(answers, axis=-1)}

    def draw(key: Array, params: Any, batch: Any) -> Any:
        return equation.draw(key, counts)

    anew = equation.redrawn if redraw is None else redraw
    train = jax.tree.map(np.asarray, equation.draw(jax.random.key(0), counts))
    finest = min(grid or equation.grid, equation.grid)
    judged, valid = (_one(equation.judged(finest + more, seed=more)) for more in (0, 1))
    return Entry(
        equation.model, equation.likelihood, init, errors, data_facts(equation.about, train, judged), train,
        valid=valid, judged=judged, batches=Batches(FullBatch()), draw=draw if anew else None, float64=True,
        name=name, words="relative L2 error",
    )  # fmt: skip


def _one(points: tuple[np.ndarray, np.ndarray]) -> Cases:
    """Return points and answers as a single case: its error is that of all of them."""
    return points[0][None], points[1][None]
