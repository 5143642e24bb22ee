"""A checkpoint that is not, to the byte, what was written is refused by name and reason; the one before is taken."""

import os
from collections import Counter

import numpy as np
import pytest
from saved import IDENTITY, NEWER, OLDER, Saved, checkpoint, same

SEED = 20


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return Saved.write(tmp_path_factory.mktemp("corruptions"))


@pytest.fixture
def saved(written):
    written.restore()
    return written


def truncate(saved, rng):
    saved.newest.write_bytes(saved.raw[: rng.integers(len(saved.raw))])
    return "sha256"


def flip(saved, rng):
    data = bytearray(saved.raw)
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    saved.newest.write_bytes(bytes(data))
    return "sha256"


def several(saved, rng):
    """A page of the disk is lost."""
    data = bytearray(saved.raw)
    first = rng.integers(len(data) - 64)
    data[first : first + 64] = rng.bytes(64)
    saved.newest.write_bytes(bytes(data))
    return "sha256"


def swap(saved, rng):
    """The bytes of the one before, under this one's name."""
    saved.newest.write_bytes(saved.files[saved.older.name])
    return "sha256"


def rename_hash(saved, rng):
    """Under the hash of another."""
    number, sha256, suffix = saved.newest.name.split(".")
    place = rng.integers(64)
    other = "0123456789abcdef"[(int(sha256[place], 16) + 1) % 16]
    saved.newest.rename(
        saved.newest.with_name(f"{number}.{sha256[:place]}{other}{sha256[place + 1 :]}.{suffix}")
    )
    return "sha256"


def rename_iteration(saved, rng):
    """A whole checkpoint under another's number."""
    _, rest = saved.newest.name.split(".", 1)
    saved.newest.rename(saved.newest.with_name(f"{NEWER + int(rng.integers(1, 99)):09d}.{rest}"))
    return "iteration"


def append(saved, rng):
    saved.newest.write_bytes(saved.raw + rng.bytes(int(rng.integers(1, 99))))
    return "sha256"


def empty(saved, rng):
    saved.newest.write_bytes(b"")
    return "sha256"


def directory(saved, rng):
    saved.newest.unlink()
    saved.newest.mkdir()
    return "file"


def link(saved, rng):
    """A link to the right bytes is still not the file."""
    saved.newest.unlink()
    elsewhere = saved.checkpoints.directory / "elsewhere"
    elsewhere.write_bytes(saved.raw)
    saved.newest.symlink_to(elsewhere)
    return "file"


def wrong_version(saved, rng):
    manifest, arrays = saved.contents()
    saved.sign({**manifest, "format": [0, 1, 2, 99, "3", None, [3]][rng.integers(7)]}, arrays)
    return "format"


def wrong_config(saved, rng):
    """Another run's: its manifest is in order, and says so."""
    field = list(IDENTITY)[rng.integers(len(IDENTITY))]
    manifest, arrays = saved.contents()
    manifest["identity"] = {**manifest["identity"], field: f"other {rng.integers(99)}"}
    saved.sign(manifest, arrays)
    return field


def wrong_fields(saved, rng):
    """A manifest with the right hash that lacks a field, or has it wrong."""
    manifest, arrays = saved.contents()
    field = ["identity", "position", "log", "kinds", "surroundings"][rng.integers(5)]
    if rng.integers(2):
        del manifest[field]
    else:
        manifest[field] = [None, 3, "x", [], [{"x": "y"}]][rng.integers(5)]
    saved.sign(manifest, arrays)
    return field


def wrong_arrays(saved, rng):
    """An array is missing, of another kind, or too many."""
    manifest, arrays = saved.contents()
    name = sorted(arrays)[rng.integers(len(arrays))]
    changed = [None, arrays[name].astype(np.float64) + 1, np.zeros((2, 2), arrays[name].dtype)][
        rng.integers(3)
    ]
    rest = {other: array for other, array in arrays.items() if other != name}
    more = [{"9999": arrays[name]}, {name: changed}][rng.integers(2)] if changed is not None else {}
    saved.sign(manifest, (arrays if "9999" in more else rest) | more)
    return "arrays"


KINDS = (
    truncate, flip, several, swap, rename_hash, rename_iteration, append, empty, directory, link,
    wrong_version, wrong_config, wrong_fields, wrong_arrays,
)  # fmt: skip


