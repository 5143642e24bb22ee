"""The example of several processes: one is killed, the others end, and the rest goes on in another number."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from devices import coordinator, environment, finish

EXAMPLE = Path(__file__).parents[1] / "examples" / "many_processes.py"


def start(processes, directory, steps):
    """Start the example in so many processes of one device each."""
    given = {"directory": directory, "steps": steps, "address": coordinator(), "processes": processes}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    workers = []
    for number in range(processes):
        command = [sys.executable, str(EXAMPLE), *words, "--process", str(number)]
        with (directory.parent / f"said.{number}").open("w") as said:
            workers.append(
                subprocess.Popen(command, env=environment(1), stdout=said, stderr=subprocess.PIPE, text=True)
            )
    return workers


def losses(directory):
    """Return what the first process said, by step."""
    found = re.findall(r"step (\d+): loss (\S+),", (directory.parent / "said.0").read_text())
    return {int(step): float(loss) for step, loss in found}


def saved(directory):
    return sorted(int(path.name) for path in directory.glob("*") if path.name.isdigit())


def wait_for(condition, workers, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert all(worker.poll() is None for worker in workers), [
            worker.stderr.read()[-2000:] for worker in workers
        ]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("processes", "killed", "after"),
    [(2, 1, 1), pytest.param(2, 0, 1, marks=pytest.mark.long), pytest.param(4, 2, 2, marks=pytest.mark.long)],
)
def test_what_loses_a_process_ends_and_goes_on_in_another_number(processes, killed, after, tmp_path):
    directory = tmp_path / "checkpoints"
    workers = start(processes, directory, 100_000)
    wait_for(lambda: len(saved(directory)) == 2, workers)
    workers[killed].send_signal(signal.SIGKILL)
    codes, said = finish(workers, timeout=60)
    assert codes[killed] == -signal.SIGKILL
    assert all(code not in (0, None) for code in codes), said
    before, last = losses(directory), saved(directory)[-1]

    workers = start(after, directory, last + 25)
    codes, said = finish(workers, timeout=240)
    assert codes == [0] * after, said
    then = losses(directory)
    assert list(then) == list(range(last + 1, last + 25))
    # The same steps on the same examples: where both took them, they agree up to rounding.
    both = sorted(before.keys() & then.keys())
    np.testing.assert_allclose([then[step] for step in both], [before[step] for step in both], rtol=0.02)
    assert then[last + 24] < 0.9 * before[0]
