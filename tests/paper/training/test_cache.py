"""Where compiled programs are kept, and that no place for them is no error."""

from pathlib import Path

import jax
import pytest

from natgrad_paper.training import cache

VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "NATGRAD_CACHE_DIR", "XDG_CACHE_HOME")


@pytest.fixture(autouse=True)
def restored(tmp_path, monkeypatch):
    """Each test has a home of its own; what `enable` tells JAX is taken back."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def test_the_place_is_below_the_users_home(tmp_path):
    place = tmp_path / ".cache" / "natgrad" / "xla"
    assert cache.enable() == place
    assert place.is_dir()
    assert jax.config.jax_compilation_cache_dir == str(place)


@pytest.mark.parametrize(("name", "below"), [("XDG_CACHE_HOME", "natgrad/xla"), ("NATGRAD_CACHE_DIR", ".")])
def test_a_variable_names_another_place(tmp_path, monkeypatch, name, below):
    monkeypatch.setenv(name, str(tmp_path / "other"))
    assert cache.enable() == tmp_path / "other" / below
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "other" / below)


def test_the_commands_own_variable_comes_before_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("NATGRAD_CACHE_DIR", str(tmp_path / "own"))
    assert cache.directory() == tmp_path / "own"


def test_jaxs_own_variable_comes_first(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("NATGRAD_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "jax"))
    assert cache.enable() == tmp_path / "jax"
    assert jax.config.jax_compilation_cache_dir == before
    assert list(tmp_path.iterdir()) == []


def no_home(tmp_path, monkeypatch):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)


def a_file(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NATGRAD_CACHE_DIR", str(tmp_path / "file"))


def read_only(tmp_path, monkeypatch):
    """For root, too, to whom permissions mean nothing."""
    monkeypatch.setattr(cache.os, "access", lambda place, mode: mode != cache.os.W_OK)


@pytest.mark.parametrize("spoil", [no_home, a_file, read_only])
def test_without_a_place_there_is_no_cache_and_no_error(tmp_path, monkeypatch, spoil):
    before = jax.config.jax_compilation_cache_dir
    spoil(tmp_path, monkeypatch)
    assert cache.enable() is None
    assert jax.config.jax_compilation_cache_dir == before
