"""The report in short, on any terminal."""

import io

import pytest
from rich.console import Console
from synthetic import REFUSED, run_log, runs

from natgrad_paper.report import screen
from natgrad_paper.report.claims import Below, Claim
from natgrad_paper.report.parts import Part, Table
from natgrad_paper.report.story import Story

CLAIMS = (Claim("a", "The paper’s λ is best – by far.", "A below B.", (Below("a", "b"),)),)


def printed(found, story, encoding="utf-8"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=80)
    for table in screen.tables(found, story):
        console.print(table)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def several(end="finished"):
    logs = [run_log("a", seed, 0.5 + seed / 100, end, order=0) for seed in range(3)]
    logs += [run_log("b", seed, label="B, plain") for seed in range(3)]
    for log in logs:
        log.evaluations[-1]["test_squared_error"] = 7.5
    return runs(*logs)


def test_errors_times_and_verdicts_are_shown():
    text = " ".join(printed(several(), Story("Figure", claims=CLAIMS)).split())
    for words in (
        "Curves (regenerated), preset small, means over 3 seeds", "test error", "7.50", "1.02", "2.00", "100", "4.0",
        "B, plain", "The paper’s λ is best – by far.", "holds",
    ):  # fmt: skip
        assert words in text, words
    assert "seconds to" not in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_shows_it_spelled_out(encoding):
    text = printed(several(REFUSED), Story("Figure", claims=CLAIMS), encoding)
    assert text.isascii()
    flat = " ".join(text.replace("|", " ").split())
    assert "The paper's lambda is best - by far." in flat
    assert f"void: A, seed 0: {REFUSED}" in flat
    assert "?" not in text


def test_what_was_not_measured_and_a_single_seed():
    text = printed(runs(run_log(errors=(8.0, None))), Story("Figure"))
    assert "seed 0" in text
    assert "Claims" not in text


def test_an_experiment_without_errors_shows_its_own_first_table():
    part = Part("Variances", "variances", [Table(["method", "variance"], [["SGD", "0.25"]])])
    text = printed(runs(run_log(errors=())), Story("Figure 2", sections=lambda runs: [part]))
    assert "0.25" in text
    assert printed(runs(run_log(errors=())), Story("Figure")) == ""


def test_claims_that_the_runs_do_not_ask_are_one_line():
    missing = tuple(Claim(key, f"Claim {key}.", "", (Below("a", key),)) for key in "xyz")
    flat = " ".join(printed(several(), Story("Figure", claims=(*CLAIMS, *missing))).split())
    assert "holds" in flat
    assert flat.endswith("Not asked by this run: x, y and z.")
    assert "not run" not in flat
    assert "Claim x." not in flat
    nothing = printed(several(), Story("Figure", claims=missing))
    assert "verdict" not in nothing
    assert nothing.strip().endswith("Not asked by this run: x, y and z.")


def test_too_few_seeds_are_said_once():
    few = runs(*(run_log(name, order=order) for order, name in enumerate(("a", "b"))))
    text = printed(few, Story("Figure", claims=CLAIMS))
    assert text.strip().endswith("Not decided with fewer than 3 seeds: a.")
    assert "best" not in text
    choosing = runs(*(run_log(name, 100, order=order) for order, name in enumerate(("a", "b"))))
    assert "seeds from 100 on are for choosing" in printed(choosing, Story("Figure", claims=CLAIMS))
