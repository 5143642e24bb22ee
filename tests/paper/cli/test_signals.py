"""The command in a process of its own: stopped, hung up, paused, read by nobody, at a terminal of few letters."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from training.tiny import contents

from cli.conftest import SMALL
from natgrad_paper.training import log

LONG = ("run", "sums", "--methods", "sgd", "--set", "budget.iterations=100000000")
SHORT = ("run", "sums", "--methods", "sgd", "--preset", "smoke")


def training(process, out):
    """Wait until the process trains; return its log."""
    path = out / "logs" / "sgd.0.jsonl"
    process.wait(lambda: path.exists() and '"record": "step"' in path.read_text())
    assert process.poll() is None
    return path


@pytest.fixture(scope="module")
def undisturbed(command, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    assert command.start(*SHORT, "--out", out / "run", stderr=out / "errors").wait() == 0, (
        out / "errors"
    ).read_text()
    return out / "run"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_it_stops_in_good_order_with_a_checkpoint(command, tmp_path, number, code):
    out = tmp_path / "run"
    process = command.start(*LONG, "--out", out, stderr=tmp_path / "errors")
    path = training(process, out)
    process.send_signal(number)
    assert process.wait() == code
    assert (tmp_path / "errors").read_text() == (
        f"natgrad: stopped by {number.name} after a checkpoint; `natgrad run sums --out {out} --resume` continues\n"
    )
    assert log.read(path).status == "interrupted"
    (saved,) = (out / "checkpoints" / "sgd.0").iterdir()
    # Another process goes on from there.
    process = command.start("run", "sums", "--out", out, "--resume", stderr=tmp_path / "errors")
    process.wait(lambda: '"record": "resumed"' in path.read_text())
    process.send_signal(number)
    assert process.wait() == code
    assert f'{{"record": "resumed", "iteration": {int(saved.name[:9])}}}' in path.read_text()


def test_stopped_and_resumed_by_other_processes_is_undisturbed(command, tmp_path):
    given = ("run", "sums", "--methods", "ngd", "--set", "budget.iterations=1000", "--out")
    assert command.start(*given, tmp_path / "whole").wait() == 0
    path, process, stops = (
        tmp_path / "run" / "logs" / "ngd.0.jsonl",
        command.start(*given, tmp_path / "run"),
        0,
    )
    while stops < 2:
        process.wait(lambda stops=stops: path.exists() and path.read_text().count('"resumed"') == stops)
        process.wait(lambda: '"record": "step"' in path.read_text())
        process.send_signal(signal.SIGTERM)
        if process.wait() == 0:
            break
        assert process.returncode == 143
        process, stops = command.start("run", "sums", "--out", tmp_path / "run", "--resume"), stops + 1
    assert process.wait() == 0
    assert stops > 0
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_hangup_is_nothing_to_a_run_under_nohup(command, tmp_path):
    out = tmp_path / "run"
    process = command.start(*LONG, "--out", out, ignore=["SIGHUP"])
    path = training(process, out)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    size = path.stat().st_size
    process.wait(lambda: path.stat().st_size > size)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143


@pytest.mark.parametrize(("streams", "first"), [(("stdout",), True), (("stdout", "stderr"), False)])
def test_training_goes_on_when_nobody_reads(command, undisturbed, tmp_path, streams, first):
    """As in `natgrad run … | head -1`: the pipe is closed after the first line, or before it."""
    pipe, out = tmp_path / "pipe", tmp_path / "run"
    os.mkfifo(pipe)
    given = {"stderr": tmp_path / "errors", **dict.fromkeys(streams, pipe)}
    process = command.start(*SHORT, "--out", out, **given)
    with pipe.open() as stream:
        if first:
            assert "Sums" in stream.readline()
    assert process.wait() == 0
    assert "stderr" in streams or (tmp_path / "errors").read_text() == ""
    assert contents(out) == contents(undisturbed)
    assert (out / "report.html").exists()


@pytest.mark.parametrize("words", [("list",), ("show", "sums"), ("--help",), ("run", "--preset", "nonesuch")])
def test_what_is_shown_to_nobody_is_no_traceback(command, tmp_path, words):
    os.mkfifo(tmp_path / "pipe")
    process = command.start(*words, stdout=tmp_path / "pipe", stderr=tmp_path / "errors")
    (tmp_path / "pipe").open().close()
    process.wait()
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_a_terminal_that_is_closed_leaves_a_checkpoint(command, tmp_path):
    """A lost connection: what is written finds no terminal, and a signal says so."""
    out = tmp_path / "run"
    master, slave = pty.openpty()
    name = os.ttyname(slave)
    process = command.start(*LONG, "--out", out, stdin=name, stdout=name, stderr=name)
    os.set_blocking(master, False)
    path, seen = out / "logs" / "sgd.0.jsonl", b""

    def trains():
        nonlocal seen
        with suppress(BlockingIOError):
            seen += os.read(master, 1 << 16)  # Or the process waits for somebody to read.
        # The bar is drawn ten times per second: the log may be ahead of it.
        return b"step" in seen and path.exists() and '"record": "step"' in path.read_text()

    process.wait(trains)
    os.close(slave)
    os.close(master)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 129
    assert log.read(path).status == "interrupted"
    assert len(list((out / "checkpoints" / "sgd.0").iterdir())) == 1


def test_a_paused_process_names_the_gap_and_does_not_count_it(command, tmp_path):
    out = tmp_path / "run"
    process = command.start("run", "sums", "--methods", "sgd", "--set", "budget.seconds=1.5", "--out", out)
    path = training(process, out)
    process.send_signal(signal.SIGSTOP)
    time.sleep(6)
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    found = log.read(path)
    assert found.evaluations[-1]["training_seconds"] < 2.5
    if found.gaps:  # Or it was between two calls, where no clock runs.
        assert 5 < found.gaps[0]["seconds"] < 8


def test_two_commands_in_one_directory(command, tmp_path):
    out = tmp_path / "run"
    process = command.start(*LONG, "--out", out)
    path = training(process, out)
    before = path.read_bytes()
    for options in (("--resume",), ("--preset", "smoke", "--overwrite")):
        errors = tmp_path / f"errors{len(options)}"
        assert command.start("run", "sums", "--out", out, *options, stderr=errors).wait() == 2
        assert errors.read_text().count("\n") == 1
        assert errors.read_text().startswith(f"natgrad: {out}: expected ")
    assert path.read_bytes().startswith(before)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    assert log.read(path).status == "interrupted"


def test_a_terminal_that_knows_ascii_alone(command, undisturbed, tmp_path):
    around = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = command.run(*SHORT, "--out", tmp_path / "run", **around)
    assert (result.returncode, result.stderr) == (0, "")
    assert "1 method ? 1 seed ? 12 iterations" in result.stdout
    assert result.stdout.isascii()
    assert contents(tmp_path / "run") == contents(undisturbed)


def test_streams_that_were_closed_beforehand(command, undisturbed, tmp_path):
    """Their numbers go to files that are opened later: nothing that is printed may end there."""
    words = [sys.executable, str(SMALL), *SHORT, "--out", str(tmp_path / "run")]
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words]
    assert subprocess.run(closed, env=command.around, check=False, timeout=300).returncode == 0
    assert contents(tmp_path / "run") == contents(undisturbed)


def test_whatever_is_shown_in_ascii(invoke, tmp_path):
    for arguments, words in (
        ((*SHORT, "--out", tmp_path / "run"), "1 method ? 1 seed ? 12 iterations"),
        (("report", tmp_path / "run"), "report.html"),
        (("list",), "curves"),
        (("list", "curves"), "1 seed ? 15 s"),
        (("show", "curves", "small"), "budget.seconds"),
        (("tune", "sums", "sgd", "--preset", "smoke", "--grid", "sgd.rate=0.1"), "Best"),
        *(((name, "--help"), "Usage") for name in ("run", "report", "tune", "list", "show", "data")),
        (("--help",), "Usage"),
    ):
        result = invoke(*arguments, charset="ascii")
        assert result.exit_code == 0, (arguments, result.exception)
        assert words in " ".join(result.output.split()), arguments
    result = invoke(*SHORT, "--out", tmp_path / "out", "--set", "sgd.rate=λ", charset="ascii")
    assert (result.exit_code, result.output.count("\n"), result.output.isascii()) == (2, 1, True)
