"""The short table on the screen: final error, error at equal time, iterations, and where the time went."""

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.table import Table

from natgrad_paper.log import RunLog
from natgrad_paper.series import ERROR, by_method, equal_time


def summary(logs: list[RunLog]) -> Table:
    """Return the table of a run, a row a method: means over seeds, ± half the range of several."""
    header = logs[0].header
    runs = by_method(logs)
    moment = equal_time(runs)
    seeds = sorted({log.header["seed"] for log in logs})
    table = Table(
        title=f"{header['data']['name']}, preset {header['preset']}, "
        + (f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"),
        title_justify="left",
        caption="Squared error, summed over pixels: on the training set at the end, on the\n"
        "training set at a time every method reached, on the test set at the end.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    table.add_column("method", no_wrap=True)
    for column in ("final", f"at {moment:.0f} s" if moment else "at –", "test"):
        table.add_column(column, justify="right")
    for column in ("steps", "train s", "eval s", "comp. s"):
        table.add_column(column, justify="right")
    for group in runs:
        final = group.final()
        table.add_row(
            group.label,
            _spread([record[ERROR] for record in final]),
            _spread(group.error_at(moment) if moment else []),
            _spread([record[f"test_{ERROR}"] for record in final if f"test_{ERROR}" in record]),
            _mean([record["iteration"] for record in final], "{:.0f}"),
            _mean([record["training_seconds"] for record in final]),
            _mean([record["evaluation_seconds"] for record in final]),
            _mean([record["compile_seconds"] for record in final]),
        )
    return table


def _spread(values: Sequence[float | None]) -> str:
    if any(value is None for value in values):
        return "not finite"
    numbers = np.array(values, float)
    if not len(numbers):
        return "–"
    text = f"{numbers.mean():.3f}"
    return text if len(numbers) == 1 else f"{text} ± {(numbers.max() - numbers.min()) / 2:.3f}"


def _mean(values: list[float], form: str = "{:.1f}") -> str:
    return form.format(np.mean(values)) if values else "–"
