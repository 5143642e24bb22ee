"""Stopped runs go on as if nothing had happened: parameters, state and log, to the bit."""

import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from natgrad_paper import experiments, log, plan, progress, stop
from natgrad_paper import run as runner
from natgrad_paper.measures import SQUARED_ERROR
from natgrad_paper.train import Trainer

pytestmark = pytest.mark.usefixtures("fast_compile")


@pytest.fixture(scope="module")
def experiment():
    return experiments.load("curves")


@pytest.fixture(scope="module")
def whole(experiment):
    request = plan.asked(experiment, "smoke", experiment.presets()["smoke"], (), ("ncg-q", "sgd"), (0,), None)
    settings = plan.settings(experiment, request, "smoke")
    methods = [method for method in experiment.methods if method.name in request.methods]
    return runner.Plan(experiment, "smoke", settings, methods, request.seeds)


@pytest.fixture(scope="module")
def problem(experiment, whole):
    return experiment.prepare(whole.config, None)


class Asks:
    """A display that asks the run to stop when a training has come so far."""

    def __init__(self, method="", iteration=-1):
        self.at = (method, iteration)
        self.told = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def start(self, label, seed):
        self.label = label

    def update(self, event):
        if (self.label, event.position.iteration) == self.at:
            os.kill(os.getpid(), signal.SIGTERM)

    def skip(self, label, seed):
        self.told.append(f"skip {label} {seed}")

    def tell(self, sentence):
        self.told.append(sentence)


