"""Reading a preset: a TOML file into frozen dataclasses, strictly.

A field's type says what may stand there; `Annotated` adds a rule in words. Whatever does not fit is
one line naming file, field, what was expected and what was found. A preset may also say which `methods` it is for:
they are no setting, and a log's config does not have them.
"""

import dataclasses
import difflib
import errno
import math
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from natgrad_paper.errors import FieldError, UserError

Config = TypeVar("Config")

LONGEST = 1 << 20
"""Bytes that a file of settings may have."""
LARGEST = 10**308
"""A whole number beyond this has no place in a float."""
WORDS = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false",
    dict: "a table of fields",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a value must satisfy beyond its type: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]


Count = Annotated[int, Rule("a whole number, at least 1", lambda n: n >= 1)]
Size = Annotated[
    int, Rule("a whole number from 1 to 100000", lambda n: 1 <= n <= 100_000)  # of what takes memory
]
Whole = Annotated[int, Rule("a whole number from 0 to 4294967295", lambda n: 0 <= n < 1 << 32)]  # a seed
Positive = Annotated[float, Rule("a finite number above 0", lambda x: math.isfinite(x) and x > 0)]
NonNegative = Annotated[float, Rule("a finite number, at least 0", lambda x: math.isfinite(x) and x >= 0)]


class Unfit(Exception):
    """Raised by a config's `__post_init__` when fields do not fit together; the reader adds the file."""

    def __init__(self, field: str, expected: str, found: Any) -> None:
        super().__init__(field, expected, found)


def load(kind: type[Config], path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """Return the file's config, without one the defaults, with overrides such as `full.maxiter=20` applied."""
    return read(kind, path, overrides)[0]


def read(
    kind: type[Config], path: Path | None, overrides: Sequence[str] = ()
) -> tuple[Config, tuple[str, ...]]:
    """Return the same config, and the names of the methods the file is for: none where it does not say."""
    table, where = ({}, "the defaults") if path is None else (_parsed(path), str(path))
    changes: dict[str, Any] = {}
    for override in overrides:
        _merge(changes, _parse_override(override))
    _make_way(kind, table, changes)
    _merge(table, changes)
    named = {"methods": table.pop("methods")} if "methods" in table else {}
    methods = build(_For, named, where).methods
    return typing.cast(Config, _section(kind, table, where, "", ("methods",))), methods


@dataclasses.dataclass(frozen=True)
class _For:
    """What a preset says besides its settings."""

    methods: Annotated[tuple[str, ...], Rule("a list of at least one method's name", bool)] = ()


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text(path))
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "not UTF-8 text"
        raise UserError(f"{path}: expected a readable TOML file, found none ({reason})") from None
    except (ValueError, RecursionError) as problem:  # A number of many digits is a bare ValueError.
        raise UserError(f"{path}: expected TOML, found an error: {' '.join(str(problem).split())}") from None


def text(path: Path) -> str:
    """Return the text of a file that a person wrote, or a program for one: something larger is not read."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a file", str(path))
    if path.stat().st_size > LONGEST:
        raise OSError(errno.EFBIG, f"more than {LONGEST} bytes", str(path))
    return path.read_text(encoding="utf-8")


def build(kind: type[Config], table: Mapping[str, Any], where: str) -> Config:
    """Return the dataclass `kind` made from a table; `where` names the source in errors."""
    return typing.cast(Config, _section(kind, table, where, ""))


def _section(kind: Any, table: Any, where: str, prefix: str, others: Sequence[str] = ()) -> Any:
    if not isinstance(table, Mapping):
        raise FieldError(where, prefix.rstrip("."), "a table of fields", table)
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in table:
        if name not in fields:
            raise FieldError(where, prefix + name, nearest(name, [*fields, *others]), "an unknown field")
    values = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _value(hints[name], table[name], where, prefix + name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FieldError(where, prefix + name, _words(hints[name]), "nothing")
    try:
        return kind(**values)
    except Unfit as misfit:
        name, expected, found = misfit.args
        raise FieldError(where, prefix + name, expected, found) from None


def _value(hint: Any, value: Any, where: str, field: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _section(hint, value, where, field + ".")
    kind, rules = _unwrap(hint)
    converted = _converted(kind, value)
    if converted is None or not all(rule.holds(converted) for rule in rules):
        raise FieldError(where, field, _words(hint), value)
    return converted


def _converted(kind: Any, value: Any) -> Any:
    """Return the value as `kind`, or None when it is not one. A bool is not a number."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return value if value in arguments and isinstance(value, type(arguments[0])) else None
    if origin is tuple:
        items = [_converted(arguments[0], item) for item in value] if isinstance(value, list) else [None]
        return None if None in items else tuple(items)
    if kind is float and type(value) is int:
        return float(value) if abs(value) < LARGEST else None
    return value if type(value) is kind else None


def _unwrap(hint: Any) -> tuple[Any, list[Rule]]:
    """Return the bare type and its rules. An optional field is absent from the file, never null in it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is Annotated:
        kind, *rules = typing.get_args(hint)
        return kind, [rule for rule in rules if isinstance(rule, Rule)]
    return hint, []


def _words(hint: Any) -> str:
    if dataclasses.is_dataclass(hint):
        return WORDS[dict]
    kind, rules = _unwrap(hint)
    if rules:
        return " and ".join(rule.words for rule in rules)
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(repr(option) for option in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "a list of " + WORDS[typing.get_args(kind)[0]].removeprefix("a ") + "s"
    return WORDS[kind]


def nearest(name: str, known: list[str]) -> str:
    """Return the known name most like this one, or all of them, as words for an error."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"{close[0]!r}" if close else "one of " + ", ".join(known)


def _parse_override(text: str) -> dict[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise UserError(f"--set {text}: expected field=value, found no '='")
    try:
        return tomllib.loads(f"{name.strip()} = {value.strip()}")
    except (ValueError, RecursionError):
        pass
    try:  # A bare word is a text: quotes rarely survive a shell.
        return tomllib.loads(f'{name.strip()} = "{value.strip()}"')
    except (ValueError, RecursionError):
        raise UserError(f"--set {text}: expected field=value in TOML, found something else") from None


def _make_way(kind: Any, table: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Remove from a file's table what a change takes the place of: the other of a section's `rivals`."""
    rivals: tuple[str, ...] = getattr(kind, "rivals", ())
    if any(name in changes for name in rivals):
        for name in rivals:
            table.pop(name, None)
    for field in dataclasses.fields(kind):
        inner, change = table.get(field.name), changes.get(field.name)
        hint = typing.get_type_hints(kind)[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(inner, dict) and isinstance(change, Mapping):
            _make_way(hint, inner, change)


def _merge(table: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(table.get(name), dict):
            _merge(table[name], value)
        else:
            table[name] = value
