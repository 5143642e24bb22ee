"""Training with one method, with honest clocks: compiling, training and evaluating are timed apart."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad_paper import refusals
from natgrad_paper.distributed import ALONE, Alone, Together
from natgrad_paper.early import Patience
from natgrad_paper.experiment import Budget, Method, Problem, Tree
from natgrad_paper.log import FINISHED
from natgrad_paper.refusals import Streaks

STEP_FIELDS = ("loss", "new_loss", "rho", "damping", "accepted", "step_size", "grad_norm", "step_norm", "kl")
"""What is kept of an optimizer's `info`, where it has them."""
SOLVER_FIELDS = ("iterations", "residual")
RATIO = math.log(1.05)


@dataclass(frozen=True)
class Position:
    """How far a training is: with its parameters and its optimizer's state, all that going on from here needs."""

    iteration: int = 0
    refused: int = 0
    """Steps refused so far."""
    in_a_row: int = 0
    """Of these, the last ones in a row that were refused for a NaN or an infinity."""
    training_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    compile_seconds: float = 0.0
    lowest: float | None = None
    """The lowest validation error so far, where it decides when training ends."""
    waited: int = 0
    """Evaluations since then."""
    given_up: str = ""
    """Why the training was given up here, if it was."""
    idle: int = 0
    """Of the last steps, those in a row that were refused or too small to be measured."""
    unmeasurable: int = 0
    """Of these, those too small to be measured."""
    at_bound: int = 0
    """Of the last steps, those in a row with λ at its upper bound."""

    @property
    def streaks(self) -> Streaks:
        """What decides whether the training is given up."""
        return Streaks(self.in_a_row, self.idle, self.unmeasurable, self.at_bound)

    def noting(self, streaks: Streaks) -> "Position":
        """Return the position with these streaks."""
        return replace(
            self,
            in_a_row=streaks.nonfinite,
            idle=streaks.idle,
            unmeasurable=streaks.unmeasurable,
            at_bound=streaks.at_bound,
        )


@dataclass(frozen=True)
class Event:
    """Where a run stands after a call of the compiled loop."""

    position: Position
    fraction: float
    """Of the budget, in [0, 1]."""
    steps: tuple[dict[str, Any], ...]
    """The steps of this call, in the optimizer's own words."""
    errors: dict[str, float] | None
    """Mean errors over all training cases, test cases (`test_…`) and, if needed, validation cases (`valid_…`)."""
    ended: str | None
    """Why this is the last event, if it is."""
    trained: tuple[Tree, Tree]
    """Parameters and optimizer state: only until the next event, which may reuse their memory."""

    @property
    def step(self) -> dict[str, Any]:
        """The last step."""
        return self.steps[-1] if self.steps else {}

    def evaluation(self) -> dict[str, Any]:
        """Return the evaluation as a line of the log."""
        where = asdict(self.position)
        for name in ("in_a_row", "lowest", "waited", "given_up", "idle", "unmeasurable", "at_bound"):
            del where[name]
        return {"record": "evaluation", **where, **(self.errors or {}), **self.step}

    def thinned_steps(self) -> list[dict[str, Any]]:
        """Return the steps worth a line of the log: all at first, then at a geometric grid."""
        first = self.position.iteration - len(self.steps) + 1
        return [
            {"record": "step", "iteration": first + number, **_short(step)}
            for number, step in enumerate(self.steps)
            if on_grid(first + number)
        ]


