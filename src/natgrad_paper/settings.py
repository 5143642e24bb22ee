"""What a run was asked for, read back from its logs: every setting, and the command."""

import dataclasses
import json
import shlex
from typing import Any

from natgrad_paper import config
from natgrad_paper.experiment import Experiment
from natgrad_paper.log import RunLog


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the fields of nested tables by their dotted names, the values as TOML has them."""
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = json.dumps(value, ensure_ascii=False)
    return found


def rows(logs: list[RunLog]) -> list[list[str]]:
    """Return (field, value) of every setting; where runs differ, each value with its runs."""
    settings = [(_name(log), flat(log.header["config"])) for log in logs]
    fields = list(dict.fromkeys(field for _, fields in settings for field in fields))
    found = []
    for field in fields:
        values: dict[str, list[str]] = {}
        for name, setting in settings:
            values.setdefault(setting.get(field, "–"), []).append(name)
        words = "; ".join(f"{value} ({', '.join(names)})" for value, names in values.items())
        found.append([field, words if len(values) > 1 else next(iter(values))])
    return found


def command(logs: list[RunLog], experiment: Experiment | None) -> str:
    """Return the command that makes such logs: preset, what was changed in it, methods and seeds."""
    header = logs[0].header
    presets = sorted({log.header["preset"] for log in logs})
    known = experiment.presets() if experiment else {}
    preset = presets[0] if presets[0] in known else f"{presets[0]}.toml"
    ordered = sorted(logs, key=lambda log: log.header["method"]["order"])
    methods = dict.fromkeys(log.header["method"]["name"] for log in ordered)
    seeds = sorted({log.header["seed"] for log in logs})
    words = ["natgrad", "run", header["experiment"], "--preset", preset, "--methods", ",".join(methods)]
    words += ["--seeds", ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")]
    if file := header["data"].get("file"):
        words += [experiment.option if experiment else "--data", str(file)]
    if experiment and preset in known:
        usual = flat(
            json.loads(json.dumps(dataclasses.asdict(config.load(experiment.config, known[preset]))))
        )
        found = [flat(log.header["config"]) for log in logs]
        changed = [field for field, value in found[0].items() if value != usual.get(field)]
        shared = [field for field in changed if all(each.get(field) == found[0][field] for each in found)]
        words += [word for field in shared for word in ("--set", f"{field}={found[0][field]}")]
    return shlex.join(words)


def _name(log: RunLog) -> str:
    return f"{log.header['method']['name']}.{log.header['seed']}"
