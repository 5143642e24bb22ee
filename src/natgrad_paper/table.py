"""The short tables on the screen: errors, iterations and where the time went; and the claims, judged."""

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from natgrad_paper.claims import Judged, Verdict
from natgrad_paper.log import RunLog
from natgrad_paper.measures import RECONSTRUCTION, Panel, View
from natgrad_paper.series import by_method, common


def summary(logs: list[RunLog], view: View = RECONSTRUCTION) -> Table:
    """Return the table of a run, a row a method: means over seeds, ± half the range of several."""
    header = logs[0].header
    runs = by_method(logs)
    seeds = sorted({log.header["seed"] for log in logs})
    shown = [
        each for each in view.measures if any(each.field in record for g in runs for record in g.final())
    ]
    timed = Panel(view.main, "training_seconds")
    moment = common(logs, timed.axis) if timed in view.panels else None
    table = Table(
        title=f"{escape(header['data']['name'])}, preset {escape(header['preset'])}, "
        + (f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"),
        title_justify="left",
        caption="Errors at the end"
        + (f", and {view.main.name} at a time every method reached" if moment else "")
        + ".\nSeconds of training, evaluating and compiling.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    table.add_column("method")
    timings = [f"at {moment:.0f} s"] if moment else []
    for column in (*(each.label.replace(" ", "\n", 1) for each in shown), *timings):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("steps", "train", "eval", "comp."):
        table.add_column(column, justify="right", no_wrap=True)
    for group in runs:
        final = group.final()
        table.add_row(
            Text(group.label),
            *(_spread([each.of(record) for record in final]) for each in shown),
            *([_spread(group.error_at(moment, timed))] if moment else []),
            _mean([record["iteration"] for record in final], "{:.0f}"),
            _mean([record["training_seconds"] for record in final]),
            _mean([record["evaluation_seconds"] for record in final]),
            _mean([record["compile_seconds"] for record in final]),
        )
    return table


COLORS = {Verdict.HOLDS: "green", Verdict.FAILS: "red"}
"""All others are yellow: they say nothing for a claim and nothing against it."""


def verdicts(judged: Sequence[Judged]) -> Table:
    """Return the claims and what the logs say about them; of what was measured, only why findings are void."""
    table = Table(title="Claims", title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
    for column in ("", "claim", "verdict"):
        table.add_column(column, no_wrap=column != "claim")
    for each in judged:
        words = Text(each.claim.words)
        for finding in each.findings:
            if finding.verdict is Verdict.VOID:
                words.append(f"\n{finding.words}", "dim")
        table.add_row(f"({each.claim.key})", words, Text(each.verdict, COLORS.get(each.verdict, "yellow")))
    return table


def _spread(values: Sequence[float | None]) -> str:
    if any(value is None for value in values):
        return "not finite"
    numbers = np.array(values, float)
    if not len(numbers):
        return "–"
    digits = 2 if numbers.mean() < 10 else 1 if numbers.mean() < 100 else 0
    text = f"{numbers.mean():.{digits}f}"
    return text if len(numbers) == 1 else f"{text} ± {(numbers.max() - numbers.min()) / 2:.{digits}f}"


def _mean(values: list[float], form: str = "{:.1f}") -> str:
    return form.format(np.mean(values)) if values else "–"
