"""Running an experiment: every method from every seed, each with its own log and checkpoints."""

import base64
import dataclasses
import datetime
import importlib.metadata
import os
import platform
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

import natgrad
from natgrad_paper import refusals
from natgrad_paper.checkpoint import Checkpoint, Checkpoints, digest
from natgrad_paper.distributed import ALONE, Alone, Together
from natgrad_paper.errors import UserError
from natgrad_paper.experiment import Experiment, Method, Problem, Tree
from natgrad_paper.log import Silent, Writer, done, read
from natgrad_paper.progress import Display
from natgrad_paper.stop import Stop, Stopped
from natgrad_paper.train import Trainer, kept

SAMPLES = 12
"""Cases whose pictures are kept."""
YOUNG = ("patience", "step_seconds")
"""Settings that are younger than some runs: a header has them only where they are set, so that old checkpoints fit."""


@dataclass(frozen=True)
class Plan:
    """What a run is: an experiment with its settings, the methods and the seeds."""

    experiment: Experiment
    preset: str
    config: Any
    methods: Sequence[Method]
    seeds: Sequence[int]
    checkpoint_seconds: float = 60.0
    """Time between checkpoints, not counted as training."""
    place: Alone | Together = ALONE
    """On one device, or on those of several processes."""


def run(
    plan: Plan,
    problem: Problem,
    directory: Path,
    display: Display,
    resume: bool = False,
) -> list[str]:
    """Train every method from every seed; return a line for each training that ended before its time.

    Logs go to `logs/<method>.<seed>.jsonl` in the directory. Seeds are the outer loop, so that an
    interrupted run has all methods for the seeds it reached; each method is compiled once. With
    `resume`, what is finished is left and what was interrupted goes on from its last checkpoint.
    """
    trainers: dict[str, Trainer] = {}
    failures = []
    with display, Stop() as stop:
        for seed in plan.seeds:
            for method in plan.methods:
                path = directory / "logs" / f"{method.name}.{seed}.jsonl"
                if resume and _finished(path, display):
                    display.skip(method.label, seed)
                    shutil.rmtree(_checkpoint_directory(path), ignore_errors=True)
                    continue
                if asked := _agreed(plan.place, stop.asked):
                    raise Stopped(asked, directory)
                display.start(method.label, seed)
                if method.name not in trainers:
                    trainers[method.name] = Trainer(problem, method, plan.config, plan.place)
                trainer = trainers[method.name]
                head = {**header(plan, method, seed, trainer.problem), **judged_by(trainer)}
                first = (method, seed) == (plan.methods[0], plan.seeds[0])
                training = Training(trainer, seed, path, head, display, stop, first)
                ended = training.run(resume, plan.checkpoint_seconds)
                if not done(ended):
                    failures.append(f"{method.label}, seed {seed}: {ended}")
    return failures


@dataclass(frozen=True)
class Training:
    """One method from one seed, with its log and its checkpoints."""

    trainer: Trainer
    seed: int
    path: Path
    """Of the log."""
    header: dict[str, Any]
    display: Display
    stop: Stop
    first: bool = False
    """Whether it is the run's first, whose log shows what the data look like."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Where this training's checkpoints are, and what they belong to."""
        header = self.header
        return Checkpoints(
            _checkpoint_directory(self.path),
            identity={
                "experiment": header["experiment"],
                "method": header["method"]["name"],
                "seed": self.seed,
                "settings": digest(header["config"]),
                "data": header["data"]["sha256"],
            },
            surroundings={**header["versions"], "cores": header["cores"], "platform": header["platform"]},
        )

    def run(self, resume: bool, every: float) -> str:
        """Train to the end and return why it is one; checkpoints are `every` so many seconds apart."""
        identity = {"method": self.header["method"]["name"], "seed": self.seed}
        found = self._found() if resume else None
        start = None if found is None else (found.position, *found.trained)
        saved = time.monotonic()
        with self._writer(found) as log:
            if found is not None:
                log.write({"record": "resumed", "iteration": found.position.iteration})
            elif self.first:
                for stage, images in (self.trainer.problem.sights or {}).items():
                    shape, levels = list(images.shape), _base64(images)
                    log.write({"record": "sight", "stage": stage, "shape": shape, "images": levels})
            place = self.trainer.place
            for event in self.trainer.run(self.seed, start):
                new = found is None or event.steps  # What is known from a checkpoint is not written again.
                for step in event.thinned_steps():
                    log.write(step)
                if event.errors is not None and new:
                    log.write({**identity, **event.evaluation()})
                self.display.update(event)
                asked = _agreed(place, self.stop.asked)
                due = event.ended or asked or place.most(time.monotonic() - saved) > every
                if due and new and not done(event.ended):
                    checkpoint = Checkpoint(event.position, log.mark, event.trained)
                    place.save(
                        partial(self.checkpoints.save, checkpoint), partial(self.checkpoints.join, checkpoint)
                    )
                    saved = time.monotonic()
                if event.ended:
                    if (samples := self._samples(kept(*event.trained))) is not None:
                        log.write({"record": "samples", **samples})
                    log.write({"record": "end", "reason": event.ended})
                elif asked:
                    raise Stopped(asked, self.path.parents[1])
        if done(event.ended) and place.leads:
            self.checkpoints.discard()
        return event.ended or ""

    def _writer(self, found: Checkpoint | None) -> Writer | Silent:
        """Return what writes the log: one process does."""
        if not self.trainer.place.leads:
            return Silent()
        return Writer(self.path, self.header, None if found is None else found.log.size)

    def _found(self) -> Checkpoint | None:
        """Return the checkpoint to go on from; without one the training starts again."""
        found = self.checkpoints.load(self.trainer.start(self.seed), self.display.tell)
        place, here = self.trainer.place, -1 if found is None else found.position.iteration
        if (ahead := place.most(here)) != here or -place.most(-here) != here:
            raise UserError(
                f"{self.path}: expected one checkpoint for all processes, found {here} and {ahead:.0f}"
            )
        if found is not None and not found.log.fits(self.path):
            self.display.tell(f"{self.path}: log changed since its checkpoint: this training starts again")
            return None
        return found

    def _samples(self, params: Tree) -> dict[str, Any] | None:
        problem = self.trainer.problem
        if problem.pictures is None:
            return None
        cases = (problem.test or problem.train)[0][:SAMPLES]
        images = problem.pictures(self.trainer.place.local(params), jnp.asarray(cases))
        return {
            "shape": list(images.shape),
            "cases": _encoded(cases),
            "reconstructions": _encoded(np.asarray(images)),
        }


