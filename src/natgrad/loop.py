"""A shorter training loop: an iterator over steps, and their numbers for a logger."""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from natgrad.averaging import Averaged
from natgrad.optimizer import Optimizer
from natgrad.state import Info
from natgrad.tree import Tree


def loop(
    opt: Optimizer | Averaged,
    params: Tree,
    batches: Iterable[Any],
    *,
    state: Any = None,
    context: Tree = None,
    key: Array | None = None,
) -> Iterator[tuple[Tree, Any, Info]]:
    """Yield (params, state, info) after each step.

        for params, state, info in ng.loop(opt, params, batches):
            logger.log(ng.scalars(info))

    The loop copies `params` and `state` once, so yours survive. Each step then takes over the buffers of the last
    one's parameters and state: copy what you keep longer than one turn.

    Args:
        opt: From a recipe, or `ng.Averaged` around one.
        params: The parameters to start from.
        batches: One item per step: a batch, or a dict of `opt.step`'s arguments, `batch` among them.
        state: The state to continue from; default: `opt.init(params, key)`.
        context: The model's third argument. A `Stateful` model replaces it after each step; an item may bring its own.
        key: The key for `opt.init`.
    """
    params = _copied(params)
    state = opt.init(params, key) if state is None else _copied(state)
    step = opt.step if opt.search.on_host else partial(_step, opt)
    for item in batches:
        given = item if isinstance(item, dict) else {"batch": item}
        params, state, info = step(params, state, **({"context": context} | given))
        context = context if info.context is None else info.context
        yield params, state, info


@partial(jax.jit, donate_argnums=(1, 2))
def _step(opt: Any, params: Tree, state: Any, **given: Any) -> tuple[Tree, Any, Info]:
    return opt.step(params, state, **given)


def _copied(values: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, values)


def scalars(info: Info, prefix: str = "") -> dict[str, float]:
    """Return the numbers of an `Info` as a flat dict of Python floats, for TensorBoard, Weights & Biases or a CSV file.

    Numbers that were not measured (NaN) are left out; so are the context and the aux. Several step sizes are numbered.
    """
    host = jax.device_get(info._replace(context=None, solver=None, aux=None))._asdict()
    if info.solver is not None:
        host |= {f"solver/{name}": value for name, value in jax.device_get(info.solver)._asdict().items()}
    flat: dict[str, float] = {}
    for name, value in host.items():
        numbers = [] if value is None else np.ravel(value).astype(float).tolist()
        for i, number in enumerate(numbers):
            if not math.isnan(number):
                flat[f"{prefix}{name}" if len(numbers) == 1 else f"{prefix}{name}/{i}"] = number
    return flat
