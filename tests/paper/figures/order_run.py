"""Runs figure 2 with the preset `smoke`, in a process without any of the tests' settings, and writes what it found.

python order_run.py OUT SEEDS [FIELD=VALUE …]

All floats are exact: variances are hexadecimal.
"""

import json
import sys
import tempfile
from pathlib import Path

from natgrad_paper import figures
from natgrad_paper.training import log
from natgrad_paper.training.measures import Measures
from natgrad_paper.training.runner import Run
from natgrad_paper.training.settings import build, changed, overrides


class Quiet:
    """Shows nothing."""

    def begin(self, title, named):
        return lambda event: None

    def skip(self, title, named):
        pass

    def tell(self, sentence):
        pass


def found_by(whole):
    """Conduct a run; return what was measured and how every training went, by method and seed."""
    found, write = {}, Measures.write

    def noted(self, name, **numbers):
        exact = {key: value.hex() if "variance" in key else value for key, value in numbers.items()}
        kept = {key: exact[key] for key in ("rate", "reached", "variance", "logit_variance") if key in exact}
        where = f"{self._header['method']['name']}.{self._header['seed']}"
        found.setdefault(where, {})["matched" if name == "matched" else f"variance {name}"] = kept
        return write(self, name, **numbers)

    Measures.write = noted
    try:
        assert figures.load("order").drive(whole) == []
    finally:
        Measures.write = write
    for each in log.read_all(whole.directory):
        if each.training:
            errors = [round(record["valid_misclassified"], 6) for record in each.evaluations]
            rate, refused = each.header["training"]["rate"], each.evaluations[-1]["refused"]
            facts = {"rate": rate, "errors": errors, "refused": refused}
            found[f"{each.method}.{each.seed}"][each.training] = facts
    return found


if __name__ == "__main__":
    out, seeds, *changes = sys.argv[1:]
    order = figures.load("order")
    settings = build(
        order.settings, changed(order.settings, order.presets()["smoke"].changes, overrides(changes)), ""
    )
    with tempfile.TemporaryDirectory() as directory:
        problem, numbers = order.prepare(settings, None), tuple(range(int(seeds)))
        given = order.methods, order.methods, numbers, Path(directory), Quiet()
        found = found_by(Run("order", "smoke", settings, problem, *given))
    Path(out).write_text(json.dumps(found))
