"""The step in several processes on one machine, talking over loopback: the numbers of one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from devices import coordinator, environment, finish

WORKER = Path(__file__).parent / "sharded.py"


def run(processes, cases, out):
    """Run the cases in so many processes of one device each; return what the first one wrote."""
    job = {"cases": cases, "out": str(out), "coordinator": coordinator(), "processes": processes}
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps({**job, "process": number})],
            env=environment(1),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    codes, said = finish(workers, timeout=900)
    assert codes == [0] * processes, [text[-3000:] for text in said]
    return json.loads(out.read_text())


def test_two_processes_give_the_numbers_of_one(tmp_path):
    """Each hands in its own examples alone."""
    assert max(run(2, [("ngd", "float64", 20, 2, False)], tmp_path / "out.json")) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_every_method_in_several_processes(processes, tmp_path):
    methods = ("ngd", "ncg-q", "hf", "ksd")
    cases = [(name, "float64", 20, processes, cut) for name in methods for cut in (False, True)]
    assert max(run(processes, cases, tmp_path / "exact.json")) < 1e-6
    cases = [(name, "float32", 1, processes, False) for name in methods]
    assert max(run(processes, cases, tmp_path / "single.json")) < 1e-4