def _encoded(images: np.ndarray) -> str:
    """Return images as text: a byte a pixel."""
    return _base64(np.round(255 * np.clip(np.nan_to_num(images), 0, 1)).astype(np.uint8))


def _base64(levels: np.ndarray) -> str:
    """Return bytes as text."""
    return base64.b64encode(levels.tobytes()).decode("ascii")


def _checkpoint_directory(log: Path) -> Path:
    """Return where the checkpoints of the training with this log are."""
    return log.parents[1] / "checkpoints" / log.stem


def _agreed(place: Alone | Together, asked: signal.Signals | None) -> signal.Signals | None:
    """Return the signal that stops the run, whichever process got it."""
    number = int(place.most(asked or 0))
    return signal.Signals(number) if number else None


def _finished(path: Path, display: Display) -> bool:
    """Whether a log says that its training is done; one that cannot be read says nothing."""
    try:
        return path.exists() and done(read(path).end)
    except UserError as problem:
        display.tell(str(problem))
        return False


def prepare_directory(directory: Path, overwrite: bool) -> None:
    """Create the output directory; one that holds something is refused, or loses its logs if so asked."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: expected a directory, found a file")
    if directory.is_dir() and any(directory.iterdir()):
        if not overwrite:
            raise UserError(
                f"{directory}: expected an empty directory, found files; choose another or add --overwrite"
            )
        # Only what a run leaves: a directory named by mistake keeps everything else.
        for leftover in ("logs", "checkpoints"):
            shutil.rmtree(directory / leftover, ignore_errors=True)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.utime(directory)  # Refused where nothing can be written: better now than after compiling.
    except OSError as problem:
        raise UserError(
            f"{directory}: expected a directory that can be written, found: {problem.strerror}"
        ) from None


def cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def header(plan: Plan, method: Any, seed: int, problem: Any) -> dict[str, Any]:
    """Return what a log says first: what was run on which data, with what, where and when."""
    order = [known.name for known in plan.experiment.methods].index(method.name)
    return {
        "experiment": plan.experiment.name,
        "preset": plan.preset,
        "method": {"name": method.name, "label": method.label, "color": method.color, "order": order},
        "seed": seed,
        "data": problem.data,
        "config": dataclasses.asdict(plan.config, dict_factory=_stated),
        "versions": {
            "natgrad": natgrad.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "numpy": np.__version__,
            "optax": importlib.metadata.version("optax"),
            "orbax": importlib.metadata.version("orbax-checkpoint"),
            "python": platform.python_version(),
        },
        "cores": cores(),
        "platform": f"{platform.system()} {platform.machine()} {jax.default_backend()}",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def judged_by(trainer: Trainer) -> dict[str, Any]:
    """Return what a log must say for its run to be judged: the rule that moves λ, the error of a constant answer."""
    rule = refusals.rule_of(trainer.optimizer)
    damping = None if rule is None else {"reduction": rule.reduction, "bounds": list(rule.bounds)}
    return {"damping": damping, "plateau": trainer.problem.plateau}


def _stated(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a section's fields as a table."""
    return {name: value for name, value in fields if value is not None or name not in YOUNG}
