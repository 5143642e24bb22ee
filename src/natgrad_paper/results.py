"""The numbers of a run: the table of results, where the time went, and every evaluation as CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from natgrad_paper.log import FINISHED, RunLog
from natgrad_paper.series import ERROR, Runs, common, time_to

KEYS = ("method", "seed", "iteration", "training_seconds", "evaluation_seconds", "compile_seconds")
CLOCKS = {"training_seconds": "training", "evaluation_seconds": "evaluation", "compile_seconds": "compiling"}
TARGETS = 4


def moments(runs: Sequence[Runs]) -> dict[str, float | None]:
    """Return the iteration and the training time up to which all complete runs can be compared."""
    logs = [log for group in runs for log in group.logs]
    return {axis: common(logs, axis) for axis in ("iteration", "training_seconds")}


def targets(runs: Sequence[Runs]) -> list[float]:
    """Return the lowest few round numbers (1, 2, 5, …) that some run's error reached, falling."""
    starts = [log.evaluations[0].get(ERROR) or 0.0 for group in runs for log in group.logs if log.evaluations]
    ladder = [float(f"{digit}e{power}") for power in range(-6, 7) for digit in (1, 2, 5)]
    logs = [log for group in runs for log in group.logs]
    reached = [
        step for step in ladder if step < max(starts, default=0) and any(time_to(log, step) for log in logs)
    ]
    return reached[:TARGETS][::-1]


def spread(values: Sequence[float], total: int) -> tuple[str, str]:
    """Return the geometric mean, and the range with how many there are where it is fewer than the total."""
    if not values:
        return "–", ""
    numbers = np.array(values, float)
    words = [f"({number(numbers.min())}–{number(numbers.max())})"] if len(numbers) > 1 else []
    words += [f"{len(numbers)} of {total}"] if len(numbers) < total else []
    return number(float(np.exp(np.log(numbers).mean()))), ", ".join(words)


def number(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:,.0f}".replace(",", " ")


def final(group: Runs, field: str) -> list[float]:
    """Return a field of each seed's last evaluation, where it is a number above zero."""
    return [record[field] for record in group.final() if record.get(field)]


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


def as_csv(runs: Sequence[Runs]) -> str:
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
    errors = sorted((name for name in fields if name.endswith(ERROR)), key=len)
    others = [name for name in fields if name not in {*KEYS, *errors}]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*KEYS, *errors, *others], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
