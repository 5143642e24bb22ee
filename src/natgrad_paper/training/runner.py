"""Running an experiment: named trainings, each with its own log and checkpoints, in the order that it says."""

import base64
import datetime
import hashlib
import importlib.metadata
import io
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

import natgrad
from natgrad_paper.errors import UserError
from natgrad_paper.training.checkpoint import Checkpoint, Checkpoints, digest
from natgrad_paper.training.log import Mark, RunLog, Status, Writer, plain, read, record_in
from natgrad_paper.training.loop import Event, Position, Trainer, kept
from natgrad_paper.training.problem import Budget, Method, Optimizer, Problem, Tree, Until
from natgrad_paper.training.settings import stated
from natgrad_paper.training.source import Placed, Source
from natgrad_paper.training.stopping import Signals, Stopped, damping_rule

SAMPLES = 12
"""Cases whose reconstructions are kept."""
WRITTEN = (
    "logs/*.jsonl",
    "logs/*.jsonl.gz",
    "outputs/*.npy",
    "checkpoints/*/[0-9]*.npz",
    "checkpoints/*/.writing-*",
)
"""The files that a run writes."""
PACKAGES = ("jax", "jaxlib", "numpy", "optax")


class Display(Protocol):
    """Shows how trainings go."""

    def begin(self, title: str, named: bool) -> Callable[[Event], None]:
        """Say that a training begins; until its first event it compiles. Return what hears of its events.

        Args:
            title: The method, the seed and the training's name.
            named: Whether it is one of many of the method and the seed.
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
    """Of one of several trainings of a method and a seed."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Plain facts about it, for its log."""
    source: Source | None = None
    """What its steps see; by default the problem's cases, drawn by the method's batches."""
    start: tuple[Position, Tree, Tree] | None = None
    """By default the seed's initial parameters."""
    budget: Budget | Until | None = None
    """By default that of the settings."""
    change: Callable[[Any], Optimizer] | None = None
    """From the method's optimizer to one that differs in its numbers alone: it compiles nothing."""
    outputs: Callable[[Tree], np.ndarray] | None = None
    """Of the final parameters: kept on the disk until they are dropped. One of many alike, it logs no steps."""

    @property
    def stem(self) -> str:
        """The name of its log and its checkpoints."""
        return ".".join(str(part) for part in (self.method.name, self.seed, self.name) if part != "")

    @property
    def title(self) -> str:
        """The same, for readers."""
        return f"{self.method.label}, seed {self.seed}" + f", {self.name}" * bool(self.name)


