"""Autoencoders of the user's own pictures: Curves' methods on MNIST's format and on faces."""

import numpy as np
import pytest
from test_idx_file import idx, pictures
from test_idx_file import write as write_idx
from test_unlabelled import small_file
from typer.testing import CliRunner

import natgrad as ng
from natgrad_paper import cache, cli, config, experiments, log
from natgrad_paper.experiments import autoencoder, curves

pytestmark = pytest.mark.usefixtures("fast_compile")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch):
    monkeypatch.setattr(cache, "enable", lambda: None)


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def settings(*changes):
    experiment = experiments.load("autoencoder")
    return config.load(experiment.config, experiment.presets()["smoke"], changes)


def test_the_methods_are_those_of_curves():
    experiment = experiments.load("autoencoder")
    assert experiment.methods is curves.METHODS
    assert set(experiment.presets()) == {"smoke", "small", "paper", "faces"}
    for path in experiment.presets().values():
        config.load(experiment.config, path)


@pytest.mark.parametrize("method", ["sgd", "ngd"])
def test_pictures_in_mnists_format_are_learnt(tmp_path, method):
    directory = write_idx(
        tmp_path / "mine", idx(pictures(220, side=8)), idx(pictures(60, side=8, seed=1)), True
    )
    out = tmp_path / "run"
    result = invoke(
        "run", "autoencoder", "--preset", "smoke", "--methods", method, "--data", directory, "--out", out
    )
    assert result.exit_code == 0, result.output
    found = log.read(out / "logs" / f"{method}.0.jsonl")
    assert found.header["data"] == {
        **found.header["data"], "name": "pictures of mine", "train": [200, 64], "test": [50, 64], "file": "mine",
    }  # fmt: skip
    assert found.evaluations[-1]["squared_error"] < found.evaluations[0]["squared_error"]
    assert found.samples["shape"] == [12, 8, 8]


def test_faces_are_halved_and_their_pixels_gaussian(tmp_path):
    path = small_file(tmp_path / "faces.mat")
    changes = ("data.train=100", "data.test=20", "ngd.metric_batch=50")
    problem = autoencoder.prepare(settings(*changes), path)
    assert isinstance(problem.likelihood, ng.Gaussian)
    assert problem.model.units == (576, 10, 576)
    assert problem.train[0].shape == (100, 576)
    images = small_file_images(path)
    np.testing.assert_allclose(
        problem.train[0][0].reshape(24, 24)[3, 5], images[0, 6:8, 10:12].mean() / 255, rtol=1e-6
    )
    errors = problem.errors(problem.init(0), problem.test[0], problem.test[1])
    outputs = np.asarray(problem.model(problem.init(0), problem.test[0]))
    np.testing.assert_allclose(
        errors["squared_error"], ((outputs - problem.test[1]) ** 2).sum(axis=1), rtol=1e-5
    )
    np.testing.assert_allclose(errors["negative_log_likelihood"], errors["squared_error"] / 2, rtol=1e-5)


def small_file_images(path):
    import scipy.io

    return scipy.io.loadmat(path)["images"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda path: None,
            "autoencoder: expected --data with MNIST's directory or a file of faces, found none",
        ),
        (lambda path: path / "absent", "absent: expected a file with faces, found none"),
        (
            lambda path: write_idx(path / "d", b"text" * 9),
            "magic number: expected 0x00000803, found 0x74657874",
        ),
        (
            lambda path: write_idx(path / "d"),
            "pictures of d: training images: expected at least 200 (data.train), found 9",
        ),
    ],
)
def test_bad_data_are_one_line_and_leave_nothing(tmp_path, monkeypatch, make, words):
    data = make(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = invoke("run", "autoencoder", "--preset", "smoke", *(("--data", data) if data else ()))
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert words in result.output
    assert sorted(tmp_path.rglob("*")) == before
