"""Another number of cores: recorded, told when a run is resumed, and only the last digits differ."""

import os
import shutil
import subprocess
import sys

import pytest
from chain import NEVER, VICTIM, environment, only_log

needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or shutil.which("taskset") is None,
    reason="two cores and taskset are needed",
)


@pytest.mark.long
@needs_two_cores
def test_one_core_and_two_agree_to_1e_5(tmp_path):
    cores = sorted(os.sched_getaffinity(0))[:2]
    logs = []
    for chosen in (cores[:1], cores):
        directory = tmp_path / str(len(chosen))
        words = [
            "taskset",
            "-c",
            ",".join(map(str, chosen)),
            sys.executable,
            VICTIM,
            directory,
            "ngd",
            "20",
            NEVER,
        ]
        subprocess.run([str(word) for word in words], env=environment(tmp_path), check=True)
        logs.append(only_log(directory))
    assert [found.header["cores"] for found in logs] == [1, 2]
    one, two = ([record["squared_error"] for record in found.evaluations] for found in logs)
    worst = max(abs(a - b) / b for a, b in zip(one, two, strict=True))
    print(f"one core and two, 20 steps: losses differ by {worst:.1e} at most")
    assert worst < 1e-5
