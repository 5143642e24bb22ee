"""A checkpoint comes back to the bit, or is refused with the reason and the one before is taken."""

import json
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgrad_paper.checkpoint import Checkpoint, Checkpoints, Refused, digest
from natgrad_paper.log import Mark
from natgrad_paper.train import Position

IDENTITY = {"method": "ngd", "seed": 0, "settings": digest({"rate": 0.1}), "data": "abc"}


def trained(value):
    params = {"w": jnp.full((2, 3), value, jnp.float32), "b": jnp.full(3, value, jnp.bfloat16)}
    state = (jnp.asarray(7, jnp.int32), jax.random.key(3), [jnp.zeros(0)])
    return params, state


def checkpoint(iteration, value=1.0):
    return Checkpoint(Position(iteration, 1, 0, 2.5, 0.5, 9.0), Mark(10, "0" * 64), trained(value))


def load(checkpoints, like=None):
    told = []
    return checkpoints.load(trained(0.0) if like is None else like, told.append), told


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


def test_two_are_kept(written, tmp_path):
    names = sorted(path.name for path in written.directory.iterdir())
    assert names == ["000000005", "000000012"]
    many = Checkpoints(tmp_path / "many", IDENTITY, {})
    for iteration in (1, 2, 3):
        many.save(checkpoint(iteration))
    assert sorted(path.name for path in many.directory.iterdir()) == ["000000002", "000000003"]


def test_none_yet(tmp_path):
    assert load(Checkpoints(tmp_path / "absent", IDENTITY, {})) == (None, [])


def test_half_written_is_not_seen_and_cleared(checkpoints):
    (checkpoints.directory / ".writing-000000020").mkdir()
    found, _ = load(checkpoints)
    same(found, 12)
    checkpoints.save(checkpoint(30))
    assert not list(checkpoints.directory.glob(".*"))


def files(checkpoints):
    return sorted(path for path in (checkpoints.directory / "000000012").rglob("*") if path.is_file())


def corrupt(path, how):
    data = path.read_bytes()
    if how == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "append":
        path.write_bytes(data + b"\n")
    elif how == "remove":
        path.unlink()
    elif how == "rename":
        path.rename(path.with_name(path.name + "x"))
    elif how == "flip":
        where = len(data) // 3
        path.write_bytes(data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :])


@pytest.mark.parametrize("how", ["truncate", "empty", "append", "remove", "rename", "flip"])
def test_a_damaged_file_is_refused_and_the_one_before_taken(checkpoints, how):
    for number, name in enumerate(files(checkpoints)):
        if how in ("append", "truncate", "flip", "empty") and not name.stat().st_size:
            continue
        copy = replace(checkpoints, directory=checkpoints.directory.with_name(f"{how}{number}"))
        shutil.copytree(checkpoints.directory, copy.directory)
        corrupt(copy.directory / name.relative_to(checkpoints.directory), how)
        found, told = load(copy)
        same(found, 5)
        assert len(told) == 1
        assert "000000012: checkpoint refused: " in told[0]


def test_every_byte_of_the_manifest_counts(checkpoints):
    path = checkpoints.directory / "000000012" / "manifest.json"
    data = path.read_bytes()
    for where in range(0, len(data), 37):
        path.write_bytes(data[:where] + bytes([data[where] ^ 4]) + data[where + 1 :])
        with pytest.raises(Refused):
            checkpoints._read(path.parent, trained(0.0), print)


def test_anothers_is_refused_by_name(checkpoints):
    for field, value in (("method", "sgd"), ("seed", 1), ("settings", "other"), ("data", "other")):
        found, told = load(replace(checkpoints, identity={**IDENTITY, field: value}))
        assert found is None
        assert [f"refused: {field}: expected" in line for line in told] == [True, True]


def test_another_optimizers_is_refused(checkpoints):
    params, state = trained(0.0)
    for like in ((params, state[:2]), ({**params, "w": jnp.zeros((3, 2))}, state)):
        found, told = load(checkpoints, like)
        assert found is None
        assert "kinds: expected the arrays of this optimizer" in told[0]


def test_another_format_is_refused(checkpoints):
    path = checkpoints.directory / "000000012" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    manifest["format"] = 99
    path.write_text(json.dumps({**manifest, "sha256": digest(manifest)}, indent=1))
    found, told = load(checkpoints)
    same(found, 5)
    assert "format: expected 2, found 99" in told[0]


def test_swapped_checkpoints_are_refused(checkpoints):
    newest, older = checkpoints.directory / "000000012", checkpoints.directory / "000000005"
    newest.rename(checkpoints.directory / "x")
    older.rename(newest)
    (checkpoints.directory / "x").rename(older)
    found, told = load(checkpoints)
    assert found is None
    assert "iteration: expected 12, found 5" in told[0]


def test_other_surroundings_are_told(checkpoints):
    found, told = load(replace(checkpoints, surroundings={"cores": 64}))
    same(found, 12)
    assert len(told) == 1
    assert "cores 2, now 64" in told[0]


def test_a_checkpoint_from_before_a_field_of_the_position_is_taken(checkpoints):
    """Streaks that it does not know begin at 0."""
    young = ("idle", "unmeasurable", "at_bound")
    path = checkpoints.directory / "000000012" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    for name in young:
        del manifest["position"][name]
    path.write_text(json.dumps({**manifest, "sha256": digest(manifest)}, indent=1))
    found, told = load(checkpoints)
    same(found, 12)
    assert told == []
