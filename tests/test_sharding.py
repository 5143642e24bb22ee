"""The step on many devices: the numbers of one device, and no more communication than the parameters' size.

Devices are simulated, in a process of their own; `sharded.py` is what it runs.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import collectives
import pytest
from devices import environment

HERE = Path(__file__).parent
METHODS = ("ngd", "ncg-q", "hf", "ksd")
MICROBATCH = 40


def run(devices, script, job, tmp_path):
    """Run a script on simulated devices and return what it wrote."""
    out = tmp_path / "out.json"
    command = [sys.executable, "-W", "error", str(HERE / script), json.dumps({**job, "out": str(out)})]
    done = subprocess.run(command, env=environment(devices), capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
    """What one process with eight devices found: every process costs its start."""
    sizes = [(16, 32, 16, 8), (16, 128, 64, 8)]
    programs = [(8, sizes[0], None, False), (8, sizes[1], None, False), (8, sizes[0], MICROBATCH, False)]
    cases = [("ngd", "float64", 20, 8, True), ("kncg", "float64", 1, 8, False)]
    job = {"programs": programs, "cases": cases}
    found = run(8, "sharded.py", job, tmp_path_factory.mktemp("sharded"))
    return found[: len(programs)], found[len(programs) :]


def test_eight_devices_give_the_numbers_of_one(on_eight):
    """Chunks, weights and a short last batch at once; parameters cut, or copied to every device."""
    assert max(on_eight[1]) < 1e-6


def test_a_metric_product_sends_the_parameters_once_and_nothing_else_that_grows(on_eight):
    """Read from the loops and branches of the compiled step: the solver's loop, and the check of its claim."""
    rest = []
    for program in on_eight[0]:
        loops = collectives.of_loops(program["text"])
        sent = [sum(bytes_ for _, bytes_ in turn) for turn in loops.values()]
        products = [turn for turn in sent if turn >= program["bytes"]]
        assert len(products) == 2
        assert max(sent) <= 1.05 * program["bytes"]
        assert {kind for turn in loops.values() for kind, _ in turn} == {"all-reduce"}
        rest.append(max(products) - program["bytes"])
        # Once a step: the gradient, and scalars such as the loss.
        once = sum(bytes_ for _, bytes_ in collectives.outside_loops(program["text"]))
        assert program["bytes"] <= once <= 1.05 * program["bytes"]
    assert rest[0] == rest[1] == rest[2]


def test_the_reader_of_programs_counts_bytes():
    program = """
%body.1 (arg: (f32[2])) -> (f32[2]) {
  %a = (f32[4,2]{1,0}, bf16[3]{0}) all-reduce(%x, %y), to_apply=%add
  %b = f64[] all-gather-start(%z)
}

%yes.1 (arg: (f32[2])) -> (f32[2]) {
  %d = f32[5] all-reduce(%x), to_apply=%add
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %c = f32[100] all-reduce(%x), to_apply=%add
  %w = (f32[2]) while(%t), condition=%cond.1, body=%body.1
  %i = (f32[2]) conditional(%p, %t, %t), branch_computations={%yes.1, %no.1}
}
"""
    assert collectives.outside_loops(program) == [("all-reduce", 400)]
    turn = [("all-reduce", 38), ("all-gather", 8)]
    assert collectives.of_loops(program) == {"body.1": turn, "yes.1": [("all-reduce", 20)]}


@pytest.mark.long
@pytest.mark.parametrize("method", [*METHODS, "kncg", "minres-qlp"])
def test_every_method_on_every_number_of_devices(method, tmp_path):
    cases = [(method, "float64", 20, devices, cut) for devices in (1, 2, 4, 8) for cut in (False, True)]
    assert max(run(8, "sharded.py", {"cases": cases}, tmp_path)) < 1e-6
    cases = [(method, "float32", 1, devices, cut) for devices in (1, 2, 4, 8) for cut in (False, True)]
    assert max(run(8, "sharded.py", {"cases": cases}, tmp_path)) < 1e-4


@pytest.mark.long
def test_the_direct_solver_where_xla_places_the_arrays(tmp_path):
    cases = [("direct", "float64", 5, devices, True) for devices in (2, 8)]
    assert max(run(8, "sharded.py", {"cases": cases}, tmp_path)) < 1e-6


def test_the_ten_lines_of_the_docs_run_on_many_devices(tmp_path):
    page = (HERE.parent / "docs" / "distribution.md").read_text()
    lines = "\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL))
    script = tmp_path / "lines.py"
    script.write_text(
        lines + "\nassert mesh.size == 4 and info.accepted and params['w'].sharding.mesh == mesh\n"
    )
    command = [sys.executable, "-W", "error", str(script)]
    subprocess.run(command, env=environment(4), check=True, timeout=600)
