"""Figure 1 from end to end: the conditions, the mechanism's log, the report, resuming, and the user's own faces."""

import csv
import dataclasses

import numpy as np
import pytest
from test_faces_file import BAD as BAD_FILES
from test_faces_file import tfd, write
from test_resume import Asks, contents
from typer.testing import CliRunner

from natgrad_paper import asking, cache, cli, config, experiments, log, stop, tune
from natgrad_paper import run as runner
from natgrad_paper.batches import Minibatch, Others, Unlabelled
from natgrad_paper.data import faces
from natgrad_paper.data.labelled import EXPRESSIONS
from natgrad_paper.experiments import unlabelled
from natgrad_paper.gauges import WHERE
from natgrad_paper.train import Trainer, on_grid

pytestmark = pytest.mark.usefixtures("fast_compile")

METHODS = ("same", "other", "unlabelled")


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module", autouse=True)
def _own_cache():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "enable", lambda: None)
        yield


@pytest.fixture(scope="module")
def experiment():
    return experiments.load("unlabelled")


@pytest.fixture(scope="module")
def settings(experiment):
    return config.load(experiment.config, experiment.presets()["smoke"])


@pytest.fixture(scope="module")
def problem(experiment, settings, fast_compile):
    return experiment.prepare(settings, None)


@pytest.fixture(scope="module")
def directory(tmp_path_factory, fast_compile):
    directory = tmp_path_factory.mktemp("run") / "smoke"
    arguments = ("run", "unlabelled", "--preset", "smoke", "--out", directory)
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    for words in ("drawn faces", "same samples", "training cost", "error, %", "unlabelled.svg"):
        assert words in result.output
    return directory


@pytest.fixture(scope="module")
def logs(directory):
    return {found.header["method"]["name"]: found for found in log.read_all(directory)}


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


def test_who_does_not_ask_does_not_pay(experiment, settings):
    quiet = experiment.prepare(dataclasses.replace(settings, held_out=0), None)
    assert quiet.gauge is None
    assert Trainer(quiet, experiment.methods[0], settings).gauge is None


def test_conditions_differ_in_the_metrics_inputs_alone(experiment, settings):
    found = {method.name: method for method in experiment.methods}
    batches = {name: method.batches(settings) for name, method in found.items()}
    assert {name: each.metric for name, each in batches.items()} == {
        "same": None, "other": Others(30), "unlabelled": Unlabelled(30),
        "other-equal": Others(20), "unlabelled-equal": Unlabelled(20),
    }  # fmt: skip
    assert {each.gradient for each in batches.values()} == {Minibatch(20)}
    assert {method.optimizer for method in found.values()} == {unlabelled.ngd}


def test_the_report_shows_figure_claims_mechanism_and_data(directory):
    text = (directory / "report.html").read_text()
    for words in (
        "Figure 1: unlabelled data in the metric",
        "Training and test error against the number of updates",
        "KL held out / the metric’s",
        "What the data look like",
        "as the network sees them",
        "90 training, 20 validation, 40 test and 60 unlabelled cases",
        "natgrad run unlabelled --preset smoke",
        "same samples",
        "nobody has left the plateau",  # in so few steps
    ):
        assert words in text, words
    assert text.count('class="sight"') == 2
    assert "The logs hold no samples." not in text
    rows = list(csv.DictReader((directory / "results.csv").read_text().splitlines()))
    assert list(rows[0])[6:9] == ["cross_entropy", "test_misclassified", "misclassified"]
    assert sum(bool(found.sights) for found in log.read_all(directory)) == 1


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


def test_the_parts_are_apart(problem, settings):
    parts = [problem.train[0], problem.valid[0], problem.test[0], problem.pool]
    rows = np.concatenate(parts)
    assert len(np.unique(rows, axis=0)) == len(rows) == 90 + 20 + 40 + 60
    assert problem.train[1].sum(axis=1).tolist() == [1.0] * 90


def test_stopped_and_resumed_is_undisturbed(experiment, settings, problem, directory, tmp_path):
    """With draws from the pool, and the mechanism's numbers among the log's."""
    methods = [method for method in experiment.methods if method.name == "unlabelled"]
    whole = runner.Plan(experiment, "smoke", settings, methods, (0,))
    with pytest.raises(stop.Stopped):
        runner.run(whole, problem, tmp_path, Asks("unlabelled samples", 7))
    assert runner.run(whole, problem, tmp_path, Asks(), resume=True) == []
    name = "unlabelled.0.jsonl"
    assert contents(tmp_path) == {name: contents(directory)[name]}


