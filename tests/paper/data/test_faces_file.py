"""Reading faces: a file in the format of the Toronto Face Database is split, anything else is one line."""

import numpy as np
import pytest
from picture_files import tfd
from picture_files import write_arrays as write

from natgrad_paper.data import faces_file
from natgrad_paper.errors import UserError


def changed(name, row, column, value, dtype=None):
    array = tfd()[name].astype(dtype or tfd()[name].dtype)
    array[row, column] = value
    return tfd(**{name: array})


@pytest.mark.parametrize("fold", range(1, 6))
def test_a_fold_is_split_as_the_file_says(tmp_path, fold):
    arrays = tfd()
    faces = faces_file.read(write(tmp_path / "TFD_48x48.mat", arrays), fold)
    rows = {
        name: arrays["folds"][:, fold - 1] == code
        for code, name in enumerate(("unlabelled", "train", "valid", "test"))
    }
    for name in ("train", "valid", "test"):
        part = getattr(faces, name)
        np.testing.assert_array_equal(part.images, arrays["images"][rows[name]])
        np.testing.assert_array_equal(part.labels, arrays["labs_ex"][rows[name], 0] - 1)
        assert part.labels.dtype == np.int32
    np.testing.assert_array_equal(faces.unlabelled, arrays["images"][rows["unlabelled"]])
    assert (len(faces.train), len(faces.valid), len(faces.test), len(faces.unlabelled)) == (9, 1, 2, 8)
    assert faces.name == f"faces of TFD_48x48.mat, fold {fold}"
    assert faces.describe()["unlabelled"] == [8, 48, 48]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int8, np.int64, np.float64])
def test_minus_one_in_whatever_type(tmp_path, kind):
    labels = tfd()["labs_ex"].astype(np.int64).astype(kind)
    faces = faces_file.read(write(tmp_path / "faces.mat", tfd(labs_ex=labels)))
    assert len(faces.unlabelled) == 8
    assert faces.train.labels.tolist() == [2, 3, 4, 6, 0, 1, 2, 3, 4]


def test_an_npz_file_serves_as_well(tmp_path):
    one = faces_file.read(write(tmp_path / "faces.npz", tfd()))
    other = faces_file.read(write(tmp_path / "faces.mat", tfd()))
    assert one.sha256() == other.sha256()
    assert one.sha256() != faces_file.read(tmp_path / "faces.npz", 2).sha256()


def test_fewer_are_the_first(tmp_path):
    faces = faces_file.read(write(tmp_path / "faces.mat", tfd()))
    few = faces.first(3, 1, 2, 5)
    np.testing.assert_array_equal(few.train.images, faces.train.images[:3])
    np.testing.assert_array_equal(few.unlabelled, faces.unlabelled[:5])
    with pytest.raises(
        UserError, match=r"faces of faces\.mat, fold 1: 9 unlabelled images wanted, the data has 8"
    ):
        faces.first(3, 1, 2, 9)