@dataclass(frozen=True)
class Run:
    """What is run: an experiment's settings, problem, methods and seeds, and where it leaves its logs."""

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
    _trainers: dict[str, Trainer] = field(default_factory=dict)

    def trainer(self, method: Method) -> Trainer:
        """Return a method on the problem, compiled once for all its trainings."""
        if method.name not in self._trainers:
            self._trainers[method.name] = Trainer(self._problem, method, self.settings)
        return self._trainers[method.name]

    @cached_property
    def _problem(self) -> Problem:
        return judged(self.problem, self.settings)

    @cached_property
    def _placed(self) -> Placed:
        return Placed(self._problem)

    def train(self, training: Training, watch: Callable[[Event], None] | None = None) -> RunLog:
        """Return what a training's log says: it trains now, or was finished before.

        Args:
            training: Which one.
            watch: Called with every event.
        """
        if (finished := self.finished(training)) is not None:
            return finished
        for event in self.events(training):
            if watch is not None:
                watch(event)
        return read(self._log(training))

    def finished(self, training: Training) -> RunLog | None:
        """Return the log of a training that an earlier run finished, if this one goes on from there."""
        found = self._finished(training) if self.resume else None
        if found is not None and training.outputs is not None and self.outputs(training) is None:
            return None  # Its outputs got lost: it is trained again.
        if found is not None:
            self.display.skip(training.title, bool(training.name))
            self._checkpoints(training).discard()  # A kill may have come before.
        return found

    def events(self, training: Training) -> Iterator[Event]:
        """Train, and yield every event when it is in the log; checkpoints come in between."""
        if self.signals.asked:
            raise Stopped(self.signals.asked, self.directory)
        shown = self.display.begin(training.title, bool(training.name))
        trainer, checkpoints = self.trainer(training.method), self._checkpoints(training)
        source = training.source or self._placed.source(training.method, trainer.settings, training.seed)
        optimizer = training.change(trainer.optimizer) if training.change else trainer.optimizer
        found = self._found(training) if self.resume else None
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
                new = found is None or event.steps  # What is known from a checkpoint is not written again.
                for record in event.records() if new else ():
                    if training.outputs is None or record["record"] != "step":
                        log.write(record)
                shown(event)
                done = event.status in (Status.FINISHED, Status.EARLY)
                due = event.status or self.signals.asked or time.monotonic() - saved > self.checkpoint_seconds
                if due and new and not done:
                    checkpoints.save(Checkpoint(event.position, log.mark, event.trained))
                    saved = time.monotonic()
                if event.status:
                    self._end(training, event, log)
                elif self.signals.asked:
                    raise Stopped(self.signals.asked, self.directory)
                yield event
        if done:
            checkpoints.discard()

    def _end(self, training: Training, event: Event, log: Writer) -> None:
        """Write what is kept of the trained model, and how the training ended."""
        params = kept(*event.trained)
        for record in reconstructions(self._problem, params):
            log.write(record)
        if training.outputs is not None and event.status is Status.FINISHED:
            sha256 = self._keep_outputs(training, training.outputs(params))
            log.write({"record": "measure", "name": "outputs", "sha256": sha256})
        log.write({"record": "end", "status": event.status, "reason": event.reason})

    def outputs(self, training: Training) -> np.ndarray | None:
        """Return the outputs of a finished training, None unless they are those that its log speaks of."""
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
        """Remove all that is kept of a method and a seed besides its logs: nothing will go on from it."""
        for folder in ("checkpoints", "outputs"):
            for pattern in ("{}", "{}[.@]*", ".{}.*"):
                for path in (self.directory / folder).glob(pattern.format(f"{method.name}.{seed}")):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            if (self.directory / folder).is_dir() and not any((self.directory / folder).iterdir()):
                (self.directory / folder).rmdir()

    def header(self, training: Training) -> dict[str, Any]:
        """Return what a log says first: what was run on which data, with what, where and when."""
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
            **_surroundings(),
            "commit": commit(),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }  # fmt: skip

    def _log(self, training: Training) -> Path:
        return self.directory / "logs" / f"{training.stem}.jsonl"

    def _outputs(self, training: Training) -> Path:
        return self.directory / "outputs" / f"{training.stem}.npy"

    def _checkpoints(self, training: Training, label: str = "") -> Checkpoints:
        """Return where a training's checkpoints are, and what they belong to."""
        header = self.header(training)
        identity = {
            "experiment": self.experiment,
            "method": training.method.name,
            "seed": training.seed,
            "training": {"name": training.name + label, **training.facts},
            "settings": digest(header["settings"]),
            "data": header["data"]["sha256"],
        }
        folder = self.directory / "checkpoints" / f"{training.stem}{label}"
        around = {**header["versions"], "cores": header["cores"], "platform": header["platform"]}
        return Checkpoints(folder, identity, around)

    def _found(self, training: Training) -> Checkpoint | None:
        """Return the checkpoint to go on from; without one the training starts again."""
        like = self.trainer(training.method).start(training.seed)
        found = self._checkpoints(training).load(like, self.display.tell)
        path = self._log(training)
        if found is not None and not found.log.fits(path):
            self.display.tell(f"{path}: log changed since its checkpoint: this training starts again")
            return None
        return found

    def _finished(self, training: Training) -> RunLog | None:
        """Return the log of a training that is done; one that cannot be read, or is of another run, says nothing."""
        path = self._log(training)
        if not path.exists():
            return None
        try:
            log = read(path)
        except UserError as problem:
            self.display.tell(str(problem))
            return None
        return log if log.done and _same(log.header, plain(self.header(training))) else None

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


