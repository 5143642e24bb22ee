"""What the screen shows during a run: live bars at a terminal, one line per training elsewhere."""

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from natgrad_paper.cli.arguments import Forgiving
from natgrad_paper.report.views import Measure
from natgrad_paper.training.loop import Event


def console() -> Console:
    """Return a console that survives a closed pipe and an ASCII-only terminal."""
    return Console(file=Forgiving(sys.stdout))  # type: ignore[arg-type]


class Quiet:
    """One line per training, when it ends."""

    def __init__(self, console: Console, measure: Measure) -> None:
        self._console = console
        self._measure = measure

    def __enter__(self) -> "Quiet":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begin(self, title: str, named: bool) -> Callable[[Event], None]:
        """Return a function that prints the last event."""

        def update(event: Event) -> None:
            if event.status:
                at, error = event.position, _error(self._measure, event)
                words = f"{at.iteration} iterations, {at.training_seconds:.1f} s of training"
                shown = "" if math.isnan(error) else f", {self._measure.name} {error:.4g}"
                self.tell(f"{title}: {event.status} after {words}{shown}")

        return update

    def skip(self, title: str, named: bool) -> None:
        """Print that there is nothing to do."""
        if not named:
            self.tell(f"{title}: finished before")

    def tell(self, sentence: str) -> None:
        """Print the sentence."""
        self._console.print(sentence, highlight=False, soft_wrap=True, markup=False)


class Live(Quiet):
    """One bar per training with its error, λ, ρ, solver iterations, and the time left for all of them."""

    def __init__(self, console: Console, trainings: int | None, measure: Measure) -> None:
        super().__init__(console, measure)
        self._trainings = trainings
        self._done = 0.0
        self._fractions: dict[Any, float] = {}
        self._bars = Progress(
            TextColumn("{task.description}", justify="right"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", style="dim"),
            console=console,
        )

    def __enter__(self) -> "Live":
        self._began = time.monotonic()
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def begin(self, title: str, named: bool) -> Callable[[Event], None]:
        """Add a bar; a named training's bar is removed when it is done."""
        task = self._bars.add_task(title, total=1.0, numbers="[dim]compiling…[/dim]", left="")
        error = math.nan

        def update(event: Event) -> None:
            nonlocal error
            error = error if event.errors is None else _error(self._measure, event)
            fraction = 1.0 if event.status else event.fraction
            self._fractions[task] = fraction
            left = "" if event.status else self._left()
            self._bars.update(task, completed=fraction, numbers=_numbers(event, error), left=left)
            if event.status and named:
                self._bars.remove_task(task)
            elif event.status:
                self._bars.stop_task(task)

        return update

    def skip(self, title: str, named: bool) -> None:
        """Count the training as done."""
        self._done += 1
        super().skip(title, named)

    def tell(self, sentence: str) -> None:
        """Print the sentence above the bars."""
        self._bars.console.print(sentence, highlight=False, markup=False)

    def _left(self) -> str:
        if self._trainings is None:
            return ""
        done = (self._done + sum(self._fractions.values())) / self._trainings
        if done < 0.01:
            return ""
        return f"all done in about {duration((time.monotonic() - self._began) * (1 - done) / done)}"


def display(console: Console, trainings: int | None, measure: Measure) -> Quiet:
    """Return the display that fits the console and shows this error; `trainings` is None if unknown."""
    return Live(console, trainings, measure) if console.is_terminal else Quiet(console, measure)


def _numbers(event: Event, error: float) -> str:
    parts = [f"step {event.position.iteration:>6}"]
    parts += [] if math.isnan(error) else [f"error [bold]{error:8.3f}[/bold]"]
    for symbol, field, form in (
        ("λ", "damping", ".2g"),
        ("ρ", "rho", ".2f"),
        ("solver", "solver_iterations", ".0f"),
    ):
        value = event.step.get(field)
        # Zero damping or no solver iterations means a method without a metric.
        if value is not None and math.isfinite(value) and (value or field == "rho"):
            parts.append(f"{symbol} {value:{form}}")
    if event.position.refused:
        parts.append(f"[yellow]{event.position.refused} refused[/yellow]")
    return "  ".join(parts)


def _error(measure: Measure, event: Event) -> float:
    """Return the error of an event; NaN if it has none."""
    found = measure.of(event.errors or {})
    return math.nan if found is None else found


def duration(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
