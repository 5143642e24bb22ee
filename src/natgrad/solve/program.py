"""One compiled program per operator: a solver called twice on the same function compiles once."""

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax

_programs: WeakKeyDictionary[Any, dict[Any, tuple[list, Callable]]] = WeakKeyDictionary()
"""For each matvec, by solver and preconditioner: what the operators read, and the program. An entry ends with its
matvec, so nothing here may keep the matvec alive: all references to operators and to what they read are weak."""


def program(function: Callable, solver: Any, matvec: Any, preconditioner: Any) -> Callable:
    """Return function(solver, matvec, preconditioner, …), jitted. Equal operators get the same program.

    As under `jax.jit`, an operator must be pure. If a variable of a function, or an attribute of an object, holds
    something new, a new program is made. An array that was changed in place goes unnoticed.
    """
    product, inverse = _hold(matvec), _hold(preconditioner)
    try:
        known = _programs.setdefault(matvec, {})
        reads, found = known.get((solver, inverse), ([], None))
    except TypeError:  # Something has no hash or no weak references, so its program is not kept.
        return jax.jit(lambda *data: function(solver, matvec, preconditioner, *data))
    now = [*_reads(matvec), *_reads(preconditioner)]
    same = len(reads) == len(now) and all(_held(a) is b for a, b in zip(reads, now, strict=True))
    if found is None or not same:
        found = jax.jit(lambda *data: function(solver, _held(product), _held(inverse), *data))
        known[solver, inverse] = [_hold(value) for value in now], found
    return found


def _reads(operator: Any) -> list:
    """Return what a function or an object reads besides its arguments."""
    if isinstance(operator, MethodType):
        return [*_reads(operator.__func__), *_reads(operator.__self__)]
    if isinstance(operator, partial):
        return [*_reads(operator.func), *operator.args, *operator.keywords.values()]
    if isinstance(operator, FunctionType):
        outside = inspect.getclosurevars(operator)
        return [*outside.nonlocals.values(), *outside.globals.values(), *(operator.__defaults__ or ())]
    return list(getattr(operator, "__dict__", {}).values())


def _hold(value: Any) -> Any:
    try:
        return ref(value)
    except TypeError:  # Numbers, tuples and the like have no weak references.
        return value


def _held(holder: Any) -> Any:
    return holder() if isinstance(holder, ref) else holder