class Measures:
    """A log of numbers that belong to several trainings of a method and a seed; what it holds is not measured again."""

    def __init__(self, run: Run, method: Method, seed: int) -> None:
        self._training = Training(method, seed)
        self._path = run._log(self._training)
        self._header = run.header(self._training)
        self._found: dict[str, dict[str, Any]] = {}
        self.finished = False
        """Whether nothing is missing."""
        self._size: int | None = None
        if run.resume and self._path.exists():
            self._read(run)

    def _read(self, run: Run) -> None:
        """Take what an earlier run wrote, up to the first line that is damaged or cut short."""
        good = 0
        for line in self._path.read_bytes().split(b"\n")[:-1]:
            record = record_in(line.decode("utf-8", errors="replace"))
            if record is None:
                run.display.tell(f"{self._path}: damaged: what was measured from there on is measured again")
                break
            if not good:
                if digest(record.get("settings")) != digest(plain(self._header["settings"])):
                    raise UserError(
                        f"{self._path}: settings: expected those of the run to go on with, found others"
                    )
            elif record.get("record") == "end":
                self.finished = record.get("status") == Status.FINISHED
                break
            elif record.get("record") == "measure":
                self._found[str(record.get("name"))] = record
            good += len(line) + 1
        self._size = good or None

    def get(self, name: str) -> dict[str, Any] | None:
        """Return numbers that were measured before."""
        return self._found.get(name)

    def write(self, name: str, **numbers: Any) -> dict[str, Any]:
        """Append numbers, and return them with their name."""
        record = {"record": "measure", "name": name, **numbers}
        self._append(record)
        self._found[name] = record
        return record

    def picture(self, record: dict[str, Any]) -> None:
        """Append what the data look like, unless it is there."""
        if self._size is None:
            self._append(record)

    def finish(self) -> None:
        """Say that nothing is missing."""
        if not self.finished:
            self._append({"record": "end", "status": Status.FINISHED, "reason": "all trainings are done"})
            self.finished = True

    def _append(self, record: dict[str, Any]) -> None:
        with Writer(self._path, self._header, self._size) as log:
            log.write(record)
            self._size = log.mark.size


def judged(problem: Problem, settings: Any) -> Problem:
    """Return the problem as it is trained: with validation cases where patience needs them."""
    budget = getattr(settings, "budget", None)
    return problem.validated() if getattr(budget, "patience", None) else problem


def in_turn(run: Run) -> list[str]:
    """Train every method from every seed; return a line for each training that ended before its time.

    Seeds are the outer loop, so that an interrupted run has all methods for the seeds it reached.
    """
    logs = [run.train(Training(method, seed)) for seed in run.seeds for method in run.methods]
    return failures(logs)


def taking_turns(seconds: float) -> Callable[[Run], list[str]]:
    """Return a way to run in which the methods of a seed advance alternately, so many seconds each.

    What slows the machine down for a while then slows all of them down.
    """

    def drive(run: Run) -> list[str]:
        logs = []
        for seed in run.seeds:
            trainings = [Training(method, seed) for method in run.methods]
            waiting = [run.events(each) for each in trainings if run.finished(each) is None]
            while waiting:
                waiting = [events for events in waiting if _advance(events, seconds, waiting)]
            logs += [read(run._log(each)) for each in trainings]
        return failures(logs)

    return drive


def _advance(events: Iterator[Event], seconds: float, others: Sequence[Iterator[Event]]) -> bool:
    """Let one training go on for some seconds of training; return whether it is not at its end."""
    try:
        first = next(events)
        for event in events:
            if event.position.training_seconds - first.position.training_seconds >= seconds:
                return True
    except StopIteration:
        return False
    except Stopped:
        for each in others:  # The others save what they have, too.
            if each is not events:
                with suppress(Stopped):
                    next(each, None)
        raise
    return False


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two headers are of the same training, on the same data with the same settings."""
    here, there = (
        (head["experiment"], head["method"]["name"], head["data"]["sha256"], head["seed"], head["training"])
        for head in (one, other)
    )
    return here == there and digest(one["settings"]) == digest(other["settings"])


def failures(logs: Sequence[RunLog]) -> list[str]:
    """Return a line for each training that ended before its time."""
    return [f"{log.header['method']['label']}, seed {log.seed}: {log.reason}" for log in logs if not log.done]


def data_pictures(problem: Problem) -> Iterator[dict[str, Any]]:
    """Yield what the data look like, as records for a log."""
    for stage, images in (problem.sights or {}).items():
        yield pictures("data", stage, images, problem.lines)


def reconstructions(problem: Problem, params: Tree) -> Iterator[dict[str, Any]]:
    """Yield some cases and what the model makes of them, as records for a log."""
    cases = problem.test or problem.train
    if problem.reconstruct is None or cases is None:
        return
    inputs = cases[0][:SAMPLES]
    made = np.asarray(problem.reconstruct(params, jnp.asarray(inputs)))
    yield pictures("original", "original", _levels(inputs.reshape(1, *made.shape)))
    yield pictures("reconstruction", "reconstruction", _levels(made[None]))


def pictures(what: str, title: str, images: np.ndarray, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Return images, bytes of shape (lines, columns, height, width), as a record for a log."""
    packed = base64.b64encode(np.ascontiguousarray(images).tobytes()).decode("ascii")
    shape = {"shape": list(images.shape), "images": packed}
    return {"record": "pictures", "what": what, "title": title, "labels": list(labels), **shape}


