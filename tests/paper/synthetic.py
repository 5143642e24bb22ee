"""Logs written by hand: what figures, tables and claims say must follow from their records."""

import base64
import json

import numpy as np

from natgrad_paper.report.load import Runs
from natgrad_paper.training import log
from natgrad_paper.training.log import RunLog, Status

COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
REFUSED = "50 steps in a row refused: rejected"


def run_log(
    method="ngd", seed=0, scale=1.0, end="finished", sha="a" * 64, errors=(8.0, 4.0, 2.0), order=1, label=None,
    settings=None, training="", **rest,
):  # fmt: skip
    """Return a run with an evaluation at 0, 10, 100, … iterations and 0, 2, 4, … seconds.

    Its end is a status, words on why it was given up, or None where it was cut off.
    """
    known = end in list(Status)
    name = {
        "name": method,
        "label": label or method.upper(),
        "color": COLORS[order % len(COLORS)],
        "order": order,
    }
    header = {
        "experiment": "curves",
        "preset": "small",
        "method": name,
        "seed": seed,
        "training": {"name": training},
        "data": {"name": "Curves (regenerated)", "sha256": sha, "train": [4, 784], "test": [2, 784]},
        "settings": {"ksd": {"size": 20}} if settings is None else settings,
        "damping": None,
        "plateau": {},
        "versions": {"natgrad": "0", "jax": "1"},
        "commit": {"id": "c" * 40, "clean": True},
        "cores": 2,
        "platform": "Linux",
    }
    evaluations = tuple(
        {
            "iteration": 10**k if k else 0,
            "refused": 0,
            "training_seconds": 2.0 * k,
            "cpu_seconds": 3.5 * k,
            "evaluation_seconds": 0.5 * k,
            "compile_seconds": 3.0,
            "squared_error": None if error is None else error * scale,
        }
        for k, error in enumerate(errors)
    )
    status = None if end is None else Status(end) if known else Status.GAVE_UP
    return RunLog(header, evaluations, status=status, reason="" if end is None else str(end), **rest)


def runs(*logs):
    """Return the logs as runs."""
    return Runs.of(logs)


def steps(count=30, **fields):
    """Return step records with the usual numbers, some of them missing."""
    usual = {"rho": 0.5, "kl": None, "solver_iterations": 5}
    return tuple({"iteration": 3 * k + 1, "damping": 3.0 / (k + 1), **usual, **fields} for k in range(count))


def pictures(count=3, side=28, value=200):
    """Return the records of cases and what a method makes of them."""
    cases = (np.arange(count * side * side) % 60).astype(np.uint8)
    made = np.full_like(cases, value)
    shape = {"labels": [], "shape": [1, count, side, side]}
    return tuple(
        {"what": what, "title": what, "images": base64.b64encode(images.tobytes()).decode(), **shape}
        for what, images in (("original", cases), ("reconstruction", made))
    )


def write(logs, directory):
    """Write logs as a run leaves them; return the directory."""
    for found in logs:
        name = ".".join(part for part in (found.method, str(found.seed), found.training) if part)
        with log.Writer(directory / "logs" / f"{name}.jsonl", found.header) as stream:
            for kind, records in (
                ("evaluation", found.evaluations), ("step", found.steps), ("measure", found.measures),
                ("pictures", found.pictures), ("gap", found.gaps),
            ):  # fmt: skip
                for record in records:
                    stream.write({"record": kind, **record})
            if found.status:
                stream.write({"record": "end", "status": found.status, "reason": found.reason})
    return directory


def lines(directory, name):
    """Return the records of a log as they stand in its file."""
    return [json.loads(line) for line in (directory / "logs" / name).read_text().splitlines()]
