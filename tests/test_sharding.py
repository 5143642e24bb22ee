"""The step on many devices: the numbers of one device, and no more communication than the parameters' size.

Devices are simulated, in a process of their own; `sharded.py` is what it runs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
METHODS = ("ngd", "ncg-q", "hf", "ksd")


def run(devices, script, job, tmp_path):
    """Run a script on simulated devices and return what it wrote."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    out = tmp_path / "out.json"
    command = [sys.executable, "-W", "error", str(HERE / script), json.dumps({**job, "out": str(out)})]
    done = subprocess.run(
        command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


def test_eight_devices_give_the_numbers_of_one(tmp_path):
    """Chunks, weights and a short last batch at once; parameters copied to every device, or cut."""
    cases = [("ngd", "float64", 20, 8, False), ("ngd", "float64", 20, 8, True), ("ksd", "float64", 20, 8, False)]
    assert max(run(8, "sharded.py", {"cases": cases}, tmp_path)) < 1e-6


def test_one_step_in_single_precision(tmp_path):
    assert max(run(4, "sharded.py", {"cases": [("ngd", "float32", 1, 4, False)]}, tmp_path)) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("method", [*METHODS, "minres-qlp"])
def test_every_method_on_every_number_of_devices(method, tmp_path):
    cases = [(method, "float64", 20, devices, cut) for devices in (1, 2, 4, 8) for cut in (False, True)]
    assert max(run(8, "sharded.py", {"cases": cases}, tmp_path)) < 1e-6
    cases = [(method, "float32", 1, devices, cut) for devices in (1, 2, 4, 8) for cut in (False, True)]
    assert max(run(8, "sharded.py", {"cases": cases}, tmp_path)) < 1e-4


@pytest.mark.long
def test_the_dual_solver_where_xla_places_the_arrays(tmp_path):
    cases = [("dual", "float64", 5, devices, True) for devices in (2, 8)]
    assert max(run(8, "sharded.py", {"cases": cases}, tmp_path)) < 1e-6
