"""Pictures as records of a log: of the data, and of a model's reconstructions."""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from natgrad_paper.training.problem import Problem, Tree

SAMPLES = 12
"""Cases whose reconstructions are kept."""


def data_pictures(problem: Problem) -> Iterator[dict[str, Any]]:
    """Yield what the data look like, as records for a log."""
    for stage, images in (problem.sights or {}).items():
        yield pictures("data", stage, images, problem.lines)


def reconstructions(problem: Problem, params: Tree) -> Iterator[dict[str, Any]]:
    """Yield some cases and the model's reconstructions of them, as records for a log."""
    cases = problem.test or problem.train
    if problem.reconstruct is None or cases is None:
        return
    inputs = cases[0][:SAMPLES]
    made = np.asarray(problem.reconstruct(params, jnp.asarray(inputs)))
    yield pictures("original", "original", _levels(inputs.reshape(1, *made.shape)))
    yield pictures("reconstruction", "reconstruction", _levels(made[None]))


def pictures(what: str, title: str, images: np.ndarray, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Return images, bytes of shape (lines, columns, height, width), as a record for a log."""
    packed = base64.b64encode(np.ascontiguousarray(images).tobytes()).decode("ascii")
    shape = {"shape": list(images.shape), "images": packed}
    return {"record": "pictures", "what": what, "title": title, "labels": list(labels), **shape}


def _levels(images: np.ndarray) -> np.ndarray:
    """Return images in [0, 1] as bytes."""
    return np.round(255 * np.clip(np.nan_to_num(images), 0, 1)).astype(np.uint8)
