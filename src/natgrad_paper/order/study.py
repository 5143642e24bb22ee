"""Running and reporting figure 2, for the `natgrad` command."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console

from natgrad_paper.data import characters, glyphs
from natgrad_paper.log import RunLog
from natgrad_paper.order import figures, page
from natgrad_paper.order.config import Config
from natgrad_paper.order.courses import STREAM, Examples
from natgrad_paper.order.journal import Journal, finished
from natgrad_paper.order.learner import COMPETITORS, Learner
from natgrad_paper.order.protocol import DRIFTS, Seat, conduct
from natgrad_paper.order.walk import Walker
from natgrad_paper.progress import duration
from natgrad_paper.run import Plan, header
from natgrad_paper.stop import GivenUp, Stop, Stopped

SHOWN = 14
"""Characters of which every stage is kept for the report."""


@dataclass(frozen=True, eq=False)
class Characters:
    """The characters of the stream, and what logs say about them."""

    source: characters.Source
    data: dict[str, Any]


def prepare(config: Config, path: Path | None) -> Characters:
    """Return the embedded glyphs, or those of the user's file."""
    found = glyphs.embedded() if path is None else glyphs.read(path)
    return Characters(characters.source(found), found.describe())


class Study:
    """Figure 2 as the command runs it: not a race, but a hundred trainings of two methods for each seed."""

    def cost(self, config: Config, seeds: int) -> str:
        """Return in words what a run costs."""
        again = config.repeats * (config.stream.segments + len(config.limit.factors)) + len(DRIFTS)
        total = f"{len(COMPETITORS)} methods × {seeds} seed{'s' * (seeds > 1)} × {again} trainings"
        minutes = duration(60 * config.minutes * seeds)
        return f"{total} of {config.stream.updates} updates, besides matching the rates: about {minutes} on two cores"

    def run(
        self, plan: Plan, problem: Characters, directory: Path, console: Console, resume: bool
    ) -> list[str]:
        """Do the protocol for every seed; return a line for each seed that was given up."""
        config: Config = plan.config
        failures: list[str] = []
        learners = [Learner(competitor, config) for competitor in COMPETITORS]
        with console.status("compiling…") as status, Stop() as stop:

            def say(words: str) -> None:
                console.print(words, highlight=False, soft_wrap=True, markup=False)

            for learner in learners:
                learner.compile(config)
            for seed in plan.seeds:
                paths = [directory / "logs" / f"{each.name}.{seed}.jsonl" for each in COMPETITORS]
                if resume and all(finished(path) for path in paths):
                    say(f"seed {seed}: finished before")
                    continue
                if stop.asked:
                    raise Stopped(stop.asked, directory)
                examples = Examples(config, problem.source, seed)
                with _noting(failures, seed), ExitStack() as stack:
                    seats: list[Seat] = []
                    for learner, path in zip(learners, paths, strict=True):
                        head = header(plan, learner.competitor, seed, problem)
                        journal = stack.enter_context(Journal(path, head, resume, say))
                        if not seats and not journal.pictured:
                            journal.writer.write(samples(config, problem.source, seed))
                        walker = Walker(
                            config, learner, examples, seed, journal, stop, say, plan.checkpoint_seconds
                        )
                        seats.append(Seat(walker, _named(say, seed), status.update))
                    conduct(seats)
        if not failures:
            for leftover in ("outputs", "checkpoints"):
                shutil.rmtree(directory / leftover, ignore_errors=True)
        return failures

    def show(self, logs: list[RunLog], directory: Path, console: Console) -> None:
        """Write the report and show its tables."""
        page.show(logs, directory, console)


def samples(config: Config, source: characters.Source, seed: int) -> dict[str, Any]:
    """Return the first characters of a seed's stream, at every stage of their making, as a record for its log."""
    indices = jnp.arange(SHOWN, dtype=jnp.uint32)
    key, pinched = characters.stream(seed, STREAM), config.stream.pinched
    stages, labels = characters.show(source, key, indices, pinched=pinched)
    return figures.samples(np.asarray(stages), np.asarray(labels).tolist())


@contextmanager
def _noting(failures: list[str], seed: int) -> Iterator[None]:
    """Note that a seed was given up, for the others to go on."""
    try:
        yield
    except GivenUp as reason:
        failures.append(f"seed {seed}: {reason}")


def _named(say: Callable[[str], None], seed: int) -> Callable[[str], None]:
    return lambda words: say(f"seed {seed}, {words}")
