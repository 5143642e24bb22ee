"""What a run was asked to do, kept beside its logs as `run.json`, so that it can go on without being told again."""

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from natgrad_paper import config
from natgrad_paper.config import Rule
from natgrad_paper.errors import FieldError, UserError, naming
from natgrad_paper.experiment import Experiment

NAME = "run.json"
SEEDS = range(1 << 32)
"""What every generator of random numbers takes."""


@dataclass(frozen=True)
class Request:
    """A run as it was asked for."""

    experiment: str
    preset: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    data: str
    """The user's data file, empty for the generated data."""
    config: dict[str, Any]
    """The settings, all of them, as a table."""

    def extended(self, methods: tuple[str, ...], seeds: tuple[int, ...]) -> "Request":
        """Return the request with these methods and seeds added."""
        return dataclasses.replace(
            self,
            methods=tuple(dict.fromkeys(self.methods + methods)),
            seeds=tuple(dict.fromkeys(self.seeds + seeds)),
        )


def asked(
    experiment: Experiment,
    preset: str,
    path: Path | None,
    changes: Sequence[str],
    methods: tuple[str, ...],
    seeds: tuple[int, ...],
    data: Path | None,
) -> Request:
    """Return a new request, from a preset's file and changes to it; no methods are the preset's own."""
    settings, usual = standard(experiment, path, changes)
    file = "" if data is None else str(data.absolute())
    return Request(experiment.name, preset, methods or usual, seeds, file, table(settings))


def standard(
    experiment: Experiment, path: Path | None, changes: Sequence[str] = ()
) -> tuple[Any, tuple[str, ...]]:
    """Return a preset's settings and the methods that run unless others are named: its own, or a first look's."""
    settings: Any
    settings, methods = config.read(experiment.config, path, changes)
    known = [method.name for method in experiment.methods]
    for name in methods:
        if name not in known:
            raise FieldError(str(path), "methods", config.nearest(name, known), repr(name))
    return settings, tuple(dict.fromkeys(methods)) or experiment.first_look


def settings(experiment: Experiment, request: Request, where: Path) -> Any:
    """Return the request's settings, read strictly; `where` names their source in errors."""
    return config.build(experiment.config, request.config, str(where))


def table(settings: Any) -> dict[str, Any]:
    """Return settings as the table a preset would hold: a field that is not set is absent."""
    return {
        name: table(value)
        if dataclasses.is_dataclass(value)
        else list(value)
        if isinstance(value, tuple)
        else value
        for field in dataclasses.fields(settings)
        if (value := getattr(settings, name := field.name)) is not None
    }


def write(directory: Path, request: Request) -> None:
    """Write the request, whole or not at all."""
    aside = directory / f".{NAME}"
    try:
        with naming(aside):
            aside.write_text(json.dumps(dataclasses.asdict(request), indent=1) + "\n", encoding="utf-8")
        os.replace(aside, directory / NAME)
    finally:
        aside.unlink(missing_ok=True)


def read(directory: Path) -> Request:
    """Return the request of the run in a directory."""
    path = directory / NAME
    try:
        found = json.loads(config.text(path))
    except (OSError, ValueError, RecursionError) as problem:
        reason = getattr(problem, "strerror", None) or "not JSON"
        raise UserError(f"{path}: expected the settings of a run to resume, found none ({reason})") from None
    if not isinstance(found, dict):
        raise FieldError(str(path), "all", "a table of fields", found)
    if not isinstance(found.get("config"), dict):
        raise FieldError(str(path), "config", "a table of fields", found.get("config", "nothing"))
    settings = found.pop("config")
    request = config.build(_Asked, found, str(path))
    return Request(request.experiment, request.preset, request.methods, request.seeds, request.data, settings)


@dataclass(frozen=True)
class _Asked:
    """The fields of a request that are read strictly here; its settings are the experiment's to read."""

    experiment: str
    preset: str
    methods: Annotated[tuple[str, ...], Rule("a list of at least one method", bool)]
    seeds: Annotated[
        tuple[int, ...],
        Rule(
            f"a list of at least one whole number from 0 to {SEEDS[-1]}",
            lambda seeds: bool(seeds) and all(seed in SEEDS for seed in seeds),
        ),
    ]
    data: str
