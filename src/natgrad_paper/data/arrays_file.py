"""Arrays in files: what a `.mat` or `.npz` file holds, learnt from its headers before anything large is loaded.

Nothing in a file is trusted before it is checked: neither its unpacked size nor the shapes it claims. Nothing is ever
unpacked to the disk, so names in an archive have no effect. No code in a file is ever run.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.io

from natgrad_paper.errors import FieldError, UserError

NUMBERS = frozenset(
    {"double", "single", "logical", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""The kinds of arrays whose entries take eight bytes at most."""
LARGEST = 1 << 30
"""The most bytes of a file, packed or not. The largest of the originals takes 250 MB."""
PIECE = 1 << 20
"""Bytes unpacked at a time when they are only counted."""


class Header(NamedTuple):
    """What a file says about one of its arrays."""

    shape: tuple[int, ...]
    kind: str
    """The type of the numbers: `uint8`, `float64` (in MATLAB's words `double`), …"""


class ArrayFile:
    """A `.mat` or `.npz` file: its headers are read when it is opened, its arrays when they are asked for."""

    def __init__(self, path: Path, content: str) -> None:
        """Read the headers; `content` says what the file should hold."""
        self.where, self._path, self._content = str(path), path, content
        self._npz = path.suffix == ".npz"
        if not path.is_file():
            raise UserError(f"{path}: expected a file with {content}, found none")
        if path.stat().st_size > LARGEST:
            raise FieldError(self.where, "size", f"at most {LARGEST} bytes", path.stat().st_size)
        with self._readable():
            if (_npz_size(path) if self._npz else _mat_size(path)) > LARGEST:
                raise FieldError(self.where, "size", f"at most {LARGEST} bytes, unpacked", "more")
            said = _npz_headers(path) if self._npz else scipy.io.whosmat(path)
            self.headers = {name: Header(tuple(shape), kind) for name, shape, kind in said}

    def header(self, field: str, expected: str) -> Header:
        """Return the header of a field that must be there."""
        if field not in self.headers:
            found = ", ".join(sorted(self.headers)) or "nothing"
            raise FieldError(self.where, field, expected, f"only {found}")
        return self.headers[field]

    def numbers(self, field: str, *shapes: tuple[int, ...]) -> None:
        """Make sure that a field says it holds real numbers, in one of these shapes."""
        header = self.header(field, f"shape {shapes[0]}")
        if header.shape not in shapes:
            raise FieldError(self.where, field, f"shape {shapes[0]}", f"shape {header.shape}")
        if header.kind not in NUMBERS:
            raise FieldError(self.where, field, "real numbers", header.kind)

    def count_images(self, field: str, side: int, counts: range, letter: str) -> int:
        """Return how many square uint8 pictures a field says it holds; refuse other contents, and too many."""
        header = self.header(field, "an array of images")
        expected = f"shape ({letter}, {side}, {side}), uint8, {letter} from {counts[0]} to {counts[-1]}"
        count = header.shape[0] if header.shape else 0
        if header.shape != (count, side, side) or count not in counts:
            raise FieldError(self.where, field, expected, f"shape {header.shape}")
        if header.kind != "uint8":
            raise FieldError(self.where, field, expected, header.kind)
        return count

    def load(self, *fields: str) -> list[np.ndarray]:
        """Return arrays whose headers have been checked. What a header calls numbers is numbers."""
        with self._readable():
            if self._npz:
                with np.load(self._path, allow_pickle=False) as archive:
                    found = [archive[field] for field in fields]
            else:
                everything = scipy.io.loadmat(self._path, variable_names=fields)
                found = [np.asarray(everything[field]) for field in fields]
        for field, array in zip(fields, found, strict=True):
            kind = self.headers[field].kind
            if kind == "uint8" and array.dtype != np.uint8:
                raise FieldError(self.where, field, "uint8", str(array.dtype))
            if kind in NUMBERS and array.dtype.kind not in "fiu":
                raise FieldError(self.where, field, "an array of real numbers", array.dtype)
        return found

    def whole_numbers(
        self, field: str, values: np.ndarray, allowed: range, besides: int | None = None
    ) -> np.ndarray:
        """Return the loaded values as integers if each is a whole number in the range, `besides` excepted."""
        good = np.isin(values, [number for number in allowed if number != besides])
        if not good.all():
            place = tuple(np.argwhere(~good)[0])
            words = ", ".join(f"{name} {at}" for name, at in zip(("row", "column"), place, strict=False))
            but = "" if besides is None else f" without {besides}"
            expected = f"whole numbers {allowed[0]} to {allowed[-1]}{but}"
            raise FieldError(self.where, field, expected, f"{values[place]:g} at {words}")
        return values.astype(np.int32)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn a library's many types of errors about a damaged file into one line."""
        try:
            yield
        except UserError:
            raise
        except NotImplementedError:
            raise UserError(
                f"{self.where}: expected a MATLAB file of version 5 to 7, found 7.3 (HDF5)"
            ) from None
        except Exception as problem:
            kind = "an .npz" if self._npz else "a MATLAB"
            detail = (" ".join(str(problem).split()) or type(problem).__name__)[:120]
            raise UserError(
                f"{self.where}: expected {kind} file with {self._content}, found an unreadable one ({detail})"
            ) from None


def _npz_headers(path: Path) -> Iterator[tuple[str, tuple[int, ...], str]]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            with archive.open(entry) as stream:
                first = np.lib.format.read_magic(stream) == (1, 0)
                read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
                shape, _, kind = read(stream)
                yield entry.removesuffix(".npy"), shape, str(kind.newbyteorder("="))


def _npz_size(path: Path) -> int:
    """Return the bytes an archive says it unpacks to; zipfile reads no more of a member than that."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names) or not all(name.endswith(".npy") for name in names):
            raise ValueError("expected members with different names that end in .npy")
        return sum(member.file_size for member in archive.infolist())


def _mat_size(path: Path) -> int:
    """Return the bytes a MATLAB file of version 5 to 7 unpacks to, or something beyond `LARGEST`: counted, not kept."""
    total = 0
    with path.open("rb") as stream:
        ending = stream.read(128)[126:]
        if ending not in (b"IM", b"MI"):  # Version 4, which packs nothing, or no such file: scipy will say.
            return total
        order = "<" if ending == b"IM" else ">"
        while total <= LARGEST and len(tag := stream.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            if kind != 15:  # not miCOMPRESSED
                total += size
                stream.seek(size, 1)
                continue
            packed, unpack = stream.read(min(size, LARGEST)), zlib.decompressobj()
            while packed and total <= LARGEST:
                total += len(unpack.decompress(packed, PIECE))
                packed = unpack.unconsumed_tail
    return total
