"""The figures: each is a package with an `EXPERIMENT`. `natgrad list` shows every package here."""

import importlib
import pkgutil

from natgrad_paper.errors import UserError
from natgrad_paper.figures.base import Experiment
from natgrad_paper.training.settings import nearest


def names() -> list[str]:
    """Return the names of the experiments, without importing them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def load(name: str) -> Experiment:
    """Return the experiment of that name."""
    if name not in names():
        raise UserError(f"experiment: expected {nearest(name, names())}, found {name!r}")
    found: Experiment = importlib.import_module(f"{__name__}.{name}").EXPERIMENT
    return found
