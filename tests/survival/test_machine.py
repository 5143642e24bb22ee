"""A machine that refuses (full disk, read-only directory, no permission): one line, and the last checkpoint intact."""

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from chain import NEVER, SOURCE, VICTIM, Chain, environment, records, trace, victims
from saved import NEWER, OLDER, Saved, checkpoint, same
from typer.testing import CliRunner

from natgrad_paper.cli.command import app
from natgrad_paper.training import cache, request
from natgrad_paper.training.log import Writer

HERE = Path(__file__).parent


def namespaces():
    """Whether this user may mount a small disk where no one else sees it."""
    try:
        return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_a_disk = pytest.mark.skipif(not namespaces(), reason="no mount namespaces here (unshare -rm)")


@needs_a_disk
def test_a_full_and_a_read_only_disk(tmp_path):
    command = ["unshare", "-rm", sys.executable, str(HERE / "small_disk.py"), str(tmp_path)]
    around = {**os.environ, "PYTHONPATH": str(SOURCE)}
    result = subprocess.run(command, env=around, capture_output=True, text=True, check=True)
    assert result.stdout.count("\n") == 1, result.stdout
    assert "Traceback" not in result.stderr
    found = json.loads(result.stdout)
    full, read_only = [errno.ENOSPC, os.strerror(errno.ENOSPC)], [errno.EROFS, os.strerror(errno.EROFS)]
    writing, logs = str(tmp_path / "checkpoints" / ".writing-00000000"), str(tmp_path / "logs")
    assert found["first"] == [None, [1, []]]
    refusal, after = found["full"]
    assert (refusal[:2], after) == (full, [1, []])
    assert refusal[2].startswith(writing)
    assert found["full log"] == [*full, f"{logs}/ngd.0.jsonl"]
    refusal, seeds = found["full request"]
    assert (refusal[:2], seeds) == (full, 1)
    assert refusal[2] == str(tmp_path / ".run.json")
    assert found["room again"] == [None, [3, []]]
    refusal, after = found["read-only"]
    assert (refusal[:2], after) == (read_only, [3, []])
    assert refusal[2].startswith(writing)
    assert found["read-only log"] == [*read_only, f"{logs}/sgd.0.jsonl"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return Saved.write(tmp_path_factory.mktemp("machine"))


@pytest.fixture
def saved(written):
    written.restore()
    return written


def intact(saved):
    """Whether the checkpoints are as they were, and nothing else is left."""
    found, told = saved.load()
    files = {path.name: path.read_bytes() for path in saved.checkpoints.directory.iterdir()}
    return told == [] and same(found, NEWER) and files == saved.files


def test_a_file_that_may_not_grow(saved, capfd):
    """The operating system's own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            saved.checkpoints.save(checkpoint(20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "Traceback" not in capfd.readouterr().err
    assert intact(saved)


@pytest.mark.parametrize(("owner", "call"), [(os, "fsync"), (os, "replace"), (Path, "open"), (Path, "mkdir")])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_every_refusal_while_writing(saved, monkeypatch, owner, call, number):
    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(owner, call, refuse)
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            saved.checkpoints.save(checkpoint(20))
    assert caught.value.errno == number
    assert str(saved.checkpoints.directory) in caught.value.filename
    assert intact(saved)


def test_a_checkpoint_that_may_not_be_read_is_refused(saved, monkeypatch):
    opened = Path.open

    def guarded(path, *arguments, **options):
        if path == saved.newest:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", guarded)
    found, told = saved.load()
    assert same(found, OLDER)
    words = "checkpoint refused: expected a file that can be read, found: Permission denied"
    assert told == [f"{saved.newest}: {words}"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_log_on_a_full_disk_names_itself_and_keeps_the_first_reason(tmp_path):
    path = tmp_path / "logs" / "sgd.0.jsonl"
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        Writer(path, {})
    assert caught.value.filename == str(path)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(cache, "enable", lambda: None)


def line(*arguments):
    """Return the exit code and the one line of a command."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.output.count("\n") == 1, result.output
    return result.exit_code, result.output.strip()


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path, quick, monkeypatch):
    (tmp_path / "file").write_text("")
    run = ("run", "curves", "--preset", "smoke", "--out")
    code, words = line(*run, tmp_path / "file" / "out")
    assert (code, words) == (
        2,
        f"natgrad: {tmp_path}/file/out: expected a directory that can be written, found: Not a directory",
    )
    (tmp_path / "kept").mkdir()

    def refuse(path, *arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", refuse)
        code, words = line(*run, tmp_path / "kept")
    assert (code, words) == (
        2,
        f"natgrad: {tmp_path}/kept: expected a directory that can be written, found: Read-only file system",
    )
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", lambda path, *_, **__: refuse(path))
        code, words = line(*run, tmp_path / "kept")
    assert (code, words) == (1, f"natgrad: {tmp_path}/kept/.{request.NAME}: Read-only file system")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [".lock"]


@pytest.mark.long
@needs_a_disk
def test_a_run_on_a_disk_that_fills_up_goes_on_when_there_is_room(tmp_path):
    """The whole way: the run stops with one line, and with room again ends as if nothing had happened."""
    around = environment(tmp_path)
    with victims(tmp_path) as processes:
        chain = Chain(tmp_path / "disk" / "run", "ngd", processes, np.random.default_rng(0))
        wanted = chain.undisturbed(tmp_path / "undisturbed")
    (tmp_path / "disk").mkdir()
    victim = f"{sys.executable} {VICTIM} {chain.directory} ngd {max(chain.reference)}"
    script = f"""
        mount -t tmpfs -o size=200k tmpfs {tmp_path}/disk
        {victim} 0 2> {tmp_path}/errors
        echo $? > {tmp_path}/code
        ls -A {chain.directory}/checkpoints/* > {tmp_path}/left
        mount -o remount,size=20m {tmp_path}/disk
        {victim} {NEVER} && cp -r {chain.directory} {tmp_path}/after
    """
    subprocess.run(["unshare", "-rm", "sh", "-c", script], env=around, check=True)
    errors = (tmp_path / "errors").read_text()
    assert (tmp_path / "code").read_text() == "1\n"
    assert errors.count("\n") == 1, errors
    assert errors.startswith(f"natgrad: {chain.directory}/")
    assert errors.endswith(": No space left on device\n")
    assert ".writing" not in (tmp_path / "left").read_text()
    chain.directory = tmp_path / "after"
    chain.check()
    assert len({process for process, _, _ in trace(chain.directory)}) == 2
    assert records(chain.directory) == wanted
    print("a full disk: one line, exit code 1, the run resumed bit-identically")
