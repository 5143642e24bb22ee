"""The flagship's smallest preset, by the command: what its logs, pages and tables say of themselves."""

import numpy as np
import pytest
from training.tiny import contents

from natgrad_paper.training import log

pytestmark = pytest.mark.usefixtures("fast_compile")

BATCH_MODE = ("ngd-l", "ncg-f", "ncg-l")
METHODS = ("sgd", "ngd", *BATCH_MODE, "kncg")
SMOKE = ("run", "curves", "--preset", "smoke")


@pytest.fixture(scope="module")
def directory(tmp_path_factory, invoke, fast_compile):
    directory = tmp_path_factory.mktemp("run") / "smoke"
    result = invoke(*SMOKE, "--out", directory)
    assert result.exit_code == 0, (result.output, result.exception)
    for words in ("Curves (regenerated)", "NGD-L", "squared error", "curves.svg", "Claims"):
        assert words in result.output
    return directory


@pytest.fixture(scope="module")
def logs(directory):
    return {found.method: found for found in log.read_all(directory)}


def test_headers_say_what_a_figure_must(logs):
    assert sorted(logs) == sorted(METHODS)
    for name, found in logs.items():
        header = found.header
        assert header["data"]["name"] == "Curves (regenerated)"
        assert len(header["data"]["sha256"]) == 64
        assert (header["damping"] or {}).get("reduction") == (None if name == "sgd" else "quadratic")
        assert 10 < header["plateau"]["squared_error"] < 15
        assert found.status == "finished"
        every = {"sgd", "ngd", "full", "kncg", "hf", "ksd", "tonga", "nesterov", "adam", "lbfgs"}
        assert header["settings"].keys() & every == {"full" if name in BATCH_MODE else name}


def test_every_method_learns_from_the_same_start(logs):
    assert len({found.evaluations[0]["squared_error"] for found in logs.values()}) == 1
    for found in logs.values():
        assert [record["iteration"] for record in found.evaluations] == [0, 1, 2, 3, 4, 5, 7, 9, 12]
        assert found.evaluations[-1]["cross_entropy"] < found.evaluations[0]["cross_entropy"]
        assert found.evaluations[-1]["test_squared_error"] > 0


def test_steps_are_logged_in_the_optimizers_words(logs):
    last = logs["ngd"].evaluations[-1]
    for field in ("damping", "rho", "solver_iterations", "step_norm", "kl", "loss", "accepted"):
        assert last[field] is not None
    assert 1 <= last["solver_iterations"] <= 10
    assert logs["sgd"].evaluations[-1].get("rho") is None  # a probe it did not ask for
    assert [step["iteration"] for step in logs["sgd"].steps] == list(range(1, 13))


def test_reconstructions_are_kept(logs):
    for found in logs.values():
        original, made = found.pictures
        assert (original["what"], made["what"]) == ("original", "reconstruction")
        assert original["shape"] == made["shape"] == [1, 12, 28, 28]


def test_data_is_written_and_read_back(directory, tmp_path, invoke):
    path = tmp_path / "curves.npz"
    assert invoke("data", "curves", "--out", path).exit_code == 0
    refused = invoke("data", "curves", "--out", path)
    assert refused.exit_code == 2
    assert "add --overwrite" in refused.output
    result = invoke(*SMOKE, "--methods", "sgd", "--data", path, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    found = log.read(tmp_path / "run" / "logs" / "sgd.0.jsonl")
    assert (found.header["data"]["name"], found.header["data"]["file"]) == (
        "Curves (regenerated)",
        "curves.npz",
    )
    assert np.isfinite(found.evaluations[-1]["squared_error"])


def test_same_seed_same_log(directory, tmp_path, invoke):
    assert invoke(*SMOKE, "--methods", "sgd", "--out", tmp_path).exit_code == 0
    assert contents(tmp_path)["sgd.0.jsonl"] == contents(directory)["sgd.0.jsonl"]
