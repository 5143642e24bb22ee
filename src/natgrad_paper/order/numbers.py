"""What the logs of figure 2 say: variances, rates tried, errors reached, and where the time went."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from natgrad_paper.log import FINISHED, RunLog
from natgrad_paper.order.protocol import DRIFTS, UNPERTURBED
from natgrad_paper.series import Runs

KEYS = (
    "method",
    "seed",
    "what",
    "name",
    "kind",
    "segment",
    "factor",
    "iteration",
    "rate",
    "validation_error",
)


def records(log: RunLog, what: str) -> dict[str, dict[str, Any]]:
    """Return the records of a sort by name; where a name occurs again, the last."""
    return {record["name"]: record for record in log.evaluations if record.get("what") == what}


def of_kind(log: RunLog, what: str, kind: str) -> list[dict[str, Any]]:
    """Return the records of a sort and a kind, in their order."""
    return [record for record in records(log, what).values() if record.get("kind") == kind]


def curve(log: RunLog, field: str = "variance") -> np.ndarray:
    """Return the variance against the segment that was replaced, as far as it was measured."""
    found = {record["segment"]: record[field] for record in of_kind(log, "variance", "segment")}
    return np.array([found[segment] for segment in sorted(found)], float)


def shape(log: RunLog) -> np.ndarray:
    """Return the curve divided by its own mean."""
    found = curve(log)
    return found / found.mean() if len(found) else found


def limit(log: RunLog) -> list[tuple[float, float]]:
    """Return (factor of the rate, variance) with one segment replaced, the whole rate first."""
    slower = sorted(of_kind(log, "variance", "limit"), key=lambda record: -record["factor"])
    if not slower or not len(found := curve(log)):
        return []
    whole = float(found[slower[0]["segment"] - 1])
    return [(1.0, whole), *((record["factor"], record["variance"]) for record in slower)]


def trials(log: RunLog) -> list[tuple[float, float]]:
    """Return the (rate, validation error) that were tried, in their order."""
    return [(record["rate"], record["validation_error"]) for record in of_kind(log, "training", "match")]


def matched(log: RunLog) -> dict[str, Any]:
    """Return the record of the matched rate: `rate`, and `reached`, whether the errors are equal."""
    return records(log, "matched").get("matched", {})


def unperturbed_error(log: RunLog) -> float | None:
    """Return the validation error of the unperturbed training at the matched rate."""
    return records(log, "training").get(UNPERTURBED, {}).get("validation_error")


def errors(log: RunLog) -> list[float]:
    """Return the validation errors of all trainings with a segment replaced."""
    return [record["validation_error"] for record in of_kind(log, "training", "segment")]


def drift_errors(log: RunLog) -> list[float]:
    """Return the validation errors after the drifting streams."""
    return [record["validation_error"] for record in of_kind(log, "training", "drift")]


def drift_variance(log: RunLog) -> float | None:
    """Return the variance of the outputs between the two directions of drift."""
    found = of_kind(log, "variance", "drift")
    return found[0]["variance"] if found else None


def trace(log: RunLog, training: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (updates, validation error) along a traced training."""
    found = {
        r["iteration"]: r["validation_error"]
        for r in records(log, "trace").values()
        if r["training"] == training
    }
    return np.array(sorted(found), float), np.array([found[update] for update in sorted(found)], float)


TRACED = (UNPERTURBED, *DRIFTS)


def clocks(log: RunLog) -> dict[str, float]:
    """Return updates made, and seconds of training and of making examples.

    Trainings that join in at a later segment count from there.
    """
    stream = log.header["config"]["stream"]
    found = list(records(log, "training").values())
    skipped = sum(
        (record["segment"] - 1) * stream["segment"] for record in found if record.get("kind") == "segment"
    )
    return {
        "updates": sum(record["iteration"] for record in found) - skipped,
        "training": sum(record["training_seconds"] for record in found),
        "generating": sum(record["generating_seconds"] for record in found),
    }


def refused(log: RunLog) -> int:
    """Return how many steps were refused in all trainings."""
    return sum(record["refused"] for record in records(log, "training").values())


def whole(runs: Runs) -> dict[int, RunLog]:
    """Return a method's finished logs by seed."""
    return {log.header["seed"]: log for log in runs.logs if log.end == FINISHED}


def as_csv(runs: Sequence[Runs]) -> str:
    """Return every record as a row: what it is first, then every other number, by name."""
    rows = [
        {**record, "method": group.name, "seed": log.header["seed"]}
        for group in runs
        for log in group.logs
        for what in ("training", "variance", "trace")
        for record in records(log, what).values()
    ]
    others = sorted(
        {name for row in rows for name, value in row.items() if isinstance(value, int | float)} - {*KEYS}
    )
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*KEYS, *others], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
