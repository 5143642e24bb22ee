"""Reading the original file: what fits is read, what does not is one line."""

import numpy as np
import pytest
import scipy.io

from natgrad_paper.data import curves, curves_file
from natgrad_paper.errors import UserError


def original(**changes):
    arrays = {"bdata": np.zeros((20_000, 784), np.uint8), "bdatatest": np.zeros((10_000, 784), np.uint8)}
    arrays |= changes
    return {name: value for name, value in arrays.items() if value is not None}


@pytest.mark.parametrize("suffix", ["mat", "npz"])
def test_what_is_written_is_read_back_under_its_own_name(tmp_path, suffix):
    images = curves.generate(train=30, test=5)
    path = tmp_path / f"curves.{suffix}"
    curves_file.write(path, images)
    again = curves_file.read(path)
    assert again.name == "Curves (regenerated)"
    assert again.sha256() == images.sha256()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_original_is_called_so(tmp_path):
    path = tmp_path / "digs3pts_1.mat"
    scipy.io.savemat(path, original(), do_compression=True)
    images = curves_file.read(path)
    assert images.name == "Curves (original)"
    assert images.train.dtype == np.float32
    assert images.first(100, 10).describe()["train"] == [100, 784]


def spoiled(value):
    """A file of ours may be short: its bad pixel is found as fast as it is written."""
    array = np.zeros((10, 784), np.result_type(value, np.float32))
    array[7, 3] = value
    return {"name": np.array(["Curves"]), "bdata": array, "bdatatest": np.zeros((5, 784))}


BAD = {
    "no training images": (original(bdata=None), "bdata: expected an array of images, found only bdatatest"),
    "no arrays": ({}, "bdata: expected an array of images, found only nothing"),
    "few rows": (original(bdata=np.zeros((3, 784))), "bdata: expected shape (20000, 784), found (3, 784)"),
    "transposed": (original(bdata=np.zeros((784, 3))), "bdata: expected shape (20000, 784), found (784, 3)"),
    "three axes": (original(bdata=np.zeros((2, 2, 2))), "expected shape (20000, 784), found (2, 2, 2)"),
    "no test rows": (original(bdatatest=np.zeros((0, 784))), "bdatatest: expected shape (10000, 784)"),
    "texts": (original(bdata=np.array(["a"])), "bdata: expected shape"),
    "not a number": (spoiled(np.nan), "bdata: expected finite pixels, found nan at row 7, column 3"),
    "infinite": (spoiled(np.inf), "bdata: expected finite pixels, found inf at row 7"),
    "too bright": (spoiled(255), "bdata: expected pixels between 0 and 1, found 0 to 255"),
    "negative": (spoiled(-0.5), "bdata: expected pixels between 0 and 1, found -0.5 to 0"),
    "complex": (spoiled(1j), "bdata: expected an array of real numbers, found dtype('complex"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_one_line(tmp_path, case):
    arrays, words = BAD[case]
    path = tmp_path / "digs3pts_1.mat"
    scipy.io.savemat(path, arrays, do_compression=True)
    with pytest.raises(UserError) as caught:
        curves_file.read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


FILES = {
    "empty.mat": b"",
    "text.mat": b"these are no images\n" * 20,
    "hdf5.mat": b"MATLAB 7.3 MAT-file" + b" " * 105 + b"\x00\x02IM" + b"\x00" * 400,
    "cut.mat": None,
    "empty.npz": b"",
    "text.npz": b"PK\x03\x04 but no archive",
    "objects.npz": "objects",
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_one_line(tmp_path, name):
    path = tmp_path / name
    content = FILES[name]
    if content is None:
        whole = tmp_path / "whole.mat"
        scipy.io.savemat(whole, original(), do_compression=True)
        content = whole.read_bytes()[:3000]
    if content == "objects":
        np.savez(path, bdata=np.array([{}], object), bdatatest=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        curves_file.read(path)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_a_huge_one_are_refused_unread(tmp_path):
    with pytest.raises(UserError, match="found none"):
        curves_file.read(tmp_path / "absent.mat")
    huge = tmp_path / "huge.mat"
    with huge.open("wb") as stream:
        stream.truncate(2 << 30)  # a hole: no space is taken
    with pytest.raises(UserError, match="size: expected at most"):
        curves_file.read(huge)


def test_wanting_more_than_there_is():
    with pytest.raises(UserError, match=r"training images: expected at least 11 \(data\.train\), found 10"):
        curves.generate(train=10, test=0).first(11, 0)


def test_writing_to_an_unknown_ending_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match=r"expected \.mat or \.npz, found \.png"):
        curves_file.write(tmp_path / "curves.png", curves.generate(train=2, test=2))
    assert list(tmp_path.iterdir()) == []
