"""The step in several processes on one machine, talking over loopback: the numbers of one process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "sharded.py"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(processes, cases, out):
    """Run the cases in so many processes of one device each; return what the first one wrote."""
    coordinator = f"127.0.0.1:{free_port()}"
    job = {"cases": cases, "out": str(out), "coordinator": coordinator, "processes": processes}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps({**job, "process": number})],
            env={**os.environ, "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(processes)
    ]
    try:
        said = [worker.communicate(timeout=900)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, text in zip(workers, said, strict=True):
        assert worker.returncode == 0, text[-3000:]
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
