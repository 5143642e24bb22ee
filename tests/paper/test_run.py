"""The command from end to end, at the preset made for it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from natgrad_paper import cache, cli, log, refusals, report

pytestmark = pytest.mark.usefixtures("fast_compile")

METHODS = ("sgd", "ngd", "ngd-l", "ncg-kron")


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    """Tests leave nothing in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "enable", lambda: None)
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory, fast_compile):
    directory = tmp_path_factory.mktemp("run") / "smoke"
    result = invoke("run", "curves", "--preset", "smoke", "--out", directory)
    assert result.exit_code == 0, result.output
    for words in ("Curves (regenerated)", "NGD-L", "squared error", "curves.svg"):
        assert words in result.output
    return directory


@pytest.fixture(scope="module")
def logs(directory):
    return {found.header["method"]["name"]: found for found in log.read_all(directory)}


def test_leaves_logs_and_figures(directory, logs):
    assert sorted(logs) == sorted(METHODS)
    assert (directory / "curves.svg").read_text().startswith("<?xml")
    assert (directory / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_headers_say_what_a_figure_must(logs):
    for found in logs.values():
        header = found.header
        assert header["data"]["name"] == "Curves (regenerated)"
        assert len(header["data"]["sha256"]) == 64
        assert header["versions"].keys() == {"natgrad", "jax", "jaxlib", "numpy", "optax", "orbax", "python"}
        ratio = {"sgd": None}.get(header["method"]["name"], "quadratic")
        assert (header["damping"] or {}).get("reduction") == ratio
        assert 10 < header["plateau"]["squared_error"] < 15
        assert header["cores"] >= 1
        assert found.end == "finished"


def test_every_method_learns_from_the_same_start(logs):
    starts = {found.evaluations[0]["squared_error"] for found in logs.values()}
    assert len(starts) == 1
    for found in logs.values():
        assert found.evaluations[0]["iteration"] == 0
        assert found.evaluations[-1]["iteration"] == 12
        assert found.evaluations[-1]["cross_entropy"] < found.evaluations[0]["cross_entropy"]
        assert found.evaluations[-1]["test_squared_error"] > 0


def test_clocks_are_apart_and_only_grow(logs):
    for found in logs.values():
        for clock in ("training_seconds", "evaluation_seconds"):
            readings = [record[clock] for record in found.evaluations]
            assert readings == sorted(readings)
        assert found.evaluations[0]["training_seconds"] == 0
        assert found.evaluations[0]["compile_seconds"] > 0


def test_steps_are_logged_in_the_optimizers_words(logs):
    last = logs["ngd"].evaluations[-1]
    for field in ("damping", "rho", "solver_iterations", "step_norm", "kl", "loss", "accepted"):
        assert last[field] is not None
    assert 1 <= last["solver_iterations"] <= 10
    assert logs["sgd"].evaluations[-1].get("rho") is None  # a probe it did not ask for


def test_same_seed_same_log_and_another_seed_another(directory, logs, tmp_path):
    result = invoke(
        "run", "curves", "--preset", "smoke", "--methods", "ngd", "--seeds", "0,1", "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    for method in ("ngd",):
        again = log.times_aside(log.read(tmp_path / "logs" / f"{method}.0.jsonl"))
        assert again == log.times_aside(logs[method])
        other = log.read(tmp_path / "logs" / f"{method}.1.jsonl")
        assert other.evaluations[-1]["squared_error"] != logs[method].evaluations[-1]["squared_error"]
        assert other.evaluations[0]["compile_seconds"] < logs[method].evaluations[0]["compile_seconds"] / 10


def test_report_is_a_pure_function_of_the_logs(directory, tmp_path):
    names = ("report.html", "results.csv", "curves.svg", "curves.png")
    before = {name: (directory / name).read_bytes() for name in names}
    for name in names:
        (directory / name).unlink()
    result = invoke("report", directory)
    assert result.exit_code == 0
    assert {name: (directory / name).read_bytes() for name in names} == before
    figure = report.draw(log.read_all(directory))
    assert "Curves (regenerated)" in report.small_print(log.read_all(directory))
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log"]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log"]


def test_a_directory_with_something_in_it_is_refused(directory):
    result = invoke("run", "curves", "--preset", "smoke", "--out", directory)
    assert result.exit_code == 2
    assert "add --overwrite" in result.output
    assert result.output.count("\n") == 1


BAD_CALLS = [
    (("run", "curvs"), "experiment: expected 'curves', found 'curvs'"),
    (("run", "curves", "--preset", "smal"), "--preset: expected 'small', found 'smal'"),
    (("run", "curves", "--preset", "absent.toml"), "absent.toml: expected a readable TOML file"),
    (
        ("run", "curves", "--preset", "smoke", "--methods", "ngdl"),
        "--methods: expected 'ngd-l', found 'ngdl'",
    ),
    (("run", "curves", "--preset", "smoke", "--seeds", "one"), "--seeds: expected a count or whole numbers"),
    (("run", "curves", "--preset", "smoke", "--seeds", "0"), "--seeds: expected a count from 1 to 1000"),
    (("run", "curves", "--preset", "smoke", "--seeds", "-1"), "--seeds: expected a count or whole numbers"),
    (("run", "curves", "--preset", "smoke", "--set", "sgd.rat=1"), "sgd.rat: expected 'rate'"),
    (("run", "curves", "--preset", "smoke", "--data", "absent.mat"), "absent.mat: expected a file"),
    (("data", "curve", "--out", "f.npz"), "data: expected 'curves', found 'curve'"),
    (("report", "absent"), "absent: expected logs (*.jsonl) of a run, found none"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_CALLS)
def test_bad_calls_are_one_line_and_leave_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert result.output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_data_is_written_and_read_back(tmp_path):
    path = tmp_path / "curves.npz"
    assert invoke("data", "curves", "--out", path).exit_code == 0
    refused = invoke("data", "curves", "--out", path)
    assert refused.exit_code == 2
    assert "add --overwrite" in refused.output
    result = invoke(
        "run", "curves", "--preset", "smoke", "--methods", "sgd", "--data", path, "--out", tmp_path / "run",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    header = log.read(tmp_path / "run" / "logs" / "sgd.0.jsonl").header
    assert header["data"]["name"] == "Curves (regenerated)"


def test_list_and_version():
    listed = invoke("list")
    assert listed.exit_code == 0
    for words in ("curves", *METHODS, "smoke", "small", "paper"):
        assert words in listed.output
    assert "6 methods × 1 seed × 5 min = 30 min of training" in " ".join(listed.output.split())  # medium
    assert invoke("--version").output.startswith("natgrad ")
    assert "--preset" in invoke("run", "--help").output


def test_command_without_its_extra_says_what_to_install(tmp_path):
    code = "import sys; sys.modules.update(typer=None, matplotlib=None); import natgrad_paper.__main__ as m; m.main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert 'pip install "natgrad[paper]"' in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("variable", ["NATGRAD_CACHE_DIR", "XDG_CACHE_HOME"])
def test_cache_directory_can_be_chosen(monkeypatch, tmp_path, variable):
    monkeypatch.delenv("NATGRAD_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert tmp_path in (cache.directory(), *cache.directory().parents)


def test_a_log_cut_short_is_read_and_a_damaged_one_refused(directory, tmp_path):
    whole = (directory / "logs" / "ngd.0.jsonl").read_text()
    cut = tmp_path / "cut.jsonl"
    cut.write_text(whole[:-30])
    assert log.read(cut).end is None
    lines = whole.splitlines()
    for damaged, words in (
        ("", "line 1: expected a header record"),
        ("\n".join(lines[1:]), "line 1: expected a header record"),
        ("\n".join([lines[0], "{", *lines[2:]]), "line 2: expected a JSON record"),
        ("\n".join([lines[0], "3", *lines[2:]]), "line 2: expected a JSON record"),
        ("\n".join([lines[0], "[" * 9999, *lines[2:]]), "line 2: expected a JSON record"),
        (lines[0].replace('"seed": 0', '"seed": "0"'), "line 1: seed: expected a whole number, found 0"),
        (lines[0].replace('"label"', '"lable"'), "line 1: method.label: expected a text, found None"),
        (lines[0] + '\n{"record": "step"}', "line 2: iteration: expected a whole number, found None"),
        (json.dumps({"record": "header", "format": 99}), "format: expected 1, found 99"),
    ):
        cut.write_text(damaged)
        with pytest.raises(log.UserError, match=words):
            log.read(cut)


def test_a_run_with_damping_at_its_bound_ends_with_a_sentence_and_an_exit_code(tmp_path, monkeypatch):
    """And goes on, with its count, when asked to."""
    monkeypatch.setattr(refusals, "PATIENCE", 5)
    monkeypatch.setattr(refusals, "highest", lambda optimizer: 1e-3)  # λ starts above it
    fresh = ("--preset", "smoke", "--methods", "ngd", "--seeds", "1")
    for steps, options in ((5, fresh), (6, ("--resume",))):
        result = invoke("run", "curves", *options, "--out", tmp_path / "out")
        why = f"{steps} steps in a row with λ at its upper bound, 0.001"
        assert result.exit_code == 1, result.output
        assert f"natgrad: NGD, seed 0: {why}\n" in result.output
        assert log.read(tmp_path / "out" / "logs" / "ngd.0.jsonl").end == why
        assert why in (tmp_path / "out" / "report.html").read_text()
