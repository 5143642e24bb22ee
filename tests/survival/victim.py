"""A run to be killed: small, with checkpoints as often as asked, noting a hash of all it trains after every step.

    python victim.py DIRECTORY METHOD ITERATIONS SECONDS_BETWEEN_CHECKPOINTS
    python victim.py DIRECTORY order SECONDS_BETWEEN_CHECKPOINTS

The second is figure 2, which notes nothing; its clocks stand still, so that its logs can be compared byte by byte.
It goes on where an earlier one was, and ends as the command does: by the same code, with the same errors. Without
arguments it reads commands from its input, and gives each a process of its own (see `nursery`).
"""

import hashlib
import os
import random
import sys
import time
from pathlib import Path

import jax
import numpy as np
import typer

from natgrad_paper import figures
from natgrad_paper.cli.arguments import plain_errors, settings
from natgrad_paper.training import loop, request, runner
from natgrad_paper.training.directory import Claimed, prepare_directory
from natgrad_paper.training.runner import Run
from natgrad_paper.training.settings import build, stated

sys.path.insert(0, str(Path(__file__).parents[1]))
import nursery

TRACE = "trace"
CHANGES = (
    "data.train=40", "data.test=4", "model.encoder=[784, 3]", "budget.evaluations=10", "ngd.batch=10",
    "ngd.metric_batch=10", "hf.part=10", "ksd.part=10", "sgd.steps_per_call=1", "tonga.steps_per_call=1",
    "adam.steps_per_call=1", "kncg.batch=10", "kncg.first=5", "kncg.probe=4",
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


class Quiet:
    """Says on the error stream what has to be said."""

    def begin(self, title, named):
        return lambda event: None

    def skip(self, title, named):
        pass

    def tell(self, sentence):
        if "variance of the outputs" not in sentence:
            print(sentence, file=sys.stderr, flush=True)


class Notes(Quiet):
    """Notes process, iteration and hash after every step, one line each, before a checkpoint can be written."""

    def __init__(self, directory):
        self._file = os.open(directory / TRACE, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def begin(self, title, named):
        return self._update

    def _update(self, event):
        words = f"{os.getpid()} {event.position.iteration} {fingerprint(event.trained)}\n"
        os.write(self._file, words.encode())


runner.commit = lambda: None  # Somebody may be changing the source meanwhile.


def run(directory, experiment, changes, methods, every, display):
    """Run what is asked for in a directory, or go on with it."""
    resume = (directory / request.NAME).exists()
    if resume:
        asked = request.read(directory)
        used = build(experiment.settings, asked.settings, str(directory / request.NAME))
    else:
        used = settings(experiment, experiment.presets()["smoke"], changes)
        prepare_directory(directory, False, request.NAME)
        asked = request.Request(
            experiment=experiment.name, preset="smoke", methods=methods, seeds=(0,), settings=stated(used)
        )
    with Claimed(directory):
        request.write(directory, asked)
        known = {method.name: method for method in experiment.methods}
        whole = Run(
            experiment.name, asked.preset, used, experiment.prepare(used, None), experiment.methods,
            tuple(known[name] for name in asked.methods), asked.seeds, directory, display(directory), resume,
            checkpoint_seconds=float(every),
        )  # fmt: skip
        with whole.signals:
            assert experiment.drive(whole) == []


def main(directory, method, iterations, every):
    changes = (*CHANGES, f"budget.iterations={iterations}")
    run(directory, figures.load("curves"), changes, (method,), every, Notes)


def order(directory, _, every):
    """Figure 2, in a process whose clocks stand still."""
    loop.Stopwatch.__exit__ = lambda watch, *exception: None
    header = Run.header
    Run.header = lambda self, training: {**header(self, training), "started": ""}
    run(directory, figures.load("order"), ORDER_CHANGES, ("sgd", "ngd"), every, lambda directory: Quiet())


def slowly():
    """Let files be written slowly, so that kills come before, while and after they are made safe."""
    fsync = os.fsync

    def drowsy(descriptor):
        time.sleep(random.uniform(0, 0.004))
        fsync(descriptor)
        time.sleep(random.uniform(0, 0.004))

    os.fsync = drowsy


def command(words):
    """Run as the command does, and return its exit code."""
    if words[-1] == "0":
        slowly()
    try:
        with plain_errors("curves", Path(words[0])):
            (order if words[1] == "order" else main)(Path(words[0]), *words[1:])
    except typer.Exit as end:
        return end.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]) if sys.argv[1:] else nursery.serve(command))
