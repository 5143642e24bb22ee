"""What the tests of the command share: the small experiment, and processes of the command."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from nursery import Nursery, nursery
from typer.testing import CliRunner

from cli.small import install
from natgrad_paper.cli.command import app
from natgrad_paper.training import cache

SOURCE = Path(cache.__file__).parents[2]
SMALL = Path(__file__).with_name("small.py")


@pytest.fixture(scope="module")
def invoke():
    """Return what runs the command in this process; tests leave nothing in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "enable", lambda: None)
        install(patch.setattr)

        def run(*arguments, **options):
            return CliRunner(**options).invoke(app, [str(argument) for argument in arguments])

        yield run


@dataclass
class Command:
    """The command, in processes of its own."""

    around: dict
    processes: Nursery

    def start(self, *arguments, **options):
        """Start it, at once."""
        return self.processes.start(*arguments, **options)

    def run(self, *arguments, **changes):
        """Run it to its end in an interpreter of its own, with other variables."""
        words = [sys.executable, str(SMALL), *map(str, arguments)]
        around = {**self.around, **changes}
        return subprocess.run(words, env=around, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="session")
def command(tmp_path_factory):
    """Return the command; the first of its processes compiles for all."""
    home = tmp_path_factory.mktemp("home")
    around = {
        "JAX_COMPILATION_CACHE_DIR": str(home / "xla"), **os.environ, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "HOME": str(home), "PYTHONPATH": str(SOURCE), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "COLUMNS": "200",
    }  # fmt: skip
    with nursery(SMALL, around) as processes:
        yield Command(around, processes)
