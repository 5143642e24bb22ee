"""The one error a user can cause: it is shown as a single line, and the command ends with code 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class UserError(Exception):
    """Something that the user gave cannot be used. The message is one line that says what and why."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        # The value found may hold control characters, and a terminal obeys some of them.
        shown = (letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
        super().__init__("".join(shown))


class FieldError(UserError):
    """A value does not fit. The message names its place, what was expected there and what was found."""

    def __init__(self, where: str, field: str, expected: str, found: Any) -> None:
        self.where, self.field, self.expected, self.found = where, field, expected, found
        super().__init__(f"{where}: {field}: expected {expected}, found {_short(found)}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file being written to an error of the machine that names none, as for a full disk."""
    try:
        yield
    except OSError as problem:
        if problem.filename is not None:
            raise
        raise OSError(problem.errno, problem.strerror or str(problem), str(path)) from problem


def _short(value: Any, limit: int = 80) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return (text or "an empty text") if len(text) <= limit else text[: limit - 1] + "…"
