"""`natgrad run --distributed`: several processes train as one does, and lose one in good order."""

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from devices import coordinator, environment, finish

from natgrad_paper import config, distributed
from natgrad_paper.data import curves
from natgrad_paper.errors import UserError
from natgrad_paper.experiment import Share
from natgrad_paper.experiments import load
from natgrad_paper.log import read

COMMAND = """
import functools
from natgrad_paper import cli, run
run.Plan = functools.partial(run.Plan, checkpoint_seconds=0.2)
cli.main()
"""


def start(processes, out, *options):
    """Start a run in so many processes of one device each."""
    own = {"NATGRAD_CACHE_DIR": str(out.parent / "cache"), **environment(1)}
    given = ["--distributed", "--coordinator", coordinator(), "--processes", str(processes)]
    command = [sys.executable, "-c", COMMAND, "run", "curves", "--out", str(out), *given, *options]
    return [
        subprocess.Popen(
            [*command, "--process", str(number)],
            env=own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def saved(out):
    return sorted((out / "checkpoints" / "ngd.0").glob("[0-9]*"))


def errors(out):
    log = read(out / "logs" / "ngd.0.jsonl")
    return [(row["iteration"], row["squared_error"], row["test_squared_error"]) for row in log.evaluations]


def test_shares_are_the_whole_and_drawn_alone():
    whole = curves.generate(3, 20, 7)
    parts = [curves.generate_share(3, 20, 7, Share(index, 3)) for index in range(3)]
    np.testing.assert_array_equal(np.concatenate([images.train for images, _ in parts]), whole.train)
    np.testing.assert_array_equal(np.concatenate([images.test for images, _ in parts]), whole.test)
    assert len({json.dumps(data) for _, data in parts}) == 1
    assert [len(images.train) for images, _ in parts] == [6, 7, 7]


def test_patience_is_refused_together():
    experiment = load("curves")
    settings = config.load(experiment.config, experiment.presets()["smoke"], ["budget.patience=3"])
    with pytest.raises(UserError, match=r"--distributed: expected no budget\.patience"):
        distributed.prepare(experiment, settings, None)


def test_two_processes_train_as_one(tmp_path):
    """The log of two processes has the numbers of one, and only one of them wrote it."""
    from typer.testing import CliRunner

    from natgrad_paper.cli import app

    options = ("--preset", "smoke", "--methods", "ngd")
    workers = start(2, tmp_path / "two", *options)
    assert CliRunner().invoke(app, ["run", "curves", "--out", str(tmp_path / "one"), *options]).exit_code == 0
    codes, said = finish(workers, timeout=300)
    assert codes == [0, 0], said
    np.testing.assert_allclose(errors(tmp_path / "two"), errors(tmp_path / "one"), rtol=1e-4)
    assert (tmp_path / "two" / "report.html").exists()
    assert not (tmp_path / "two" / "checkpoints" / "ngd.0").exists()


def test_what_cannot_run_together_is_refused_in_a_line(tmp_path):
    from natgrad_paper import distributed

    with pytest.raises(UserError, match="--coordinator, --processes and --process together"):
        distributed.start("127.0.0.1:1", None, 0)
    method = next(method for method in load("curves").methods if method.on_host)
    with pytest.raises(UserError, match=f"found {method.name}"):
        distributed.Together().check([method])


@pytest.mark.long
@pytest.mark.parametrize(("processes", "killed", "after"), [(2, 1, 4), (2, 0, 1), (4, 2, 2)])
def test_a_run_that_loses_a_process_ends_and_goes_on_in_another_number(processes, killed, after, tmp_path):
    out = tmp_path / "run"
    options = ("--preset", "smoke", "--methods", "ngd", "--set", "budget.iterations=100000")
    workers = start(processes, out, *options)
    wait_for(lambda: len(saved(out)) == 2 or any(worker.poll() is not None for worker in workers))
    workers[killed].send_signal(signal.SIGKILL)
    began = time.monotonic()
    codes, said = finish(workers, timeout=60)
    assert time.monotonic() - began < 60
    assert codes[killed] == -signal.SIGKILL
    for number in set(range(processes)) - {killed}:
        assert codes[number] not in (0, None), said[number]
        assert re.search(
            "lost one; `natgrad run curves --distributed .*--resume` continues", said[number]
        ) or ("JAX distributed service detected fatal errors" in said[number]), said[number]

    last = int(saved(out)[-1].name)
    workers = start(after, out, "--resume")
    wait_for(lambda: int(saved(out)[-1].name) > last or any(worker.poll() is not None for worker in workers))
    workers[0].send_signal(signal.SIGTERM)  # One is told to stop, all do.
    codes, said = finish(workers, timeout=300)
    assert codes == [128 + signal.SIGTERM] * after, said
    resumed = [json.loads(line) for line in (out / "logs" / "ngd.0.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in resumed if row["record"] == "resumed"] == [last]
