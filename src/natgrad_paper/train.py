"""Training with one method, with honest clocks: compiling, training and evaluating are timed apart."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad_paper.experiment import Budget, Method, Problem, Tree
from natgrad_paper.log import FINISHED

STEP_FIELDS = ("loss", "new_loss", "rho", "damping", "accepted", "step_size", "grad_norm", "step_norm", "kl")
"""What is kept of an optimizer's `info`, where it has them."""
SOLVER_FIELDS = ("iterations", "residual")
NONFINITE = (ng.Outcome.NONFINITE_GRADIENT, ng.Outcome.NONFINITE_METRIC, ng.Outcome.NONFINITE_LOSS)
REFUSALS = 10
"""So many steps refused one after another for a NaN or an infinity end a run: nothing will come of it."""


@dataclass(frozen=True)
class Event:
    """Where a run stands after a call of the compiled loop."""

    iteration: int
    fraction: float
    """Of the budget, in [0, 1]."""
    step: dict[str, Any]
    """The last step, in the optimizer's own words."""
    refused: int
    """Steps refused so far."""
    training_seconds: float
    evaluation_seconds: float
    compile_seconds: float
    errors: dict[str, float] | None
    """Mean errors over the whole training set (and the test set, as `test_…`), at the evaluations."""
    ended: str | None = None
    """Why this is the last event, if it is."""

    def record(self) -> dict[str, Any]:
        """Return the event as a line of the log."""
        return {
            "record": "evaluation",
            "iteration": self.iteration,
            "training_seconds": self.training_seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "compile_seconds": self.compile_seconds,
            **(self.errors or {}),
            **self.step,
            "refused": self.refused,
        }


class Trainer:
    """One method on one problem, compiled once and then run for any number of seeds."""

    def __init__(self, problem: Problem, method: Method, config: Any) -> None:
        self.problem = problem
        self.method = method
        self.budget: Budget = config.budget
        self.chunk: int = config.evaluation_chunk
        self.optimizer = method.optimizer(problem, config)
        self.batches = method.batches(config)
        self.steps = method.steps_per_call(config)
        self.train = jax.device_put(problem.train)
        self.test = None if problem.test is None else jax.device_put(problem.test)
        self._compiled: Compiled | None = None

    def run(self, seed: int) -> Iterator[Event]:
        """Train from the seed's initial parameters; yield an event a call of the loop, the first before any."""
        cases = len(self.problem.train[0])
        # Copies: the loop gives its buffers away, and a state may share them with the parameters.
        params = jax.tree.map(jnp.array, self.problem.init(seed))
        state = jax.tree.map(jnp.array, self.optimizer.init(params))
        with Stopwatch() as compiling:
            compiled = self._compile(params, state, self.batches.draw(cases, seed, 0, self.steps))

        training, evaluating = Stopwatch(), Stopwatch()
        marks = iter(self.budget.marks())
        mark = next(marks)
        iteration = refused = in_a_row = 0
        step: dict[str, Any] = {}
        with evaluating:
            errors: dict[str, float] | None = self._errors(compiled, params)
        ended: str | None = None
        while True:
            spent = self.budget.spent(iteration, training.seconds)
            yield Event(
                iteration,
                min(1.0, spent / self.budget.limit),
                step,
                refused,
                training.seconds,
                evaluating.seconds,
                compiling.seconds,
                errors,
                ended,
            )
            if ended:
                return
            with training:
                drawn = self.batches.draw(cases, seed, iteration, self.steps)
                params, state, info = jax.block_until_ready(
                    compiled.advance(params, state, self.train, drawn)
                )
            iteration += self.steps
            history = jax.device_get(info)
            step = {name: values[-1].tolist() for name, values in history.items()}
            refused += self.steps - int(np.sum(history.get("accepted", np.ones(self.steps))))
            for outcome in history.get("outcome", ()):
                in_a_row = in_a_row + 1 if outcome in NONFINITE else 0

            spent = self.budget.spent(iteration, training.seconds)
            if spent >= self.budget.limit:
                ended = FINISHED
            elif in_a_row >= REFUSALS:
                ended = f"{in_a_row} nonfinite steps in a row"
            errors = None
            if ended or spent >= mark:
                with evaluating:
                    errors = self._errors(compiled, params)
                mark = next((later for later in marks if later > spent), self.budget.limit)

    def _compile(self, params: Tree, state: Tree, drawn: dict[str, np.ndarray]) -> "Compiled":
        if self._compiled is None:
            advance = jax.jit(self._advance, donate_argnums=(0, 1))
            evaluate = jax.jit(self._case_errors)
            self._compiled = Compiled(
                advance.lower(params, state, self.train, drawn).compile(),
                evaluate.lower(params, self.train).compile(),
                None if self.test is None else evaluate.lower(params, self.test).compile(),
            )
        return self._compiled

    def _advance(self, params: Tree, state: Tree, data: Any, drawn: dict[str, Any]) -> tuple[Tree, Tree, Any]:
        """Take several steps: the compiled loop."""

        def one(carry: tuple[Tree, Tree], indices: dict[str, Any]) -> tuple[tuple[Tree, Tree], Any]:
            inputs, targets = data
            arguments = self.batches.arguments(inputs, targets, indices)
            params, state, info = self.optimizer.step(*carry, arguments.pop("batch"), **arguments)
            return (params, state), _summary(info)

        (params, state), history = jax.lax.scan(one, (params, state), drawn, length=self.steps)
        return params, state, history

    def _case_errors(self, params: Tree, data: Any) -> dict[str, Any]:
        """Return every case's errors, computed in chunks, so that memory does not follow the data."""

        def one_case(case: Any) -> dict[str, Any]:
            inputs, targets = jax.tree.map(lambda values: values[None], case)
            return {name: values[0] for name, values in self.problem.errors(params, inputs, targets).items()}

        return jax.lax.map(one_case, data, batch_size=self.chunk)

    def _errors(self, compiled: "Compiled", params: Tree) -> dict[str, float]:
        means: dict[str, float] = {}
        for prefix, evaluate, part in (
            ("", compiled.on_train, self.train),
            ("test_", compiled.on_test, self.test),
        ):
            if evaluate is not None:
                cases = jax.device_get(evaluate(params, part))
                means |= {
                    prefix + name: float(values.mean(dtype=np.float64)) for name, values in cases.items()
                }
        return means


@dataclass(frozen=True)
class Compiled:
    """The programs of a method, compiled ahead so that no other clock sees it happen."""

    advance: Callable[..., Any]
    on_train: Callable[..., Any]
    on_test: Callable[..., Any] | None


class Stopwatch:
    """Adds up the seconds spent inside its `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> "Stopwatch":
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds += time.perf_counter() - self._start


def _summary(info: Any) -> dict[str, Any]:
    """Return the numbers worth logging, where this method has them."""
    kept = {name: value for name in STEP_FIELDS if (value := getattr(info, name, None)) is not None}
    if (outcome := getattr(info, "reason", None)) is not None:
        kept["outcome"] = outcome
    solver = getattr(info, "solver", None)
    for name in SOLVER_FIELDS:
        if (value := getattr(solver, name, None)) is not None:
            kept[f"solver_{name}"] = value
    return kept
