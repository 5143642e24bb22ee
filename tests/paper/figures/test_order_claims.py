"""Figure 2's report: claims by rule from made-up logs, a page from the logs alone, and errors in one line."""

import gzip
import re
import shutil

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from natgrad_paper import claims, cli, config, experiments, settings
from natgrad_paper.claims import Verdict
from natgrad_paper.errors import FieldError
from natgrad_paper.log import FINISHED, RunLog, Writer, read, read_all
from natgrad_paper.order import figures, numbers
from natgrad_paper.order.claims import CLAIMS
from natgrad_paper.order.study import Study
from natgrad_paper.series import by_method


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def evaluation(what, name, **fields):
    return {"record": "evaluation", "what": what, "name": name, **fields}


def made_up(
    method, seed, level, error=0.77, first=5.0, drift=0.8, limit=(0.1, 0.01), refused=0, end=FINISHED
):
    """A log whose variances are `level` on average over four segments, the first `first` times the others."""
    shape = np.array([first, 1, 1, 1])
    curve = level * shape / shape.mean()
    training = {
        "iteration": 40,
        "refused": refused,
        "training_seconds": 2.0,
        "generating_seconds": 1.0,
        "rate": 0.5,
    }
    records = [
        evaluation(
            "training", "match-1", kind="match", validation_error=error - 0.02, **{**training, "rate": 1.0}
        ),
        evaluation("training", "match-0.5", kind="match", validation_error=error, **training),
        evaluation("matched", "matched", rate=0.5, reached=True),
        evaluation("training", "unperturbed", kind="unperturbed", validation_error=error, **training),
    ]
    for segment, variance in enumerate(curve.tolist(), start=1):
        for repeat in (1, 2):
            name = f"segment-{segment:02d}-{repeat}"
            records.append(
                evaluation(
                    "training", name, kind="segment", segment=segment, validation_error=error, **training
                )
            )
        records.append(
            evaluation("variance", f"segment-{segment:02d}", kind="segment", segment=segment, rate=0.5, repeats=2,
                       variance=variance, logit_variance=9 * variance)
        )  # fmt: skip
    for factor in limit:
        records.append(
            evaluation("variance", f"limit-{factor:g}", kind="limit", segment=1, factor=factor, rate=0.5 * factor,
                       repeats=2, variance=float(curve[0] * factor**2), logit_variance=1.0)
        )  # fmt: skip
    for name in ("drift-forwards", "drift-backwards"):
        records.append(evaluation("training", name, kind="drift", validation_error=drift, **training))
        for update in (0, 20, 40):
            records.append(
                evaluation(
                    "trace", f"{name}@{update}", training=name, iteration=update, validation_error=drift
                )
            )
    records.append(
        evaluation(
            "variance", "drift", kind="drift", rate=0.5, repeats=2, variance=level, logit_variance=level
        )
    )
    header = {
        "experiment": "order",
        "preset": "small",
        "method": {
            "name": method, "label": method.upper(), "color": "#0072B2", "order": ["sgd", "ngd"].index(method)
        },
        "seed": seed,
        "data": {"name": "handwriting fonts", "sha256": "ab" * 32, "glyphs": [100, 32, 32]},
        "config": {
            "stream": {"side": 16, "batch": 4, "segment": 5, "block": 5, "segments": 4},
            "match": {"tolerance": 0.004},
            "repeats": 2,
        },
        "versions": {"natgrad": "0"},
        "cores": 2,
        "platform": "Linux",
    }  # fmt: skip
    return RunLog(header, tuple(records), end, (), None)


def both(seeds=3, ratio=0.5, **changes):
    """Logs of both methods; NGD's variance is that ratio of SGD's, a little more or less in each seed."""
    jitter = np.linspace(-0.05, 0.05, seeds) if seeds > 1 else [0.0]
    logs = []
    for seed, shift in enumerate(jitter):
        logs.append(made_up("sgd", seed, 1e-6))
        logs.append(made_up("ngd", seed, 1e-6 * ratio * np.exp(shift), **changes))
    return logs


def verdicts(logs):
    return {each.claim.key: each.verdict for each in claims.judge(CLAIMS, by_method(logs))}


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
    """Of 40 a training; those that join in at a later segment have fewer."""
    assert Verdict.VOID not in verdicts(both(refused=1)).values()
    judged = claims.judge(CLAIMS, by_method(both(refused=10)))
    assert {each.verdict for each in judged} == {Verdict.VOID}
    assert "void: NGD, seed 0: 130 of" in judged[2].findings[0].words


