"""Data files that are not what they seem: one line with file, field, expected and found; no code run, no memory taken."""

import io
import os
import struct
import time
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from typer.testing import CliRunner

from natgrad_paper import cli
from natgrad_paper.data import curves_file, faces_file, glyphs
from natgrad_paper.errors import UserError

SECONDS, BYTES = 5.0, 400 << 20
READ = {"curves": curves_file.read, "faces": faces_file.read, "glyphs": glyphs.read}


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


def bomb(size):
    """Return a compressed element that unpacks to so many bytes."""
    pack = zlib.compressobj(9)
    data = pack.compress(struct.pack("<II", 14, 0xFFFFFFF0))
    piece = bytes(1 << 20)
    data += b"".join(pack.compress(piece) for _ in range(size >> 20)) + pack.flush()
    return struct.pack("<II", 15, len(data)) + data


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
    for data in READ:
        big, small = BIG[data], SMALL[data]
        rows = good(data)[big].shape[1:]
        for name, content, words in (
            ("absent.mat", lambda path: None, "expected a file with"), ("dir.npz", Path.mkdir, "expected a file with"),
            ("empty.mat", b"", "unreadable"), ("empty.npz", b"", "unreadable"), ("pipe.mat", os.mkfifo, "expected a file"),
            ("text.mat", b"no numbers\n" * 50, "unreadable"), ("text.npz", b"PK\x03\x04 no", "unreadable"),
            ("hdf5.mat", b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(99), "found 7.3 (HDF5)"),
            ("huge.mat", hole(2 << 30), "size: expected at most"), ("huge.npz", hole(2 << 30), "size: expected at most"),
            ("nothing.mat", {}, f"{big}: expected"), ("nothing.npz", {}, f"{big}: expected"),
            ("version9.mat", b"MATLAB".ljust(124) + b"\x00\x09IM" + bytes(99), "expected a MATLAB file"),
            ("cut.mat", lambda path, d=data: cut(path, good(d)), "unreadable"),
            ("cut.npz", lambda path, d=data: cut(path, good(d)), "unreadable"),
            ("objects.npz", objects(big, data), f"{big}: expected"), ("objects2.npz", objects(small, data), f"{small}: expected"),
            ("claim.npz", claims(data, **{big: npy((TEN_GIGABYTES // int(np.prod(rows)), *rows))}), f"{big}: expected"),
            ("kind.npz", claims(data, **{small: npy(good(data)[small].shape, f"|V{10**9}")}), f"{small}: expected"),
            ("short.npz", claims(data, **{big: npy(good(data)[big].shape)}), "unreadable"),
            ("negative.npz", claims(data, **{big: npy((-3, *rows))}), "expected"),
            ("header.npz", claims(data, **{big: npy((3,), "|u1" + " " * (64 << 20), version=2)}), "unreadable"),
            ("bomb.npz", zipped([("a.npy", bytes(3 << 29))]), "size: expected at most"),
            ("bomb.mat", mat([bomb(3 << 29)]), "size: expected at most"),
            ("twice.npz", zipped([("a.npy", npy((0,))), ("a", npy((TEN_GIGABYTES,)))]), "unreadable"),
            ("escape.npz", zipped([("../../caught/x.npy", npy((0,))), ("/tmp/caught.npy", npy((0,)))]), f"{big}: expected"),
            ("claim.mat", mat([matrix(big, (TEN_GIGABYTES // int(np.prod(rows)), *rows), b"")]), f"{big}: expected"),
            ("tag.mat", mat([element(14, b"", 0xFFFFFFF0)]), "size: expected at most"),
            ("inner.mat", mat([matrix(big, good(data)[big].shape, b"", size=0x7FFFFFF0)]), "expected"),
            ("inner2.mat", mat([packed(matrix(big, good(data)[big].shape, b"", size=0xFFFFFFF0))]), "expected"),
            ("cell.mat", mat([matrix(big, good(data)[big].shape, b"", kind=1)]), f"{big}: expected"),
        ):  # fmt: skip
            yield Case(data, name, content, words)


def cut(path, arrays):
    write(path, arrays)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def arrays():
    """Return files with arrays that are not the data set's."""
    c, f, g = (good(data) for data in READ)
    for data, changes, words in (
        ("curves", {"bdata": None}, "bdata: expected an array of images, found only bdatatest"),
        ("curves", {"bdatatest": None}, "bdatatest: expected an array of images"),
        ("curves", {"bdata": np.zeros((0, 784))}, "bdata: expected shape (20000, 784), found (0, 784)"),
        ("curves", {"bdata": np.zeros((20_001, 784), np.uint8)}, "bdata: expected shape (20000, 784), found (20001, 784)"),
        ("curves", {"bdata": np.zeros((784, 220))}, "bdata: expected shape"),
        ("curves", {"bdata": np.zeros((220, 28, 28))}, "bdata: expected shape"),
        ("curves", {"bdatatest": np.zeros((60, 783))}, "bdatatest: expected shape"),
        ("curves", {"name": None}, "bdata: expected shape (20000, 784), found (220, 784)"),
        ("curves", {"bdata": at(c["bdata"], (7, 3), np.nan)}, "bdata: expected finite pixels, found nan at row 7, column 3"),
        ("curves", {"bdatatest": at(c["bdatatest"], (0, 0), -np.inf)}, "bdatatest: expected finite pixels, found -inf at row 0"),
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
        ("faces", {"labs_ex": at(f["labs_ex"], (2, 0), 8)}, "labs_ex: expected whole numbers -1 to 7 without 0, found 8"),
        ("faces", {"labs_ex": at(f["labs_ex"], (2, 0), 0)}, "found 0 at row 2"),
        ("faces", {"labs_ex": at(f["labs_ex"], (2, 0), np.nan, float)}, "found nan at row 2"),
        ("faces", {"labs_ex": np.full((12, 1), "happy")}, "labs_ex: expected"),
        ("faces", {"labs_ex": np.full((12, 1), -1)}, "labs_ex: expected 1 to 7 where folds says train, valid or test, found -1"),
        ("faces", {"folds": at(f["folds"], (1, 2), 4)}, "folds: expected whole numbers 0 to 3, found 4 at row 1, column 2"),
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
        for suffix in ("npz",) if data == "glyphs" or None in changes.values() else ("npz", "mat"):
            yield Case(data, f"arrays.{suffix}", with_(data, **changes), words)


CASES = [*files(), *arrays()]


def peak():
    """Return the most memory this process has had since `forget_peak`, and what it has now: bytes, of Linux."""
    found = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(found[name].split()[0]) << 10 for name in ("VmHWM", "VmRSS"))


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5")


def refuse(case, directory):
    """Read a bad file; return the line, the seconds and the bytes it took."""
    directory.mkdir()
    path = directory / case.name
    write(path, case.content)
    forget_peak()
    before, began = peak()[1], time.perf_counter()
    if case.data == "curves":
        out = directory / "out"
        result = CliRunner().invoke(
            cli.app, ["run", "curves", "--preset", "smoke", "--data", str(path), "--out", str(out)]
        )
        assert result.exit_code == 2, (case.data, case.name, result.output, result.exception)
        assert result.output.count("\n") == 1, (case.data, case.name, result.output)
        line = result.output.strip()
    else:
        with pytest.raises(UserError) as caught:
            READ[case.data](path)
        line = str(caught.value)
    seconds, most = time.perf_counter() - began, peak()[0] - before
    assert str(path) in line, (case, line)
    assert case.words in line, (case.data, case.name, case.words, line)
    assert "expected" in line
    assert "found" in line
    assert "\n" not in line
    assert [entry.name for entry in directory.iterdir() if entry != path] == []
    assert not Path("caught").exists()
    path.is_fifo() or path.is_dir() or path.unlink(missing_ok=True)
    return seconds, most


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("memory is measured as Linux tells it")
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")


def refuse_all(tmp_path, cases):
    taken = [refuse(case, tmp_path / str(number)) for number, case in enumerate(cases)]
    slowest, largest = (max(column) for column in zip(*taken, strict=True))
    assert slowest < SECONDS
    assert largest < BYTES
    return f"the slowest in {slowest:.2f} s, the largest with {largest >> 20} MB"


def test_a_sample_is_one_line_each(tmp_path):
    chosen = np.random.default_rng(1).choice(len(CASES), 40, replace=False)
    refuse_all(tmp_path, [CASES[number] for number in chosen])


@pytest.mark.long
def test_all_are_one_line_each(tmp_path):
    found = refuse_all(tmp_path, CASES)
    print(f"{len(CASES)} malformed data files, {len(CASES)} refused in one line, {found}")
    assert len(CASES) >= 60


@pytest.mark.parametrize("suffix", ["npz", "mat"])
@pytest.mark.parametrize("data", READ)
def test_what_is_good_is_read(tmp_path, data, suffix):
    """So that no case is refused for another reason than its own."""
    write(tmp_path / f"good.{suffix}", good(data))
    assert READ[data](tmp_path / f"good.{suffix}").sha256()
