"""Settings: pydantic models whose fields have a meaning and a default. A preset says only what differs.

An error is one line: the file or option, the field, what was expected there and what was found.
"""

import difflib
import errno
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from natgrad_paper.errors import FieldError, UserError

LONGEST = 1 << 20
"""The most bytes that a file of settings may have."""

WORDS = {
    "missing": "a value",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "dict_type": "a table of fields",
    "model_type": "a table of fields",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}
"""What was expected, by the type of pydantic's error."""
Count = Annotated[int, Field(ge=1, le=10**9)]
Size = Annotated[int, Field(ge=1, le=100_000)]
"""A size of something that takes memory."""
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
CHOOSING = 100
"""Seeds from here on are for choosing settings, smaller ones for results."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """A group of settings. The text below a field is its meaning."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, validate_default=True
    )
    rivals: ClassVar[tuple[str, ...]] = ()
    """Fields of which only one can be set: a preset or an option that sets one unsets the others."""


Kind = TypeVar("Kind", bound=Section)


def unfit(field: str, expected: str, found: Any) -> NoReturn:
    """Refuse, in a validator, fields that do not fit together."""
    raise PydanticCustomError("unfit", "{expected}", {"field": field, "expected": expected, "found": found})


class Preset(NamedTuple):
    """What a preset says."""

    name: str
    about: str
    """One line."""
    methods: tuple[str, ...]
    """The methods that run unless others are named; none if the preset does not say."""
    changes: dict[str, Any]
    """What differs from the defaults, as nested tables."""
    where: str
    """The preset's file, for errors."""


class _Said(Section):
    """What a preset may hold beside its settings."""

    about: str = ""
    extends: str = ""
    """Another preset of the same file, whose values hold where this one says nothing."""
    methods: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None


def presets(path: Path, kind: type[Section]) -> dict[str, Preset]:
    """Return the presets of a file, one table each, in its order; `kind` is the type of their settings."""
    known: dict[str, Preset] = {}
    tables = _parsed(path)
    return {name: _preset(tables, name, str(path), kind, known) for name in tables}


def preset_file(path: Path, kind: type[Section], known: Mapping[str, Preset]) -> Preset:
    """Return the preset in a user's file: its top-level tables are changes to the defaults or to a known preset."""
    own = f"{path.stem} (a file)"  # A known preset may have the file's name.
    found = _preset({own: _parsed(path)}, own, str(path), kind, dict(known))
    return found._replace(name=path.stem)


def _preset(
    tables: Mapping[str, Any],
    name: str,
    where: str,
    kind: type[Section],
    known: dict[str, Preset],
    seen: tuple[str, ...] = (),
) -> Preset:
    """Return a preset, and add it and the presets it extends to the known ones."""
    if name in known:
        return known[name]
    table = tables.get(name)
    if name in seen or (table is None and seen):
        others = [other for other in (*tables, *known) if other not in seen]
        raise FieldError(where, "extends", nearest(name, others), name)
    if not isinstance(table, dict):
        raise FieldError(where, name, "a table of fields", table)
    said = build(_Said, {key: table[key] for key in _Said.model_fields if key in table}, where)
    changes = {key: value for key, value in table.items() if key not in _Said.model_fields}
    known_fields = [*_Said.model_fields, *kind.model_fields]
    for key in changes:
        if key not in known_fields:
            raise FieldError(where, key, nearest(key, known_fields), "an unknown field")
    methods = said.methods or ()
    if said.extends:
        base = _preset(tables, said.extends, where, kind, known, (*seen, name))
        methods, changes = said.methods or base.methods, merged(kind, base.changes, changes)
    known[name] = Preset(name, said.about, methods, changes, where)
    return known[name]


def overrides(options: Sequence[str], name: str = "--set") -> dict[str, Any]:
    """Return what `--set` options change, as nested tables."""
    changes: dict[str, Any] = {}
    for option in options:
        changes = merged(None, changes, _parsed_option(option, name))
    return changes


