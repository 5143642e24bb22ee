"""What an optimizer is made of: small objects whose structure is static and whose numbers are leaves.

A part is a frozen dataclass and a pytree. Its floats, and the parts inside it, are children; integers, strings and
functions are structure. So a jitted step takes the whole optimizer as an argument. A new number compiles nothing, and
numbers can be traced, scheduled and mapped over by `jax.vmap`.
"""

from collections.abc import Callable
from dataclasses import fields
from enum import IntEnum
from functools import partial
from typing import Any

import jax
import numpy as np

CHILDREN = "_children"
"""A rebuilt part keeps the names of its children here: a transformed value may no longer look like a child."""


class Part:
    """The base of every part. An object whose class is not itself a dataclass is structure as a whole."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_with_keys(cls, _with_keys, partial(_rebuilt, cls), _split)


class Named(IntEnum):
    """An integer that a step returns as an array, and its name."""

    @classmethod
    def name_of(cls, value: Any) -> str:
        """Return the printable name of a (concrete) array of this kind."""
        return cls(int(value)).name.lower().replace("_", " ")


def require(condition: Callable[[], Any], otherwise: str) -> None:
    """Raise ValueError unless the condition holds. Traced numbers, and several at once, cannot be tested: they pass."""
    try:
        holds = bool(condition())
    except (jax.errors.ConcretizationTypeError, ValueError):
        return
    if not holds:
        raise ValueError(otherwise)


def is_built_in(part: Any) -> bool:
    """Tell whether a part and all parts inside it are the library's own and not a user's."""
    if isinstance(part, tuple):
        return all(map(is_built_in, part))
    if not isinstance(part, Part):
        return True
    own = type(part).__module__.partition(".")[0] == __name__.partition(".")[0]
    return own and all(map(is_built_in, vars(part).values()))


def _split(part: Part) -> tuple[tuple[Any, ...], Any]:
    if "__dataclass_fields__" not in vars(type(part)):
        return (), part
    known = vars(part).get(CHILDREN)
    names, children, static = [], [], []
    for field in fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        numeric = "float" in str(field.type)
        if known is None and numeric:
            value = tuple(map(_as_float, value)) if isinstance(value, tuple) else _as_float(value)
        if _is_child(value, numeric) if known is None else field.name in known:
            names.append(field.name)
            children.append(value)
        else:
            static.append((field.name, value))
    return tuple(children), (tuple(names), tuple(static))


def _with_keys(part: Part) -> tuple[tuple[Any, ...], Any]:
    children, structure = _split(part)
    names = structure[0] if children else ()
    keys = (jax.tree_util.GetAttrKey(name) for name in names)
    return tuple(zip(keys, children, strict=True)), structure


def _rebuilt(cls: type, structure: Any, children: Any) -> Any:
    if isinstance(structure, Part):
        return structure
    # __init__ is not called: a child may be a tracer, or what a transformation puts in its place, such as None.
    part: Any = object.__new__(cls)
    names, static = structure
    for name, value in (*zip(names, children, strict=True), *static, (CHILDREN, names)):
        object.__setattr__(part, name, value)
    return part


def _as_float(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _is_child(value: Any, numeric: bool) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(_is_child(each, numeric) for each in value)
    if isinstance(value, (float, np.floating)):
        return numeric
    return isinstance(value, (np.ndarray, jax.Array, Part))
