"""What a run was asked to do, kept beside its logs as `run.json`, so that `--resume` needs no options again."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from natgrad_paper.errors import FieldError, UserError, naming
from natgrad_paper.training.settings import Section, Seed, build, stated, text

NAME = "run.json"
"""The file by which the directory of a run is known."""


class Request(Section):
    """A run as it was asked for."""

    experiment: str
    preset: str
    methods: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    seeds: Annotated[tuple[Seed, ...], Field(strict=False, min_length=1)]
    data: str = ""
    """The user's data file, empty for the generated data."""
    settings: dict[str, Any]
    """All settings, as tables; the experiment reads them."""

    def extended(self, methods: tuple[str, ...], seeds: tuple[int, ...]) -> "Request":
        """Return the request with these methods and seeds added."""
        added = {"methods": (*self.methods, *methods), "seeds": (*self.seeds, *seeds)}
        return self.model_copy(update={name: tuple(dict.fromkeys(values)) for name, values in added.items()})


def write(directory: Path, request: Request) -> None:
    """Write the request, whole or not at all."""
    aside = directory / f".{NAME}"
    try:
        with naming(aside):
            aside.write_text(json.dumps(stated(request), indent=1) + "\n", encoding="utf-8")
        os.replace(aside, directory / NAME)
    finally:
        aside.unlink(missing_ok=True)


def read(directory: Path) -> Request:
    """Return the request of the run in a directory."""
    path = directory / NAME
    try:
        found = json.loads(text(path))
    except (OSError, ValueError, RecursionError) as problem:
        reason = getattr(problem, "strerror", None) or "not JSON"
        raise UserError(f"{path}: expected the settings of a run to resume, found none ({reason})") from None
    if not isinstance(found, dict):
        raise FieldError(str(path), "all", "a table of fields", found)
    return build(Request, found, str(path))
