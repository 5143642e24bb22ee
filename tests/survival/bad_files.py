"""Data files that are not what they seem: how each is made, and what must be said of it."""

import io
import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io

DATA = ("curves", "faces", "glyphs")


@dataclass(frozen=True)
class Case:
    """A bad file of one of the three data sets: how it is made, and what the line must say."""

    data: str
    name: str
    content: object
    """Arrays by name, bytes, or a function that makes something at a path."""
    words: str


def write(path, content):
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    else:
        scipy.io.savemat(path, content, do_compression=True)


def good(data):
    """Return arrays that are read without complaint."""
    if data == "curves":
        return {
            "name": np.array(["Some curves"]),
            "bdata": np.zeros((220, 784)),
            "bdatatest": np.zeros((60, 784)),
        }
    if data == "faces":
        folds = np.tile(np.array([[1], [2], [3], [0]], np.uint8), (3, 5))
        labels = np.tile(np.array([[1], [2], [3], [-1]], np.int16), (3, 1))
        return {"images": np.ones((12, 48, 48), np.uint8), "labs_ex": labels, "folds": folds}
    labels = np.arange(124) % 62
    return {"images": np.ones((124, 32, 32), np.uint8), "labels": labels}


def with_(data, **changes):
    arrays = good(data) | changes
    return {name: value for name, value in arrays.items() if value is not None}


def at(array, place, value, kind=None):
    array = np.array(array, kind)
    array[place] = value
    return array


