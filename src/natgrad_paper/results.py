"""The numbers of a run: the table of results, where the time went, and every evaluation as CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from natgrad_paper.claims import Judged
from natgrad_paper.log import FINISHED, RunLog
from natgrad_paper.measures import LOGARITHMIC, Measure, Scale, View
from natgrad_paper.series import Runs, common, time_to

KEYS = ("method", "seed", "iteration", "training_seconds", "evaluation_seconds", "compile_seconds")
CLOCKS = {"training_seconds": "training", "evaluation_seconds": "evaluation", "compile_seconds": "compiling"}
TARGETS = 4
SECONDS = Measure("training_seconds", "seconds", "training time (s)")


@dataclass(frozen=True)
class Column:
    """A column of the table of results: a number of each seed, by method; the least is the best."""

    words: str
    measure: Measure
    values: dict[str, list[float]]
    at: float | None = None
    """Where on its axis it compares the runs, if it does so at one place."""

    def best(self, runs: Sequence[Runs]) -> str | None:
        """Return the method with the least mean, among those of which every seed has a value."""
        means = {
            group.name: self.measure.mean(found)
            for group in runs
            if (found := self.values[group.name]) and len(found) == len(group.logs)
        }
        return min(means, key=lambda name: means[name]) if means else None


def columns(runs: Sequence[Runs], view: View) -> list[Column]:
    """Return the table's columns: each panel's error as far as all runs go, errors at the end, times to errors."""
    logs = [log for group in runs for log in group.logs]
    found = []
    for panel in view.panels:
        if where := common(logs, panel.axis):
            place = f"{where:.0f} iterations" if panel.axis == "iteration" else f"{where:.3g} s"
            values = {group.name: group.error_at(where, panel) for group in runs}
            found.append(Column(f"{panel.measure.label} at {place}", panel.measure, values, where))
    for measure in view.at_end:
        values = {group.name: final(group, measure) for group in runs}
        found.append(Column(f"{measure.label} at the end", measure, values))
    if "training_seconds" in view.axes:
        for target in targets(runs, view.main):
            values = {group.name: group.time_to(target, view.main) for group in runs}
            found.append(Column(f"seconds to {target:g}", SECONDS, values))
    return [column for column in found if any(column.values.values())]


def targets(runs: Sequence[Runs], measure: Measure) -> list[float]:
    """Return the lowest few round numbers (1, 2, 5, …) that some run's error reached, falling."""
    logs = [log for group in runs for log in group.logs if log.evaluations]
    starts = [measure.of(log.evaluations[0]) or 0.0 for log in logs]
    ladder = [float(f"{digit}e{power}") for power in range(-6, 7) for digit in (1, 2, 5)]
    reached = [
        step
        for step in ladder
        if step < max(starts, default=0) and any(time_to(log, step, measure) for log in logs)
    ]
    return reached[:TARGETS][::-1]


def spread(values: Sequence[float], total: int, scale: Scale = LOGARITHMIC) -> tuple[str, str]:
    """Return the mean on a scale, and the range with how many there are where it is fewer than the total."""
    if not values:
        return "–", ""
    numbers = np.array(values, float)
    words = [f"({number(numbers.min())}–{number(numbers.max())})"] if len(numbers) > 1 else []
    words += [f"{len(numbers)} of {total}"] if len(numbers) < total else []
    return number(float(scale.back(np.mean(scale.to(numbers))))), ", ".join(words)


def number(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:,.0f}".replace(",", " ")


def final(group: Runs, measure: Measure) -> list[float]:
    """Return an error in each seed's last evaluation, where there is one."""
    return [value for record in group.final() if (value := measure.of(record)) is not None]


def clocks(group: Runs) -> dict[str, float]:
    """Return the mean seconds a run of the method spent on each thing."""
    return {name: float(np.mean([record[name] for record in group.final()] or [0.0])) for name in CLOCKS}


def troubles(logs: Sequence[RunLog]) -> list[tuple[str, int, str, str]]:
    """Return (method, seed, how it ended, steps refused) of the runs with steps refused or an early end."""
    found = []
    for log in logs:
        last: dict[str, Any] = log.evaluations[-1] if log.evaluations else {}
        refused, steps = last.get("refused") or 0, last.get("iteration", 0)
        if refused or log.end != FINISHED:
            ended = "used its budget" if log.end == FINISHED else log.end or "cut off, without a word"
            words = f"{refused} of {steps}"
            found.append((log.header["method"]["label"], log.header["seed"], ended, words))
    return found


def claims_as_csv(judged: Sequence[Judged]) -> str:
    """Return every finding as a row: its claim, that claim's verdict, what follows from it, what was measured."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("claim", "verdict", "finding", "measured"))
    for each in judged:
        for finding in each.findings:
            writer.writerow((each.claim.key, each.verdict, finding.verdict, finding.words))
    return stream.getvalue()


def as_csv(runs: Sequence[Runs], view: View) -> str:
    """Return every evaluation as a row: method, seed and clocks first, then every other number, by name."""
    rows = [
        {**record, "method": group.name, "seed": log.header["seed"]}
        for group in runs
        for log in group.logs
        for record in log.evaluations
    ]
    fields = sorted(
        {name for row in rows for name, value in row.items() if not isinstance(value, str | list | dict)}
    )
    errors = [measure.field for measure in view.measures if measure.field in fields]
    others = [name for name in fields if name not in {*KEYS, *errors}]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*KEYS, *errors, *others], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
