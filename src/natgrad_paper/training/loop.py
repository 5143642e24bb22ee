"""Training with one method. Compiling, training and evaluating have separate clocks.

`Trainer.run` is a generator of events. It writes nothing: the runner writes logs and checkpoints.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad_paper.training.log import Status
from natgrad_paper.training.problem import Budget, Method, Optimizer, Problem, Tree, Until
from natgrad_paper.training.settings import Section
from natgrad_paper.training.source import Source
from natgrad_paper.training.stopping import Patience, Streaks, follow, highest_damping

STEP_FIELDS = (
    "loss", "new_loss", "rho", "damping", "accepted", "step_size", "grad_norm", "step_norm", "kl", "outcome",
)  # fmt: skip
"""The fields of an optimizer's `info` that are kept, if it has them."""
SOLVER_FIELDS = ("iterations", "residual")
RATIO = math.log(1.05)
GAP = 5.0
"""After this many seconds in a row without CPU time, the process is taken to have slept."""


@dataclass(frozen=True)
class Position:
    """How far a training is. With the parameters and the optimizer's state, this is all that is needed to continue."""

    iteration: int = 0
    refused: int = 0
    """Steps refused so far."""
    training_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU seconds of the process while it trained, all its threads together."""
    evaluation_seconds: float = 0.0
    compile_seconds: float = 0.0
    streaks: Streaks = Streaks()
    """What decides whether the training is given up."""
    lowest: float | None = None
    """The lowest validation error so far, if it decides when training ends."""
    waited: int = 0
    """Evaluations since the lowest validation error."""
    given_up: str = ""
    """Why the training was given up here, if it was."""


@dataclass(frozen=True)
class Event:
    """Where a training stands after a call of the compiled loop."""

    position: Position
    fraction: float
    """The share of the budget that is used, in [0, 1]."""
    steps: tuple[dict[str, Any], ...]
    """The steps of this call, as the optimizer reports them."""
    errors: dict[str, float] | None
    """Mean errors over the cases of each part, if this is an evaluation."""
    status: Status | None
    """How it ended, if this is the last event."""
    reason: str
    """The same, in words."""
    trained: tuple[Tree, Tree]
    """Parameters and optimizer state: only until the next event, which may reuse their memory."""
    gap: float = 0.0
    """Seconds for which the process slept during this call; they do not count as training."""

    @property
    def step(self) -> dict[str, Any]:
        """The last step."""
        return self.steps[-1] if self.steps else {}

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the log: some steps (all at first, then a geometric grid) and all evaluations."""
        first = self.position.iteration - len(self.steps) + 1
        for number, step in enumerate(self.steps, first):
            if on_grid(number):
                yield {"record": "step", "iteration": number, **_short(step)}
        if self.gap:
            yield {"record": "gap", "iteration": self.position.iteration, "seconds": self.gap}
        if self.errors is not None:
            where = asdict(self.position)
            for name in ("streaks", "lowest", "waited", "given_up"):
                del where[name]
            yield {"record": "evaluation", **where, **self.errors, **self.step}


