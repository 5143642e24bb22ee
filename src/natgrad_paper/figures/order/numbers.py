"""What the logs of figure 2 say, as tables: one row per training, or per thing measured of several of them."""

import pandas as pd

from natgrad_paper.report.load import KEYS, Runs

PAIR = ["method", "seed"]


def finished(runs: Runs) -> pd.DataFrame:
    """Return the methods and seeds of which nothing is missing."""
    logs = runs.runs
    return logs[(logs["training"] == "") & (logs["status"] == "finished")][PAIR]


def measures(runs: Runs, kind: str, field: str = "kind") -> pd.DataFrame:
    """Return the measures of a kind."""
    found = runs.measures
    return found[found[field] == kind] if field in found else found.iloc[:0]


def trainings(runs: Runs, kind: str = "") -> pd.DataFrame:
    """Return the trainings that came to their end, of a kind or all: their facts, and how they ended.

    `made` counts updates; those that several trainings share count once.
    """
    logs = runs.runs[(runs.runs["training"] != "") & (runs.runs["status"] == "finished")]
    if logs.empty or runs.evaluations.empty:
        return pd.DataFrame(columns=[*KEYS, "kind", "rate", "error", "refused", "made", "training_seconds"])
    names = {name: name.removeprefix("training.") for name in logs if name.startswith("training.")}
    facts = logs[[*KEYS, *names]].rename(columns=names)
    ends = runs.evaluations.groupby(KEYS, as_index=False).last()
    found = facts.merge(ends.rename(columns={"valid_misclassified": "error"})[
        [*KEYS, "iteration", "refused", "training_seconds", "error"]
    ])  # fmt: skip
    shared = found["segment"].where(found["kind"] == "segment", 1).sub(1) if "segment" in found else 0
    found["made"] = found["iteration"] - shared * runs.header["settings"]["stream"]["segment"]
    return found[found["kind"] == kind] if kind else found


def by_seed(runs: Runs, table: pd.DataFrame, field: str) -> pd.DataFrame:
    """Return the mean of a field, one row per seed and one column per method, of what is finished."""
    return table.merge(finished(runs)).pivot_table(field, "seed", "method")


def paired(runs: Runs, table: pd.DataFrame, field: str) -> pd.DataFrame:
    """Return the same for seeds that have both methods, finished."""
    found = by_seed(runs, table, field)
    return found.dropna() if {"ngd", "sgd"} <= set(found) else found.iloc[:0].reindex(columns=["ngd", "sgd"])


def along(runs: Runs, method: str, kind: str, field: str, value: str = "variance") -> pd.DataFrame:
    """Return a measure of a method, one row per seed and one column per segment, or per factor of the rate."""
    table = measures(runs, kind)
    return table[table["method"] == method].pivot_table(value, "seed", field)