class Trainer:
    """One method on one problem, compiled once and then run for any number of seeds."""

    def __init__(
        self, problem: Problem, method: Method, config: Any, place: Alone | Together = ALONE
    ) -> None:
        self.budget: Budget = config.budget
        patient = self.budget.patience is not None
        self.problem = problem = problem.validated() if patient else problem
        self.method = method
        self.chunk: int = config.evaluation_chunk
        self.optimizer = method.optimizer(problem, config)
        self.highest = refusals.highest(self.optimizer)
        self.batches = method.batches(config)
        self.steps = method.steps_per_call(config)
        self.place = place
        self.train = place.cases(problem.train)
        self.own = place.own(self.train, problem.train)
        self.test = None if problem.test is None else jax.device_put(problem.test)
        self.pool = jax.device_put(problem.pool)
        self.gauge = problem.gauge if self.steps == 1 else None
        self.valid = jax.device_put(problem.valid) if self.gauge or patient else None
        self._compiled: Compiled | None = None
        self._loops: dict[tuple[tuple[int, ...], ...], Callable[..., Any]] = {}

    def run(self, seed: int, resume: tuple[Position, Tree, Tree] | None = None) -> Iterator[Event]:
        """Train from the seed's initial parameters, or on from where a training stood.

        The first event is where it starts, then one a call of the compiled loop.
        """
        at, params, state = resume or (Position(), *self.start(seed))
        # Copies: the loop gives its buffers away, and a state may share them with the parameters.
        params, state = jax.tree.map(jnp.array, (params, state))
        with Stopwatch(at.compile_seconds) as compiling:
            compiled = self._compile(params, self._draw(seed, at.iteration))
        self._loop(params, state, self._draw(seed, at.iteration), compiling)

        data = (*self.train, self.pool)
        training, evaluating = Stopwatch(at.training_seconds), Stopwatch(at.evaluation_seconds)
        iteration, refused, streaks, given_up = at.iteration, at.refused, at.streaks, ""
        patience = Patience(self.budget.patience, at.lowest, at.waited)
        spent = self.budget.spent(iteration, training.seconds)
        # What was given up with nothing left of its budget stays given up.
        errors, ended = None, at.given_up if spent >= self.budget.limit else ""
        steps: tuple[dict[str, Any], ...] = ()
        if resume is None or ended:
            with evaluating:
                errors = self._errors(compiled, kept(params, state))
        if resume is None and errors is not None:
            patience = patience.after(errors)
        mark = self._next_mark(iteration, training.seconds)
        while True:
            clocks = (training.seconds, evaluating.seconds, compiling.seconds)
            known = (patience.lowest, patience.waited, given_up)
            position = Position(iteration, refused, 0, *clocks, *known).noting(streaks)
            fraction = min(1.0, spent / self.budget.limit)
            yield Event(position, fraction, steps, errors, ended or None, (params, state))
            if ended:
                return
            gauged = compiled.gauge is not None and on_grid(iteration + 1)
            before = jax.tree.map(jnp.array, params) if gauged else None
            before_call = training.seconds
            with training:
                drawn = self._draw(seed, iteration)
            advance = self._loop(params, state, drawn, compiling)
            with training:
                params, state, info = jax.block_until_ready(advance(params, state, data, drawn))
            training.seconds = before_call + self.place.most(training.seconds - before_call)
            iteration += self.steps
            steps = _rows(jax.device_get(info), self.steps)
            if compiled.gauge is not None and gauged:
                with evaluating:
                    measured = compiled.gauge(before, params, data, self.valid, drawn)
                    steps = ({**steps[0], **{name: float(value) for name, value in measured.items()}},)
            refused += sum(not step.get("accepted", True) for step in steps)
            streaks, given_up = refusals.follow(streaks, steps, self.highest)

            spent = self.budget.spent(iteration, training.seconds)
            ended = given_up or (FINISHED if spent >= self.budget.limit else "")
            errors = None
            if ended or spent >= mark:
                with evaluating:
                    errors = self._errors(compiled, kept(params, state))
                patience = patience.after(errors)
                ended = ended or patience.ended or ""
                mark = self._next_mark(iteration, training.seconds)

    def start(self, seed: int) -> tuple[Tree, Tree]:
        """Return a seed's parameters and state before the first step."""
        params = self.problem.init(seed)
        return self.place.copies((params, self.optimizer.init(params)))

    def _draw(self, seed: int, first: int) -> dict[str, np.ndarray]:
        """Return the indices of the cases that the steps from `first` on see."""
        pool = 0 if self.pool is None else len(self.pool)
        return self.batches.draw(len(self.train[0]), seed, first, self.steps, pool)

    def _next_mark(self, iteration: int, seconds: float) -> float:
        """Return where the next evaluation is due: the first point of the grid ahead."""
        spent = self.budget.spent(iteration, seconds)
        return next((mark for mark in self.budget.marks() if mark > spent), self.budget.limit)

    def _compile(self, params: Tree, drawn: dict[str, Any]) -> "Compiled":
        if self._compiled is None:
            evaluate = jax.jit(self._case_errors)
            data = (*self.train, self.pool)
            self._compiled = Compiled(
                evaluate.lower(self.place.local(params), self.own).compile(),
                None if self.test is None else evaluate.lower(self.place.local(params), self.test).compile(),
                None
                if self.budget.patience is None
                else evaluate.lower(self.place.local(params), self.valid).compile(),
                None
                if self.gauge is None
                else jax.jit(self._gauge).lower(params, params, data, self.valid, drawn).compile(),
            )
        return self._compiled

    def _loop(
        self, params: Tree, state: Tree, drawn: dict[str, Any], compiling: "Stopwatch"
    ) -> Callable[..., Any]:
        """Return the loop for batches of these sizes, compiled when they are first met."""
        sizes = tuple(rows.shape for rows in drawn.values())
        if sizes not in self._loops:
            with compiling:
                self._loops[sizes] = self._ready(params, state, (*self.train, self.pool), drawn)
                self.place.wait("compiled")  # Or the others would wait while they train, by the clock.
        return self._loops[sizes]

    def _ready(self, params: Tree, state: Tree, data: Any, drawn: dict[str, Any]) -> Callable[..., Any]:
        """Return the loop, compiled; of a method that searches on the host, what can be compiled of it."""
        if self.method.on_host:
            self._advance_on_host(params, state, data, drawn)
            return self._advance_on_host
        advance = jax.jit(self._advance, donate_argnums=(0, 1), out_shardings=self.place.out_shardings)
        return advance.lower(params, state, data, drawn).compile()

    def _advance_on_host(self, params: Tree, state: Tree, data: Any, drawn: Any) -> tuple[Tree, Tree, Any]:
        """Take several steps that cannot be traced."""
        history = []
        for number in range(self.steps):
            indices = {part: rows[number] for part, rows in drawn.items()}
            arguments = self._arguments(data, indices)
            params, state, info = self.optimizer.step(params, state, arguments.pop("batch"), **arguments)
            history.append(_summary(info))
        return params, state, jax.tree.map(lambda *values: jnp.stack(values), *history)

    def _advance(self, params: Tree, state: Tree, data: Any, drawn: dict[str, Any]) -> tuple[Tree, Tree, Any]:
        """Take several steps: the compiled loop."""

        def one(carry: tuple[Tree, Tree], indices: dict[str, Any]) -> tuple[tuple[Tree, Tree], Any]:
            arguments = self.place.spread(self._arguments(data, indices))
            params, state, info = self.optimizer.step(*carry, arguments.pop("batch"), **arguments)
            return (params, state), _summary(info)

        (params, state), history = jax.lax.scan(one, (params, state), drawn, length=self.steps)
        return params, state, history

    def _arguments(self, data: Any, indices: dict[str, Any]) -> dict[str, Any]:
        """Return what a step takes: `batch` and whatever else the method draws."""
        inputs, targets, pool = data
        return self.batches.arguments(inputs, targets, indices, pool)

    def _gauge(
        self, before: Tree, after: Tree, data: Any, valid: Any, drawn: dict[str, Any]
    ) -> dict[str, Any]:
        """Return what the problem measures of a single step."""
        assert self.gauge is not None
        arguments = self._arguments(data, {part: rows[0] for part, rows in drawn.items()})
        inputs = arguments["batch"][0]
        return self.gauge(before, after, inputs, arguments.get("metric_inputs", inputs), valid[0])

    def _case_errors(self, params: Tree, data: Any) -> dict[str, Any]:
        """Return every case's errors, computed in chunks, so that memory does not follow the data."""

        def one_case(case: Any) -> dict[str, Any]:
            inputs, targets = jax.tree.map(lambda values: values[None], case)
            return {name: values[0] for name, values in self.problem.errors(params, inputs, targets).items()}

        return jax.lax.map(one_case, data, batch_size=self.chunk)

    def _errors(self, compiled: "Compiled", params: Tree) -> dict[str, float]:
        means: dict[str, float] = {}
        for prefix, evaluate, part in (
            ("", compiled.on_train, self.own),
            ("test_", compiled.on_test, self.test),
            ("valid_", compiled.on_valid, self.valid),
        ):
            if evaluate is not None:
                cases = jax.device_get(evaluate(self.place.local(params), part))
                means |= {prefix + name: self.place.mean(values) for name, values in cases.items()}
        return means


