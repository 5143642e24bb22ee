"""The command from end to end: what it leaves, what it refuses, and what it never touches."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from training.tiny import contents, problem

from cli.small import EXPERIMENT, install
from natgrad_paper import figures
from natgrad_paper.cli import arguments
from natgrad_paper.training import log, loop, request, stopping
from natgrad_paper.training.directory import Claimed

pytestmark = pytest.mark.usefixtures("fast_compile")

SMOKE = ("run", "sums", "--preset", "smoke")


def line(result, code=2):
    """Return the one line that a command ended with."""
    assert result.exit_code == code, (result.output, result.exception)
    assert result.output.count("\n") == 1, result.output
    assert result.output.startswith("natgrad: ")
    return result.output.strip().removeprefix("natgrad: ")


@pytest.fixture(scope="module")
def directory(tmp_path_factory, invoke):
    directory = tmp_path_factory.mktemp("run") / "smoke"
    result = invoke(*SMOKE, "--out", directory)
    assert result.exit_code == 0, (result.output, result.exception)
    for words in (
        "Sums of three numbers",
        "2 methods × 1 seed × 12 iterations",
        "SGD, seed 0: finished after 12",
    ):
        assert words in result.output
    return directory


def test_leaves_logs_a_page_figures_and_tables(directory):
    assert {path.name for path in directory.glob("logs/*")} == {"sgd.0.jsonl", "ngd.0.jsonl"}
    assert (directory / "sums.svg").read_text().startswith("<?xml")
    assert (directory / "sums.png").read_bytes().startswith(b"\x89PNG")
    assert "Sums of three numbers" in (directory / "report.html").read_text()
    assert (directory / "results.csv").read_text().count("\n") > 2
    assert not (directory / "checkpoints").exists()


def test_what_was_asked_for_is_kept_beside_the_logs(directory):
    asked = request.read(directory)
    assert (asked.experiment, asked.preset, asked.methods, asked.seeds) == (
        "sums",
        "smoke",
        ("sgd", "ngd"),
        (0,),
    )
    assert asked.settings["budget"] == {"iterations": 12, "evaluations": 5, "first": 1.0}


def test_same_seed_same_log_and_another_seed_another(directory, tmp_path, invoke):
    assert invoke(*SMOKE, "--methods", "ngd", "--seeds", "0,1", "--out", tmp_path).exit_code == 0
    found = contents(tmp_path)
    assert found["ngd.0.jsonl"] == contents(directory)["ngd.0.jsonl"]
    one, other = (log.read(tmp_path / "logs" / f"ngd.{seed}.jsonl").evaluations for seed in (0, 1))
    assert one[-1]["squared_error"] != other[-1]["squared_error"]


def test_a_report_is_a_pure_function_of_the_logs(directory, invoke):
    names = [path.name for path in directory.iterdir() if path.suffix in (".html", ".csv", ".svg", ".png")]
    before = {name: (directory / name).read_bytes() for name in names}
    for name in names:
        (directory / name).unlink()
    assert invoke("report", directory).exit_code == 0
    assert {name: (directory / name).read_bytes() for name in names} == before


def test_a_report_that_cannot_be_written_is_one_line(directory, tmp_path, invoke):
    shutil.copytree(directory / "logs", tmp_path / "logs")
    (tmp_path / "report.html").mkdir()
    assert line(invoke("report", tmp_path), 1) == f"{tmp_path}/report.html: Is a directory"
    (tmp_path / "logs" / "sgd.0.jsonl").write_text("{}\n{}\n")
    assert "sgd.0.jsonl: line 1: expected a header record" in line(invoke("report", tmp_path))


def test_a_preset_names_its_methods_and_the_command_others(tmp_path, invoke):
    for number, (options, methods) in enumerate(
        (
            (("--preset", "both"), {"ngd", "sgd"}),
            (("--preset", "both", "--methods", "growing"), {"growing"}),
            (("--preset", "smoke", "--methods", "all"), {"sgd", "ngd", "growing", "averaged"}),
        )
    ):
        out = tmp_path / str(number)
        assert invoke("run", "sums", *options, "--set", "budget.iterations=2", "--out", out).exit_code == 0
        assert {found.method for found in log.read_all(out)} == methods


def test_without_a_directory_it_makes_a_new_one_each_time(tmp_path, invoke, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert invoke(*SMOKE, "--methods", "sgd", "--set", "budget.iterations=2").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["sums-smoke", "sums-smoke-2"]


def test_a_users_preset(tmp_path, invoke):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "both"\nsgd = { rate = 0.2 }\n')
    assert invoke("run", "sums", "--preset", path, "--out", tmp_path / "out").exit_code == 0
    header = log.read(tmp_path / "out" / "logs" / "sgd.0.jsonl").header
    assert header["preset"] == "mine"
    assert header["settings"]["sgd"] == {"rate": 0.2, "batch": 5, "steps_per_call": 8}


BAD_CALLS = [
    (("run", "curvs"), "experiment:", "'curves'"),
    (("run", "zebra"), "experiment:", "autoencoder"),
    (("run", "sums", "--preset", "smal"), "--preset:", "'small'"),
    (("run", "sums", "--preset", "absent.toml"), "absent.toml:", "readable"),
    ((*SMOKE, "--methods", "ngdl"), "--methods:", "'ngd'"),
    ((*SMOKE, "--methods", "zebra"), "--methods:", "growing"),
    ((*SMOKE, "--seeds", "one"), "--seeds:", "count"),
    ((*SMOKE, "--seeds", "0"), "--seeds:", "1000"),
    ((*SMOKE, "--seeds", "-1"), "--seeds:", "count"),
    ((*SMOKE, "--set", "sgd.rat=1"), "--set: sgd.rat:", "'rate'"),
    ((*SMOKE, "--set", "sgd.rate=fast"), "--set: sgd.rate:", "number"),
    ((*SMOKE, "--set", "budget.iterations=-5"), "--set: budget.iterations:", "least"),
    ((*SMOKE, "--set", "budget.seconds=0.5"), "--set: budget.first:", "0.5"),
    ((*SMOKE, "--set", "sgd.rate"), "--set sgd.rate:", "'='"),
    ((*SMOKE, "--set", "sgd.batch=61"), "presets.toml and --set: sgd:", "60"),
    (
        (*SMOKE, "--set", "sgd.batch=55", "--set", "budget.patience=3"),
        "presets.toml and --set: sgd:",
        "54",
    ),
    (("run", "curves", "--preset", "smoke", "--data", "absent.mat"), "absent.mat:", "file"),
    (("run", "order", "--preset", "smoke", "--methods", "sgd"), "--methods:", "all"),
    (("data", "curve", "--out", "f.npz"), "data:", "'curves'"),
    (("report", "absent"), "absent:", "logs"),
    (("list", "curvs"), "experiment:", "'curves'"),
    (("show", "sums", "smal"), "preset:", "'small'"),
    (("tune", "sums", "sdg", "--grid", "sgd.rate=1"), "method:", "'sgd'"),
    (("tune", "sums", "sgd", "--grid", "sgd.rate=fast"), "--grid: sgd.rate:", "number"),
    (
        ("tune", "sums", "sgd", "--grid", "sgd.rate=1", "--set", "sgd.batch=0"),
        "--set: sgd.batch:",
        "least",
    ),
    (("tune", "sums", "sgd", "--grid", "sgd.rate=1", "--seed", "99"), "--seed:", "100"),
    (("tune", "order", "sgd", "--grid", "sgd.rate=1"), "tune:", "errors"),
]


@pytest.mark.parametrize(("arguments", "field", "word"), BAD_CALLS)
def test_bad_calls_are_one_line_and_leave_nothing(arguments, field, word, tmp_path, monkeypatch, invoke):
    monkeypatch.chdir(tmp_path)
    _, named, rest = line(invoke(*arguments)).partition(field)
    assert named
    assert word in rest
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "field", "word"),
    [
        ("sgd = { rate = -1 }", "sgd.rate:", "more"),
        ("sgd = { rat = 1 }", "sgd.rat:", "'rate'"),
        ('methods = ["sgd", "ngdl"]', "methods:", "'ngd'"),
        ('method = ["sgd"]', "method:", "'methods'"),
        ('extends = "smal"', "extends:", "'small'"),
        ("sgd = { batch = 61 }", "sgd:", "60"),
        ("budget = { iterations = 3, seconds = 3.0 }", "budget.seconds:", "iterations"),
    ],
)
@pytest.mark.parametrize("option", [(), ("--set", "sgd.steps_per_call=1")])
def test_a_presets_mistakes_are_blamed_on_its_file(tmp_path, invoke, text, field, word, option):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    # What does not fit together may be due to either.
    where = f"{path} and --set" if "61" in text and option else path
    found = line(invoke("run", "sums", "--preset", path, "--out", tmp_path / "out", *option))
    assert found.startswith(f"{where}: {field}")
    assert word in found.removeprefix(f"{where}: {field}")
    assert not (tmp_path / "out").exists()


def test_a_directory_with_something_in_it_is_refused(directory, tmp_path, invoke):
    before = contents(directory)
    assert "expected an empty directory, found files; choose another or add --overwrite" in line(
        invoke(*SMOKE, "--out", directory)
    )
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.jsonl").write_text("{}")
    assert "expected run.json, by which a run is known, found none: nothing was removed" in line(
        invoke(*SMOKE, "--out", tmp_path, "--overwrite")
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["logs", "mine.jsonl"]
    assert contents(directory) == before


def test_overwriting_replaces_a_run_and_keeps_what_is_not_its_own(tmp_path, invoke):
    assert invoke(*SMOKE, "--out", tmp_path).exit_code == 0
    (tmp_path / "logs" / "notes.txt").write_text("mine")
    assert (
        invoke(*SMOKE, "--out", tmp_path, "--overwrite", "--methods", "sgd", "--seeds", "7,").exit_code == 0
    )
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"sgd.7.jsonl", "notes.txt"}


def test_a_command_that_comes_second_is_refused_and_removes_nothing(directory, invoke):
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with Claimed(directory):
        for options in (("--preset", "smoke", "--overwrite"), ("--resume",)):
            assert line(invoke("run", "sums", "--out", directory, *options)).endswith(
                "expected a directory that no run uses, found one at work"
            )
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_resume_adds_methods_and_seeds(directory, tmp_path, invoke):
    assert invoke(*SMOKE, "--methods", "sgd", "--out", tmp_path).exit_code == 0
    result = invoke("run", "sums", "--out", tmp_path, "--resume", "--methods", "ngd", "--seeds", "2")
    assert result.exit_code == 0, result.output
    assert "SGD, seed 0: finished before" in result.output
    assert sorted(contents(tmp_path)) == ["ngd.0.jsonl", "ngd.1.jsonl", "sgd.0.jsonl", "sgd.1.jsonl"]
    assert contents(tmp_path)["ngd.0.jsonl"] == contents(directory)["ngd.0.jsonl"]
    assert request.read(tmp_path).seeds == (0, 1)


def test_resume_reads_what_another_command_wrote_before_the_lock_was_free(tmp_path, invoke, monkeypatch):
    assert invoke(*SMOKE, "--methods", "sgd", "--out", tmp_path).exit_code == 0
    extended, enter = request.read(tmp_path).extended((), (1,)), Claimed.__enter__

    def wait(claimed):
        request.write(tmp_path, extended)
        enter(claimed)

    monkeypatch.setattr(Claimed, "__enter__", wait)
    result = invoke("run", "sums", "--out", tmp_path, "--resume", "--preset", "smoke")
    assert result.exit_code == 0, result.output
    assert sorted(contents(tmp_path)) == ["sgd.0.jsonl", "sgd.1.jsonl"]


def test_resume_with_other_data_is_refused_and_loses_nothing(directory, tmp_path, invoke):
    shutil.copytree(directory, tmp_path / "run")
    for path in (tmp_path / "run" / "logs").iterdir():
        path.write_text(path.read_text().replace('"sha256": "', '"sha256": "0', 1))
    before = contents(tmp_path / "run")
    told = line(invoke("run", "sums", "--resume", "--out", tmp_path / "run"))
    assert "expected the data of the run to resume, found others" in told
    assert contents(tmp_path / "run") == before


def test_resume_says_what_it_lacks(directory, tmp_path, invoke):
    (tmp_path / "run.json").write_text("{}")
    for options, words in (
        (["--resume"], "--resume: expected --out DIR"),
        (
            ["--resume", "--out", tmp_path, "--set", "sgd.rate=1"],
            "--resume: expected --out DIR, without --set",
        ),
        (["--resume", "--out", directory, "--preset", "small"], "--preset: expected 'smoke'"),
        (["--resume", "--out", tmp_path / "absent"], "expected the settings of a run to resume, found none"),
        (["--resume", "--out", tmp_path], "run.json: experiment: expected a value, found nothing"),
    ):
        assert words in line(invoke("run", "sums", *options))
    assert "expected a run of curves, found one of sums" in line(
        invoke("run", "curves", "--resume", "--out", directory)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_training_that_leads_nowhere_is_a_sentence_and_an_exit_code(tmp_path, invoke, monkeypatch):
    """And goes on, with its count, when asked to."""
    monkeypatch.setattr(stopping, "PATIENCE", 5)
    monkeypatch.setattr(loop, "highest_damping", lambda optimizer: 1e-3)  # λ starts above it
    fresh = ("--preset", "smoke", "--methods", "ngd")
    for steps, options in ((5, fresh), (6, ("--resume",))):
        result = invoke("run", "sums", *options, "--out", tmp_path / "out")
        why = f"{steps} steps in a row with λ at its upper bound, 0.001"
        assert result.exit_code == 1, result.output
        assert f"natgrad: NGD, seed 0: {why}\n" in result.output
        assert log.read(tmp_path / "out" / "logs" / "ngd.0.jsonl").reason == why
        assert why in (tmp_path / "out" / "report.html").read_text()


def test_bad_data_end_a_run_with_a_checkpoint_and_good_ones_let_it_go_on(tmp_path, invoke, monkeypatch):
    inputs, targets = problem().train
    spoiled = problem(train=(inputs, np.full_like(targets, np.nan)))
    with monkeypatch.context() as patch:
        install(patch.setattr, replace(EXPERIMENT, prepare=lambda *_: spoiled))
        result = invoke("run", "sums", "--preset", "small", "--methods", "sgd", "--out", tmp_path)
    assert result.exit_code == 1
    refused = len("0123456789") + 2  # evaluations end calls at 1, 2, 3, 4, 5, 7, 9 and 12 steps
    assert f"natgrad: SGD, seed 0: {refused} steps in a row refused: nonfinite gradient\n" in result.output
    assert [int(path.name[:9]) for path in (tmp_path / "checkpoints" / "sgd.0").iterdir()] == [refused]
    result = invoke("run", "sums", "--out", tmp_path, "--resume")
    assert result.exit_code == 0, result.output
    found = log.read(tmp_path / "logs" / "sgd.0.jsonl")
    assert (found.status, found.evaluations[-1]["refused"], found.evaluations[-1]["iteration"]) == (
        "finished", refused, 30,
    )  # fmt: skip


@pytest.mark.parametrize("lapack", [True, False])
def test_only_a_run_that_calls_lapack_warns_of_a_busy_machine(lapack, tmp_path, invoke, monkeypatch):
    monkeypatch.setattr(arguments, "crowded", lambda: "busy: set OPENBLAS_NUM_THREADS=1")
    install(monkeypatch.setattr, replace(EXPERIMENT, lapack=lapack))
    result = invoke(*SMOKE, "--methods", "sgd", "--out", tmp_path)
    assert result.exit_code == 0
    assert result.output.count("natgrad: busy: set OPENBLAS_NUM_THREADS=1\n") == lapack
    assert figures.load("pinn").lapack


def test_the_name_of_a_data_file_is_in_the_header(tmp_path, invoke):
    (tmp_path / "own.mat").write_text("")
    assert (
        invoke(
            *SMOKE, "--methods", "sgd", "--data", tmp_path / "own.mat", "--out", tmp_path / "out"
        ).exit_code
        == 0
    )
    assert log.read(tmp_path / "out" / "logs" / "sgd.0.jsonl").header["data"]["file"] == "own.mat"
    assert request.read(tmp_path / "out").data == str(tmp_path / "own.mat")


def test_version():
    from typer.testing import CliRunner

    import natgrad
    from natgrad_paper.cli.command import app

    assert CliRunner().invoke(app, ["--version"]).output == f"natgrad {natgrad.__version__}\n"


def test_a_log_of_old_settings_is_not_taken_for_this_run(tmp_path, invoke):
    """The settings in run.json are changed by hand: what is finished is not what is asked for."""
    assert invoke(*SMOKE, "--methods", "sgd", "--out", tmp_path).exit_code == 0
    asked = json.loads((tmp_path / "run.json").read_text())
    asked["settings"]["sgd"]["rate"] = 0.01
    (tmp_path / "run.json").write_text(json.dumps(asked))
    assert "finished before" not in invoke("run", "sums", "--out", tmp_path, "--resume").output
    assert log.read(tmp_path / "logs" / "sgd.0.jsonl").header["settings"]["sgd"]["rate"] == 0.01
