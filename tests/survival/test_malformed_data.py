"""Data files that are not what they seem: one line with file, field, expected and found; no code is run."""

import time
from pathlib import Path

import numpy as np
import pytest
from bad_files import BOMB, CASES, good, write
from typer.testing import CliRunner

from natgrad_paper import figures
from natgrad_paper.cli.command import app
from natgrad_paper.data import curves_file, faces_file, glyphs

SECONDS, BYTES = 20.0, 800 << 20
"""Of the processor, several times what a slow machine needs; and more than before, less than a bomb unpacked."""
assert BYTES < BOMB << 20
READ = {"curves": curves_file.read, "faces": faces_file.read, "glyphs": glyphs.read}
RUN = {"curves": ("curves", "--data"), "faces": ("unlabelled", "--data"), "glyphs": ("order", "--data")}
"""The experiment that reads it, and by which option."""


def peak():
    """Return the most memory this process has had since `forget_peak`, and what it has now: bytes, of Linux."""
    found = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(found[name].split()[0]) << 10 for name in ("VmHWM", "VmRSS"))


def forget_peak():
    Path("/proc/self/clear_refs").write_text("5")


def refuse(case, directory):
    """Run an experiment on a bad file; return the seconds and the bytes it took."""
    directory.mkdir()
    path = directory / case.name
    write(path, case.content)
    forget_peak()
    before, began = peak()[1], time.process_time()
    experiment, option = RUN[case.data]
    out = directory / "out"
    result = CliRunner().invoke(
        app, ["run", experiment, "--preset", "smoke", option, str(path), "--out", str(out)]
    )
    assert result.exit_code == 2, (case.data, case.name, result.output, result.exception)
    assert result.output.count("\n") == 1, (case.data, case.name, result.output)
    line = result.output.strip()
    seconds, most = time.process_time() - began, peak()[0] - before
    assert str(path) in line, (case, line)
    assert case.words in line, (case.data, case.name, case.words, line)
    assert "expected" in line
    assert "found" in line
    assert "\n" not in line
    assert [entry.name for entry in directory.iterdir() if entry != path] == []
    assert not Path("caught").exists()
    path.is_fifo() or path.is_dir() or path.unlink(missing_ok=True)
    return seconds, most


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("memory is measured as Linux tells it")
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")


def refuse_all(tmp_path, cases):
    for experiment, _ in RUN.values():
        figures.load(experiment)  # what is imported does not count
    taken = [refuse(case, tmp_path / str(number)) for number, case in enumerate(cases)]
    slowest, largest = (max(column) for column in zip(*taken, strict=True))
    assert slowest < SECONDS
    assert largest < BYTES
    return f"the slowest in {slowest:.2f} s, the largest with {largest >> 20} MB"


def test_a_sample_is_one_line_each(tmp_path):
    chosen = np.random.default_rng(1).choice(len(CASES), 40, replace=False)
    refuse_all(tmp_path, [CASES[number] for number in chosen])


@pytest.mark.long
def test_all_are_one_line_each(tmp_path):
    found = refuse_all(tmp_path, CASES)
    print(f"{len(CASES)} malformed data files, {len(CASES)} refused in one line, {found}")
    assert len(CASES) >= 60


@pytest.mark.parametrize("suffix", ["npz", "mat"])
@pytest.mark.parametrize("data", READ)
def test_what_is_good_is_read(tmp_path, data, suffix):
    """So that no case is refused for another reason than its own."""
    write(tmp_path / f"good.{suffix}", good(data))
    assert READ[data](tmp_path / f"good.{suffix}").sha256()
