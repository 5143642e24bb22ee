"""The tables of a report: results, where the time went, which runs had trouble; and all of it as CSV."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from natgrad_paper.report.claims import Judged
from natgrad_paper.report.curves import common, error_at, time_to
from natgrad_paper.report.figure import Group
from natgrad_paper.report.load import KEYS, Runs
from natgrad_paper.report.parts import Cell, Table
from natgrad_paper.report.views import Measure, View
from natgrad_paper.training.log import RunLog, Status

CLOCKS = {"training_seconds": "training, s", "cpu_seconds": "processor, s", "evaluation_seconds": "evaluating, s",
          "compile_seconds": "compiling, s"}  # fmt: skip
SECONDS = Measure("training_seconds", "seconds", "training time (s)")
TARGETS = 4


class Column(NamedTuple):
    """A column of the table of results: one number per seed, by method; the least is the best."""

    words: str
    measure: Measure
    values: dict[str, list[float]]
    missing: str
    """What a method without numbers has in its place."""


def columns(runs: Runs, view: View) -> list[Column]:
    """Return the table's columns: each panel's error as far as all runs go, errors at the end, times to errors."""
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
        add(f"{measure.label} at the end", measure, "–", lambda log, m=measure: m.of(log.evaluations[-1]))
    for error in targets(every, view.main) if "training_seconds" in view.axes else ():
        add(f"seconds to {error:g}", SECONDS, "–", partial(time_to, error=error, measure=view.main))
    return found


def targets(logs: Sequence[RunLog], measure: Measure) -> list[float]:
    """Return the lowest few round numbers (1, 2, 5, …) that some run's error reached, falling."""
    start = max((measure.of(log.evaluations[0]) or 0.0 for log in logs), default=0.0)
    ladder = [float(f"{digit}e{power}") for power in range(-6, 7) for digit in (1, 2, 5)]
    reached = [step for step in ladder if step < start and any(time_to(log, step, measure) for log in logs)]
    return reached[:TARGETS][::-1]


def results(runs: Runs, view: View, groups: Sequence[Group]) -> Table | None:
    """Return the table of results, one row per method: mean over seeds, least and largest; None without results."""
    found = columns(runs, view)
    best = [_best(column, runs) for column in found]
    rows: list[list[str | Cell]] = []
    for name in (name for group in groups for name in group.methods):
        total = len(runs.method(name))
        cells = [
            spread(column.values[name], total, column.measure, column.missing, name == least)
            for column, least in zip(found, best, strict=True)
        ]
        rows.append([runs.label(name), *cells])
    return Table(["method", *(column.words for column in found)], rows, numbers=True) if found else None


def _best(column: Column, runs: Runs) -> str | None:
    """Return the method with the least mean, among those of which every seed has a value."""
    values = {
        name: found for name, found in column.values.items() if found and len(found) == len(runs.method(name))
    }
    return min(values, key=lambda name: column.measure.mean(values[name])) if values else None


def spread(
    values: Sequence[float], total: int, measure: Measure, missing: str = "–", best: bool = False
) -> Cell:
    """Return the mean, and the range with how many there are where it is fewer than the total."""
    if not values:
        return Cell(missing)
    words = [f"({number(min(values))}–{number(max(values))})"] if len(values) > 1 else []
    words += [f"{len(values)} of {total}"] if len(values) < total else []
    return Cell(number(measure.mean(values)), ", ".join(words), best)


def number(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:,.0f}".replace(",", " ")


def time(runs: Runs) -> Table | None:
    """Return where the time went: seconds of all trainings of a method and a seed, mean over seeds."""
    if not len(last := runs.last):
        return None
    clocks = [clock for clock in CLOCKS if clock in last]
    sums = last.groupby(["method", "seed"], sort=False)[["iteration", *clocks]].sum()
    rows = []
    for name, mean in sums.groupby("method", sort=False).mean().iterrows():
        steps = mean["iteration"]
        each = number(1000 * mean["training_seconds"] / steps) if steps else "–"
        cells = [f"{mean[clock]:.1f}" for clock in clocks]
        rows.append([runs.label(str(name)), *cells, f"{steps:,.0f}".replace(",", " "), each])
    return Table(["method", *(CLOCKS[clock] for clock in clocks), "steps", "ms per step"], rows, numbers=True)


def troubles(runs: Runs) -> Table | None:
    """Return the runs with refused steps, an early end or a gap in their time; None where there are none."""
    last = {tuple(row[KEYS]): row for _, row in runs.last.iterrows()}
    rows = []
    for log in runs.logs:
        end = last.get((log.method, log.seed, log.training), {})
        refused, steps = (int(np.nan_to_num(end.get(field, 0) or 0)) for field in ("refused", "iteration"))
        slept = sum(gap["seconds"] for gap in log.gaps)
        if refused or log.gaps or log.status is not Status.FINISHED:
            ended = (
                "used its budget"
                if log.status is Status.FINISHED
                else log.reason or "cut off, without a word"
            )
            slept_words = f"{slept:.0f} s in {len(log.gaps)}" if log.gaps else "–"
            what = f"{runs.label(log.method)} {log.training}".strip()
            rows.append([what, str(log.seed), ended, f"{refused} of {steps}", slept_words])
    return Table(["run", "seed", "how it ended", "steps refused", "time asleep"], rows) if rows else None


def as_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV, without columns that are lists and without names of trainings where there are none."""
    unnamed = ["training"] * (not (table["training"].astype(bool)).any())
    lists = [name for name in table if table[name].map(lambda value: isinstance(value, list | dict)).any()]
    return str(table.drop(columns=[*unnamed, *lists]).to_csv(index=False, lineterminator="\n"))


def claims_csv(judged: Sequence[Judged]) -> str:
    """Return every finding as a row: its claim, that claim's verdict, what follows from it, what was measured."""
    rows = [
        (each.claim.key, each.words, str(found.verdict), found.words)
        for each in judged
        for found in each.findings
    ]
    return str(
        pd.DataFrame(rows, columns=["claim", "verdict", "finding", "measured"]).to_csv(
            index=False, lineterminator="\n"
        )
    )
