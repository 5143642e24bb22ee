"""What was asked for is understood or refused; what went wrong is one line, wherever it is written."""

import errno
import io
import os
import signal
import sys
from pathlib import Path

import pytest
import typer

from natgrad_paper.cli.arguments import Forgiving, complain, crowded, fresh, plain_errors, seeds, words
from natgrad_paper.errors import UserError
from natgrad_paper.training.stopping import Stopped


def test_words_and_seeds():
    assert words(" a, b,,a ") == ("a", "b")
    assert words(None) == ()
    assert seeds(None) == ()
    assert seeds("3") == (0, 1, 2)
    assert seeds("7,") == (7,)
    assert seeds("4,4, 2") == (4, 2)
    for bad in ("one", "1.5", "0", "1001", "1,-2", "4294967296,", "9" * 99 + ",", ",", "0x1", "", "²", "１"):
        with pytest.raises(UserError, match="--seeds: expected"):
            seeds(bad)


def test_a_fresh_directory(tmp_path):
    for name in ("a", "a-2"):
        assert fresh(tmp_path, "a") == tmp_path / name
        (tmp_path / name).mkdir()
    assert fresh(tmp_path, "a") == tmp_path / "a-3"


def test_a_busy_machine_is_named_with_the_cure_unless_threads_are_limited(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for load, warned in ((0.0, False), (2.0, False), (2.1, True)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 9.0), raising=False)
        assert (crowded() is not None) == warned
    assert "load 2.1 on 4 cores" in crowded()
    assert "OPENBLAS_NUM_THREADS=1" in crowded()
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert crowded() is None
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    monkeypatch.delattr(os, "getloadavg")
    assert crowded() is None


@pytest.mark.parametrize(
    ("problem", "code", "line"),
    [
        (UserError("x: expected\n y,\x1b found z"), 2, "x: expected y,� found z"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), 1, "/a/b: No space left on device"),
        (OSError("odd"), 1, "odd"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            Stopped(signal.SIGHUP, Path("/a b")),
            129,
            "stopped by SIGHUP after a checkpoint; `natgrad run sums --out '/a b' --resume` continues",
        ),
    ],
)
def test_what_a_person_can_mend_is_one_line_and_a_code(problem, code, line, capsys):
    with pytest.raises(typer.Exit) as caught, plain_errors("sums"):
        raise problem
    assert caught.value.exit_code == code
    assert capsys.readouterr().err == f"natgrad: {line}\n"


def test_what_nobody_can_mend_is_not_hidden():
    with pytest.raises(ZeroDivisionError), plain_errors():
        raise ZeroDivisionError


class Refusing(io.StringIO):
    """A stream whose reader is gone."""

    def __init__(self, problem):
        super().__init__()
        self.problem = problem

    def write(self, text=""):
        raise self.problem

    flush = write


@pytest.mark.parametrize(
    "problem",
    [BrokenPipeError(), OSError(errno.EIO, "gone"), OSError(errno.ENOSPC, "full"), ValueError("closed")],
)
def test_a_stream_that_nobody_reads_is_no_error(problem, monkeypatch):
    stream = Forgiving(Refusing(problem))
    assert stream.write("words") == 5
    stream.flush()
    monkeypatch.setattr(sys, "stderr", Refusing(problem))
    complain("nobody hears")


def test_letters_that_a_terminal_lacks_are_replaced(monkeypatch):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    complain("λ × 3")
    stream.flush()
    assert raw.getvalue().decode().strip() == "natgrad: ? ? 3"


def test_the_rest_of_a_closed_pipe_goes_nowhere():
    """Python writes what is left when it ends: it must find a place for it."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        forgiving = Forgiving(stream)
        forgiving.write("words")
        forgiving.flush()
        forgiving.write("more")
