"""Your own training loop, shorter: an iterator over steps, and their numbers for a logger."""

import math
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import jax
import numpy as np
from jax import Array

from natgrad.optimizer import Optimizer
from natgrad.state import Info, State
from natgrad.tree import Tree


def loop(
    opt: Optimizer,
    params: Tree,
    batches: Iterable[Any],
    *,
    state: State | None = None,
    context: Tree = None,
    key: Array | None = None,
    progress: bool = False,
) -> Iterator[tuple[Tree, State, Info]]:
    """Yield (params, state, info) after each step.

        for params, state, info in ng.loop(opt, params, batches, progress=True):
            logger.log(ng.scalars(info))

    Args:
        opt: From a recipe.
        params: The parameters to start from.
        batches: One item a step: a batch, or a dict of `opt.step`'s arguments, `batch` among them.
        state: To go on from; default: `opt.init(params, key)`.
        context: The model's third argument. After a step of a `Stateful` model, its new one; an item may bring its own.
        key: Of `opt.init`.
        progress: Show a bar, with the loss and λ (needs the package rich).
    """
    state = opt.init(params, key) if state is None else state
    for item in _shown(batches) if progress else _plain(batches):
        given = item.batch if isinstance(item.batch, dict) else {"batch": item.batch}
        params, state, info = opt.step(params, state, **({"context": context} | given))
        context = context if info.context is None else info.context
        item.show(info)
        yield params, state, info


def scalars(info: Info, prefix: str = "") -> dict[str, float]:
    """Return what a step shows as a flat dict of Python floats, for TensorBoard, Weights & Biases or a CSV file.

    What was not measured (NaN) is left out; so is the context. Several step sizes are numbered.
    """
    host = jax.device_get(info._replace(context=None, solver=None))._asdict()
    if info.solver is not None:
        host |= {f"solver/{name}": value for name, value in jax.device_get(info.solver)._asdict().items()}
    flat: dict[str, float] = {}
    for name, value in host.items():
        numbers = [] if value is None else np.ravel(value).astype(float).tolist()
        for i, number in enumerate(numbers):
            if not math.isnan(number):
                flat[f"{prefix}{name}" if len(numbers) == 1 else f"{prefix}{name}/{i}"] = number
    return flat


class _Item:
    """A batch, and a place to show how its step went."""

    def __init__(self, batch: Any, bar: Any = None):
        self.batch = batch
        self._bar = bar

    def show(self, info: Info) -> None:
        if self._bar is not None:
            text = f"loss {float(info.loss):.4g}  λ {float(info.damping):.2g}"
            self._bar.update(self._bar.task_ids[0], advance=1, description=text)


def _plain(batches: Iterable[Any]) -> Iterator[_Item]:
    return (_Item(batch) for batch in batches)


def _shown(batches: Iterable[Any]) -> Iterator[_Item]:
    try:
        from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        raise ImportError("progress=True shows its bar with rich: pip install rich.") from None

    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        bar.add_task("first step", total=len(batches) if isinstance(batches, Sized) else None)
        for batch in batches:
            yield _Item(batch, bar)