class Trainer:
    """One method on one problem, compiled once and then run for any number of seeds, sources and numbers."""

    def __init__(
        self, problem: Problem, method: Method, settings: Section, evaluating: dict[Any, Any] | None = None
    ) -> None:
        """Build the method; `evaluating` holds compiled programs that all methods on the problem share."""
        self.problem = problem
        self.method = method
        self.settings = method.own(settings)
        self.optimizer = method.build(problem, self.settings)
        self.steps = method.steps_per_call(self.settings) if problem.looped else 1
        self.chunk: int = getattr(settings, "evaluation_chunk", 1000)
        self.gauge = problem.gauge if self.steps == 1 else None
        self._source: Source | None = None
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._evaluating: dict[Any, Callable[..., Any]] = {} if evaluating is None else evaluating

    def kept(self, params: Tree, state: Tree) -> Tree:
        """Return the parameters that a training ends with; if it averages its parameters, the average."""
        if isinstance(state, ng.averaging.AveragedState):
            return state.average
        own: Callable[[Tree, Tree], Tree] | None = getattr(self.optimizer, "kept", None)
        return params if own is None else own(params, state)

    def start(self, seed: int) -> tuple[Tree, Tree]:
        """Return a seed's parameters and state before the first step."""
        params = self.problem.init(seed)
        return params, self.optimizer.init(params)

    def run(
        self,
        seed: int,
        source: Source,
        budget: Budget | Until,
        resume: tuple[Position, Tree, Tree] | None = None,
        start: tuple[Position, Tree, Tree] | None = None,
        optimizer: Optimizer | None = None,
    ) -> Iterator[Event]:
        """Train from the seed's initial parameters, from a given start, or from where a training stood.

        The first event is the start; then there is one per call of the compiled loop. An optimizer that replaces the
        method's may differ from it only in its numbers.
        """
        self._source = self._source or source
        optimizer = self.optimizer if optimizer is None else optimizer
        # An optimizer that is no pytree is a part of the program.
        traced = optimizer if isinstance(optimizer, ng.Optimizer | ng.Averaged) else None
        highest = highest_damping(optimizer)
        at, params, state = resume or start or (Position(), *self.start(seed))
        # These are copies: the loop donates its buffers, and a state may share them with the parameters.
        params, state = jax.tree.map(jnp.array, (params, state))
        clocks = Clocks.at(at)
        judged = source.judged()
        if self.problem.train is not None and not budget.patience:
            judged = {name: cases for name, cases in judged.items() if name != "valid_"}
        self._loop(traced, params, state, source, self._block(source, at.iteration), clocks)
        for cases in judged.values():
            self._judge(clocks, params, cases)

        iteration, refused, streaks = at.iteration, at.refused, at.streaks
        patience = Patience(budget.patience, at.lowest, at.waited)
        spent = budget.spent(iteration, clocks.training.seconds)
        # A training that was given up at the end of its budget stays given up.
        given_up = at.given_up if spent >= budget.limit else ""
        ended = (Status.GAVE_UP, given_up) if given_up else None
        errors: dict[str, float] | None = None
        steps: tuple[dict[str, Any], ...] = ()
        gap = 0.0
        if given_up or (resume is None and budget.evaluates_start):
            errors = self._errors(judged, self.kept(params, state), clocks)
            patience = patience if given_up else patience.after(errors)
        while True:
            position = Position(
                iteration, refused, *clocks.readings(), streaks, patience.lowest, patience.waited, given_up
            )
            fraction = min(1.0, spent / budget.limit)
            status, reason = ended or (None, "")
            yield Event(position, fraction, steps, errors, status, reason, (params, state), gap)
            if ended:
                return
            look, moment = budget.next_iteration(iteration), budget.next_second(clocks.training.seconds)
            count = min(self.steps, look - iteration, source.same(iteration))
            gauged = self.gauge is not None and on_grid(iteration + 1)
            before = jax.tree.map(jnp.array, params) if gauged else None
            with clocks.training:
                block = self._block(source, iteration)
            advance = self._loop(traced, params, state, source, block, clocks)
            with clocks.training:
                done = advance(traced, params, state, source.data, block, count)
                params, state, info = jax.block_until_ready(done)
            steps = _rows(jax.device_get(info), count)
            if gauged:
                steps = ({**steps[0], **self._measured(before, params, source, block, clocks)},)
            iteration += count
            refused += sum(not step.get("accepted", True) for step in steps)
            streaks, given_up = follow(streaks, steps, highest)

            spent = budget.spent(iteration, clocks.training.seconds)
            gap = clocks.training.woken()
            ended = (Status.GAVE_UP, given_up) if given_up else None
            if ended is None and spent >= budget.limit:
                ended = Status.FINISHED, "used its budget"
            errors = None
            if ended or iteration >= look or clocks.training.seconds >= moment:
                errors = self._errors(judged, self.kept(params, state), clocks)
                patience = patience.after(errors)
                ended = ended or ((Status.EARLY, patience.ended) if patience.ended else None)

    def _block(self, source: Source, first: int) -> Tree:
        """Return the rows of the next call of the loop, always as many: the last one again where batches change."""
        rows = source.block(first, min(self.steps, source.same(first)))
        return jax.tree.map(lambda each: _filled(each, self.steps), rows)

    def _loop(
        self, traced: Tree, params: Tree, state: Tree, source: Source, block: Tree, clocks: "Clocks"
    ) -> Callable[..., Any]:
        """Return the loop for blocks of these shapes, compiled at the first such block."""
        like = traced, params, state, source.data, block, 1
        if not self.method.on_host:
            return _compiled(self._programs, "loop", self._advance, clocks.compiling, like, donate=(1, 2))
        if "host" not in self._programs:
            with clocks.compiling:
                self._advance_on_host(*like)
        return self._programs.setdefault("host", self._advance_on_host)

    def _judge(self, clocks: "Clocks", params: Tree, cases: Any) -> Callable[..., Any]:
        """Return the program that measures errors. Its compile time counts as evaluation, not as training."""
        like = params, cases
        return _compiled(self._evaluating, "errors", self._case_errors, clocks.evaluating, like)

    def _step(self, traced: Tree, params: Tree, state: Tree, data: Tree, row: Tree) -> tuple[Tree, Tree, Any]:
        """Take a step, with an optimizer whose numbers are traced or, if there is none, with the method's."""
        assert self._source is not None
        optimizer = self.optimizer if traced is None else traced
        arguments = self._source.arguments(data, row, params)
        params, state, info = optimizer.step(params, state, arguments.pop("batch"), **arguments)
        return params, state, _summary(info)

    def _advance(
        self, traced: Tree, params: Tree, state: Tree, data: Tree, block: Tree, count: Any
    ) -> tuple[Tree, Tree, Any]:
        """Take `count` steps, at most as many as the block has: the compiled loop."""

        def one(params: Tree, state: Tree, row: Tree) -> tuple[Tree, Tree, Any]:
            return self._step(traced, params, state, data, row)

        def again(number: Any, carry: tuple[Tree, Tree, Any]) -> tuple[Tree, Tree, Any]:
            params, state, history = carry
            params, state, info = one(params, state, jax.tree.map(lambda rows: rows[number], block))
            history = jax.tree.map(lambda rows, value: rows.at[number].set(value), history, info)
            return params, state, history

        row = jax.tree.map(lambda rows: rows[0], block)
        if not self.problem.looped:
            params, state, info = one(params, state, row)
            return params, state, jax.tree.map(lambda value: value[None], info)
        shapes = jax.eval_shape(one, params, state, row)[2]
        length = jax.tree.leaves(block)[0].shape[0] if jax.tree.leaves(block) else self.steps
        history = jax.tree.map(lambda like: jnp.zeros((length, *like.shape), like.dtype), shapes)
        return jax.lax.fori_loop(0, count, again, (params, state, history))

    def _advance_on_host(
        self, traced: Tree, params: Tree, state: Tree, data: Tree, block: Tree, count: int
    ) -> tuple[Tree, Tree, Any]:
        """Take steps that cannot be traced."""
        history = []
        for number in range(count):
            row = jax.tree.map(lambda rows, number=number: rows[number], block)
            params, state, info = self._step(traced, params, state, data, row)
            history.append(info)
        return params, state, jax.tree.map(lambda *values: jnp.stack(values), *history)

    def _measured(
        self, before: Tree, after: Tree, source: Source, block: Tree, clocks: "Clocks"
    ) -> dict[str, float]:
        """Return what the problem measures of a single step."""
        gauge = self.gauge
        assert gauge is not None

        def measure(before: Tree, after: Tree, data: Tree, valid: Tree, block: Tree) -> dict[str, Any]:
            arguments = source.arguments(data, jax.tree.map(lambda rows: rows[0], block), before)
            inputs = arguments["batch"][0]
            return gauge(before, after, inputs, arguments.get("metric_inputs", inputs), valid[0])

        given = before, after, source.data, source.judged()["valid_"], block
        program = _compiled(self._programs, "gauge", measure, clocks.compiling, given)
        with clocks.evaluating:
            return {name: float(value) for name, value in program(*given).items()}

    def _case_errors(self, params: Tree, cases: Any) -> dict[str, Any]:
        """Return every case's errors, computed in chunks, so that memory does not grow with the data."""

        def one_case(case: Any) -> dict[str, Any]:
            inputs, targets = jax.tree.map(lambda values: values[None], case)
            return {name: values[0] for name, values in self.problem.errors(params, inputs, targets).items()}

        return jax.lax.map(one_case, cases, batch_size=self.chunk)

    def _errors(self, judged: dict[str, Any], params: Tree, clocks: "Clocks") -> dict[str, float]:
        means: dict[str, float] = {}
        for prefix, cases in judged.items():
            program = self._judge(clocks, params, cases)
            with clocks.evaluating:
                errors = jax.device_get(program(params, cases))
                means |= {prefix + name: float(each.mean(dtype=np.float64)) for name, each in errors.items()}
        return means