def corrupt_and_load(saved, number):
    """Damage the newest checkpoint in a way of its own; return the kind, and whether all is as promised."""
    rng = np.random.default_rng([SEED, number])
    kind = KINDS[number % len(KINDS)]
    saved.restore()
    named = kind(saved, rng)
    found, told = saved.load()
    assert len(told) == 1, (kind.__name__, number, told)
    path, _, reason = told[0].partition(": checkpoint refused: ")
    assert path.startswith(str(saved.checkpoints.directory)), (kind.__name__, number, told)
    assert named in reason, (kind.__name__, number, named, told)
    assert "expected" in reason
    assert "found" in reason
    assert "\n" not in reason
    assert found is not None, (kind.__name__, number)
    assert same(found, OLDER), (kind.__name__, number)
    return kind.__name__


def corrupt_many(saved, count):
    kinds = Counter(corrupt_and_load(saved, number) for number in range(count))
    print(f"{count} corruptions, {kinds.total()} refusals, {kinds.total()} fall-backs: {dict(kinds)}")


def test_a_sample_is_refused_and_the_one_before_taken(written):
    corrupt_many(written, 3 * len(KINDS))


@pytest.mark.long
def test_five_hundred_are_refused_and_the_one_before_taken(written):
    corrupt_many(written, 500)


def flip_every_byte(saved, step):
    """Flip a bit of every byte, or of one in so many; return how many were flipped and how many refused."""
    saved.restore()
    os.rename(saved.older, saved.checkpoints.directory / "away")
    rng, flipped, refused = np.random.default_rng(SEED), 0, 0
    with saved.newest.open("r+b", buffering=0) as stream:
        for place in range(0, len(saved.raw), step):
            stream.seek(place)
            stream.write(bytes([saved.raw[place] ^ (1 << int(rng.integers(8)))]))
            found, told = saved.load()
            flipped += 1
            refused += found is None and len(told) == 1 and saved.newest.name in told[0]
            stream.seek(place)
            stream.write(saved.raw[place : place + 1])
    os.rename(saved.checkpoints.directory / "away", saved.older)
    assert same(saved.load()[0], NEWER)  # all is as it was
    return flipped, refused


def test_a_flip_at_one_byte_in_five_is_refused(saved):
    flipped, refused = flip_every_byte(saved, 5)
    assert refused == flipped > 300


@pytest.mark.long
def test_a_flip_at_every_byte_is_refused(saved):
    flipped, refused = flip_every_byte(saved, 1)
    print(f"{flipped} bytes, each flipped once: {refused} refusals")
    assert flipped == len(saved.raw)
    assert refused == flipped


def test_what_is_gone_or_has_another_name_is_not_looked_for(saved):
    for change in (
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_name(f"{path.name}~")),
        lambda path: path.rename(path.with_name(f"x{path.name}")),
        lambda path: path.rename(path.with_suffix(".npy")),
    ):
        saved.restore()
        change(saved.newest)
        found, told = saved.load()
        assert told == []
        assert same(found, OLDER)


def test_new_checkpoints_push_out_refused_ones_and_never_themselves(saved):
    """Two that were refused are newer than all that this training will save for a while."""
    for number in (90, 100):
        (saved.checkpoints.directory / f"{number:09d}.{'0' * 64}.npz").mkdir()
    saved.newest.write_bytes(b"")
    found, told = saved.load()
    assert len(told) == 3
    assert same(found, OLDER)
    saved.checkpoints.save(checkpoint(8))
    assert sorted(int(path.name[:9]) for path in saved.checkpoints.directory.iterdir()) == [5, 8]
    assert same(saved.load()[0], 8)


def test_huge_and_strange_files_are_refused_unread(saved):
    """What claims ten gigabytes is not read, and what is no file is not opened: a pipe would wait for ever."""
    with saved.newest.open("r+b") as stream:
        stream.truncate(10 << 30)  # a hole: no space is taken
    found, told = saved.load()
    assert "expected at most" in told[0]
    assert f"found {10 << 30}" in told[0]
    assert same(found, OLDER)
    saved.restore()
    saved.newest.unlink()
    os.mkfifo(saved.newest)
    found, told = saved.load()
    assert "expected a file, found something else" in told[0]
    assert same(found, OLDER)
    saved.restore()
    saved.newest.unlink()
    saved.newest.symlink_to("/dev/zero")
    assert same(saved.load()[0], OLDER)


def test_a_name_in_an_archive_leads_nowhere(saved):
    """Nothing is unpacked, whatever its members are called."""
    manifest, arrays = saved.contents()
    saved.sign(manifest, arrays | {"../../secret": np.zeros(3), "/secret": np.zeros(3)})
    found, told = saved.load()
    assert "expected the arrays of this optimizer" in told[0]
    assert same(found, OLDER)
    assert not list(saved.checkpoints.directory.parent.rglob("*secret*"))
