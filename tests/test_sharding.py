"""The step on many devices: the numbers of one device, and no more communication than the parameters' size.

Devices are simulated, in a process of their own; `sharded.py` is what it runs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import collectives
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
    cases = [
        ("ngd", "float64", 20, 8, False),
        ("ngd", "float64", 20, 8, True),
        ("ksd", "float64", 20, 8, False),
    ]
    assert max(run(8, "sharded.py", {"cases": cases}, tmp_path)) < 1e-6


def test_one_step_in_single_precision(tmp_path):
    assert max(run(4, "sharded.py", {"cases": [("ngd", "float32", 1, 4, False)]}, tmp_path)) < 1e-4


def test_a_metric_product_sends_the_parameters_once_and_nothing_else_that_grows(tmp_path):
    """Read from the loops of the compiled step: the solver's, and the one around it that checks the residual."""
    sizes = [(16, 32, 16, 8), (16, 128, 64, 8)]
    programs = run(4, "sharded.py", {"programs": [(4, each, None, False) for each in sizes]}, tmp_path)
    rest = []
    for program in programs:
        loops = collectives.of_loops(program["text"])
        sent = [sum(bytes_ for _, bytes_ in turn) for turn in loops.values()]
        products = [turn for turn in sent if turn >= program["bytes"]]
        assert len(products) == 2
        assert max(sent) <= 1.05 * program["bytes"]
        assert {kind for turn in loops.values() for kind, _ in turn} == {"all-reduce"}
        rest.append(max(products) - program["bytes"])
    assert rest[0] == rest[1]


def test_the_reader_of_programs_counts_bytes():
    program = """
%body.1 (arg: (f32[2])) -> (f32[2]) {
  %a = (f32[4,2]{1,0}, bf16[3]{0}) all-reduce(%x, %y), to_apply=%add
  %b = f64[] all-gather-start(%z)
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %c = f32[100] all-reduce(%x), to_apply=%add
  %w = (f32[2]) while(%t), condition=%cond.1, body=%body.1
}
"""
    assert collectives.of_loops(program) == {"body.1": [("all-reduce", 38), ("all-gather", 8)]}


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
