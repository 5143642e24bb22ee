"""What the tests of the figures share: settings by preset and changes, runs, and the command."""

from pathlib import Path

import pytest
from training.tiny import Notes
from typer.testing import CliRunner

from natgrad_paper import figures
from natgrad_paper.cli.command import app
from natgrad_paper.training import cache
from natgrad_paper.training.runner import Run
from natgrad_paper.training.settings import build, changed, overrides


def settings(name, *changes, preset="smoke"):
    """Return an experiment's settings: a preset's, with changes as `--set` takes them."""
    experiment = figures.load(name)
    chosen = experiment.presets()[preset]
    return build(
        experiment.settings, changed(experiment.settings, chosen.changes, overrides(changes)), chosen.where
    )


def method(name, which):
    """Return a method of an experiment."""
    return next(each for each in figures.load(name).methods if each.name == which)


def run(name, directory, *changes, methods=None, seeds=(0,), resume=False, display=None, chosen=None, **rest):
    """Return a run of the preset `smoke`, of which nothing has begun."""
    experiment, used = figures.load(name), chosen or settings(name, *changes)
    picked = experiment.methods if methods is None else tuple(method(name, each) for each in methods)
    problem = rest.pop("problem", None) or experiment.prepare(used, None)
    return Run(
        name, "smoke", used, problem, experiment.methods, picked, tuple(seeds), Path(directory), display or Notes(),
        resume, **rest,
    )  # fmt: skip


def conduct(whole):
    """Run as the experiment says; return its failures."""
    with whole.signals:
        return figures.load(whole.experiment).drive(whole)


def invoke(*arguments):
    """Call the command, without the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "enable", lambda: None)
        return CliRunner().invoke(app, [str(argument) for argument in arguments])
