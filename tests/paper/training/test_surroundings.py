"""A log says where a training ran and with what: versions, machine, commit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from natgrad_paper.training import surroundings


def git(directory, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(directory), *who, *words], check=True, capture_output=True)


def test_the_commit_and_whether_the_tree_was_clean(tmp_path):
    """Asked where the package lies, which is not where the command is run."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    source = Path(surroundings.__file__).parents[2]
    copy = tmp_path / "project" / "src"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    script = (
        "import json; from natgrad_paper.training.surroundings import commit; print(json.dumps(commit()))"
    )

    def asked():
        around = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, "-c", script]
        result = subprocess.run(words, env=around, cwd="/", capture_output=True, text=True, check=True)
        return json.loads(result.stdout)

    git(copy.parent, "init", "-q")
    assert asked() is None  # a repository that has not this file in it
    git(copy.parent, "add", ".")
    git(copy.parent, "commit", "-qm", "all")
    (copy.parent / "notes").write_text("no source")
    first = asked()
    assert first["clean"] is True
    assert len(first["id"]) == 40
    changed = copy / "natgrad" / "damping.py"
    changed.write_text(changed.read_text() + "\n")
    assert asked() == {**first, "clean": False}


def test_cores_are_those_that_the_process_may_use():
    assert surroundings.cores() == len(os.sched_getaffinity(0))
    assert surroundings.surroundings()["cores"] == surroundings.cores()
