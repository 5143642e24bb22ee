"""Runs an experiment: named trainings, each with its own log and checkpoints, in the experiment's order."""

import datetime
import hashlib
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from natgrad_paper.errors import UserError
from natgrad_paper.training.checkpoint import Checkpoint, Checkpoints, digest
from natgrad_paper.training.log import Mark, RunLog, Status, Writer, plain, read
from natgrad_paper.training.loop import Event, Position, Trainer
from natgrad_paper.training.pictures import data_pictures, reconstructions
from natgrad_paper.training.problem import Budget, Method, Optimizer, Problem, Tree, Until
from natgrad_paper.training.settings import stated
from natgrad_paper.training.source import Placed, Source
from natgrad_paper.training.stopping import Signals, Stopped, damping_rule
from natgrad_paper.training.surroundings import commit, surroundings


class Display(Protocol):
    """Shows how trainings go."""

    def begin(self, title: str, named: bool) -> Callable[[Event], None]:
        """Say that a training begins; until its first event it compiles. Return a function that takes its events.

        A training that is `named` is one of many of the method and the seed.
        """

    def skip(self, title: str, named: bool) -> None:
        """Say that a training was finished before."""

    def tell(self, sentence: str) -> None:
        """Say something that stays on the screen."""


@dataclass(frozen=True)
class Training:
    """One training: a method from a seed, on a source, from a start, within a budget."""

    method: Method
    seed: int
    name: str = ""
    """The name of one of several trainings of a method and a seed."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Plain facts about the training, for its log."""
    source: Source | None = None
    """The source of its batches; by default the problem's cases, drawn by the method's batches."""
    start: tuple[Position, Tree, Tree] | None = None
    """The start; by default the seed's initial parameters."""
    budget: Budget | Until | None = None
    """The budget; by default that of the settings."""
    change: Callable[[Any], Optimizer] | None = None
    """From the method's optimizer to one that differs only in its numbers: it compiles nothing."""
    outputs: Callable[[Tree], np.ndarray] | None = None
    """The outputs of the final parameters, kept on disk until they are dropped. Such a training logs no steps."""

    @property
    def stem(self) -> str:
        """The name of its log and its checkpoints."""
        return ".".join(str(part) for part in (self.method.name, self.seed, self.name) if part != "")

    @property
    def title(self) -> str:
        """The name of the training, for readers."""
        return f"{self.method.label}, seed {self.seed}" + f", {self.name}" * bool(self.name)


