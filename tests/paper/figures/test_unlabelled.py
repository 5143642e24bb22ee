"""Figure 1 from end to end: the conditions, the mechanism's log, the report, resuming, and the user's own faces."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from picture_files import small_file, tfd, write_arrays
from training.tiny import Notes, contents

from figures.runs import conduct, invoke, method, run, settings
from natgrad_paper import figures
from natgrad_paper.data import faces
from natgrad_paper.data.labelled import EXPRESSIONS
from natgrad_paper.figures.unlabelled import methods
from natgrad_paper.figures.unlabelled.step_kl import WHERE
from natgrad_paper.training import log
from natgrad_paper.training.batches import Minibatch, Others, Unlabelled
from natgrad_paper.training.loop import Trainer, on_grid
from natgrad_paper.training.stopping import Stopped

pytestmark = pytest.mark.usefixtures("fast_compile")

METHODS = ("same", "other", "unlabelled")


@pytest.fixture(scope="module")
def chosen():
    return settings("unlabelled")


@pytest.fixture(scope="module")
def problem(chosen, fast_compile):
    return figures.load("unlabelled").prepare(chosen, None)


@pytest.fixture(scope="module")
def directory(tmp_path_factory, fast_compile):
    directory = tmp_path_factory.mktemp("run") / "smoke"
    result = invoke("run", "unlabelled", "--preset", "smoke", "--out", directory)
    assert result.exit_code == 0, result.output
    for words in ("drawn faces", "same samples", "training cost", "error, %", "unlabelled.svg"):
        assert words in " ".join(result.output.split())
    return directory


@pytest.fixture(scope="module")
def logs(directory):
    return {found.method: found for found in log.read_all(directory)}


def test_every_condition_trains_and_its_errors_are_those_of_the_figure(logs):
    assert sorted(logs) == sorted(METHODS)
    for found in logs.values():
        first, last = found.evaluations[0], found.evaluations[-1]
        assert last["cross_entropy"] < first["cross_entropy"]
        for field in ("misclassified", "test_misclassified"):
            assert 0 <= last[field] <= 1
        assert found.header["data"]["unlabelled"] == [60, 48, 48]
    assert len({found.evaluations[-1]["cross_entropy"] for found in logs.values()}) == 3
    assert len({found.evaluations[0]["cross_entropy"] for found in logs.values()}) == 1  # one start for all


def test_the_mechanism_is_logged_for_every_step_that_is(logs):
    for name, found in logs.items():
        assert [step["iteration"] for step in found.steps] == [k for k in range(1, 13) if on_grid(k)]
        for step in found.steps:
            assert all(step[field] > 0 for field in WHERE)
            # The metric's own is what the step says of itself; with the same samples the gradient's is, too.
            assert step["kl_metric"] == pytest.approx(step["kl"], rel=1e-3)
            assert name != "same" or step["kl_gradient"] == step["kl_metric"]
        for other in ("kl_held_out", "kl_gradient")[: 1 if name == "same" else 2]:
            assert any(step[other] != step["kl_metric"] for step in found.steps)


def test_who_does_not_ask_does_not_pay(chosen):
    quiet = figures.load("unlabelled").prepare(settings("unlabelled", "held_out=0", "data.shown=0"), None)
    assert quiet.gauge is None
    assert quiet.sights is None
    assert Trainer(quiet, method("unlabelled", "same"), chosen).gauge is None


def test_conditions_differ_in_the_metrics_inputs_alone(chosen):
    found = {each.name: each for each in figures.load("unlabelled").methods}
    batches = {name: each.batches(each.own(chosen)) for name, each in found.items()}
    assert {name: each.metric for name, each in batches.items()} == {
        "same": None, "other": Others(30), "unlabelled": Unlabelled(30),
        "other-equal": Others(20), "unlabelled-equal": Unlabelled(20),
    }  # fmt: skip
    assert {each.gradient for each in batches.values()} == {Minibatch(20)}
    assert {each.build for each in found.values()} == {methods.ngd}


def test_a_step_may_see_its_cases_in_parts(problem):
    changed = settings("unlabelled", "ngd.microbatch=7")
    same = method("unlabelled", "same")
    assert same.build(problem, same.own(changed)).microbatch == 7


def test_the_report_shows_figure_claims_mechanism_and_data(directory):
    text = (directory / "report.html").read_text()
    for words in (
        "Figure 1: unlabelled data in the metric",
        "Training and test error against the number of updates",
        "What the data look like",
        "as the network sees them",
        "surprise",
        "90 training, 20 validation, 40 test and 60 unlabelled cases",
        "natgrad run unlabelled --preset smoke",
        "same samples",
        "nobody has left the plateau",  # in so few steps
        "the faces are drawn by a generator",
        "Differences between the conditions",
        "λ at the end",
        "misclassified training cases, %",
    ):
        assert words in text, words
    assert sum(bool(found.pictures) for found in log.read_all(directory)) == 1


def test_pictures_are_the_data_before_and_after(problem):
    before, after = problem.sights.values()
    assert before.shape == (7, 2, 48, 48)
    assert after.shape == (7, 2, 12, 12)
    train = faces.draw(0, "train", 0, 90)
    for label in range(len(EXPRESSIONS)):
        rows = np.flatnonzero(train.labels == label)[:2]
        np.testing.assert_array_equal(before[label], train.images[rows])
        seen = np.round(255 * np.clip(problem.train[0][rows], 0, 1)).reshape(2, 12, 12)
        np.testing.assert_array_equal(after[label], seen)


def test_the_parts_are_apart(problem):
    parts = [problem.train[0], problem.valid[0], problem.test[0], problem.pool]
    rows = np.concatenate(parts)
    assert len(np.unique(rows, axis=0)) == len(rows) == 90 + 20 + 40 + 60
    assert problem.train[1].sum(axis=1).tolist() == [1.0] * 90


def test_stopped_and_resumed_is_undisturbed(problem, directory, tmp_path):
    """With draws from the pool, and the mechanism's numbers among the log's."""
    display = Notes("unlabelled samples, seed 0", 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    given = {"methods": ["unlabelled"], "problem": replace(problem, sights=None)}
    with pytest.raises(Stopped):
        conduct(run("unlabelled", tmp_path, display=display, **given))
    assert conduct(run("unlabelled", tmp_path, resume=True, **given)) == []
    name = "unlabelled.0.jsonl"
    assert contents(tmp_path) == {name: contents(directory)[name]}


def test_a_users_faces_are_taken_and_not_shown_if_they_must_not(tmp_path):
    path = small_file(tmp_path / "faces.mat")
    out = tmp_path / "run"
    result = invoke(
        "run", "unlabelled", "--preset", "smoke", "--methods", "unlabelled", "--data", path, "--out", out,
        "--set", "data.shown=0", "--set", "data.fold=2", "--set", "budget.iterations=2",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    header = log.read(out / "logs" / "unlabelled.0.jsonl").header
    assert header["data"]["name"] == "faces of faces.mat, fold 2"
    assert header["data"]["train"] == [60, 48, 48]
    assert header["data"]["unlabelled"] == [40, 48, 48]
    text = (out / "report.html").read_text()
    assert 'class="pixels"' not in text
    assert "--data faces.mat" in text
    assert str(tmp_path) not in text


BAD_CALLS = [
    (("--data", "absent.mat"), "absent.mat:", "faces"),
    (("--set", "data.fold=6"), "data.fold:", "5"),
    (("--set", "data.shrink=5"), "data.shrink:", "48"),
    (("--set", "model.window=12"), "model.window:", "12"),
    (("--set", "ngd.batch=80"), "ngd:", "90"),
    (("--set", "data.unlabelled=10"), "ngd:", "unlabelled"),
]


@pytest.mark.parametrize(("arguments", "field", "word"), BAD_CALLS)
def test_bad_calls_are_one_line_and_leave_nothing(tmp_path, monkeypatch, arguments, field, word):
    monkeypatch.chdir(tmp_path)
    result = invoke("run", "unlabelled", "--preset", "smoke", *arguments)
    assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
    _, named, rest = result.output.partition(field)
    assert named
    assert word in rest
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_too_few_faces_says_so(tmp_path):
    path = write_arrays(tmp_path / "faces.mat", tfd())
    result = invoke("run", "unlabelled", "--preset", "smoke", "--data", path, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "batches of at most 9 training cases" in result.output
    assert not (tmp_path / "run").exists()


def test_a_users_file(tmp_path, users_faces):
    out = tmp_path / "run"
    result = invoke(
        "run", "unlabelled", "--preset", "smoke", "--methods", "unlabelled", "--out", out,
        "--data", users_faces, "--set", "data.shown=0",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = log.read(out / "logs" / "unlabelled.0.jsonl")
    assert found.evaluations[-1]["cross_entropy"] < found.evaluations[0]["cross_entropy"]
