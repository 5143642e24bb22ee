"""Figure 2's claims, figure and tables, from made-up logs."""

import re

import numpy as np
import pytest

from natgrad_paper import figures
from natgrad_paper.figures.order import numbers, panels
from natgrad_paper.figures.order.claims import CLAIMS
from natgrad_paper.report import page
from natgrad_paper.report.claims import Verdict, judge
from natgrad_paper.report.load import Runs
from natgrad_paper.training.log import RunLog, Status

TRACED = {"drift-forwards": "drift", "drift-backwards": "drift", "unperturbed": "unperturbed"}


def made_up(method, seed, level, error=0.77, first=5.0, drift=0.8, limit=(0.1, 0.01), refused=0, whole=True):
    """Logs of a seed whose variances are `level` on average over four segments, the first `first` times the others."""
    shape = np.array([first, 1, 1, 1])
    curve = level * shape / shape.mean()
    header = {
        "experiment": "order",
        "preset": "small",
        "method": {
            "name": method, "label": method.upper(), "color": "#0072B2", "order": ["sgd", "ngd"].index(method)
        },
        "seed": seed,
        "data": {"name": "handwriting fonts", "sha256": "ab" * 32, "glyphs": [100, 32, 32]},
        "settings": {
            "stream": {"side": 16, "batch": 4, "segment": 5, "block": 5, "segments": 4},
            "match": {"tolerance": 0.004}, "limit": {"segment": 1}, "repeats": 2,
        },
        "damping": None,
        "plateau": {},
        "versions": {"natgrad": "0"},
        "commit": None,
        "cores": 2,
        "platform": "Linux",
    }  # fmt: skip

    def training(name, error, rate=0.5, looks=(), **facts):
        head = {**header, "training": {"name": name, "rate": rate, **facts}}
        clocks = {"training_seconds": 2.0, "evaluation_seconds": 0.0, "compile_seconds": 0.0}
        records = [
            {"iteration": at, "valid_misclassified": error, "refused": refused, **clocks}
            for at in (*looks, 40)
        ]
        return RunLog(head, tuple(records), status=Status.FINISHED)

    logs = [training("match-1", error - 0.02, 1.0, kind="match"), training("match-0.5", error, kind="match")]
    measures = [{"name": "matched", "rate": 0.5, "reached": True}]
    for segment, variance in enumerate(curve.tolist(), start=1):
        facts = {"kind": "segment", "segment": segment}
        logs += [training(f"segment-{segment:02d}-{repeat}", error, **facts) for repeat in (1, 2)]
        found = {"variance": variance, "logit_variance": 9 * variance}
        measures.append({"name": f"segment-{segment:02d}", **facts, **found})
    for factor in limit:
        variance = float(curve[0] * factor**2)
        facts = {"kind": "limit", "segment": 1, "factor": factor, "variance": variance, "logit_variance": 1.0}
        measures.append({"name": f"limit-{factor:g}", **facts})
    for name, kind in TRACED.items():
        logs.append(training(name, drift if kind == "drift" else error, looks=(0, 20), kind=kind))
    measures.append({"name": "drift", "kind": "drift", "variance": level, "logit_variance": level})
    status = Status.FINISHED if whole else Status.INTERRUPTED
    return [RunLog({**header, "training": {"name": ""}}, (), measures=tuple(measures), status=status), *logs]


def both(seeds=3, ratio=0.5, **changes):
    """Logs of both methods; NGD's variance is that ratio of SGD's, a little more or less in each seed."""
    jitter = np.linspace(-0.05, 0.05, seeds) if seeds > 1 else [0.0]
    logs = []
    for seed, shift in enumerate(jitter):
        logs += made_up("sgd", seed, 1e-6)
        logs += made_up("ngd", seed, 1e-6 * ratio * np.exp(shift), **changes)
    return logs


def of_both(**changes):
    return [
        log for seed in range(3) for name in ("sgd", "ngd") for log in made_up(name, seed, 1e-6, **changes)
    ]


def verdicts(logs):
    return {each.claim.key: each.verdict for each in judge(CLAIMS, Runs.of(logs))}


@pytest.mark.parametrize(
    ("ratio", "lower", "orders"),
    [
        (0.5, Verdict.HOLDS, Verdict.FAILS),
        (0.05, Verdict.HOLDS, Verdict.HOLDS),
        (0.1, Verdict.HOLDS, Verdict.OPEN),
        (1.0, Verdict.OPEN, Verdict.FAILS),
        (2.0, Verdict.FAILS, Verdict.FAILS),
    ],
)
def test_lower_variance_is_judged_by_its_factor(ratio, lower, orders):
    found = verdicts(both(ratio=ratio))
    assert (found["a"], found["b"]) == (lower, orders)


