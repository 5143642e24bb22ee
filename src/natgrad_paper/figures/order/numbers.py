"""What the logs of figure 2 say, as tables: one row per training, or per measure of several trainings."""

import pandas as pd

from natgrad_paper.report.load import KEYS, Runs

PAIR = ["method", "seed"]


def finished(runs: Runs) -> pd.DataFrame:
    """Return the methods and seeds whose trainings are complete."""
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
    if logs.empty:
        return pd.DataFrame(columns=[*KEYS, "kind", "rate", "error", "refused", "made"])
    names = {name: name.removeprefix("training.") for name in map(str, logs) if name.startswith("training.")}
    ends = runs.evaluations.groupby(KEYS).tail(1)[[*KEYS, "iteration", "refused", "valid_misclassified"]]
    ends = ends.rename(columns={"valid_misclassified": "error"})
    found = logs[[*KEYS, *names]].rename(columns=names).merge(ends)
    shared = found["segment"].where(found["kind"] == "segment", 1) - 1 if "segment" in found else 0
    found["made"] = found["iteration"] - shared * runs.header["settings"]["stream"]["segment"]
    return found[found["kind"] == kind] if kind else found


def paired(runs: Runs, table: pd.DataFrame, field: str) -> pd.DataFrame:
    """Return the mean of a field, one row per seed and one column per method, of seeds that have both finished."""
    found = table.merge(finished(runs)).pivot_table(field, "seed", "method")
    return found.reindex(columns=["ngd", "sgd"]).dropna()


def along(table: pd.DataFrame, method: str, field: str) -> pd.DataFrame:
    """Return a method's variances, one row per seed and one column per segment, or per factor of the rate."""
    if field not in table:
        return pd.DataFrame()
    return table[table["method"] == method].pivot_table("variance", "seed", field)


def limit(runs: Runs, method: str) -> pd.DataFrame:
    """Return the variances with one segment replaced, one column per factor of the rate, the whole rate first."""
    slower = along(measures(runs, "limit"), method, "factor")
    whole = along(measures(runs, "segment"), method, "segment")
    segment = runs.header["settings"]["limit"]["segment"]
    if slower.empty or segment not in whole:
        return pd.DataFrame()
    both = slower.assign(whole=whole[segment]).rename(columns={"whole": 1.0})
    return both.sort_index(axis=1, ascending=False)
