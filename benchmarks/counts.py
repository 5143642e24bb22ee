"""How large the library is, and how much of it one step runs through: counts, for a reader to compare over time.

python benchmarks/counts.py
"""

import ast
import dataclasses
import inspect
import io
import pkgutil
import sys
import tokenize
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

import natgrad as ng

ROOT = Path(ng.__file__).parent
UNITS, BATCH, PART = (8, 6, 5, 3), 32, 8


def code_lines(source: str) -> int:
    """Return the lines that hold code: no blank lines, no comments, no string that stands alone."""
    silent = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    }  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if alone and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def public_names() -> list[str]:
    """Return what `ng.` offers, without modules."""
    names = getattr(ng, "__all__", None) or [name for name in dir(ng) if not name.startswith("_")]
    return [name for name in names if not isinstance(getattr(ng, name), ModuleType)]


def record_types() -> list[type]:
    """Return the NamedTuples and dataclasses that the library defines and `ng.` does not offer.

    A part or a choice of the user's is a public name, or a subclass or base of one: it is no record.
    """
    offered = [value for value in map(ng.__dict__.get, public_names()) if isinstance(value, type)]
    found: set[type] = set()
    for module in pkgutil.walk_packages([str(ROOT)], "natgrad."):
        try:
            loaded = import_module(module.name)
        except ImportError:  # an adapter to something that is not installed
            continue
        for value in vars(loaded).values():
            if isinstance(value, type) and value.__module__.startswith("natgrad"):
                found.add(value)
    kept = [
        value
        for value in found
        if (dataclasses.is_dataclass(value) or (issubclass(value, tuple) and hasattr(value, "_fields")))
        and not any(issubclass(value, other) or issubclass(other, value) for other in offered)
    ]
    return sorted(kept, key=lambda value: (value.__module__, value.__qualname__))


def model(params: Any, x: jax.Array) -> jax.Array:
    """Apply a few dense layers."""
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["weights"] + layer["biases"])
    return x @ params[-1]["weights"] + params[-1]["biases"]


def traced(build: Callable[..., Any], apart: bool, within: Callable[[Callable[[], Any]], Any]) -> int:
    """Trace one step, as `within` pleases, and return how often it called the model."""
    calls = 0

    def counted(params: Any, x: jax.Array) -> jax.Array:
        nonlocal calls
        calls += 1
        return model(params, x)

    params = [
        {"weights": jnp.ones((rows, columns)), "biases": jnp.zeros(columns)}
        for rows, columns in pairwise(UNITS)
    ]
    x, t = jnp.ones((BATCH, UNITS[0])), jnp.ones((BATCH, UNITS[-1]))
    opt = build(counted, ng.Bernoulli())
    state = opt.init(params)
    probe = {"metric_inputs": x[:PART], "ratio_batch": (x[:PART], t[:PART])} if apart else {}
    calls = 0
    within(lambda: jax.make_jaxpr(lambda p, s: opt.step(p, s, (x, t), **probe))(params, state))
    return calls


def watched(build: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """Return the files whose functions a traced step calls, and the record types that it makes."""
    files: set[str] = set()
    made: set[str] = set()
    records = record_types()

    def look(frame: Any, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT)):
            files.add(str(Path(path).relative_to(ROOT)))

    def run(trace: Callable[[], Any]) -> None:
        undo = [_announce(record, made) for record in records]
        sys.setprofile(look)
        try:
            trace()
        finally:
            sys.setprofile(None)
            for restore in undo:
                restore()

    traced(build, False, run)
    return sorted(files), sorted(made)


def _announce(record: type, made: set[str]) -> Callable[[], None]:
    """Let a record type note that it was made, and return how to undo that.

    A tuple is caught where it is made, a dataclass where it is filled. `_replace` goes unseen.
    """
    title = f"{record.__module__.removeprefix('natgrad.')}.{record.__qualname__}"
    name = "__new__" if issubclass(record, tuple) else "__init__"
    own = record.__dict__.get(name)
    original = inspect.getattr_static(record, name)
    function = original.__func__ if isinstance(original, staticmethod) else original

    def noting(*args: Any, **kwargs: Any) -> Any:
        made.add(title)
        return function(*args, **kwargs)

    setattr(record, name, staticmethod(noting) if name == "__new__" else noting)
    return lambda: delattr(record, name) if own is None else setattr(record, name, own)


def main() -> None:
    sources = [path.read_text() for path in sorted(ROOT.rglob("*.py"))]
    total = sum(len(source.splitlines()) for source in sources)
    print(f"lines in {len(sources)} files: {total:,}; of code: {sum(map(code_lines, sources)):,}")
    print(f"public names, without modules: {len(public_names())}")
    files, records = watched(ng.natural_gradient)
    print(f"one traced step of NGD runs through {len(files)} files: {', '.join(files)}")
    print(f"and makes {len(records)} types of records that are not public: {', '.join(records)}")
    cases = {
        "NGD, whole batch": (ng.natural_gradient, False),
        "KNCG, metric and ratio batch apart": (ng.kncg, True),
        "hessian_free, metric and ratio batch apart": (ng.hessian_free, True),
    }
    for title, (build, apart) in cases.items():
        print(f"calls of the model in tracing, {title}: {traced(build, apart, lambda trace: trace())}")


if __name__ == "__main__":
    main()