def test_what_is_not_at_equal_error_is_not_decided():
    assert verdicts(both(error=0.775))["a"] == Verdict.HOLDS
    for ratio in (0.05, 2.0):
        found = verdicts(both(error=0.79, ratio=ratio))
        assert (found["a"], found["b"]) == (Verdict.OPEN, Verdict.OPEN)
    nothing = [
        made_up(name, seed, level, error=0.98)
        for seed in range(3)
        for name, level in (("sgd", 2), ("ngd", 1))
    ]
    assert verdicts(nothing)["a"] == Verdict.OPEN


def test_too_few_seeds_decide_nothing():
    assert set(verdicts(both(seeds=2)).values()) == {Verdict.OPEN}
    cut = [*both(seeds=2), made_up("sgd", 2, 1e-6), made_up("ngd", 2, 1e-7, end="interrupted")]
    assert verdicts(cut)["a"] == Verdict.OPEN


@pytest.mark.parametrize(("first", "verdict"), [(5.0, Verdict.HOLDS), (0.2, Verdict.FAILS)])
def test_early_segments(first, verdict):
    assert verdicts(both(first=first))["c"] == verdict


def test_smaller_rates():
    assert verdicts(both())["d"] == Verdict.HOLDS
    rising = [made_up(name, seed, 1e-6, limit=(2.0,)) for seed in range(3) for name in ("sgd", "ngd")]
    assert verdicts(rising)["d"] != Verdict.HOLDS
    none = [made_up(name, seed, 1e-6, limit=()) for seed in range(3) for name in ("sgd", "ngd")]
    assert verdicts(none)["d"] == Verdict.OPEN


@pytest.mark.parametrize(
    ("drift", "verdict"),
    [(0.7, Verdict.HOLDS), (0.9, Verdict.FAILS), (0.797, Verdict.EQUAL), (0.803, Verdict.EQUAL)],
)
def test_drift(drift, verdict):
    logs = both(drift=drift)
    assert verdicts(logs)["e"] == verdict


def test_a_name_said_again_replaces_what_was_said():
    log = made_up("sgd", 0, 1e-6)
    again = {**numbers.records(log, "variance")["segment-02"], "variance": 1.0}
    assert numbers.curve(RunLog(log.header, (*log.evaluations, again), log.end))[1] == 1.0


def test_updates_that_were_shared_are_not_counted():
    # Two matching, one unperturbed, two drifting trainings of 40 updates; eight that join in 0, 5, 10 and 15 later.
    assert numbers.clocks(made_up("sgd", 0, 1e-6))["updates"] == 13 * 40 - 2 * (5 + 10 + 15)


@pytest.fixture
def directory(tmp_path):
    """Made-up logs in files, one of them packed, one with pictures."""
    stages = np.arange(3 * 6 * 32 * 32, dtype=np.uint32).astype(np.uint8).reshape(3, 6, 32, 32)
    for log in both():
        path = tmp_path / "run" / "logs" / f"{log.header['method']['name']}.{log.header['seed']}.jsonl"
        with Writer(path, log.header) as writer:
            if log.header["seed"] == 0:
                writer.write(figures.samples(stages, [0, 10, 61]))
            for record in log.evaluations:
                writer.write(record)
            writer.write({"record": "end", "reason": log.end})
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
    return tmp_path / "run"