def test_tuning_takes_the_validation_cases(problem):
    held = tune.held_out(problem)
    assert held.test is problem.valid
    assert held.train is problem.train
    assert held.gauge is None


def small_file(path, **changes):
    """Write a file in the Toronto format with enough faces for the smoke preset."""
    rng = np.random.default_rng(0)
    folds = np.repeat([1, 2, 3, 0], [60, 20, 20, 40])[:, None].repeat(5, axis=1).astype(np.uint8)
    labels = np.where(folds[:, :1] > 0, np.arange(140)[:, None] % 7 + 1, -1).astype(np.int16)
    arrays = {
        "images": rng.integers(0, 256, (140, 48, 48)).astype(np.uint8), "labs_ex": labels, "folds": folds
    }  # fmt: skip
    return write(path, arrays | changes)


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
    assert "<img" not in text
    assert "--data faces.mat" in text
    assert "data.shown=0" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    "case", ["no images", "no rows", "floats", "label 8", "label not a number", "fold 4"]
)
def test_bad_faces_are_one_line_and_leave_nothing(tmp_path, monkeypatch, case):
    arrays, words = BAD_FILES[case]
    path = write(tmp_path / "faces.mat", arrays)
    monkeypatch.chdir(tmp_path)
    result = invoke("run", "unlabelled", "--preset", "smoke", "--data", path)
    assert result.exit_code == 2
    assert words in result.output
    assert "faces.mat" in result.output
    assert result.output.count("\n") == 1
    assert [found.name for found in tmp_path.iterdir()] == ["faces.mat"]


BAD_CALLS = [
    (("--data", "absent.mat"), "absent.mat: expected a file with faces, found none"),
    (("--set", "data.fold=6"), "data.fold: expected a whole number from 1 to 5, found 6"),
    (("--set", "data.shrink=5"), "data.shrink: expected a whole number that divides 48, found 5"),
    (("--set", "model.window=12"), "model.window: expected with the pooling at most the pictures' 12, found 12"),
    (("--set", "ngd.batch=80"), "ngd.batch: expected at most what leaves enough other cases"),
    (("--set", "data.unlabelled=10"), "data.unlabelled: expected enough for the metric, found 10"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), BAD_CALLS)
def test_bad_calls_are_one_line_and_leave_nothing(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = invoke("run", "unlabelled", "--preset", "smoke", *arguments)
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert words in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_too_few_faces_says_so(tmp_path):
    path = write(tmp_path / "faces.mat", tfd())
    result = invoke("run", "unlabelled", "--preset", "smoke", "--data", path, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "expected at least 50 faces for train, found 9" in result.output
    assert not (tmp_path / "run").exists()


def test_every_preset_is_read_and_the_papers_has_its_constants(experiment):
    found = {name: config.load(experiment.config, path) for name, path in experiment.presets().items()}
    assert list(found) == ["smoke", "small", "paper"]
    paper, small = found["paper"], found["small"]
    assert (paper.model.filters, paper.model.window, paper.model.units) == (512, 14, 1024)
    for each in (paper, small):
        assert (each.ngd.batch, each.ngd.metric_batch) == (256, 384)
        assert each.data.train == 2925
    assert (paper.ngd.rate, paper.damping.initial, paper.ngd.maxiter) == (0.2, 5.0, 50)
    assert paper.solver.name == "minres-qlp"


def test_every_preset_beyond_smoke_says_how_long_it_takes(experiment):
    settings = config.load(experiment.config, experiment.presets()["paper"], ["budget.step_seconds=144"])
    words = "3 methods × 2 seeds × 6000 iterations of 144 s = about 60.0 days of training, an estimate for two cores"
    assert asking.cost(experiment, settings, 3, 2).startswith(words)
    for name in ("small", "paper"):
        settings = config.load(experiment.config, experiment.presets()[name], ["budget.iterations=10"])
        assert settings.budget.step_seconds is not None
        assert "10 iterations of" in asking.cost(experiment, settings, 1, 1)


def test_a_users_file(tmp_path, users_faces):
    out = tmp_path / "run"
    result = invoke(
        "run", "unlabelled", "--preset", "smoke", "--methods", "unlabelled", "--out", out,
        "--data", users_faces, "--set", "data.shown=0",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = log.read(out / "logs" / "unlabelled.0.jsonl")
    assert found.evaluations[-1]["cross_entropy"] < found.evaluations[0]["cross_entropy"]
