"""Logs written by hand: what figures, tables and claims say must follow from their records."""

import base64
import json

import numpy as np

from natgrad_paper import log

COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def run_log(
    method="ngd",
    seed=0,
    scale=1.0,
    end="finished",
    sha="a" * 64,
    errors=(8.0, 4.0, 2.0),
    order=1,
    label=None,
    config=None,
    **rest,
):
    """Return a run with an evaluation at 0, 10, 100, … iterations and 0, 2, 4, … seconds."""
    header = {
        "experiment": "curves",
        "preset": "small",
        "method": {
            "name": method,
            "label": label or method.upper(),
            "color": COLORS[order % len(COLORS)],
            "order": order,
        },
        "seed": seed,
        "data": {"name": "Curves (regenerated)", "sha256": sha, "train": [4, 784], "test": [0, 784]},
        "config": {"damping": {"reduction": "linear"}} if config is None else config,
        "versions": {"natgrad": "0", "jax": "1"},
        "cores": 2,
        "platform": "Linux",
    }
    evaluations = tuple(
        {
            "iteration": 10**k if k else 0,
            "training_seconds": 2.0 * k,
            "evaluation_seconds": 0.5 * k,
            "compile_seconds": 3.0,
            "squared_error": None if error is None else error * scale,
        }
        for k, error in enumerate(errors)
    )
    return log.RunLog(header, evaluations, end, **rest)


def steps(count=30, **fields):
    """Return step records with the usual numbers, some of them missing."""
    return tuple(
        {
            "iteration": 3 * k + 1,
            "damping": 3.0 / (k + 1),
            "rho": 0.5,
            "kl": None,
            "solver_iterations": 5,
            **fields,
        }
        for k in range(count)
    )


def samples(count=3, side=28, value=200):
    """Return a samples record."""
    cases = np.arange(count * side * side, dtype=np.uint8)
    return {
        "shape": [count, side, side],
        "cases": base64.b64encode(cases.tobytes()).decode(),
        "reconstructions": base64.b64encode(bytes([value]) * (count * side * side)).decode(),
    }


def write(logs, directory):
    """Write logs as a run leaves them; return the directory."""
    for found in logs:
        header = found.header
        path = directory / "logs" / f"{header['method']['name']}.{header['seed']}.jsonl"
        with log.Writer(path, header) as stream:
            for kind, records in (("evaluation", found.evaluations), ("step", found.steps)):
                for record in records:
                    stream.write({"record": kind, **record})
            if found.samples:
                stream.write({"record": "samples", **found.samples})
            if found.end:
                stream.write({"record": "end", "reason": found.end})
    return directory


def lines(directory, name):
    """Return the records of a log as they stand in its file."""
    return [json.loads(line) for line in (directory / "logs" / name).read_text().splitlines()]
