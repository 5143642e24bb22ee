"""Where runs come from, read back from their logs: data, code, machine, every setting, and the command."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from natgrad_paper.report.load import Runs, flat

PARTS = {"train": "training", "valid": "validation", "test": "test", "unlabelled": "unlabelled"}


def cases(data: Mapping[str, Any]) -> str:
    """Return how many cases of each kind the data have; an empty text if they do not say."""
    shapes = {part: shape for part, shape in data.items() if isinstance(shape, list) and shape and shape[0]}
    known = [f"{shape[0]} {PARTS[part]}" for part, shape in shapes.items() if part in PARTS]
    others = [f"{shape[0]} {part}" for part, shape in shapes.items() if part not in PARTS]
    return ", ".join(([f"{listed(known)} cases"] if known else []) + others)


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def presets_used(runs: Runs) -> str:
    """Return the presets of the runs."""
    return ", ".join(_different(log.header["preset"] for log in runs.logs))


def seeds_used(runs: Runs) -> str:
    """Return the seeds, and what the spread in figures means."""
    if len(runs.seeds) == 1:
        return f"Seed: {runs.seeds[0]} (one run: no spread to show)"
    return f"Seeds: {', '.join(map(str, runs.seeds))} (mean; band: least to largest)"


def versions(runs: Runs) -> str:
    """Return the versions of everything that the runs used; all versions of a package if they differ."""
    found: dict[str, list[str]] = {}
    for log in runs.logs:
        for name, version in log.header["versions"].items():
            found.setdefault(name, []).append(str(version))
    return ", ".join(f"{name} {' and '.join(_different(each))}" for name, each in found.items())


def machines(runs: Runs) -> str:
    """Return the machines of the runs, as far as logs describe them."""
    found = ((log.header["cores"], log.header["platform"]) for log in runs.logs)
    return "; ".join(_different(f"{cores} core{'s' * (cores != 1)}, {platform}" for cores, platform in found))


def commits(runs: Runs) -> str:
    """Return the states of the code that ran, with a warning if there are several."""
    found = _different(_commit(log.header.get("commit")) for log in runs.logs)
    return "; ".join(found) + ": runs of different code are compared here" * (len(found) > 1)


def _commit(stated: Any) -> str:
    match stated:
        case {"id": str() as name, "clean": clean}:
            return f"commit {name[:12]}{' (clean)' if clean else ', with changes that are in no commit'}"
    return "the logs do not say"


def ratios(runs: Runs) -> list[str]:
    """Return which model of the loss each method's λ uses for its ratio; old logs do not say."""
    found: dict[str, dict[str, None]] = {}
    for log in runs.logs:
        match log.header.get("damping"):
            case {"reduction": str() as model}:
                found.setdefault(model, {})[runs.label(log.method)] = None
    return [
        f"λ follows the ratio with the {model} model" + f" ({', '.join(labels)})" * (len(found) > 1)
        for model, labels in found.items()
    ]


def departures(runs: Runs, paper: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (field, value here, the paper's value) of every setting that differs from the paper's."""
    stated, wanted = _stated(runs), {field: _written(value) for field, value in flat(paper).items()}
    both = [(field, stated[field], value) for field, value in wanted.items() if field in stated]
    return [
        (field, _values(here), value)
        for field, here, value in both
        if value != "null" and {value} != set(here)
    ]


def fields(runs: Runs) -> list[tuple[str, str]]:
    """Return (field, value) of every setting; if methods differ, each value with its methods."""
    return [(field, _values(values)) for field, values in _stated(runs).items()]


def command(runs: Runs, known: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the command that makes such logs: the preset, the changes to it, methods and seeds.

    `known` holds the settings of each of the experiment's presets.
    """
    preset = str(runs.header["preset"])
    words = ["natgrad", "run", runs.experiment]
    words += ["--preset", preset if preset in known or not known else f"{preset}.toml"]
    words += ["--methods", ",".join(runs.methods)]
    words += ["--seeds", ",".join(map(str, runs.seeds)) + ("," if len(runs.seeds) == 1 else "")]
    if file := runs.header["data"].get("file"):
        words += ["--data", str(file)]
    usual = {field: _written(value) for field, value in flat(known.get(preset, {})).items()}
    for field, values in _stated(runs).items():
        if field in usual and len(values) == 1 and (value := next(iter(values))) != usual[field]:
            words += ["--set", f"{field}={value}"]
    return shlex.join(words)


def _stated(runs: Runs) -> dict[str, dict[str, dict[str, None]]]:
    """Return the values of each field, in words, and the methods with each."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for log in runs.logs:
        for field, value in flat(log.header["settings"]).items():
            if value is not None:
                found.setdefault(field, {}).setdefault(_written(value), {})[log.method] = None
    return found


def _values(values: Mapping[str, Iterable[str]]) -> str:
    if len(values) == 1:
        return next(iter(values))
    return "; ".join(f"{value} ({', '.join(methods)})" for value, methods in values.items())


def _written(value: Any) -> str:
    """Return a value as TOML has it."""
    return json.dumps(value, ensure_ascii=False)


def _different(words: Iterable[Any]) -> list[str]:
    return sorted({str(each) for each in words})
