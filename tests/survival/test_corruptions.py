"""A checkpoint that is not, to the byte, what was written is refused by name and reason; the one before is taken."""

import os
from collections import Counter

import numpy as np
import pytest
from saved import IDENTITY, NEWER, OLDER, Saved, same

SEED = 20


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return Saved.write(tmp_path_factory.mktemp("corruptions"))


@pytest.fixture
def saved(written):
    written.restore()
    return written


def put(saved, name, data):
    (saved.newest / name).write_bytes(data)


def truncate(saved, name, rng):
    put(saved, name, saved.bytes(name)[: rng.integers(len(saved.bytes(name)))])
    return name


def flip(saved, name, rng):
    data = bytearray(saved.bytes(name))
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    put(saved, name, bytes(data))
    return name


def swap(saved, name, rng):
    """With the same file of the checkpoint before, or with another file of this one."""
    older = saved.files.get(f"{OLDER:09d}/{name}", saved.bytes(name))
    others = [other for other in saved.names() if saved.bytes(other) != saved.bytes(name)]
    if older != saved.bytes(name) and rng.integers(2):
        put(saved, name, older)
        return name, "iteration"  # what an older manifest gives away
    other = others[rng.integers(len(others))]
    put(saved, name, saved.bytes(other))
    put(saved, other, saved.bytes(name))
    return name, other


def rename(saved, name, rng):
    path = saved.newest / name
    path.rename(path.with_name(("x" + path.name, path.name + "~")[rng.integers(2)]))
    return name


def append(saved, name, rng):
    put(saved, name, saved.bytes(name) + rng.bytes(int(rng.integers(1, 99))))
    return name


def empty(saved, name, rng):
    put(saved, name, b"")
    return name


def remove(saved, name, rng):
    (saved.newest / name).unlink()
    return name


def add(saved, name, rng):
    stray = (saved.newest / name).with_name(f"stray{rng.integers(99)}")
    stray.write_bytes(rng.bytes(9))
    return stray.name


def link(saved, name, rng):
    """A link to the right bytes is still not the file."""
    (saved.newest / name).unlink()
    elsewhere = saved.checkpoints.directory / "elsewhere"
    elsewhere.write_bytes(saved.bytes(name))
    (saved.newest / name).symlink_to(elsewhere)
    return name


def wrong_version(saved, name, rng):
    format_ = [0, 1, 99, "2", None, [2]][rng.integers(6)]
    saved.sign({**saved.manifest(), "format": format_})
    return "format"


def wrong_config(saved, name, rng):
    """Another run's: its manifest is in order, and says so."""
    field = list(IDENTITY)[rng.integers(len(IDENTITY))]
    manifest = saved.manifest()
    manifest["identity"] = {**manifest["identity"], field: f"other {rng.integers(99)}"}
    saved.sign(manifest)
    return field


def wrong_fields(saved, name, rng):
    """A manifest with the right hash that lacks a field, or has it wrong."""
    manifest = saved.manifest()
    field = ["identity", "position", "log", "kinds", "arrays", "files"][rng.integers(6)]
    if rng.integers(2):
        del manifest[field]
    else:
        manifest[field] = [None, 3, "x", [], {}, {"x": "y"}][rng.integers(6)]
    saved.sign(manifest)
    return [field, *IDENTITY] if field == "identity" else field


def wrong_place(saved, name, rng):
    """A whole checkpoint under another's name."""
    saved.newest.rename(saved.newest.with_name(f"{NEWER + int(rng.integers(1, 99)):09d}"))
    return "iteration"


KINDS = (
    truncate, flip, swap, rename, append, empty, remove, add, link,
    wrong_version, wrong_config, wrong_fields, wrong_place,
)  # fmt: skip


def corrupt_and_load(saved, number):
    """Damage the newest checkpoint in a way of its own; return the kind, and whether all is as promised."""
    rng = np.random.default_rng([SEED, number])
    kind = KINDS[number % len(KINDS)]
    saved.restore()
    names = saved.names()
    named = kind(saved, names[rng.integers(len(names))], rng)
    found, told = saved.load()
    assert len(told) == 1, (kind.__name__, number, told)
    reason = told[0].partition(": checkpoint refused: ")[2]
    assert any(name in reason for name in np.atleast_1d(named)), (kind.__name__, number, named, told)
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
    os.rename(saved.newest.with_name(f"{OLDER:09d}"), saved.checkpoints.directory / "away")
    rng, flipped, refused = np.random.default_rng(SEED), 0, 0
    for name in saved.names():
        data = saved.bytes(name)
        with (saved.newest / name).open("r+b", buffering=0) as stream:
            for place in range(0, len(data), step):
                stream.seek(place)
                stream.write(bytes([data[place] ^ (1 << int(rng.integers(8)))]))
                found, told = saved.load()
                flipped += 1
                refused += found is None and len(told) == 1 and name in told[0]
                stream.seek(place)
                stream.write(data[place : place + 1])
    os.rename(saved.checkpoints.directory / "away", saved.newest.with_name(f"{OLDER:09d}"))
    assert same(saved.load()[0], NEWER)  # all is as it was
    return flipped, refused


def test_a_flip_at_one_byte_in_seven_is_refused(saved):
    flipped, refused = flip_every_byte(saved, 7)
    assert refused == flipped > 500


@pytest.mark.long
def test_a_flip_at_every_byte_is_refused(saved):
    flipped, refused = flip_every_byte(saved, 1)
    print(f"{flipped} bytes of {len(saved.names())} files, each flipped once: {refused} refusals")
    assert flipped == sum(len(saved.bytes(name)) for name in saved.names())
    assert refused == flipped


def test_new_checkpoints_push_out_refused_ones_and_never_themselves(saved):
    """Two that were refused are newer than all that this training will save for a while."""
    from saved import checkpoint

    for name in ("000000090", "000000100"):
        (saved.checkpoints.directory / name).mkdir()
    (saved.newest / "manifest.json").write_bytes(b"")
    found, told = saved.load()
    assert len(told) == 3
    assert same(found, OLDER)
    saved.checkpoints.save(checkpoint(8))
    assert sorted(path.name for path in saved.checkpoints.directory.iterdir()) == ["000000005", "000000008"]
    assert same(saved.load()[0], 8)


def test_huge_and_strange_files_are_refused_unread(saved):
    """What claims ten gigabytes is not read, and what is no file is not opened: a pipe would wait for ever."""
    with (saved.newest / "manifest.json").open("r+b") as stream:
        stream.truncate(10 << 30)  # a hole: no space is taken
    assert "expected at most" in saved.load()[1][0]
    saved.restore()
    largest = max(saved.names(), key=lambda name: len(saved.bytes(name)) * (name != "manifest.json"))
    with (saved.newest / largest).open("r+b") as stream:
        stream.truncate(10 << 30)
    assert f"{largest}: expected {len(saved.bytes(largest))} bytes, found {10 << 30}" in saved.load()[1][0]
    for name in ("manifest.json", largest):
        saved.restore()
        (saved.newest / name).unlink()
        os.mkfifo(saved.newest / name)
        found, told = saved.load()
        assert f"{name}: expected a file, found something else" in told[0]
        assert same(found, OLDER)


def test_a_name_in_a_manifest_leads_nowhere(saved):
    """Only files inside the checkpoint are ever opened."""
    manifest = saved.manifest()
    manifest["files"]["../../secret"] = [3, "0" * 64]
    saved.sign(manifest)
    (saved.checkpoints.directory.parent / "secret").write_text("abc")
    found, told = saved.load()
    assert "../../secret" in told[0]
    assert same(found, OLDER)