def npy(shape, kind="|u1", data=b"", version=1):
    """Return an .npy file whose header says what it likes."""
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def zipped(members):
    """Return an archive with these members, whatever their names."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


def claims(data, **headers):
    """Return an archive of good arrays, some of them replaced by a header alone."""
    members = []
    for name, array in good(data).items():
        stream = io.BytesIO()
        np.save(stream, array)
        members.append((f"{name}.npy", headers.get(name, stream.getvalue())))
    return zipped(members)


def mat(elements):
    """Return a MATLAB file of version 5 with these elements."""
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + b"".join(elements)


def element(kind, data, size=None):
    return struct.pack("<II", kind, len(data) if size is None else size) + data.ljust(
        -(-len(data) // 8) * 8, b"\x00"
    )


def matrix(name, shape, data, kind=9, size=None):
    """Return a matrix of uint8 (class 9) or another class, whose data may be shorter than it says."""
    inner = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    inner += element(1, name.encode()) + element(2, data, size)
    return element(14, inner)


def packed(data):
    stream = zlib.compress(data)
    return struct.pack("<II", 15, len(stream)) + stream


BOMB = 1100
"""Megabytes, from one packed: a little more than any reader takes."""


def mat_bomb(path):
    pack, piece = zlib.compressobj(1), bytes(1 << 20)
    data = pack.compress(struct.pack("<II", 14, 0xFFFFFFF0))
    data += b"".join(pack.compress(piece) for _ in range(BOMB)) + pack.flush()
    path.write_bytes(mat([struct.pack("<II", 15, len(data)) + data]))


def zip_bomb(path):
    piece = bytes(1 << 20)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as member,
    ):
        for _ in range(BOMB):
            member.write(piece)


def long_header(path):
    path.write_bytes(zipped([("a.npy", npy((3,), "|u1" + " " * (64 << 20), version=2))]))


class Trap:
    """Code that a careless reader would run."""

    def __reduce__(self):
        return os.mkdir, ("caught",)


def objects(field, data):
    return lambda path: np.savez(path, **with_(data, **{field: np.array([Trap()] * 3, object)}))


def hole(size):
    def make(path):
        with path.open("wb") as stream:
            stream.truncate(size)

    return make


TEN_GIGABYTES = 10 * 10**9
BIG = {"curves": "bdata", "faces": "images", "glyphs": "images"}
SMALL = {"curves": "name", "faces": "labs_ex", "glyphs": "labels"}


def files():
    """Return files that no data set has: of every kind, for each of the three readers."""
    for data in DATA:
        big, small = BIG[data], SMALL[data]
        rows = good(data)[big].shape[1:]
        for name, content, words in (
            ("absent.mat", lambda path: None, "expected a file with"), ("dir.npz", Path.mkdir, "expected a file with"),
            ("empty.mat", b"", "unreadable"), ("empty.npz", b"", "unreadable"),
            ("pipe.mat", os.mkfifo, "expected a file"),
            ("text.mat", b"no numbers\n" * 50, "unreadable"), ("text.npz", b"PK\x03\x04 no", "unreadable"),
            ("hdf5.mat", b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(99), "found 7.3 (HDF5)"),
            ("huge.mat", hole(2 << 30), "size: expected at most"),
            ("huge.npz", hole(2 << 30), "size: expected at most"),
            ("nothing.mat", {}, f"{big}: expected"), ("nothing.npz", {}, f"{big}: expected"),
            ("version9.mat", b"MATLAB".ljust(124) + b"\x00\x09IM" + bytes(99), "expected a MATLAB file"),
            ("cut.mat", lambda path, d=data: cut(path, good(d)), "expected"),
            ("cut.npz", lambda path, d=data: cut(path, good(d)), "unreadable"),
            ("objects.npz", objects(big, data), f"{big}: expected"),
            ("objects2.npz", objects(small, data), f"{small}: expected"),
            ("claim.npz", claims(data, **{big: npy((TEN_GIGABYTES // int(np.prod(rows)), *rows))}), f"{big}: expected"),
            ("kind.npz", claims(data, **{small: npy(good(data)[small].shape, f"|V{10**9}")}), f"{small}: expected"),
            ("short.npz", claims(data, **{big: npy(good(data)[big].shape)}), "unreadable"),
            ("negative.npz", claims(data, **{big: npy((-3, *rows))}), "expected"),
            ("header.npz", long_header, "unreadable"),
            ("twice.npz", zipped([("a.npy", npy((0,))), ("a", npy((TEN_GIGABYTES,)))]), "unreadable"),
            ("escape.npz", zipped([("../../caught/x.npy", npy((0,))), ("/caught.npy", npy((0,)))]), f"{big}: expected"),
            ("claim.mat", mat([matrix(big, (TEN_GIGABYTES // int(np.prod(rows)), *rows), b"")]), f"{big}: expected"),
            ("tag.mat", mat([element(14, b"", 0xFFFFFFF0)]), "size: expected at most"),
            ("inner.mat", mat([matrix(big, good(data)[big].shape, b"", size=0x7FFFFFF0)]), "expected"),
            ("inner2.mat", mat([packed(matrix(big, good(data)[big].shape, b"", size=0xFFFFFFF0))]), "expected"),
            ("cell.mat", mat([matrix(big, good(data)[big].shape, b"", kind=1)]), f"{big}: expected"),
        ):  # fmt: skip
            yield Case(data, name, content, words)
    # One reader opens them all.
    yield Case("curves", "bomb.npz", zip_bomb, "size: expected at most")
    yield Case("curves", "bomb.mat", mat_bomb, "size: expected at most")


def cut(path, arrays):
    write(path, arrays)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def arrays():
    """Return files with arrays that are not the data set's."""
    c, f, g = (good(data) for data in DATA)
    for data, changes, words in (
        ("curves", {"bdata": None}, "bdata: expected an array of images, found only bdatatest"),
        ("curves", {"bdatatest": None}, "bdatatest: expected an array of images"),
        ("curves", {"bdata": np.zeros((0, 784))}, "bdata: expected shape (20000, 784), found (0, 784)"),
        ("curves", {"bdata": np.zeros((20_001, 784), np.uint8)}, "bdata: expected shape (20000, 784), found (20001,"),
        ("curves", {"bdata": np.zeros((784, 220))}, "bdata: expected shape"),
        ("curves", {"bdata": np.zeros((220, 28, 28))}, "bdata: expected shape"),
        ("curves", {"bdatatest": np.zeros((60, 783))}, "bdatatest: expected shape"),
        ("curves", {"name": None}, "bdata: expected shape (20000, 784), found (220, 784)"),
        ("curves", {"bdata": at(c["bdata"], (7, 3), np.nan)}, "bdata: expected finite pixels, found nan at row 7"),
        ("curves", {"bdatatest": at(c["bdatatest"], (0, 0), -np.inf)}, "bdatatest: expected finite pixels, found -inf"),
        ("curves", {"bdata": at(c["bdata"], (0, 0), 255)}, "bdata: expected pixels between 0 and 1, found 0 to 255"),
        ("curves", {"bdata": at(c["bdata"], (0, 0), -0.1)}, "bdata: expected pixels between 0 and 1"),
        ("curves", {"bdata": c["bdata"] + 0.5j}, "bdata: expected"),
        ("curves", {"bdata": np.full((220, 784), "a")}, "bdata: expected"),
        ("curves", {"name": np.array(["Curves (original)"])}, "name: expected another name than the original's"),
        ("curves", {"name": np.array(["[/bold] $x$ \\frac"])}, "name: expected a plain text of at most 60 letters"),
        ("curves", {"name": np.array(["x" * 61])}, "name: expected a plain text of at most 60 letters"),
        ("curves", {"name": np.zeros(3)}, "name: expected a plain text"),
        ("curves", {"name": np.array(["a", "b"])}, "name: expected a plain text"),
        ("curves", {"bdata": np.zeros((199, 784))}, "training images: expected at least 200 (data.train), found 199"),
        ("curves", {"bdatatest": np.zeros((49, 784))}, "test images: expected at least 50 (data.test), found 49"),
        ("faces", {"images": None}, "images: expected an array of images, found only folds, labs_ex"),
        ("faces", {"labs_ex": None}, "labs_ex: expected shape (12, 1), found only folds, images"),
        ("faces", {"folds": None}, "folds: expected shape (12, 5), found only images, labs_ex"),
        ("faces", {"images": f["images"][:0]}, "images: expected shape (N, 48, 48), uint8"),
        ("faces", {"images": f["images"] / 255}, "images: expected shape (N, 48, 48), uint8"),
        ("faces", {"images": f["images"][:, :32, :32]}, "images: expected shape (N, 48, 48), uint8"),
        ("faces", {"labs_ex": f["labs_ex"].T}, "labs_ex: expected shape (12, 1), found shape (1, 12)"),
        ("faces", {"labs_ex": at(f["labs_ex"], (2, 0), 8)}, "labs_ex: expected whole numbers -1 to 7 without 0"),
        ("faces", {"labs_ex": at(f["labs_ex"], (2, 0), 0)}, "found 0 at row 2"),
        ("faces", {"labs_ex": at(f["labs_ex"], (2, 0), np.nan, float)}, "found nan at row 2"),
        ("faces", {"labs_ex": np.full((12, 1), "happy")}, "labs_ex: expected"),
        ("faces", {"labs_ex": np.full((12, 1), -1)}, "labs_ex: expected 1 to 7 where folds says train"),
        ("faces", {"folds": at(f["folds"], (1, 2), 4)}, "folds: expected whole numbers 0 to 3, found 4 at row 1"),
        ("faces", {"folds": f["folds"][:, :4]}, "folds: expected shape (12, 5), found shape (12, 4)"),
        ("faces", {"folds": np.ones_like(f["folds"])}, "folds"),
        ("glyphs", {"images": None}, "images: expected an array of images"),
        ("glyphs", {"labels": None}, "labels: expected shape (124,)"),
        ("glyphs", {"images": g["images"][:61]}, "images: expected shape (n, 32, 32), uint8, n from 62"),
        ("glyphs", {"images": g["images"].astype(np.int16)}, "images: expected shape (n, 32, 32), uint8"),
        ("glyphs", {"images": at(g["images"], 5, 0)}, "images: expected ink in every picture, found none in picture 5"),
        ("glyphs", {"labels": g["labels"][:-1]}, "labels: expected shape (124,)"),
        ("glyphs", {"labels": g["labels"] + 1}, "labels: expected whole numbers 0 to 61, found 62"),
        ("glyphs", {"labels": g["labels"] + 0.5}, "labels: expected whole numbers 0 to 61, found 0.5"),
        ("glyphs", {"labels": g["labels"] % 61}, "labels: expected each of 0 to 61 at least once, found no 61"),
        ("glyphs", {"labels": np.full(124, "a")}, "labels: expected"),
    ):  # fmt: skip
        for suffix in (
            ("npz",)
            if data == "glyphs" or any(value is None for value in changes.values())
            else ("npz", "mat")
        ):
            yield Case(data, f"arrays.{suffix}", with_(data, **changes), words)


CASES = [*files(), *arrays()]