IMAGES = "images: expected shape (N, 48, 48), uint8, N from 1 to 400000, found "
LABELS = "labs_ex: expected whole numbers -1 to 7 without 0, found "
FOLDS = "folds: expected whole numbers 0 to 3, found "
BAD = {
    "no images": (tfd(images=None), "images: expected an array of images, found only folds, labs_ex, labs_id"),
    "no labels": (tfd(labs_ex=None), "labs_ex: expected shape (20, 1), found only folds, images, labs_id"),
    "no folds": (tfd(folds=None), "folds: expected shape (20, 5), found only images, labs_ex, labs_id"),
    "nothing": ({}, "images: expected an array of images, found only nothing"),
    "no rows": (tfd(images=np.zeros((0, 48, 48), np.uint8)), IMAGES + "shape (0, 48, 48)"),
    "other size": (tfd(images=np.zeros((20, 96, 96), np.uint8)), IMAGES + "shape (20, 96, 96)"),
    "flat": (tfd(images=np.zeros((20, 2304), np.uint8)), IMAGES + "shape (20, 2304)"),
    "floats": (tfd(images=np.full((20, 48, 48), 0.5)), IMAGES + "double"),
    "whole floats": (tfd(images=np.ones((20, 48, 48))), IMAGES + "double"),
    "not numbers": (tfd(images=np.full((20, 48, 48), np.nan)), IMAGES + "double"),
    "complex": (tfd(images=np.full((20, 48, 48), 1j)), IMAGES + "double"),
    "fewer labels": (tfd(labs_ex=np.ones((19, 1))), "labs_ex: expected shape (20, 1), found shape (19, 1)"),
    "labels in a row": (tfd(labs_ex=np.ones((1, 20))), "labs_ex: expected shape (20, 1), found shape (1, 20)"),
    "four folds": (tfd(folds=np.ones((20, 4))), "folds: expected shape (20, 5), found shape (20, 4)"),
    "label 8": (changed("labs_ex", 4, 0, 8), LABELS + "8 at row 4, column 0"),
    "label 0": (changed("labs_ex", 4, 0, 0), LABELS + "0 at row 4, column 0"),
    "label -2": (changed("labs_ex", 4, 0, -2), LABELS + "-2 at row 4, column 0"),
    "label not a number": (changed("labs_ex", 3, 0, np.nan, float), LABELS + "nan at row 3, column 0"),
    "label and a half": (changed("labs_ex", 3, 0, 1.5, float), LABELS + "1.5 at row 3, column 0"),
    "labels in words": (tfd(labs_ex=np.array([["happy"]] * 20, object)), "labs_ex: expected real numbers, found cell"),
    "fold 4": (changed("folds", 2, 3, 4), FOLDS + "4 at row 2, column 3"),
    "fold infinite": (changed("folds", 2, 3, np.inf, float), FOLDS + "inf at row 2, column 3"),
    "trained without a label": (
        changed("labs_ex", 3, 0, -1),
        "labs_ex: expected 1 to 7 where folds says train, valid or test, found -1 at row 3",
    ),
    "nothing to train on": (
        tfd(folds=np.where(tfd()["folds"] == 1, 3, tfd()["folds"])),
        "folds, column 1: expected some rows for train (1), found none",
    ),
    "nothing to test on": (
        tfd(folds=np.where(tfd()["folds"] == 3, 1, tfd()["folds"])),
        "folds, column 1: expected some rows for test (3), found none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_one_line(tmp_path, case):
    arrays, words = BAD[case]
    path = write(tmp_path / "faces.mat", arrays)
    with pytest.raises(UserError) as caught:
        faces_file.read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


FILES = {
    "empty.mat": b"",
    "text.mat": b"these are no faces\n" * 20,
    "hdf5.mat": b"MATLAB 7.3 MAT-file" + b" " * 105 + b"\x00\x02IM" + b"\x00" * 400,
    "text.npz": b"PK\x03\x04 but no archive",
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_one_line(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    with pytest.raises(UserError) as caught:
        faces_file.read(path)
    assert "with faces, found" in str(caught.value) or "found 7.3 (HDF5)" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["mat", "npz"])
def test_a_file_cut_anywhere_is_one_line(tmp_path, suffix):
    whole = write(tmp_path / f"whole.{suffix}", tfd()).read_bytes()
    path = tmp_path / f"cut.{suffix}"
    for length in np.linspace(0, len(whole) - 1, 40).astype(int):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError) as caught:
            faces_file.read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_header_that_promises_too_much_is_refused_unread(tmp_path):
    """A few kilobytes of file may say they unpack to terabytes."""
    path = tmp_path / "huge.npz"
    np.savez(path, **tfd())
    small, large = b"(20, 48, 48)", b"(2000000000, 48, 48)"
    content = path.read_bytes()
    assert small in content
    padded = content.replace(small + b", }" + b" " * 8, large + b", }")
    assert len(padded) == len(content)
    path.write_bytes(padded)
    with pytest.raises(UserError, match=r"images: expected shape .* found shape \(2000000000, 48, 48\)"):
        faces_file.read(path)


def test_objects_are_never_unpickled(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, **tfd(labs_ex=np.array([[{}]] * 20, object)))
    with pytest.raises(UserError, match="labs_ex: expected real numbers, found object"):
        faces_file.read(path)


@pytest.mark.parametrize("fold", [0, 6, -1])
def test_a_fold_there_is_not(tmp_path, fold):
    with pytest.raises(UserError, match=f"fold: expected 1 to 5, found {fold}"):
        faces_file.read(write(tmp_path / "faces.mat", tfd()), fold)


def test_no_file_and_a_huge_one_are_refused_unread(tmp_path):
    with pytest.raises(UserError, match="expected a file with faces, found none"):
        faces_file.read(tmp_path / "absent.mat")
    huge = tmp_path / "huge.mat"
    with huge.open("wb") as stream:
        stream.truncate(2 << 30)  # a hole: no space is taken
    with pytest.raises(UserError, match="size: expected at most"):
        faces_file.read(huge)


@pytest.mark.parametrize("fold", [1, 5])
def test_a_users_file(fold, users_faces):
    faces = faces_file.read(users_faces, fold)
    for part in (faces.train, faces.valid, faces.test):
        assert set(part.labels) == set(range(7))
        assert len(part.images) == len(part.labels)
    labelled = len(faces.train) + len(faces.valid) + len(faces.test)
    assert labelled == 4178
    assert len(faces.unlabelled) >= 12_000
