"""A run to be killed: small, with checkpoints as often as asked, noting a hash of all it trains after every step.

    python victim.py DIRECTORY METHOD ITERATIONS SECONDS_BETWEEN_CHECKPOINTS
    python victim.py DIRECTORY order SECONDS_BETWEEN_CHECKPOINTS

The second is figure 2, which notes nothing; its clocks stand still, so that its logs can be compared byte by byte.
It goes on where an earlier one was, and ends as the command does: by the same code, with the same errors. Without
arguments it reads them from lines of its input, and gives each line a process of its own, forked when all is
imported but nothing has begun: it answers with the process's number, and how it ended when it has.
"""

import hashlib
import os
import sys
from pathlib import Path

import jax
import numpy as np
import typer
from rich.console import Console

from natgrad_paper import asking, experiments, plan
from natgrad_paper import run as runner
from natgrad_paper.order import study
from natgrad_paper.train import Stopwatch

TRACE = "trace"
CHANGES = (
    "data.train=40", "data.test=4", "model.encoder=[784, 3]", "budget.evaluations=10", "ngd.batch=10",
    "ngd.metric_batch=10", "hf.part=10", "ksd.part=10", "sgd.steps_per_call=1", "tonga.steps_per_call=1",
    "adam.steps_per_call=1", "kron.batch=10", "kron.first=5", "kron.part=4",
)  # fmt: skip

ORDER_CHANGES = ("validation=32", "held_out=32", "match.trainings=1")
"""As many examples as in a block: one program draws them all."""


def fingerprint(trained):
    """Return the hash of every bit of the parameters and the optimizer's state."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(trained):
        key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        digest.update(np.asarray(jax.random.key_data(leaf) if key else leaf).tobytes())
    return digest.hexdigest()


class Notes:
    """Notes process, iteration and hash after every step, a line each, before a checkpoint can be written."""

    def __init__(self, directory):
        self._file = os.open(directory / TRACE, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        os.close(self._file)

    def start(self, label, seed):
        pass

    def skip(self, label, seed):
        pass

    def tell(self, sentence):
        print(sentence, file=sys.stderr, flush=True)

    def update(self, event):
        os.write(
            self._file, f"{os.getpid()} {event.position.iteration} {fingerprint(event.trained)}\n".encode()
        )


def planned(directory, experiment, changes, methods, every):
    """Return the plan of the run in a directory, what it trains, and whether it goes on."""
    resume = (directory / plan.NAME).exists()
    if resume:
        request = plan.read(directory)
    else:
        request = plan.asked(experiment, "smoke", experiment.presets()["smoke"], changes, methods, (0,), None)
        runner.prepare_directory(directory, overwrite=True)
        plan.write(directory, request)
    settings = plan.settings(experiment, request, directory / plan.NAME)
    methods = [known for known in experiment.methods if known.name in request.methods]
    whole = runner.Plan(experiment, request.preset, settings, methods, request.seeds, float(every))
    return whole, experiment.prepare(settings, None), resume


def main(directory, method, iterations, every):
    changes = (*CHANGES, f"budget.iterations={iterations}")
    whole, problem, resume = planned(directory, experiments.load("curves"), changes, (method,), every)
    assert runner.run(whole, problem, directory, Notes(directory), resume) == []


def order(directory, _, every):
    """Figure 2, in a process whose clocks stand still."""
    Stopwatch.__exit__ = lambda watch, *exception: None
    study.header = lambda *head: {**runner.header(*head), "started": ""}
    whole, problem, resume = planned(directory, experiments.load("order"), ORDER_CHANGES, (), every)
    assert study.Study().run(whole, problem, directory, Console(quiet=True), resume) == []


def command(words):
    """Run as the command does, and return its exit code."""
    try:
        with asking.plain_errors("curves", Path(words[0])):
            (order if words[1] == "order" else main)(Path(words[0]), *words[1:])
    except typer.Exit as end:
        return end.exit_code
    return 0


def serve():
    import orbax.checkpoint  # noqa: F401  (a second, once for all)

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = command(line.split())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:])) if sys.argv[1:] else serve()