def merged(
    kind: type[Section] | None, table: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a table with changes. Tables are merged; of the `rivals` of a kind only the changed one stays."""
    rivals = kind.rivals if kind is not None else ()
    away = rivals if any(name in changes for name in rivals) else ()
    result = {name: value for name, value in table.items() if name not in away}
    for name, value in changes.items():
        inner = _section(kind, name)
        if isinstance(value, Mapping) and isinstance(result.get(name), Mapping):
            value = merged(inner, result[name], value)
        result[name] = value
    return result


def build(kind: type[Kind], table: Mapping[str, Any], where: str) -> Kind:
    """Return the settings in a table, read strictly; `where` names their source in errors."""
    try:
        return kind.model_validate(table)
    except ValidationError as problem:
        _refuse(kind, problem, where)


def changed(kind: type[Kind], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a kind with changes, one after another, as plain tables to be built."""
    table = stated(kind())
    for each in changes:
        table = merged(kind, table, each)
    return table


def stated(section: Section) -> dict[str, Any]:
    """Return settings as plain tables; a field that is not set is absent."""
    return section.model_dump(mode="json", exclude_none=True)


class Described(NamedTuple):
    """A field of the settings."""

    name: str
    """The dotted name, as `--set` takes it."""
    about: str
    default: Any
    value: Any


def described(settings: Section, default: Section | None = None, prefix: str = "") -> Iterator[Described]:
    """Yield every field with its meaning, default and value, section by section."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        usual = getattr(default, name, field.get_default(call_default_factory=True))
        if isinstance(value, Section):
            yield from described(value, usual if isinstance(usual, Section) else None, f"{prefix}{name}.")
        else:
            yield Described(prefix + name, " ".join((field.description or "").split()), usual, value)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the known name most like this one, or all of them, as words for an error."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"{close[0]!r}" if close else "one of " + ", ".join(known)


def text(path: Path) -> str:
    """Return the text of a settings file; refuse a file that is too large to be one."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a file", str(path))
    if path.stat().st_size > LONGEST:
        raise OSError(errno.EFBIG, f"more than {LONGEST} bytes", str(path))
    return path.read_text(encoding="utf-8")


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text(path))
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "not UTF-8 text"
        raise UserError(f"{path}: expected a readable TOML file, found none ({reason})") from None
    except (ValueError, RecursionError) as problem:  # A number of many digits is a bare ValueError.
        raise UserError(f"{path}: expected TOML, found an error: {' '.join(str(problem).split())}") from None


def _parsed_option(option: str, called: str) -> dict[str, Any]:
    name, sign, value = option.partition("=")
    if not sign:
        raise UserError(f"{called} {option}: expected field=value, found no '='")
    # A bare word counts as a text, because shells remove quotes.
    for words in (value.strip(), f'"{value.strip()}"'):
        try:
            return tomllib.loads(f"{name.strip()} = {words}")
        except (ValueError, RecursionError):
            continue
    raise UserError(f"{called} {option}: expected field=value in TOML, found something else")


def _section(kind: type[Section] | None, name: str) -> type[Section] | None:
    field = None if kind is None else kind.model_fields.get(name)
    inner = None if field is None else field.annotation
    return inner if isinstance(inner, type) and issubclass(inner, Section) else None


def _refuse(kind: type[Section], problem: ValidationError, where: str) -> NoReturn:
    """Raise an error with the first field that does not fit, in one line."""
    first = problem.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    if first["type"] == "unfit":
        context = first["ctx"]
        raise FieldError(
            where, ".".join([*location, context["field"]]), context["expected"], context["found"]
        )
    field = ".".join(location)
    if first["type"] == "extra_forbidden":
        owner: type[Section] | None = kind
        for name in location[:-1]:
            owner = _section(owner, name)
        raise FieldError(
            where, field, nearest(location[-1], list((owner or kind).model_fields)), "an unknown field"
        )
    found = "nothing" if first["type"] == "missing" else first["input"]
    raise FieldError(where, field or "all", _expected(first), found)


def _expected(error: Any) -> str:
    """Return pydantic's sentence in this package's words."""
    words = WORDS.get(error["type"], error["msg"].removeprefix("Input should be "))
    return words.format(**error.get("ctx", {}))
