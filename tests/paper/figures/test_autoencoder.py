"""Autoencoders of the user's own pictures: Curves' methods on MNIST's format and on faces."""

import numpy as np
import pytest
import scipy.io
from picture_files import idx, pictures, small_file, write_idx

import natgrad as ng
from figures.runs import invoke, settings
from natgrad_paper import figures
from natgrad_paper.figures.autoencoder import prepare
from natgrad_paper.figures.curves.methods import METHODS
from natgrad_paper.training import log

pytestmark = pytest.mark.usefixtures("fast_compile")


def test_the_methods_are_those_of_curves():
    experiment = figures.load("autoencoder")
    assert experiment.methods is METHODS
    assert set(experiment.presets()) == {"smoke", "small", "paper", "faces", "epochs"}


@pytest.mark.parametrize("name", ["sgd", "ngd"])
def test_pictures_in_mnists_format_are_learnt(tmp_path, name):
    parts = idx(pictures(220, side=8)), idx(pictures(60, side=8, seed=1))
    directory, out = write_idx(tmp_path / "mine", *parts, True), tmp_path / "run"
    result = invoke(
        "run", "autoencoder", "--preset", "smoke", "--methods", name, "--data", directory, "--out", out
    )
    assert result.exit_code == 0, result.output
    found = log.read(out / "logs" / f"{name}.0.jsonl")
    data = found.header["data"]
    assert (data["name"], data["train"], data["test"]) == ("pictures of mine", [200, 64], [50, 64])
    assert found.evaluations[-1]["squared_error"] < found.evaluations[0]["squared_error"]
    assert [each["shape"] for each in found.pictures] == [[1, 12, 8, 8]] * 2
    assert "no such experiment" in (out / "report.html").read_text()


def test_faces_are_halved_and_their_pixels_gaussian(tmp_path):
    path = small_file(tmp_path / "faces.mat")
    problem = prepare(settings("autoencoder", "data.train=100", "data.test=20"), path)
    assert isinstance(problem.likelihood, ng.Gaussian)
    assert problem.model.units == (576, 10, 576)
    assert problem.train[0].shape == (100, 576)
    images = scipy.io.loadmat(path)["images"]
    cell = problem.train[0][0].reshape(24, 24)[3, 5]
    np.testing.assert_allclose(cell, images[0, 6:8, 10:12].mean() / 255, rtol=1e-6)
    errors = problem.errors(problem.init(0), *problem.test)
    outputs = np.asarray(problem.model(problem.init(0), problem.test[0]))
    squared = ((outputs - problem.test[1]) ** 2).sum(axis=1)
    np.testing.assert_allclose(errors["squared_error"], squared, rtol=1e-5)
    np.testing.assert_allclose(errors["negative_log_likelihood"], errors["squared_error"] / 2, rtol=1e-5)


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
        (lambda path: write_idx(path / "d"), "training images: expected at least 200 (data.train), found 9"),
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
