"""The directory of a run: for one run at a time, and nothing is removed but what a run wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from natgrad_paper.errors import UserError
from natgrad_paper.training import directory as directories
from natgrad_paper.training.directory import Claimed, clear, prepare_directory
from natgrad_paper.training.runner import Training, in_turn
from training.tiny import SGD, drive, run

pytestmark = pytest.mark.usefixtures("fast_compile")

ASKED = json.dumps(
    {"experiment": "sums", "preset": "small", "methods": ["sgd"], "seeds": [0], "settings": {}}
)
FOREIGN = (
    "main.py", "logs/mine.txt", "logs/train.log", "checkpoints/model.pt", "checkpoints/a/weights.bin",
    "outputs/table.csv",
)  # fmt: skip


def foreign(directory):
    for name in FOREIGN:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("mine")


def names(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("mark", [None, "", "{}", '{"name": "somebody\'s run"}', "[]", "\x00"])
def test_a_directory_that_is_no_run_loses_nothing(tmp_path, mark):
    foreign(tmp_path)
    (tmp_path / "logs" / "theirs.jsonl").write_text("{}")
    if mark is not None:
        (tmp_path / "run.json").write_text(mark)
    before = names(tmp_path)
    for overwrite, words in ((False, "expected an empty directory"), (True, "expected run.json")):
        with pytest.raises(UserError, match=words):
            prepare_directory(tmp_path, overwrite, "run.json")
    assert names(tmp_path) == before


def test_of_a_run_only_what_it_wrote_goes(tmp_path):
    drive(run(tmp_path, [SGD]), in_turn)
    (tmp_path / "run.json").write_text(ASKED)
    foreign(tmp_path)
    whole = run(tmp_path, [SGD])
    checkpoint = tmp_path / "checkpoints" / "sgd.0" / f"000000004.{'0' * 64}.npz"
    checkpoint.parent.mkdir(parents=True)
    for path in (checkpoint, checkpoint.with_name(".writing-x"), whole._outputs(Training(SGD, 0))):
        path.write_bytes(b"")
    prepare_directory(tmp_path, True, "run.json")
    clear(tmp_path)
    assert names(tmp_path) == sorted([*FOREIGN, "run.json"])
    assert not checkpoint.parent.exists()


def test_folders_that_are_links_to_another_disk_are_emptied_too(tmp_path):
    """Or the logs of the run before would join those of the next."""
    out, disk = tmp_path / "run", tmp_path / "disk"
    out.mkdir()
    disk.mkdir()
    (out / "logs").symlink_to(disk)
    (out / "run.json").write_text(ASKED)
    drive(run(out, [SGD]), in_turn)
    assert names(disk) == ["sgd.0.jsonl"]
    prepare_directory(out, True, "run.json")
    clear(out)
    assert names(disk) == []
    assert (out / "logs").is_symlink()


def test_what_cannot_be_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="expected a directory, found a file"):
        prepare_directory(tmp_path / "file", True, "run.json")
    with pytest.raises(UserError, match="expected a directory that can be written, found: Not a directory"):
        prepare_directory(tmp_path / "file" / "out", False, "run.json")
    prepare_directory(tmp_path / "new" / "one", False, "run.json")
    with Claimed(tmp_path / "new" / "one"):
        pass
    prepare_directory(tmp_path / "new" / "one", False, "run.json")  # a lock is nothing


def test_a_directory_is_for_one_run_at_a_time(tmp_path):
    script = (
        "import sys, pathlib\nfrom natgrad_paper.training.directory import Claimed\n"
        "with Claimed(pathlib.Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    around = {**os.environ, "PYTHONPATH": str(Path(directories.__file__).parents[2])}
    words = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        words, env=around, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "in\n"
        with (
            pytest.raises(UserError, match="expected a directory that no run uses, found one at work"),
            Claimed(tmp_path),
        ):
            pass
        other.kill()  # A lock goes with its process, however that ends.
    with Claimed(tmp_path):
        pass


def test_a_lock_that_is_a_link_empties_nothing(tmp_path):
    (tmp_path / "precious").write_text("words")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with Claimed(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "words"
