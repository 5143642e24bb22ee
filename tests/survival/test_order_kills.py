"""Figure 2 killed at random instants: at the end its logs are, byte by byte, those of a run nobody killed."""

import os
import signal
import time

import numpy as np
import pytest
from chain import ALWAYS, NEVER, victims

KILLS = int(os.environ.get("NATGRAD_ORDER_KILLS", "40"))
"""In the long test."""


def logs(directory):
    """Return the logs, without the lines that say where a training went on."""
    found = {}
    for path in directory.glob("logs/*"):
        lines = path.read_bytes().splitlines(keepends=True)
        found[path.name] = b"".join(line for line in lines if b'"record": "resumed"' not in line)
    return found


def length(directory):
    return sum(path.stat().st_size for path in directory.glob("logs/*"))


def writing(directory):
    return any(directory.glob("checkpoints/*/.writing-*"))


def killed_again_and_again(tmp_path, kills, every):
    """Kill processes along the whole protocol, in turn while a checkpoint is written and at any moment."""
    killed, rng = tmp_path / "killed", np.random.default_rng(kills)
    in_a_write = 0
    with victims(tmp_path) as processes:
        assert processes.start(tmp_path / "undisturbed", "order", NEVER).wait() == 0
        wanted = logs(tmp_path / "undisturbed")
        whole = length(tmp_path / "undisturbed")
        for number in range(kills):
            # The first comes with the first byte; the others when the logs have grown to a place of their own.
            place = max(1, whole * number // kills)
            process = processes.start(killed, "order", every)
            process.wait(lambda place=place: length(killed) >= place)
            if number % 2 and not every:
                while process.poll() is None and not writing(killed):
                    pass
            time.sleep(rng.uniform(0, 0.002 if number % 2 else 0.2) * (number > 0))
            assert process.kill() == -signal.SIGKILL, "it came to its end before the kills did"
            in_a_write += writing(killed)
            for name, found in logs(killed).items():
                assert wanted[name].startswith(found), (number, name)
        assert processes.start(killed, "order", NEVER).wait() == 0
    assert logs(killed) == wanted
    assert not (killed / "checkpoints").exists()
    assert not (killed / "outputs").exists()
    return f"order: {kills} kills, {in_a_write} of them during a checkpoint write, 0 lost runs, the same logs"


def test_two_kills(tmp_path):
    print(killed_again_and_again(tmp_path, 2, 0.1))


@pytest.mark.long
def test_many_kills(tmp_path):
    print(killed_again_and_again(tmp_path, KILLS, ALWAYS))