@dataclass(frozen=True)
class Run:
    """What is run: an experiment's settings, problem, methods and seeds, and the directory of its logs."""

    experiment: str
    preset: str
    settings: Any
    problem: Problem
    known: tuple[Method, ...]
    """All methods of the experiment, in its order."""
    methods: tuple[Method, ...]
    """Those that run."""
    seeds: tuple[int, ...]
    directory: Path
    display: Display
    resume: bool = False
    checkpoint_seconds: float = 60.0
    """Time between checkpoints, not counted as training."""
    signals: Signals = field(default_factory=Signals)
    retries: bool = True
    """Whether a training that gave up continues when the run is resumed; otherwise giving up is a result."""
    _trainers: dict[str, Trainer] = field(default_factory=dict)
    _evaluating: dict[Any, Any] = field(default_factory=dict)

    def trainer(self, method: Method) -> Trainer:
        """Return a method on the problem, compiled once for all its trainings."""
        if method.name not in self._trainers:
            self._trainers[method.name] = Trainer(self._problem, method, self.settings, self._evaluating)
        return self._trainers[method.name]

    @cached_property
    def _problem(self) -> Problem:
        return with_validation(self.problem, self.settings)

    @cached_property
    def _placed(self) -> Placed:
        return Placed(self._problem)

    def train(self, training: Training, watch: Callable[[Event], None] | None = None) -> RunLog:
        """Return a training's log: train now and let `watch` see every event, unless an earlier run finished it."""
        if (finished := self.finished(training)) is not None:
            return finished
        for event in self.events(training):
            if watch is not None:
                watch(event)
        return read(self._log(training))

    def finished(self, training: Training) -> RunLog | None:
        """Return the log of a training that an earlier run finished, if this run resumes it."""
        found = self._finished(training) if self.resume else None
        if found is not None and training.outputs is not None and self.outputs(training) is None:
            return None  # Its outputs are lost, so it is trained again.
        if found is not None:
            self.display.skip(training.title, bool(training.name))
            self._checkpoints(training).discard()  # The earlier run may have been killed before this.
        return found

    def events(self, training: Training) -> Iterator[Event]:
        """Train, and yield every event once it is in the log; write checkpoints in between."""
        if self.signals.asked:
            raise Stopped(self.signals.asked, self.directory)
        shown = self.display.begin(training.title, bool(training.name))
        trainer, checkpoints = self.trainer(training.method), self._checkpoints(training)
        source = training.source or self._placed.source(training.method, trainer.settings, training.seed)
        optimizer = training.change(trainer.optimizer) if training.change else None
        found = self._found(training) if self.resume and training.method.resumes else None
        resumed = None if found is None else (found.position, *found.trained)
        saved = time.monotonic()
        with Writer(
            self._log(training), self.header(training), None if found is None else found.log.size
        ) as log:
            if found is not None:
                log.write({"record": "resumed", "iteration": found.position.iteration})
            elif training.method is self.methods[0] and training.seed == self.seeds[0] and not training.name:
                for record in data_pictures(self._problem):
                    log.write(record)
            budget = training.budget or self.settings.budget
            for event in trainer.run(training.seed, source, budget, resumed, training.start, optimizer):
                new = found is None or event.steps  # Events known from a checkpoint are not written again.
                for record in event.records() if new else ():
                    if training.outputs is None or record["record"] != "step":
                        log.write(record)
                shown(event)
                # This is read once: a signal after it waits for the next event's checkpoint.
                asked = self.signals.asked
                done = event.status in (Status.FINISHED, Status.EARLY)
                due = event.status or asked or time.monotonic() - saved > self.checkpoint_seconds
                if due and new and not done:
                    checkpoints.save(Checkpoint(event.position, log.mark, event.trained))
                    saved = time.monotonic()
                if event.status:
                    self._end(training, event, log)
                elif asked:
                    raise Stopped(asked, self.directory)
                yield event
        if done:
            checkpoints.discard()

    def _end(self, training: Training, event: Event, log: Writer) -> None:
        """Write what is kept of the trained model, and how the training ended."""
        params = self.trainer(training.method).kept(*event.trained)
        for record in reconstructions(self._problem, params):
            log.write(record)
        if training.outputs is not None and event.status is Status.FINISHED:
            sha256 = self._keep_outputs(training, training.outputs(params))
            log.write({"record": "measure", "name": "outputs", "sha256": sha256})
        log.write({"record": "end", "status": event.status, "reason": event.reason})
        log.sync()  # Then the checkpoints may go.

    def outputs(self, training: Training) -> np.ndarray | None:
        """Return the outputs of a finished training; None unless they match the hash in its log."""
        finished = self._finished(training)
        try:
            raw = self._outputs(training).read_bytes()
        except OSError:
            return None
        said = [record.get("sha256") for record in finished.measures] if finished else []
        if hashlib.sha256(raw).hexdigest() not in said:
            return None
        return np.asarray(np.load(io.BytesIO(raw), allow_pickle=False))

    def drop(self, trainings: Sequence[Training]) -> None:
        """Remove outputs that have been compared."""
        for training in trainings:
            self._outputs(training).unlink(missing_ok=True)

    def keep(self, training: Training, label: str, event: Event) -> None:
        """Keep where a training stands, under a label, for others to start from."""
        position = Position(event.position.iteration)
        self._checkpoints(training, f"@{label}").save(Checkpoint(position, Mark(0, ""), event.trained))

    def start_of(self, training: Training, label: str) -> tuple[Position, Tree, Tree] | None:
        """Return what was kept under a label, if it was."""
        like = self.trainer(training.method).start(training.seed)
        found = self._checkpoints(training, f"@{label}").load(like, self.display.tell)
        return None if found is None else (found.position, *found.trained)

    def tidy(self, method: Method, seed: int) -> None:
        """Remove everything kept of a method and a seed except its logs: no training will start from it."""
        for folder in ("checkpoints", "outputs"):
            for pattern in ("{}", "{}[.@]*", ".{}.*"):
                for path in (self.directory / folder).glob(pattern.format(f"{method.name}.{seed}")):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            if (self.directory / folder).is_dir() and not any((self.directory / folder).iterdir()):
                (self.directory / folder).rmdir()

    def header(self, training: Training) -> dict[str, Any]:
        """Return the header of a log: what was run on which data, with what, where and when."""
        method, trainer = training.method, self.trainer(training.method)
        rule = damping_rule(trainer.optimizer)
        others = {name for each in self.known for name in each.sections} - set(method.sections)
        return {
            "experiment": self.experiment,
            "preset": self.preset,
            "method": {
                "name": method.name, "label": method.label, "color": method.color, "order": self.known.index(method)
            },
            "seed": training.seed,
            "training": {"name": training.name, **training.facts},
            "data": self._problem.data,
            "settings": {name: value for name, value in stated(self.settings).items() if name not in others},
            "damping": None if rule is None else {"reduction": rule.reduction, "bounds": list(rule.bounds)},
            "plateau": self._problem.plateau,
            **surroundings(),
            "commit": commit(),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }  # fmt: skip

    def _log(self, training: Training) -> Path:
        return self.directory / "logs" / f"{training.stem}.jsonl"

    def _outputs(self, training: Training) -> Path:
        return self.directory / "outputs" / f"{training.stem}.npy"

    def _checkpoints(self, training: Training, label: str = "") -> Checkpoints:
        """Return where a training's checkpoints are, and what they belong to."""
        header = self.header(replace(training, name=training.name + label))
        folder = self.directory / "checkpoints" / f"{training.stem}{label}"
        around = {**header["versions"], "cores": header["cores"], "platform": header["platform"]}
        return Checkpoints(folder, _identity(header), around)

    def _found(self, training: Training) -> Checkpoint | None:
        """Return the checkpoint to continue from; without one the training starts again."""
        like = self.trainer(training.method).start(training.seed)
        found = self._checkpoints(training).load(like, self.display.tell)
        path = self._log(training)
        if found is not None and not found.log.fits(path):
            self.display.tell(f"{path}: log changed since its checkpoint: this training starts again")
            return None
        return found

    def _finished(self, training: Training) -> RunLog | None:
        """Return the log of a training that is over; ignore a log that cannot be read or belongs to another run."""
        path = self._log(training)
        if not path.exists():
            return None
        try:
            log = read(path)
        except UserError as problem:
            self.display.tell(str(problem))
            return None
        over = log.done if self.retries else log.complete
        same = _identity(log.header) == _identity(plain(self.header(training)))
        return log if over and same else None

    def _keep_outputs(self, training: Training, outputs: np.ndarray) -> str:
        """Keep outputs, whole or not at all, and return their hash."""
        stream = io.BytesIO()
        np.save(stream, outputs, allow_pickle=False)
        path = self._outputs(training)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}")
        aside.write_bytes(stream.getvalue())
        os.replace(aside, path)
        return hashlib.sha256(stream.getvalue()).hexdigest()


