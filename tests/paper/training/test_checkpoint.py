"""A checkpoint comes back to the bit, or is refused with the reason and the one before is taken."""

import hashlib
import io
import json
import shutil
import zipfile
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad_paper.training.checkpoint import BESIDES, Checkpoint, Checkpoints, Refused, digest
from natgrad_paper.training.log import Mark
from natgrad_paper.training.loop import Position
from natgrad_paper.training.stopping import Streaks

IDENTITY = {
    "method": "ngd",
    "seed": 0,
    "settings": digest({"rate": 0.1}),
    "data": "abc",
    "training": {"name": "a", "facts": (1, 2.5)},
}


def trained(value):
    params = {"w": jnp.full((2, 3), value, jnp.float32), "b": jnp.full(3, value, jnp.bfloat16)}
    state = (jnp.asarray(7, jnp.int32), jax.random.key(3), [jnp.zeros(0)], jnp.asarray(value, jnp.bfloat16))
    return params, state


def checkpoint(iteration, value=1.0):
    position = Position(iteration, 1, 2.5, 4.5, 0.5, 9.0, Streaks(1, 2, 0, 3), 0.25, 1, "why")
    return Checkpoint(position, Mark(10, "0" * 64), trained(value))


def load(checkpoints, like=None):
    told = []
    return checkpoints.load(trained(0.0) if like is None else like, told.append), told


def newest(checkpoints):
    return max(checkpoints.directory.glob("[0-9]*.npz"))


def iterations(checkpoints):
    return sorted(int(path.name[:9]) for path in checkpoints.directory.iterdir())


def put(checkpoints, raw, iteration=12):
    """Put a file in the place of the newest, under the hash that it has."""
    newest(checkpoints).unlink()
    path = checkpoints.directory / f"{iteration:09d}.{hashlib.sha256(raw).hexdigest()}.npz"
    path.write_bytes(raw)
    return path


def contents(checkpoints):
    with np.load(newest(checkpoints)) as found:
        arrays = dict(found)
    return json.loads(arrays.pop("manifest").tobytes()), arrays


