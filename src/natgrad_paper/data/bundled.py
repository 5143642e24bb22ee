"""Small data sets that come with scikit-learn, as plain arrays. scikit-learn is imported only if one is needed."""

from importlib import import_module, resources
from typing import Any

import numpy as np

from natgrad_paper.errors import UserError

PACKAGE = "sklearn.datasets"
SPLIT = 0
"""The seed by which cases are put in order, once for all runs."""


def digit_images() -> tuple[np.ndarray, np.ndarray]:
    """Return 1797 digits, 8 × 8 gray levels in [0, 1], and their labels, in a fixed random order."""
    found = _package().load_digits()
    order = np.random.default_rng(SPLIT).permutation(len(found.data))
    return (found.data / 16)[order], found.target.astype(np.int32)[order]


def regressions() -> tuple[np.ndarray, np.ndarray]:
    """Return two regressions with ten inputs in one table, in a fixed random order: Friedman's first, and diabetes.

    Inputs have the units they came with: some are fractions, some hundreds. The targets of both together have
    variance 1.
    """
    package = _package()
    inputs, targets = package.make_friedman1(5000, n_features=10, noise=1.0, random_state=SPLIT)
    more = package.load_diabetes(scaled=False)
    inputs, targets = np.concatenate([inputs, more.data]), np.concatenate([targets, more.target])
    order = np.random.default_rng(SPLIT).permutation(len(inputs))
    return inputs[order], (targets / targets.std())[order][:, None]


def descriptions() -> str:
    """Return the descriptions of scikit-learn's data sets, one after another."""
    _package()
    texts = {each.name: each for each in resources.files(f"{PACKAGE}.descr").iterdir()}
    names = sorted(name for name in texts if name.endswith(".rst"))
    return "\n".join(texts[name].read_text(encoding="utf-8") for name in names)


def _package() -> Any:
    try:
        return import_module(PACKAGE)
    except ImportError:
        raise UserError(
            "scikit-learn: expected it for its data sets, found none; pip install scikit-learn"
        ) from None