def _levels(images: np.ndarray) -> np.ndarray:
    """Return images in [0, 1] as bytes."""
    return np.round(255 * np.clip(np.nan_to_num(images), 0, 1)).astype(np.uint8)


def cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _surroundings() -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "versions": {"natgrad": natgrad.__version__, **versions, "python": platform.python_version()},
        "cores": cores(),
        "platform": f"{platform.system()} {platform.machine()} {jax.default_backend()}",
    }


@cache
def commit() -> dict[str, Any] | None:
    """Return the commit of the source and whether it was changed since; None where there is no repository."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True
        ).stdout

    try:
        top = Path(git("rev-parse", "--show-toplevel").strip())
        if not here.is_relative_to(top) or not git("ls-files", str(here)).strip():
            return None
        return {
            "id": git("rev-parse", "HEAD").strip(),
            "clean": not git("status", "--porcelain", "--", ":/src").strip(),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


class Claimed:
    """A directory that one run has for itself, by a lock that goes with the process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / ".lock"

    def __enter__(self) -> None:
        try:
            import fcntl
        except ImportError:  # Where there is no such lock, nobody is refused.
            return
        self._stream = self._path.open("a")  # Not "w": it may be a link to something that is not empty.
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._stream.close()
            raise UserError(
                f"{self._path.parent}: expected a directory that no run uses, found one at work"
            ) from None

    def __exit__(self, *exception: object) -> None:
        if hasattr(self, "_stream"):
            self._stream.close()


def prepare_directory(directory: Path, overwrite: bool, mark: str) -> None:
    """Create the output directory; one that holds something is refused, unless it is an earlier run that may go.

    Args:
        directory: Which one.
        overwrite: Whether an earlier run may go.
        mark: The file by which a run is known.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: expected a directory, found a file")
    if directory.is_dir() and any(path.name != ".lock" for path in directory.iterdir()):
        if not overwrite:
            raise UserError(
                f"{directory}: expected an empty directory, found files; choose another or add --overwrite"
            )
        if not _is_run(directory / mark):
            raise UserError(
                f"{directory}: expected {mark}, by which a run is known, found none: nothing was removed"
            )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.utime(directory)  # Refused where nothing can be written: better now than after compiling.
    except OSError as problem:
        raise UserError(
            f"{directory}: expected a directory that can be written, found: {problem.strerror}"
        ) from None


def _is_run(path: Path) -> bool:
    """Tell whether a file is what a run was asked to do, and not that of another program."""
    try:
        found = record_in(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None
    except OSError:
        return False
    return found is not None and {"experiment", "preset", "methods", "seeds"} <= found.keys()


def clear(directory: Path) -> None:
    """Remove what a run wrote into its directory, and nothing else; folders go that are empty then.

    A folder may be a link, to another disk: what is in it goes all the same.
    """
    for pattern in WRITTEN:
        for path in directory.glob(pattern):
            if not path.is_dir():
                path.unlink()
    folders = ("logs", "outputs", "checkpoints")
    for path in (*directory.glob("checkpoints/*"), *(directory / name for name in folders)):
        with suppress(OSError):  # It is not empty, or a link.
            path.rmdir()