def packed(manifest, arrays, save=np.savez):
    stream = io.BytesIO()
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    save(stream, manifest=np.frombuffer(text, np.uint8), **arrays)
    return stream.getvalue()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two checkpoints, the second the newer."""
    checkpoints = Checkpoints(tmp_path_factory.mktemp("c") / "ngd.0", IDENTITY, {"cores": 2})
    for iteration in (5, 12):
        checkpoints.save(checkpoint(iteration, iteration / 3))
    return checkpoints


@pytest.fixture
def checkpoints(written, tmp_path):
    """A copy that may be damaged."""
    shutil.copytree(written.directory, tmp_path / "ngd.0")
    return replace(written, directory=tmp_path / "ngd.0")


def same(found, iteration):
    wanted = checkpoint(iteration, iteration / 3)
    assert (found.position, found.log) == (wanted.position, wanted.log)
    assert jax.tree.structure(found.trained) == jax.tree.structure(wanted.trained)
    for a, b in zip(jax.tree.leaves(found.trained), jax.tree.leaves(wanted.trained), strict=True):
        assert a.dtype == b.dtype
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_comes_back_to_the_bit(written):
    found, told = load(written)
    same(found, 12)
    assert told == []


def test_the_same_checkpoint_is_the_same_file(written, tmp_path):
    again = replace(written, directory=tmp_path / "again")
    again.save(checkpoint(12, 4.0))
    assert newest(again).name == newest(written).name


def test_two_are_kept(written, tmp_path):
    assert iterations(written) == [5, 12]
    many = Checkpoints(tmp_path / "many", IDENTITY, {})
    for iteration in (1, 2, 3):
        many.save(checkpoint(iteration))
    assert iterations(many) == [2, 3]


def test_none_yet(tmp_path):
    assert load(Checkpoints(tmp_path / "absent", IDENTITY, {})) == (None, [])


def test_half_written_is_not_seen_and_cleared(checkpoints):
    (checkpoints.directory / f".writing-000000020.{'0' * 64}.npz").write_bytes(b"half")
    (checkpoints.directory / ".writing-000000021").mkdir()
    found, _ = load(checkpoints)
    same(found, 12)
    checkpoints.save(checkpoint(30))
    assert not list(checkpoints.directory.glob(".*"))


@pytest.mark.parametrize("how", ["truncate", "empty", "append", "flip", "swap", "link", "directory"])
def test_a_damaged_file_is_refused_and_the_one_before_taken(checkpoints, how):
    path, older = newest(checkpoints), min(checkpoints.directory.iterdir())
    raw = path.read_bytes()
    third = len(raw) // 3
    path.unlink()
    if how == "link":  # to the right bytes, which is still not the file
        (checkpoints.directory / "elsewhere").write_bytes(raw)
        path.symlink_to(checkpoints.directory / "elsewhere")
    elif how == "directory":
        path.mkdir()
    else:
        damaged = {
            "truncate": raw[: len(raw) // 2], "empty": b"", "append": raw + b"\n", "swap": older.read_bytes(),
            "flip": raw[:third] + bytes([raw[third] ^ 1]) + raw[third + 1 :],
        }  # fmt: skip
        path.write_bytes(damaged[how])
    found, told = load(checkpoints)
    same(found, 5)
    assert len(told) == 1
    assert told[0].startswith(f"{path}: checkpoint refused: ")
    assert "expected" in told[0]
    assert "found" in told[0]


@pytest.mark.parametrize("how", ["remove", "rename", "rename hash", "rename iteration"])
def test_a_file_under_another_name_is_not_that_checkpoint(checkpoints, how):
    path = newest(checkpoints)
    number, sha256, _ = path.name.split(".")
    names = {
        "rename": f"{path.name}x",
        "rename hash": f"{number}.{sha256[::-1]}.npz",
        "rename iteration": f"000000099.{sha256}.npz",
    }
    path.unlink() if how == "remove" else path.rename(path.with_name(names[how]))
    found, told = load(checkpoints)
    same(found, 5)
    assert len(told) == (how in ("rename hash", "rename iteration"))
    assert how != "rename iteration" or "iteration: expected 99, found 12" in told[0]


def test_every_byte_counts(checkpoints):
    path = newest(checkpoints)
    raw = path.read_bytes()
    for where in range(0, len(raw), 37):
        path.write_bytes(raw[:where] + bytes([raw[where] ^ 4]) + raw[where + 1 :])
        with pytest.raises(Refused, match="sha256: expected"):
            checkpoints._read(path, trained(0.0), print)


def test_anothers_is_refused_by_name(checkpoints):
    for field, value in (
        ("method", "sgd"),
        ("seed", 1),
        ("settings", "other"),
        ("data", "other"),
        ("new", 1),
    ):
        found, told = load(replace(checkpoints, identity={**IDENTITY, field: value}))
        assert found is None
        assert [f"refused: identity: {field}: expected" in line for line in told] == [True, True]


def test_another_optimizers_is_refused(checkpoints):
    params, state = trained(0.0)
    for like in (
        (params, state[:2]), ({**params, "w": jnp.zeros((3, 2), jnp.float32)}, state),
        ({"w": params["w"], "c": params["b"]}, state), ({**params, "w": params["w"].astype(jnp.int32)}, state),
    ):  # fmt: skip
        found, told = load(checkpoints, like)
        assert found is None
        assert "kinds: expected the arrays of this optimizer" in told[0]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("format", 99, "manifest: format: expected 3, found 99"),
        ("format", None, "manifest: format: expected 3, found None"),
        *(
            (field, value, f"manifest: {field}: expected")
            for field in ("identity", "surroundings", "kinds", "position", "log")
            for value in (None, 3, "x", [])
        ),
        ("log", {}, "manifest: log.size: expected a value, found nothing"),
        ("position", {"iteration": "x"}, "manifest: position.iteration: expected"),
        ("position", {"iteration": 12, "training_seconds": "fast"}, "manifest: position.training_seconds: expected"),
        ("position", {"iteration": 12, "streaks": []}, "manifest: position.streaks: expected"),
        ("position", {}, "iteration: expected 12, found 0"),
        ("identity", {}, "identity: method: expected 'ngd', found None"),
        ("kinds", {}, "kinds: expected the arrays of this optimizer"),
        ("more", 1, "manifest: more: expected"),
    ],
)  # fmt: skip
def test_a_hostile_manifest_is_refused_by_field(checkpoints, field, value, words):
    """Its hash is right: somebody made it."""
    manifest, arrays = contents(checkpoints)
    put(checkpoints, packed({**manifest, field: value}, arrays))
    found, told = load(checkpoints)
    same(found, 5)
    assert len(told) == 1
    assert f"checkpoint refused: {words}" in told[0]
    assert "\n" not in told[0]


@pytest.mark.parametrize("name", ["format", "identity", "surroundings", "position", "log", "kinds"])
def test_a_manifest_without_a_field_is_refused(checkpoints, name):
    manifest, arrays = contents(checkpoints)
    del manifest[name]
    put(checkpoints, packed(manifest, arrays))
    found, told = load(checkpoints)
    same(found, 5)
    assert f"manifest: {name}: expected a value, found nothing" in told[0]


def hostile(checkpoints):
    """Return files whose name has their hash, and which are no checkpoint of this training."""
    manifest, arrays = contents(checkpoints)
    first = next(iter(arrays))
    yield "text", b"no archive"
    yield "empty", b""
    yield "npy", b"\x93NUMPY\x01\x00"
    yield "no manifest", _zipped({"a.npy": b""})
    yield "no json", packed(b"{", arrays)
    yield "deep json", packed(b"[" * 100_000, arrays)
    yield "no table", packed([1], arrays)
    yield "no utf-8", packed(b"\xff\xfe", arrays)
    yield "another shape", packed(manifest, arrays | {first: np.zeros((4, 4), np.float32)})
    yield "another dtype", packed(manifest, arrays | {first: arrays[first].astype(np.float64)})
    yield "an object", packed(manifest, arrays | {first: np.array([{}], object)})
    yield "fewer", packed(manifest, dict(list(arrays.items())[1:]))
    yield "more", packed(manifest, arrays | {"9999": np.zeros(3)})
    yield "bomb", packed(manifest, arrays | {"9999": np.zeros(1 << 22)}, np.savez_compressed)
    claim = (
        b"\x93NUMPY\x01\x00\x76\x00"
        + f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**10},), }}".ljust(117).encode()
        + b"\n"
    )
    yield "claim", _zipped({f"{first}.npy": claim, "manifest.npy": claim})


def _zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return stream.getvalue()


def test_a_hostile_file_is_refused_whatever_it_is(checkpoints):
    for kind, raw in list(hostile(checkpoints)):
        put(checkpoints, raw)
        found, told = load(checkpoints)
        same(found, 5)
        assert len(told) == 1, kind
        assert "checkpoint refused: " in told[0], kind
        assert "expected" in told[0], kind


def test_a_file_that_is_too_large_is_not_read(checkpoints, monkeypatch):
    with newest(checkpoints).open("r+b") as stream:
        stream.truncate(10 << 30)  # a hole: no space is taken
    found, told = load(checkpoints)
    same(found, 5)
    assert "expected at most" in told[0]
    assert f"bytes, found {10 << 30}" in told[0]


def test_there_is_room_for_what_a_checkpoint_holds_besides_its_arrays(tmp_path):
    """The limit on its size must never refuse a good one: names as long as a deep tree makes them."""
    params = {
        f"layer {number} of a network with long names": {"weights": {"and": {"a": jnp.zeros(1)}}}
        for number in range(300)
    }
    many = Checkpoints(tmp_path / "many", {**IDENTITY, "training": "x" * 9999}, {"jax": "1" * 99})
    many.save(Checkpoint(Position(3), Mark(0, ""), (params, ())))
    found, told = load(many, (params, ()))
    assert told == []
    assert found.position.iteration == 3
    assert newest(many).stat().st_size < 300 * BESIDES


def test_other_surroundings_are_told(checkpoints):
    found, told = load(replace(checkpoints, surroundings={"cores": 64}))
    same(found, 12)
    assert len(told) == 1
    assert "cores 2, now 64" in told[0]


def test_a_checkpoint_from_before_a_field_of_the_position_is_taken(checkpoints):
    """What it does not know begins at 0."""
    manifest, arrays = contents(checkpoints)
    del manifest["position"]["streaks"]["at_bound"]
    del manifest["position"]["cpu_seconds"]
    put(checkpoints, packed(manifest, arrays))
    found, told = load(checkpoints)
    assert told == []
    assert found.position == replace(checkpoint(12).position, cpu_seconds=0.0, streaks=Streaks(1, 2, 0, 0))


def test_new_checkpoints_push_out_refused_ones_and_never_themselves(checkpoints):
    """Two that were refused are newer than all that this training will save for a while."""
    for number in (90, 100):
        (checkpoints.directory / f"{number:09d}.{'0' * 64}.npz").write_bytes(b"")
    newest(checkpoints).with_name(f"{110:09d}.{'0' * 64}.npz").mkdir()
    (path,) = checkpoints.directory.glob("000000012.*")
    path.write_bytes(b"")
    found, told = load(checkpoints)
    assert len(told) == 4
    same(found, 5)
    checkpoints.save(checkpoint(8, 8 / 3))
    assert iterations(checkpoints) == [5, 8]
    same(load(checkpoints)[0], 8)


def test_all_are_discarded_and_nothing_else(checkpoints):
    beside = checkpoints.directory.with_name("ngd.1")
    beside.mkdir()
    checkpoints.discard()
    checkpoints.discard()
    assert [path.name for path in beside.parent.iterdir()] == ["ngd.1"]
    replace(checkpoints, directory=beside).discard()
    assert not beside.parent.exists()
