"""No file that is read can run code or write another: neither by what readers call nor by what they do."""

import ast
import pickle
from pathlib import Path

import numpy as np
import pytest
from bad_files import good, write
from saved import NEWER, Saved, same

from natgrad_paper.data import curves_file, faces_file, glyphs

SOURCE = Path(__file__).parents[2] / "src"
MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "shelve",
    "marshal",
    "runpy",
    "tarfile",
    "subprocess",
}
ALLOWED = {
    "natgrad_paper/training/log.py": {"tarfile"},
    "natgrad_paper/training/surroundings.py": {"subprocess"},
}
"""An archive of logs is read and not unpacked; git says which commit this is."""
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
METHODS = {"extract", "extractall", "unpack_archive", "from_string"}


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.name)
def test_the_source_calls_nothing_that_runs_what_it_reads(path):
    tree = ast.parse(path.read_text())
    allowed = ALLOWED.get(str(path.relative_to(SOURCE)), set())
    assert not (MODULES - allowed) & set(imports(tree))
    for name, call in calls(tree):
        runs = name in CALLS or name.rpartition(".")[2] in METHODS
        assert not runs, f"{path.name}:{call.lineno}: {name}"
        options = {option.arg: ast.unparse(option.value) for option in call.keywords}
        assert options.get("allow_pickle", "False") == "False", f"{path.name}:{call.lineno}"
        assert options.get("shell", "False") == "False", f"{path.name}:{call.lineno}"
        if name == "np.load":
            assert "allow_pickle" in options, f"{path.name}:{call.lineno}"


@pytest.fixture
def no_pickle(monkeypatch):
    def caught(*arguments, **options):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, caught)


def test_nothing_is_unpickled(tmp_path, no_pickle):
    saved = Saved.write(tmp_path)
    assert same(saved.load()[0], NEWER)
    for data, read in (("curves", curves_file.read), ("faces", faces_file.read), ("glyphs", glyphs.read)):
        for suffix in ("npz", "mat"):
            write(tmp_path / f"{data}.{suffix}", good(data))
            assert read(tmp_path / f"{data}.{suffix}").sha256()


def test_the_trap_is_a_trap(tmp_path, no_pickle):
    """What a careless reader would do: so that the test above can fail."""
    np.savez(tmp_path / "objects.npz", a=np.array([{}], object))
    with np.load(tmp_path / "objects.npz", allow_pickle=True) as archive, pytest.raises(AssertionError):
        archive["a"]
