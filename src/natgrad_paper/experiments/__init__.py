"""The experiments, one a file: a module here is in the command's list, and has an `EXPERIMENT`.

What belongs to an experiment may have files of its own, named after it with an underscore: the dataclasses
of its numbers in `<name>_config.py`, what it claims in `<name>_claims.py`.
"""

import dataclasses
import importlib
import pkgutil
from pathlib import Path

from natgrad_paper.config import nearest
from natgrad_paper.errors import UserError
from natgrad_paper.experiment import Experiment


def names() -> list[str]:
    """Return the names of the experiments, without importing them."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if "_" not in name)


def load(name: str) -> Experiment:
    """Return the experiment of that name."""
    if name not in names():
        raise UserError(f"experiment: expected {nearest(name, names())}, found {name!r}")
    module = importlib.import_module(f"{__name__}.{name}")
    return dataclasses.replace(module.EXPERIMENT, home=Path(__path__[0]))