class Stopwatch:
    """Adds up the seconds spent inside its `with` blocks: by the clock, and of the processor.

    Time in which the process slept does not count. (If another device computes, a waiting process counts as working.)
    """

    def __init__(self, seconds: float = 0.0, cpu: float = 0.0) -> None:
        self.seconds, self.cpu, self._slept = seconds, cpu, 0.0

    def __enter__(self) -> "Stopwatch":
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exception: object) -> None:
        wall, cpu = time.perf_counter() - self._start[0], time.process_time() - self._start[1]
        asleep = wall - cpu >= max(GAP, 10 * cpu) and jax.default_backend() == "cpu"
        self.seconds += cpu if asleep else wall
        self.cpu += cpu
        self._slept += (wall - cpu) * asleep

    def woken(self) -> float:
        """Return the seconds for which the process slept since the last call."""
        slept, self._slept = self._slept, 0.0
        return slept


@dataclass(frozen=True)
class Clocks:
    """What the time of a training goes to."""

    training: Stopwatch = field(default_factory=Stopwatch)
    evaluating: Stopwatch = field(default_factory=Stopwatch)
    compiling: Stopwatch = field(default_factory=Stopwatch)
    compiled: float = 0.0
    """The seconds of compiling before the training was resumed. Compiling again for the rest costs nobody anything."""

    @classmethod
    def at(cls, position: Position) -> "Clocks":
        """Return clocks that continue from a position."""
        return cls(
            Stopwatch(position.training_seconds, position.cpu_seconds),
            Stopwatch(position.evaluation_seconds),
            compiled=position.compile_seconds,
        )

    def readings(self) -> tuple[float, float, float, float]:
        """Return the times of a `Position`."""
        compiling = max(self.compiled, self.compiling.seconds)
        return self.training.seconds, self.training.cpu, self.evaluating.seconds, compiling


