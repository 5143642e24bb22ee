"""Arrays in files: what a `.mat` or `.npz` file holds, learnt from its headers before anything large is loaded.

Nothing in a file is believed before it is checked: not how much it unpacks to, not the shapes it claims. Nothing
is ever unpacked to the disk, so no name in an archive leads anywhere.
"""

import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from natgrad_paper.errors import FieldError, UserError

Arrays = Mapping[str, Any]

NUMBERS = frozenset(
    {"double", "single", "logical", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""The kinds of arrays whose entries take eight bytes at most."""
PIECE = 1 << 20
"""Bytes unpacked at a time where they are only counted."""


@dataclass(frozen=True)
class Header:
    """What a file says about one of its arrays."""

    shape: tuple[int, ...]
    kind: str
    """The type of the numbers: `uint8`, `float64` (in MATLAB's words `double`), …"""


@dataclass(frozen=True)
class ArrayFile:
    """A file whose headers have been read, and that loads the arrays asked for."""

    where: str
    headers: Mapping[str, Header]
    load: Callable[[list[str]], Arrays]
    """Return the named arrays. No code in the file is ever run."""

    def header(self, field: str, expected: str) -> Header:
        """Return the header of a field that must be there."""
        if field not in self.headers:
            found = ", ".join(sorted(self.headers)) or "nothing"
            raise FieldError(self.where, field, expected, f"only {found}")
        return self.headers[field]

    def numbers(self, field: str, shape: tuple[int, ...], expected: str | None = None) -> None:
        """Make sure that a field says it holds real numbers, in this shape."""
        header = self.header(field, expected or f"shape {shape}")
        if header.shape != shape:
            raise FieldError(self.where, field, expected or f"shape {shape}", f"shape {header.shape}")
        if header.kind not in NUMBERS:
            raise FieldError(self.where, field, "real numbers", header.kind)

    def count_images(self, field: str, side: int, counts: range, expected: str) -> int:
        """Return how many square uint8 pictures a field says it holds, if it says so and that is not too many."""
        header = self.header(field, "an array of images")
        count = header.shape[0] if header.shape else 0
        if header.shape != (count, side, side) or count not in counts:
            raise FieldError(self.where, field, expected, f"shape {header.shape}")
        if header.kind != "uint8":
            raise FieldError(self.where, field, expected, header.kind)
        return count

    def whole_numbers(
        self, field: str, values: object, allowed: range, besides: int | None = None
    ) -> np.ndarray:
        """Return the loaded values as integers if each is a whole number in the range, `besides` excepted."""
        expected = f"whole numbers {allowed[0]} to {allowed[-1]}"
        expected += "" if besides is None else f" without {besides}"
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
            raise FieldError(
                self.where, field, expected, str(getattr(values, "dtype", type(values).__name__))
            )
        good = np.isin(values, [number for number in allowed if number != besides])
        if not good.all():
            place = tuple(np.argwhere(~good)[0])
            words = ", ".join(f"{name} {at}" for name, at in zip(("row", "column"), place, strict=False))
            raise FieldError(self.where, field, expected, f"{values[place]:g} at {words}")
        return values.astype(np.int32)


def open_arrays(path: Path, content: str, largest: int) -> ArrayFile:
    """Read the headers of a file of at most `largest` bytes; `content` says what it should hold."""
    where = str(path)
    if not path.is_file():
        raise UserError(f"{where}: expected a file with {content}, found none")
    if path.stat().st_size > largest:
        raise FieldError(where, "size", f"at most {largest} bytes", path.stat().st_size)
    packed = path.suffix == ".npz"
    try:
        if (_npz_size(path) if packed else _mat_size(path, largest)) > largest:
            raise FieldError(where, "size", f"at most {largest} bytes, unpacked", "more")
        headers, load = _npz(path) if packed else _mat(path)
    except UserError:
        raise
    except NotImplementedError:
        raise UserError(f"{path}: expected a MATLAB file of version 5 to 7, found 7.3 (HDF5)") from None
    except Exception as problem:  # scipy raises a dozen types on files that are not what they seem
        raise _unreadable(path, content, problem) from None

    def guarded(names: list[str]) -> Arrays:
        try:
            return load(names)
        except Exception as problem:
            raise _unreadable(path, content, problem) from None

    return ArrayFile(where, headers, guarded)


def _mat_size(path: Path, largest: int) -> int:
    """Return the bytes a MATLAB file of version 5 to 7 unpacks to, or something beyond `largest`: counted, not kept."""
    total = 0
    with path.open("rb") as stream:
        ending = stream.read(128)[126:]
        if ending not in (b"IM", b"MI"):  # Version 4, which packs nothing, or no such file: scipy will say.
            return total
        order = "<" if ending == b"IM" else ">"
        while total <= largest and len(tag := stream.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            if kind == 15:  # miCOMPRESSED
                total += _unpacked(stream.read(min(size, largest)), largest)
            else:
                total += size
                stream.seek(size, 1)
    return total


def _unpacked(packed: bytes, largest: int) -> int:
    """Return how many bytes a zlib stream unpacks to, or something beyond `largest`."""
    unpack, total = zlib.decompressobj(), 0
    while packed and total <= largest:
        total += len(unpack.decompress(packed, PIECE))
        packed = unpack.unconsumed_tail
    return total


def _npz_size(path: Path) -> int:
    """Return the bytes an archive says it unpacks to; zipfile reads no more of a member than that."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names) or not all(name.endswith(".npy") for name in names):
            raise ValueError("expected members with different names that end in .npy")
        return sum(member.file_size for member in archive.infolist())


def _mat(path: Path) -> tuple[dict[str, Header], Callable[[list[str]], Arrays]]:
    headers = {name: Header(tuple(shape), kind) for name, shape, kind in scipy.io.whosmat(path)}
    return headers, lambda names: scipy.io.loadmat(path, variable_names=names)


def _npz(path: Path) -> tuple[dict[str, Header], Callable[[list[str]], Arrays]]:
    headers = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            with archive.open(entry) as stream:
                first = np.lib.format.read_magic(stream) == (1, 0)
                read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
                shape, _, kind = read(stream)
                headers[entry.removesuffix(".npy")] = Header(shape, str(kind.newbyteorder("=")))

    def load(names: list[str]) -> Arrays:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}

    return headers, load


def _unreadable(path: Path, content: str, problem: Exception) -> UserError:
    kind = "an .npz" if path.suffix == ".npz" else "a MATLAB"
    detail = " ".join(str(problem).split()) or type(problem).__name__
    return UserError(f"{path}: expected {kind} file with {content}, found an unreadable one ({detail[:120]})")