@dataclass(frozen=True)
class Compiled:
    """The evaluations, compiled ahead so that no other clock sees it happen."""

    on_train: Callable[..., Any]
    on_test: Callable[..., Any] | None
    on_valid: Callable[..., Any] | None
    gauge: Callable[..., Any] | None


class Stopwatch:
    """Adds up the seconds spent inside its `with` blocks."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __enter__(self) -> "Stopwatch":
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds += time.perf_counter() - self._start


def kept(params: Tree, state: Tree) -> Tree:
    """Return what a training hands over: of one that averages its parameters, the average."""
    return state.average if isinstance(state, ng.averaging.AveragedState) else params


def on_grid(iteration: int) -> bool:
    """Whether a step is one of those logged: all up to 20, then one in every 5 % more."""
    return math.floor(math.log(iteration) / RATIO) > math.floor(math.log(max(iteration - 1, 0.5)) / RATIO)


def _short(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step's numbers to five digits, without long lists and what was not measured: enough to draw."""
    return {
        name: float(f"{value:.5g}") if isinstance(value, float) else value
        for name, value in step.items()
        if not (isinstance(value, list) and len(value) > 2)
        and not (isinstance(value, float) and math.isnan(value))
    }


def _rows(history: dict[str, np.ndarray], steps: int) -> tuple[dict[str, Any], ...]:
    """Return a call's stacked numbers step by step."""
    return tuple({name: values[n].tolist() for name, values in history.items()} for n in range(steps))


def _summary(info: Any) -> dict[str, Any]:
    """Return the numbers worth logging, where this method has them."""
    kept = {name: value for name in STEP_FIELDS if (value := getattr(info, name, None)) is not None}
    if (outcome := getattr(info, "outcome", None)) is not None:
        kept["outcome"] = outcome
    solver = getattr(info, "solver", None)
    for name in SOLVER_FIELDS:
        if (value := getattr(solver, name, None)) is not None:
            kept[f"solver_{name}"] = value
    return kept
