"""Reading MNIST's format: pictures come back as they were written, anything else is one line."""

import gzip
import struct

import numpy as np
import pytest
from picture_files import idx, pictures
from picture_files import write_idx as write

from natgrad_paper.data import idx_file
from natgrad_paper.errors import UserError

TRAIN, TEST = idx_file.FILES.values()


@pytest.mark.parametrize("packed", [False, True])
def test_pictures_come_back(tmp_path, packed):
    found = idx_file.read(write(tmp_path / "mine", packed=packed))
    assert found.train.dtype == np.float32
    np.testing.assert_array_equal(np.round(255 * found.train).reshape(9, 6, 6), pictures(9))
    np.testing.assert_array_equal(np.round(255 * found.test).reshape(4, 6, 6), pictures(4, seed=1))
    assert found.name == "pictures of mine"


GOOD = idx(pictures(9))
BAD = {
    "labels": (struct.pack(">2I", 0x801, 9) + bytes(9), "magic number: expected 0x00000803, found 0x00000801"),
    "text": (b"these are no pictures\n" * 5, "magic number: expected 0x00000803, found 0x74686573"),
    "floats": (idx(pictures(9), magic=0xD03), "magic number: expected 0x00000803, found 0x00000d03"),
    "little-endian": (struct.pack("<4I", 0x803, 9, 6, 6) + bytes(324), "found 0x03080000"),
    "empty": (b"", "header: expected 16 bytes, found 0"),
    "short header": (GOOD[:15], "header: expected 16 bytes, found 15"),
    "no rows": (idx(pictures(0)), "shape: expected at least (1, 1, 1), 268435456 bytes at most, found (0, 6, 6)"),
    "too large": (idx(pictures(9), shape=(2**31, 2, 2)), "found (2147483648, 2, 2)"),
    "cut": (GOOD[:-1], "pixels: expected 324 bytes, found 323"),
    "long": (GOOD + b"x", "pixels: expected 324 bytes, found more"),
    "other size": (idx(pictures(9, side=7)), "pictures of (7, 7), as for training, found (6, 6)"),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_one_line(tmp_path, case, packed):
    content, words = BAD[case]
    if content == b"":
        (write(tmp_path / "d", packed=packed) / (TRAIN + ".gz" * packed)).write_bytes(
            gzip.compress(b"") if packed else b""
        )
    else:
        write(tmp_path / "d", content, packed=packed)
    with pytest.raises(UserError) as caught:
        idx_file.read(tmp_path / "d")
    assert words in str(caught.value)
    assert str(tmp_path / "d") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_packed_files_cut_or_damaged_are_one_line(tmp_path):
    directory = write(tmp_path / "d", packed=True)
    path = directory / f"{TRAIN}.gz"
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    for content in (whole[: len(whole) // 2], whole[:-4], b"not packed at all", bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            idx_file.read(directory)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match="expected a directory with idx files, found none"):
        idx_file.read(tmp_path / "absent")
    directory = write(tmp_path / "d")
    (directory / TEST).unlink()
    with pytest.raises(UserError, match=f"{TEST}: expected this file, or the same with .gz, found neither"):
        idx_file.read(directory)


def test_a_users_mnist(users_mnist):
    found = idx_file.read(users_mnist)
    assert found.name == "MNIST"
    assert found.train.shape == (60_000, 784)
    assert found.test.shape == (10_000, 784)
