"""The experiments of "Revisiting natural gradient for deep networks", and the `natgrad` command."""

from pathlib import Path
from typing import Any


def load(directory: str | Path, what: str = "evaluations") -> Any:
    """Return what the logs of a run hold as a tidy table (pandas): `evaluations`, `steps`, `measures` or `runs`.

    The table has one row per evaluation, with its method, seed and training; `runs` has one row per log.
    """
    from natgrad_paper.report.load import table

    return table(Path(directory), what)
