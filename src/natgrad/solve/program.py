"""One compiled program per operator: a solver called twice on the same function compiles once."""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax

_programs: WeakKeyDictionary[Any, dict[Any, tuple[list, Callable]]] = WeakKeyDictionary()
"""For each operator: by solver and preconditioner, what the functions read and the program. They die together."""


def program(function: Callable, solver: Any, matvec: Any, preconditioner: Any) -> Callable:
    """Return jit(function(solver, matvec, preconditioner, …)), the same one for the same operators.

    As under `jax.jit`, an operator must be pure. A variable of a function, or an attribute of an object, that
    holds something new makes a new program. An array changed in place does not.
    """
    try:
        known = _programs.setdefault(matvec, {})
        reads, found = known.get((solver, preconditioner), ([], None))
    except TypeError:  # Something has no hash, or no weak references: nothing is remembered of it.
        return jax.jit(lambda *data: function(solver, matvec, preconditioner, *data))
    now = [*_reads(matvec), *_reads(preconditioner)]
    if found is None or len(reads) != len(now) or any(a is not b for a, b in zip(reads, now, strict=True)):
        # A strong reference would keep the operator, and so this entry, alive for ever.
        operator = ref(matvec)
        found = jax.jit(lambda *data: function(solver, operator(), preconditioner, *data))
        known[solver, preconditioner] = now, found
    return found


def _reads(operator: Any) -> list:
    """Return what a function or an object finds outside its arguments."""
    if isinstance(operator, FunctionType):
        outside = inspect.getclosurevars(operator)
        return [*outside.nonlocals.values(), *outside.globals.values(), *(operator.__defaults__ or ())]
    return list(getattr(operator, "__dict__", {}).values())
