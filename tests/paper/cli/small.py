"""The experiment of the tests of the training room, in the command; run as a script, it is the command.

    python small.py run sums --preset smoke --out DIRECTORY

Without arguments it reads commands from its input, and gives each a process of its own (see `nursery`).
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[level]) for level in (1, 2)]

from training.tiny import METHODS, Settings, problem

from natgrad_paper import figures
from natgrad_paper.cli.command import app
from natgrad_paper.figures.base import Experiment
from natgrad_paper.report.story import Story

EXPERIMENT = Experiment(
    "sums",
    "Sums of three numbers",
    Settings,
    METHODS,
    lambda settings, path: problem(),
    first_look=("sgd", "ngd"),
    story=Story("Sums of three numbers"),
    presets_file=Path(__file__).with_name("presets.toml"),
)


def install(patch=setattr, experiment=EXPERIMENT):
    """Let the command know the experiment, beside its own."""
    names, load = figures.names, figures.load
    patch(figures, "names", lambda: [*names(), "sums"])
    patch(figures, "load", lambda name: experiment if name == "sums" else load(name))


if __name__ == "__main__":
    install()
    if sys.argv[1:]:
        app()
    import nursery

    from natgrad_paper.report import load, page, screen  # noqa: F401  (a second, once for all)

    sys.exit(nursery.serve(app))