def test_findings_are_void_where_many_updates_were_refused():
    """Of 40 per training; those that join in at a later segment have fewer."""
    assert Verdict.VOID not in verdicts(both(refused=1)).values()
    judged = judge(CLAIMS, Runs.of(both(refused=10)))
    assert {each.verdict for each in judged} == {Verdict.VOID}
    assert "void: NGD, seed 0: 130 of 460 updates refused" in judged[2].findings[0].words


def test_what_is_not_at_equal_error_is_not_decided():
    assert verdicts(both(error=0.775))["a"] == Verdict.HOLDS
    for ratio in (0.05, 2.0):
        found = verdicts(both(error=0.79, ratio=ratio))
        assert (found["a"], found["b"]) == (Verdict.OPEN, Verdict.OPEN)
    levels = {"sgd": 2, "ngd": 1}
    nothing = [
        log for seed in range(3) for name in levels for log in made_up(name, seed, levels[name], error=0.98)
    ]
    assert verdicts(nothing)["a"] == Verdict.OPEN


def test_too_few_seeds_decide_nothing():
    assert set(verdicts(both(seeds=2)).values()) == {Verdict.OPEN}
    cut = [*both(seeds=2), *made_up("sgd", 2, 1e-6), *made_up("ngd", 2, 1e-7, whole=False)]
    assert verdicts(cut)["a"] == Verdict.OPEN


def test_one_method_alone_is_not_run():
    assert set(verdicts(made_up("sgd", 0, 1e-6)).values()) == {Verdict.ABSENT}


@pytest.mark.parametrize(("first", "verdict"), [(5.0, Verdict.HOLDS), (0.2, Verdict.FAILS)])
def test_early_segments(first, verdict):
    assert verdicts(both(first=first))["c"] == verdict


def test_smaller_rates():
    assert verdicts(both())["d"] == Verdict.HOLDS
    assert verdicts(of_both(limit=(0.1, 0.0995)))["d"] == Verdict.EQUAL
    assert verdicts(of_both(limit=()))["d"] == Verdict.OPEN


@pytest.mark.parametrize(
    ("drift", "verdict"),
    [(0.7, Verdict.HOLDS), (0.9, Verdict.FAILS), (0.797, Verdict.EQUAL), (0.803, Verdict.EQUAL)],
)
def test_drift(drift, verdict):
    assert verdicts(both(drift=drift))["e"] == verdict


def test_updates_that_were_shared_are_not_counted():
    # Two matching, one unperturbed, two drifting trainings of 40 updates; eight that join in 0, 5, 10 and 15 later.
    made = numbers.trainings(Runs.of(made_up("sgd", 0, 1e-6)))["made"]
    assert made.sum() == 13 * 40 - 2 * (5 + 10 + 15)


def test_the_lines_of_the_figure_are_the_geometric_means():
    axes = panels.draw(Runs.of(both())).axes[0]
    line = next(line for line in axes.lines if line.get_gid() == "line-ngd")
    np.testing.assert_allclose(line.get_ydata(), 0.5e-6 * np.array([2.5, 0.5, 0.5, 0.5]), rtol=1e-6)
    assert axes.get_yscale() == "log"


def test_the_page_tells_the_protocol(tmp_path):
    page.write(Runs.of(both()), figures.load("order").story, tmp_path)
    text = (tmp_path / "report.html").read_text()
    for words in ("Matching the rates", "1: 75.00%; 0.5: 77.00%", "Smaller rates", "drifting mix", "stream.segment",
                  "variance NGD / SGD: 0.5 ", "Without --data the characters"):  # fmt: skip
        assert words in text, words
    assert not re.search(r"<script|src=\"http|\bnan\b", text)
    rows = (tmp_path / "measures.csv").read_text().splitlines()
    assert len(rows) == 1 + 6 * (1 + 4 + 2 + 1)


def test_a_run_cut_off_early_still_has_a_page(tmp_path):
    measures, first, *_ = made_up("sgd", 0, 1e-6, whole=False)
    for logs in (
        [RunLog(measures.header, ())],
        [RunLog(measures.header, (), measures=measures.measures[:1]), first],
    ):
        page.write(Runs.of(logs), figures.load("order").story, tmp_path)
        assert "cut off, no reason logged" in (tmp_path / "report.html").read_text()
