"""The tables of a report: results, where the time went, which runs had trouble; and all of it as CSV."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from natgrad_paper.report.claims import Judged
from natgrad_paper.report.curves import common, error_at, time_to
from natgrad_paper.report.figure import Group
from natgrad_paper.report.load import KEYS, Runs
from natgrad_paper.report.parts import Cell, Table
from natgrad_paper.report.views import CLOCK, Measure, View
from natgrad_paper.training.log import RunLog, Status

CLOCKS = {"training_seconds": "training, s", "cpu_seconds": "processor, s", "evaluation_seconds": "evaluating, s",
          "compile_seconds": "compiling, s"}  # fmt: skip
SECONDS = Measure(CLOCK, "seconds", "training time (s)")
DIVERGED = 1e9
"""Larger numbers have no place in a table as they are."""
TARGETS = 4


class Column(NamedTuple):
    """A column of the table of results: one number per seed, by method; the least is the best."""

    words: str
    measure: Measure
    values: dict[str, list[float]]
    missing: str
    """The text for a method without numbers."""


def columns(runs: Runs, view: View) -> list[Column]:
    """Return the table's columns: each panel's error where all runs have one, errors at the end, times to errors."""
    every = [log for name in runs.methods for log in runs.method(name) if log.evaluations]
    found = []

    def add(words: str, measure: Measure, missing: str, of: Callable[[RunLog], float | None]) -> None:
        values = {name: [of(log) for log in every if log.method == name] for name in runs.methods}
        kept = {name: [value for value in each if value is not None] for name, each in values.items()}
        if any(kept.values()):
            found.append(Column(words, measure, kept, missing))

    for panel in view.panels:
        if where := common(every, panel.axis):
            words = f"{panel.measure.label} at {panel.place(where)}"
            add(words, panel.measure, "not measured", partial(error_at, panel=panel, where=where))
    for measure in view.at_end:
        add(f"{measure.label} at the end", measure, "–", partial(_at_end, measure=measure))
    for error in round_errors(every, view.main) if CLOCK in view.axes else ():
        add(f"seconds to {error:g}", SECONDS, "–", partial(time_to, error=error, measure=view.main))
    return found


def _at_end(log: RunLog, measure: Measure) -> float | None:
    return measure.of(log.evaluations[-1])


def round_errors(logs: Sequence[RunLog], measure: Measure) -> list[float]:
    """Return the lowest few round numbers (1, 2, 5, …) that some run's error reached, in decreasing order."""
    start = max((measure.of(log.evaluations[0]) or 0.0 for log in logs), default=0.0)
    ladder = [float(f"{digit}e{power}") for power in range(-6, 7) for digit in (1, 2, 5)]
    reached = [step for step in ladder if step < start and any(time_to(log, step, measure) for log in logs)]
    return reached[:TARGETS][::-1]


def summary(runs: Runs, view: View, groups: Sequence[Group]) -> Table | None:
    """Return the table of results, one row per method: mean over seeds, least and largest; None without results."""
    found = columns(runs, view)
    best = [_best(column, runs) for column in found]
    rows: list[list[str | Cell]] = []
    for name in (name for group in groups for name in group.methods):
        total = len(runs.method(name))
        cells = [
            spread(each.values[name], total, each.measure, each.missing, name == least)
            for each, least in zip(found, best, strict=True)
        ]
        rows.append([runs.label(name), *cells])
    return Table(["method", *(column.words for column in found)], rows, numbers=True) if found else None


def _best(column: Column, runs: Runs) -> str | None:
    """Return the method with the least mean, among those that have a value for every seed."""
    whole = [name for name, found in column.values.items() if found and len(found) == len(runs.method(name))]
    return min(whole, key=lambda name: column.measure.mean(column.values[name]), default=None)


def spread(
    values: Sequence[float], total: int, measure: Measure, missing: str = "–", best: bool = False
) -> Cell:
    """Return the mean and the range, with the number of values if it is less than the total."""
    return ranged(number(measure.mean(values)), values, total, best) if values else Cell(missing)


def ranged(text: str, values: Sequence[float], total: int, best: bool = False) -> Cell:
    """Return a cell with the range of values below its text, and how many there are if some are missing."""
    words = [f"({number(min(values))}–{number(max(values))})"] if len(values) > 1 else []
    words += [f"{len(values)} of {total}"] if len(values) < total else []
    return Cell(text, ", ".join(words), best)


def number(value: float, digits: int = 3) -> str:
    """Return a number with three digits, or as a whole one; what has diverged keeps its power of ten."""
    if abs(value) >= DIVERGED:
        return f"{value:.2e}"
    whole = not digits or abs(value) >= 999.5
    return f"{value:,.0f}".replace(",", " ") if whole else f"{value:#.{digits}g}".rstrip(".")


def time(runs: Runs) -> Table | None:
    """Return where the time went: the sum over trainings of a method and a seed, averaged over seeds."""
    last = runs.evaluations.groupby(KEYS, sort=False).tail(1)
    clocks = [clock for clock in CLOCKS if clock in last]
    sums = last.groupby(KEYS[:2], sort=False)[["iteration", *clocks]].sum(min_count=1) if clocks else last
    rows = []
    for name, mean in sums.groupby("method", sort=False).mean().iterrows():
        cells = ["–" if pd.isna(mean[clock]) else f"{mean[clock]:.1f}" for clock in clocks]
        # Trainings that start from others also count the steps of those.
        counted = mean["iteration"] and not any(log.training for log in runs.trainings(str(name)))
        steps = number(mean["iteration"], 0) if counted else "–"
        each = number(1000 * mean["training_seconds"] / mean["iteration"]) if counted else "–"
        rows.append([runs.label(str(name)), *cells, steps, each])
    head = ["method", *(CLOCKS[clock] for clock in clocks), "steps", "ms per step"]
    return Table(head, rows, numbers=True) if rows else None


def troubles(runs: Runs) -> Table | None:
    """Return the runs with refused steps, an early end or a gap in their time; None if there are none."""
    rows = []
    for log in runs.logs:
        last: dict[str, Any] = log.evaluations[-1] if log.evaluations else {}
        refused, finished = last.get("refused") or 0, log.status is Status.FINISHED
        if refused or log.gaps or not finished:
            ended = "used its budget" if finished else log.reason or "cut off, no reason logged"
            gaps = "; ".join(f"{gap['seconds']:.0f} s at iteration {gap['iteration']}" for gap in log.gaps)
            what = f"{runs.label(log.method)} {log.training}".strip()
            share = f"{refused} of {last.get('iteration') or 0}"
            rows.append([what, str(log.seed), ended, share, gaps or "–"])
    return Table(["run", "seed", "how it ended", "steps refused", "asleep"], rows) if rows else None


def as_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV, without columns of lists, and without the names of trainings if there are none."""
    unwanted = [name for name in table if table[name].map(lambda value: isinstance(value, list | dict)).any()]
    unwanted += ["training"] if "training" in table and not table["training"].any() else []
    return str(table.drop(columns=unwanted).to_csv(index=False, lineterminator="\n"))


def claims_csv(judged: Sequence[Judged]) -> str:
    """Return every finding as a row: its claim, that claim's verdict, what follows from it, what was measured."""
    rows = [
        (each.claim.key, each.words, found.verdict, found.words) for each in judged for found in each.findings
    ]
    return as_csv(pd.DataFrame(rows, columns=["claim", "verdict", "finding", "measured"]))