def _compiled(
    known: dict[Any, Callable[..., Any]],
    name: str,
    function: Callable[..., Any],
    clock: "Stopwatch",
    like: tuple[Any, ...],
    donate: tuple[int, ...] = (),
) -> Callable[..., Any]:
    """Return a program for arguments of these shapes: a known one, or one compiled now, which this clock times."""
    leaves = jax.tree.leaves(like)
    key = name, tuple((np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves)
    if key not in known:
        with clock:
            known[key] = jax.jit(function, donate_argnums=donate).lower(*like).compile()
    return known[key]


def on_grid(iteration: int) -> bool:
    """Whether a step is logged: all up to 20, then one whenever the count has grown by 5%."""
    return math.floor(math.log(iteration) / RATIO) > math.floor(math.log(max(iteration - 1, 0.5)) / RATIO)


def _filled(rows: Any, count: int) -> Any:
    """Return as many rows as asked for, with the last one repeated."""
    missing = count - rows.shape[0]
    return np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)]) if missing else rows


def _short(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step's numbers to five digits, enough for a figure, without long lists and numbers not measured."""
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
    """Return the numbers worth logging, if this method has them."""
    found = {name: value for name in STEP_FIELDS if (value := getattr(info, name, None)) is not None}
    solver = getattr(info, "solver", None)
    for name in SOLVER_FIELDS:
        if (value := getattr(solver, name, None)) is not None:
            found[f"solver_{name}"] = value
    return found