@pytest.fixture(scope="module")
def undisturbed(whole, problem, tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    assert runner.run(whole, problem, directory, Asks()) == []
    return directory


def contents(directory):
    return {path.name: log.times_aside(log.read(path)) for path in (directory / "logs").iterdir()}


@pytest.mark.parametrize(("label", "iteration"), [("NCG-Q", 0), ("NCG-Q", 7), ("SGD", 12), ("SGD", 4)])
def test_stopped_and_resumed_is_undisturbed(whole, problem, undisturbed, tmp_path, label, iteration):
    with pytest.raises(stop.Stopped) as stopped:
        runner.run(whole, problem, tmp_path, Asks(label, iteration))
    assert (stopped.value.exit_code, stopped.value.directory) == (143, tmp_path)
    display = Asks()
    assert runner.run(whole, problem, tmp_path, display, resume=True) == []
    assert contents(tmp_path) == contents(undisturbed)
    finished = iteration == 12  # a stop that comes with the last step leaves nothing of it to do
    assert display.told == ["skip SGD 0"] * (finished or label == "NCG-Q")
    assert not list(tmp_path.glob("checkpoints/*"))


def test_parameters_and_state_are_the_same_to_the_bit(whole, problem):
    """Beyond the log: from a copy of what event 5 holds, event 12 is the same."""
    trainer = Trainer(problem, whole.methods[1], whole.config)
    halfway, ends = None, []
    for event in trainer.run(0):
        if event.position.iteration == 5:
            halfway = (event.position, *jax.tree.map(np.asarray, jax.tree.map(_plain, event.trained)))
            keys = event.trained[1].key
        ends.append(event)
    position, params, state = halfway
    again = list(trainer.run(0, (position, params, state._replace(key=keys))))
    first, second = (jax.tree.map(_plain, events[-1].trained) for events in (ends, again))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _plain(leaf):
    return jax.random.key_data(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def test_a_changed_log_starts_again(whole, problem, undisturbed, tmp_path):
    with pytest.raises(stop.Stopped):
        runner.run(whole, problem, tmp_path, Asks("NCG-Q", 7))
    path = tmp_path / "logs" / "ncg-q.0.jsonl"
    path.write_text(path.read_text().replace("ncg-q", "ncg-z", 1))
    display = Asks()
    runner.run(whole, problem, tmp_path, display, resume=True)
    assert "log changed since its checkpoint" in display.told[1]
    assert contents(tmp_path) == contents(undisturbed)


@pytest.mark.parametrize("iteration", [2, 4])
def test_an_early_stop_is_the_same_when_resumed_and_is_an_end(experiment, tmp_path, iteration):
    changes = ("budget.patience=7", "budget.evaluations=24", "sgd.rate=0.01", "sgd.steps_per_call=1")
    request = plan.asked(experiment, "smoke", experiment.presets()["smoke"], changes, ("sgd",), (0,), None)
    settings = plan.settings(experiment, request, "smoke")
    sgd = [method for method in experiment.methods if method.name == "sgd"]
    early = runner.Plan(experiment, "smoke", settings, sgd, (0,))
    problem = experiment.prepare(settings, None)
    assert runner.run(early, problem, tmp_path / "undisturbed", Asks()) == []
    with pytest.raises(stop.Stopped):
        runner.run(early, problem, tmp_path / "stopped", Asks("SGD", iteration))
    assert runner.run(early, problem, tmp_path / "stopped", Asks(), resume=True) == []
    assert contents(tmp_path / "stopped") == contents(tmp_path / "undisturbed")
    found = log.read(tmp_path / "stopped" / "logs" / "sgd.0.jsonl")
    assert found.end == "stopped early: no lower validation error in 7 evaluations"
    assert found.evaluations[-1]["iteration"] == 7
    assert found.header["data"]["train"] == [180, 784]
    again = Asks()
    assert runner.run(early, problem, tmp_path / "stopped", again, resume=True) == []
    assert again.told == ["skip SGD 0"]


def test_checkpoints_from_before_patience_fit(undisturbed):
    """They are told by a hash of all settings: one that did not exist then is not in it."""
    for path in (undisturbed / "logs").iterdir():
        assert log.read(path).header["config"]["budget"] == {
            "seconds": None, "iterations": 12, "evaluations": 6, "first": 1.0,
        }  # fmt: skip


SCRIPT = "from natgrad_paper.cli import main; main()"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_stops_in_good_order_and_resumes(tmp_path, number, code):
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    out = tmp_path / "run"
    command = [sys.executable, "-c", SCRIPT, "run", "curves", "--out", str(out)]
    options = ["--preset", "smoke", "--methods", "sgd", "--set", "budget.iterations=200000"]
    process = subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE, text=True)
    path = out / "logs" / "sgd.0.jsonl"
    deadline = time.monotonic() + 120
    while not (path.exists() and '"step"' in path.read_text()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert errors.count("\n") == 1
    assert f"--out {out} --resume` continues" in errors
    assert log.read(path).end == "interrupted"
    assert len(list((out / "checkpoints" / "sgd.0").iterdir())) == 1


def test_resume_says_what_it_lacks(tmp_path):
    from typer.testing import CliRunner

    from natgrad_paper import cli

    (tmp_path / "run.json").write_text("{}")
    for arguments, words in (
        (["--resume"], "--resume: expected --out DIR"),
        (["--resume", "--out", str(tmp_path), "--preset", "smoke"], "without --preset"),
        (
            ["--resume", "--out", str(tmp_path / "absent")],
            "expected the settings of a run to resume, found none",
        ),
        (["--resume", "--out", str(tmp_path)], "config: expected a table of fields"),
    ):
        result = CliRunner().invoke(cli.app, ["run", "curves", *arguments])
        assert (result.exit_code, result.output.count("\n")) == (2, 1)
        assert words in result.output


def test_displays_tell():
    from rich.console import Console

    for kind in (
        lambda console: progress.Quiet(console, SQUARED_ERROR),
        lambda console: progress.Live(console, 2, SQUARED_ERROR),
    ):
        console = Console(record=True, width=200)
        with kind(console) as display:
            display.skip("NGD", 3)
            display.tell("[odd] words")
        text = console.export_text()
        assert "NGD" in text
        assert "[odd] words" in text