def with_validation(problem: Problem, settings: Any) -> Problem:
    """Return the problem as it is trained: with validation cases where patience needs them."""
    budget = getattr(settings, "budget", None)
    return problem.validated() if getattr(budget, "patience", None) else problem


def in_turn(run: Run) -> list[str]:
    """Train every method from every seed; return a line for each training that ended early.

    Seeds are the outer loop, so that an interrupted run has all methods for the seeds it reached.
    """
    logs = [run.train(Training(method, seed)) for seed in run.seeds for method in run.methods]
    return failures(logs)


def taking_turns(run: Run, seconds: float) -> list[str]:
    """Train as `in_turn`, but let the methods of a seed advance alternately, for `seconds` each.

    If the machine slows down for a while, that then slows all methods down.
    """
    logs = []
    for seed in run.seeds:
        logs += alternating(run, [Training(method, seed) for method in run.methods], seconds)
    return failures(logs)


def alternating(run: Run, trainings: Sequence[Training], seconds: float) -> list[RunLog]:
    """Let trainings advance alternately, for `seconds` each, and return their logs."""
    waiting = [run.events(each) for each in trainings if run.finished(each) is None]
    while waiting:
        waiting = [events for events in waiting if _advance(events, seconds, waiting)]
    return [read(run._log(each)) for each in trainings]


def _advance(events: Iterator[Event], seconds: float, others: Sequence[Iterator[Event]]) -> bool:
    """Let one training continue for some seconds of training; return whether it is unfinished."""
    try:
        first = next(events)
        for event in events:
            if event.position.training_seconds - first.position.training_seconds >= seconds:
                return True
    except StopIteration:
        return False
    except Stopped:
        for each in others:  # The other trainings save their state, too.
            if each is not events:
                with suppress(Stopped):
                    next(each, None)
        raise
    return False


def _identity(header: dict[str, Any]) -> dict[str, Any]:
    """Return what headers of the same training share: also data and settings must be the same."""
    return {
        **{name: header[name] for name in ("experiment", "seed", "training")},
        "method": header["method"]["name"],
        "settings": digest(header["settings"]),
        "data": header["data"]["sha256"],
    }


def failures(logs: Sequence[RunLog]) -> list[str]:
    """Return a line for each training that ended early."""
    return [f"{log.header['method']['label']}, seed {log.seed}: {log.reason}" for log in logs if not log.done]
