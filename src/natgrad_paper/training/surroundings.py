"""Where a training runs and with what: versions, machine, commit."""

import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jax

import natgrad

PACKAGES = ("jax", "jaxlib", "numpy", "optax")


def cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def surroundings() -> dict[str, Any]:
    """Return what a log says about them."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "versions": {"natgrad": natgrad.__version__, **versions, "python": platform.python_version()},
        "cores": cores(),
        "platform": f"{platform.system()} {platform.machine()} {jax.default_backend()}",
    }


@cache
def commit() -> dict[str, Any] | None:
    """Return the commit of the source and whether files changed since; None if there is no repository."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        top = Path(git("rev-parse", "--show-toplevel"))
        if not here.is_relative_to(top) or not git("ls-files", str(here)):
            return None
        clean = not git("status", "--porcelain", "--", ":/src")
        return {"id": git("rev-parse", "HEAD"), "clean": clean}
    except (OSError, subprocess.CalledProcessError):
        return None
