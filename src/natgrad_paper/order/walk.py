"""One training: a walk along a course, block by block, that can be stopped between two blocks and goes on there."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import natgrad as ng
from natgrad_paper import refusals
from natgrad_paper.checkpoint import Checkpoint, Checkpoints, digest
from natgrad_paper.experiment import Tree
from natgrad_paper.order.config import Config
from natgrad_paper.order.courses import Course, Examples
from natgrad_paper.order.journal import Journal
from natgrad_paper.order.learner import Learner, Trained
from natgrad_paper.stop import GivenUp, Stop, Stopped
from natgrad_paper.train import Position, Stopwatch


@dataclass(frozen=True)
class Training:
    """One training of the protocol: what it is called, what it sees, how fast it goes, and where it joins in."""

    name: str
    course: Course
    rate: float
    segment: int = 1
    """Its first segment: what comes before it is common to several trainings, and done once."""


@dataclass(frozen=True)
class Arrived:
    """Where a training ended: its parameters, steps refused, and seconds of training and of making examples."""

    params: Tree
    refused: int
    training_seconds: float
    generating_seconds: float


@dataclass(frozen=True)
class Walker:
    """A method and a seed, ready to train."""

    config: Config
    learner: Learner
    examples: Examples
    seed: int
    journal: Journal
    stop: Stop
    tell: Callable[[str], None]
    checkpoint_seconds: float = 60.0
    """Time between checkpoints of a training."""

    def walk(
        self,
        training: Training,
        begin: Trained | None = None,
        look: Callable[[int, Trained], None] = lambda block, trained: None,
    ) -> Arrived:
        """Train to the end of the course.

        A training of which too many steps in a row are refused is given up, with a checkpoint. It goes on from there
        when it is asked for again, unless that was its end.

        Args:
            training: Which one.
            begin: What is trained when the training joins in; the seed's start by default.
            look: Called before every block with its number, and once more after the last.
        """
        stream = self.config.stream
        checkpoints = self.checkpoints(training)
        trained = self.learner.start(self.seed) if begin is None else begin
        position = Position(stream.first_block(training.segment) * stream.block)
        if (found := checkpoints.load(trained, self.tell)) is not None:
            position, trained = found.position, found.trained
        clocks = Stopwatch(position.training_seconds), Stopwatch(position.evaluation_seconds)
        rate, saved = jnp.float32(training.rate), time.monotonic()
        for block in range(position.iteration // stream.block, stream.blocks):
            look(block, trained)
            with clocks[1]:
                inputs, labels = self.examples.block(training.course, block)
            with clocks[0]:
                trained, became = jax.block_until_ready(self.learner.advance(trained, inputs, labels, rate))
            outcomes = np.asarray(became)
            steps = [{"outcome": outcome} for outcome in outcomes.tolist()]
            streaks, given_up = refusals.follow(position.streaks, steps)
            position = Position(
                (block + 1) * stream.block,
                position.refused + int((outcomes != ng.Outcome.ACCEPTED).sum()),
                training_seconds=clocks[0].seconds,
                evaluation_seconds=clocks[1].seconds,
                given_up=given_up,
            ).noting(streaks)
            if given_up or self.stop.asked or time.monotonic() - saved > self.checkpoint_seconds:
                checkpoints.save(Checkpoint(position, self.journal.writer.mark, trained))
                saved = time.monotonic()
            if given_up:
                break
            if self.stop.asked:
                raise Stopped(self.stop.asked, self.journal.path.parents[1])
        if position.given_up:
            raise GivenUp(f"{self.learner.competitor.label}, {training.name}: {position.given_up}")
        look(stream.blocks, trained)
        return Arrived(trained[0], position.refused, clocks[0].seconds, clocks[1].seconds)

    def tidy(self) -> None:
        """Remove all checkpoints: nothing will go on from them."""
        shutil.rmtree(self._checkpoints, ignore_errors=True)

    def checkpoints(self, training: Training, at: str = "") -> Checkpoints:
        """Return where a training's checkpoints are; `at` names one that is kept for others to join in."""
        header = self.journal.header
        name = f"{training.name}{at}"
        return Checkpoints(
            self._checkpoints / name,
            identity={
                "experiment": header["experiment"],
                "method": header["method"]["name"],
                "seed": self.seed,
                "settings": digest(header["config"]),
                "data": header["data"]["sha256"],
                "training": name,
                "rate": training.rate,
            },
            surroundings={**header["versions"], "cores": header["cores"], "platform": header["platform"]},
        )

    @property
    def _checkpoints(self) -> Path:
        return self.journal.path.parents[1] / "checkpoints" / self.journal.path.stem
