"""Running an experiment: every method from every seed, each with its own log."""

import dataclasses
import datetime
import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np

import natgrad
from natgrad_paper.errors import UserError
from natgrad_paper.experiment import Experiment, Method, Problem
from natgrad_paper.log import FINISHED, Writer
from natgrad_paper.progress import Display
from natgrad_paper.train import Trainer


def run(
    experiment: Experiment,
    preset: str,
    config: Any,
    methods: Sequence[Method],
    seeds: Sequence[int],
    problem: Problem,
    directory: Path,
    display: Display,
) -> list[str]:
    """Train every method from every seed; return a line for each training that ended before its time.

    Logs go to `logs/<method>.<seed>.jsonl` in the directory. Seeds are the outer loop, so that an
    interrupted run has all methods for the seeds it reached; each method is compiled once.
    """
    trainers: dict[str, Trainer] = {}
    failures = []
    with display:
        for seed in seeds:
            for method in methods:
                display.start(method.label, seed)
                if method.name not in trainers:
                    trainers[method.name] = Trainer(problem, method, config)
                identity = {"method": method.name, "seed": seed}
                header = _header(experiment, preset, config, method, seed, problem)
                with Writer(directory / "logs" / f"{method.name}.{seed}.jsonl", header) as log:
                    for event in trainers[method.name].run(seed):
                        if event.errors is not None:
                            log.write({"record": "evaluation", **identity, **event.record()})
                        display.update(event)
                        if event.ended:
                            log.write({"record": "end", "reason": event.ended})
                            if event.ended != FINISHED:
                                failures.append(f"{method.label}, seed {seed}: {event.ended}")
    return failures


def prepare_directory(directory: Path, overwrite: bool) -> None:
    """Create the output directory; one that holds something is refused, or loses its logs if so asked."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: expected a directory, found a file")
    if directory.is_dir() and any(directory.iterdir()):
        if not overwrite:
            raise UserError(
                f"{directory}: expected an empty directory, found files; choose another or add --overwrite"
            )
        # Only what a run leaves: a directory named by mistake keeps everything else.
        shutil.rmtree(directory / "logs", ignore_errors=True)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(
            f"{directory}: expected a directory that can be written, found: {problem.strerror}"
        ) from None


def cost(config: Any, trainings: int) -> float | None:
    """Return the training seconds of a run whose budget is in seconds."""
    return None if config.budget.seconds is None else config.budget.seconds * trainings


def cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _header(
    experiment: Experiment, preset: str, config: Any, method: Method, seed: int, problem: Problem
) -> dict[str, Any]:
    order = [known.name for known in experiment.methods].index(method.name)
    return {
        "experiment": experiment.name,
        "preset": preset,
        "method": {"name": method.name, "label": method.label, "color": method.color, "order": order},
        "seed": seed,
        "data": problem.data,
        "config": dataclasses.asdict(config),
        "versions": {
            "natgrad": natgrad.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "cores": cores(),
        "platform": f"{platform.system()} {platform.machine()} {jax.default_backend()}",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
