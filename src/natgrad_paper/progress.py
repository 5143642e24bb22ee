"""What the screen shows while a run goes on: a live bar at a terminal, a line a run elsewhere."""

import math
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from natgrad_paper.measures import Measure
from natgrad_paper.train import Event


class Display(Protocol):
    """Follows a run of several trainings, one after another."""

    def __enter__(self) -> "Display":
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End, leaving the screen in order."""

    def start(self, label: str, seed: int) -> None:
        """Say that a training begins; until its first event it compiles."""

    def update(self, event: Event) -> None:
        """Say where the training stands."""

    def skip(self, label: str, seed: int) -> None:
        """Say that a training was finished before."""

    def tell(self, sentence: str) -> None:
        """Say something that stays on the screen."""


def display(console: Console, trainings: int, measure: Measure) -> Display:
    """Return the display that fits the console, of the error that is followed."""
    return Live(console, trainings, measure) if console.is_terminal else Quiet(console, measure)


class Quiet:
    """One line a training, when it ends."""

    def __init__(self, console: Console, measure: Measure) -> None:
        self._console = console
        self._measure = measure

    def __enter__(self) -> "Quiet":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def start(self, label: str, seed: int) -> None:
        """Remember whose lines follow."""
        self._name = f"{label}, seed {seed}"

    def update(self, event: Event) -> None:
        """Print the last event."""
        if event.ended:
            error = _error(self._measure, event)
            self._console.print(
                f"{self._name}: {event.ended} after {event.position.iteration} iterations, "
                f"{event.position.training_seconds:.1f} s of training, "
                f"{self._measure.name} {error:.4g}",
                highlight=False,
                soft_wrap=True,
            )

    def skip(self, label: str, seed: int) -> None:
        """Print that there is nothing to do."""
        self.tell(f"{label}, seed {seed}: finished before")

    def tell(self, sentence: str) -> None:
        """Print the sentence."""
        self._console.print(sentence, highlight=False, soft_wrap=True, markup=False)


class Live:
    """A bar a training with its error, λ, ρ, solver iterations, and the time left for all of them."""

    def __init__(self, console: Console, trainings: int, measure: Measure) -> None:
        self._trainings = trainings
        self._measure = measure
        self._done = 0
        self._bars = Progress(
            TextColumn("{task.description}", justify="right"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", style="dim"),
            console=console,
        )
        self._task = TaskID(0)

    def __enter__(self) -> "Live":
        self._began = time.monotonic()
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def start(self, label: str, seed: int) -> None:
        """Add a bar."""
        self._error = math.nan
        name = f"{label} · seed {seed}"
        self._task = self._bars.add_task(name, total=1.0, numbers="[dim]compiling…[/dim]", left="")

    def update(self, event: Event) -> None:
        """Move the bar."""
        if event.errors is not None:
            self._error = _error(self._measure, event)
        self._done += event.ended is not None
        self._bars.update(
            self._task,
            completed=1.0 if event.ended else event.fraction,
            numbers=self._numbers(event),
            left="" if event.ended else self._left(event.fraction),
        )
        if event.ended:
            self._bars.stop_task(self._task)

    def skip(self, label: str, seed: int) -> None:
        """Count it as done."""
        self._done += 1
        self.tell(f"{label} · seed {seed}: finished before")

    def tell(self, sentence: str) -> None:
        """Print the sentence above the bars."""
        self._bars.console.print(sentence, highlight=False, markup=False)

    def _numbers(self, event: Event) -> str:
        parts = [f"step {event.position.iteration:>6}", f"error [bold]{self._error:8.3f}[/bold]"]
        for symbol, field, form in (
            ("λ", "damping", ".2g"),
            ("ρ", "rho", ".2f"),
            ("solver", "solver_iterations", ".0f"),
        ):
            value = event.step.get(field)
            # Zero damping or no solver iteration: a method without a metric.
            if value is not None and math.isfinite(value) and (value or field == "rho"):
                parts.append(f"{symbol} {value:{form}}")
        if event.position.refused:
            parts.append(f"[yellow]{event.position.refused} refused[/yellow]")
        return "  ".join(parts)

    def _left(self, fraction: float) -> str:
        done = (self._done + fraction) / self._trainings
        if done < 0.01:
            return ""
        seconds = (time.monotonic() - self._began) * (1 - done) / done
        return f"all done in about {duration(seconds)}"


def _error(measure: Measure, event: Event) -> float:
    """Return the error an event has, NaN for none."""
    found = measure.of(event.errors or {})
    return math.nan if found is None else found


def duration(seconds: float) -> str:
    """Return a time in words a person would use."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
