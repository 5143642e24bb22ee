"""The logs of a run, read once. Claims, curves, tables and pictures are functions of `Runs`.

    runs.methods                    names of the methods, in the experiment's order
    runs.method(name)               its logs, one per seed, in the order of seeds; () where it did not run
    runs.method(name, "segment-03") the same, of one of several trainings of a method and a seed
    runs.trainings(name, seed)      all logs of a method, or of a method and a seed, whatever their training's name
    runs.label(name)                a method's name in tables and figures; `runs.color(name)` its color
    runs.seeds, runs.header         the seeds; the header of the first log: `runs.experiment` and data are those of all
    runs.timed                      whether claims may rest on the clock
    runs.left_out, runs.judged      seeds that were left out; False where only such seeds ran: no claim is judged then
    runs.runs, .evaluations, .steps, .measures    tidy tables (pandas): method, seed, training, then what the logs have

Seeds from `CHOOSING` on are for choosing settings: they are left out of everything, unless there are no others.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from natgrad_paper.errors import UserError
from natgrad_paper.training.log import RunLog, read_all
from natgrad_paper.training.settings import CHOOSING

KEYS = ["method", "seed", "training"]
"""The first columns of every table."""
TABLES = ("runs", "evaluations", "steps", "measures")


@dataclass(frozen=True, eq=False)
class Runs:
    """Logs that belong together, one per method, seed and training; `Runs.of` makes them."""

    logs: tuple[RunLog, ...]
    methods: tuple[str, ...]
    """Names, in the experiment's order."""
    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    """Seeds for choosing settings that also ran."""
    judged: bool
    """Whether claims may rest on these runs, which seeds for choosing settings do not allow."""
    runs: pd.DataFrame
    """One row per log: what ran, how it ended, and its settings by their dotted names."""
    evaluations: pd.DataFrame
    steps: pd.DataFrame
    measures: pd.DataFrame

    @classmethod
    def of(cls, logs: Iterable[RunLog]) -> "Runs":
        """Return the logs as runs, without the seeds for choosing settings. Refuse logs that do not fit together."""
        every = sorted(logs, key=lambda log: (log.header["method"]["order"], *_keys(log).values()))
        counted = [log for log in every if log.seed < CHOOSING]
        found = counted or every
        _check(found)
        records = (
            _table({**_keys(log), **record} for log in found for record in getattr(log, what))
            for what in TABLES[1:]
        )
        return cls(
            tuple(found),
            tuple(dict.fromkeys(log.method for log in found)),
            tuple(sorted({log.seed for log in found})),
            tuple(sorted({log.seed for log in every} - {log.seed for log in found})),
            bool(counted),
            _table({**_facts(log), **flat(log.header["settings"], "settings.")} for log in found),
            *records,
        )

    @property
    def header(self) -> dict[str, Any]:
        """The header of the first log."""
        return self.logs[0].header

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
        return str(self.header["experiment"])

    @property
    def timed(self) -> bool:
        """Whether times are meaningful. Runs with a budget in iterations may share a machine, so theirs are not."""
        budgets = (log.header["settings"].get("budget", {}) for log in self.logs)
        return not all(budget.get("iterations") for budget in budgets)

    def method(self, name: str, training: str = "") -> tuple[RunLog, ...]:
        """Return the logs of a method, one per seed, for its only training or for the named one."""
        return tuple(log for log in self.trainings(name) if log.training == training)

    def trainings(self, name: str, seed: int | None = None) -> tuple[RunLog, ...]:
        """Return all logs of a method, or of a method and a seed."""
        return tuple(log for log in self.logs if log.method == name and seed in (None, log.seed))

    def label(self, name: str) -> str:
        """Return a method's name in tables and figures."""
        return next((str(log.header["method"]["label"]) for log in self.trainings(name)), name)

    def color(self, name: str) -> str:
        """Return a method's color; gray if the log's is not six hexadecimal digits."""
        found = next((str(log.header["method"]["color"]) for log in self.trainings(name)), "")
        return found.lower() if re.fullmatch(r"#[0-9a-fA-F]{6}", found) else "#808080"


def read(directory: Path) -> Runs:
    """Return the runs whose logs are below a directory."""
    return Runs.of(read_all(directory))


def table(directory: Path, what: str) -> pd.DataFrame:
    """Return one of the tables of the runs below a directory."""
    if what not in TABLES:
        raise UserError(f"table: expected one of {', '.join(TABLES)}, found {what!r}")
    found: pd.DataFrame = getattr(read(directory), what)
    return found


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the fields of nested tables by their dotted names; None for a field that is not set."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def _check(logs: list[RunLog]) -> None:
    """Refuse logs that do not belong together."""
    for what, names in (
        ("experiment", {str(log.header["experiment"]) for log in logs}),
        ("data set", {f"{log.header['data']['name']} {log.header['data']['sha256'][:8]}" for log in logs}),
    ):
        if len(names) != 1:
            raise UserError(f"logs: expected one {what}, found {len(names)}: {', '.join(sorted(names))}")
    seen: set[tuple[Any, ...]] = set()
    first: dict[str, RunLog] = {}
    for each in logs:
        if (key := (each.method, each.seed, each.training)) in seen:
            raise UserError(f"logs: expected one of {each.method}, seed {each.seed}, found several")
        seen.add(key)
        one, other = (flat(log.header["settings"]) for log in (first.setdefault(each.method, each), each))
        for field in {**one, **other}:
            if (a := one.get(field)) != (b := other.get(field)):
                raise UserError(
                    f"logs: expected the same settings in all runs of {each.method}, found {field} = {a} "
                    f"(seed {first[each.method].seed}) and {b} (seed {each.seed})"
                )


def _keys(log: RunLog) -> dict[str, Any]:
    return {"method": log.method, "seed": log.seed, "training": log.training}


def _facts(log: RunLog) -> dict[str, Any]:
    head, facts = log.header, flat(log.header["training"], "training.")
    facts.pop("training.name", None)
    named = {name: head["method"][name] for name in ("label", "color", "order")}
    ended = {"status": log.status and str(log.status), "reason": log.reason, "complete": log.complete}
    plain = {name: head.get(name) for name in ("experiment", "preset", "started", "cores", "platform")}
    return {**_keys(log), **named, **ended, **plain, **flat({"commit": head.get("commit") or {}}), **facts}


def _table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    found = pd.DataFrame(list(rows)).drop(columns="record", errors="ignore")
    return found if len(found) else pd.DataFrame(columns=KEYS)