def test_the_report_is_a_function_of_the_logs(directory, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    for place in (directory, copy):
        result = invoke("report", place)
        assert result.exit_code == 0, result.output
        assert "holds" in result.output
    names = ("report.html", "results.csv", "order.svg", "order.png")
    for name in names:
        assert (directory / name).read_bytes() == (copy / name).read_bytes()
    page = (directory / "report.html").read_text()
    assert "3 seeds" in page
    for words in ("Matching the rates", "1: 75.00%; 0.5: 77.00%", "Smaller rates", "drifting mix", 'id="characters"',
                  "variance NGD / SGD: 0.5 ", "natgrad run order --preset small"):  # fmt: skip
        assert words in page, words
    assert not re.search(r"<script|src=\"http|nan\b", page)
    rows = (directory / "results.csv").read_text().splitlines()
    assert rows[0].startswith("method,seed,what,name,kind,segment,factor,iteration,rate,validation_error")
    assert len(rows) == 1 + 6 * (13 + 7 + 6)


def test_the_command_names_the_users_characters_as_the_experiment_wants_them(directory):
    for path in (directory / "logs").glob("*.jsonl"):
        path.write_text(path.read_text().replace('"handwriting fonts"', '"mine.npz", "file": "mine.npz"'))
    logs = read_all(directory)
    words = settings.command(logs, experiments.load("order"))
    assert words.startswith(
        "natgrad run order --preset small --methods sgd,ngd --seeds 0,1,2 --source mine.npz"
    )
    assert words.count("--source") == 1
    assert "--data" not in words
    assert invoke("report", directory).exit_code == 0
    assert "--source mine.npz" in (directory / "report.html").read_text()


def test_the_lines_of_the_figure_are_the_geometric_means(directory):
    panel = figures.figure_2(by_method(read_all(directory))).axes[0]
    line = next(line for line in panel.lines if line.get_gid() == "line-ngd")
    np.testing.assert_allclose(line.get_ydata(), 0.5e-6 * np.array([2.5, 0.5, 0.5, 0.5]), rtol=1e-6)
    assert panel.get_yscale() == "log"


def test_a_run_cut_off_early_still_has_a_report(directory):
    path = directory / "logs" / "sgd.0.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    for other in (directory / "logs").iterdir():
        if other != path:
            other.unlink()
    Study().show([read(path)], directory, Console(quiet=True))
    assert "cut off, without a word" in (directory / "report.html").read_text()


@pytest.mark.parametrize(
    ("field", "value"),
    [("shape", [3, 6, 32]), ("shape", [3, 6, 32, 1000]), ("labels", [0, 1, 62]), ("labels", [0]), ("stages", "AAAA"),
     ("stages", "é")],
)  # fmt: skip
def test_damaged_pictures_are_one_line(field, value):
    log = made_up("sgd", 0, 1e-6)
    good = figures.samples(np.zeros((3, 6, 32, 32), np.uint8), [0, 1, 2])
    assert figures.characters(RunLog(log.header, log.evaluations, log.end, (), good)) is not None
    with pytest.raises(FieldError, match=f"samples: {field}: expected"):
        figures.characters(RunLog(log.header, log.evaluations, log.end, (), {**good, field: value}))


def bad_source(tmp_path):
    path = tmp_path / "glyphs.npz"
    labels = np.arange(62)
    images = np.ones((62, 32, 32), np.uint8)
    np.savez(path, images=images, labels=np.where(labels == 7, 99, labels))
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "order", "--source", "{bad}"], "labels: expected whole numbers 0 to 61"),
        (["run", "order", "--source", "{missing}"], "none.npz"),
        (["run", "order", "--data", "{bad}"], "--data: expected --source"),
        (["run", "curves", "--source", "{bad}"], "--source: expected --data"),
        (["run", "order", "--methods", "sgd"], "--methods: expected all of sgd, ngd"),
        (["run", "order", "--set", "stream.block=7"], "block: expected a divisor of segment = 50, found 7"),
        (["run", "order", "--set", "limit.segment=11"], "limit.segment: expected at most"),
        (["run", "order", "--set", "limit.factors=[0.1, 0.5]"], "falling numbers between 0 and 1"),
        (
            ["tune", "order", "sgd", "--grid", "sgd.rate=1,2"],
            "tune: expected an experiment that compares errors",
        ),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, arguments, words):
    names = {"bad": bad_source(tmp_path), "missing": tmp_path / "none.npz"}
    out = tmp_path / "out"
    where = ["--out", out] if arguments[0] == "run" else []
    result = invoke(*(str(word).format(**names) for word in arguments), *where)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not out.exists()


def test_the_list_says_what_it_costs():
    result = invoke("list")
    assert result.exit_code == 0
    listed = " ".join(result.output.split())
    assert "Figure 2: the order of the training examples" in listed
    experiment = experiments.load("order")
    small = config.load(experiment.config, experiment.presets()["small"])
    assert Study().cost(small, 2) == (
        "2 methods × 2 seeds × 62 trainings of 1000 updates, besides matching the rates: about 30 min on two cores"
    )
