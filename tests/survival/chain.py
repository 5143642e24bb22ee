"""One training in many processes, each killed: what it should have been, and whether it was."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from natgrad_paper import log

VICTIM = Path(__file__).with_name("victim.py")
ITERATIONS = 400
NEVER, ALWAYS = 1e9, 0
PATIENCE = 300
"""Seconds: a process that does not get further in that time is stuck."""


@dataclass
class Chain:
    """One training, killed again and again."""

    directory: Path
    method: str
    environment: dict
    rng: np.random.Generator
    reference: dict = field(default_factory=dict)
    """The hash at each iteration of the run nobody killed."""
    startup: float = 0.0
    kills: int = 0
    in_a_write: int = 0
    repeated: int = 0
    """The most iterations that had to be done again after a kill."""

    def start(self, every, directory=None):
        command = [
            sys.executable,
            VICTIM,
            directory or self.directory,
            self.method,
            str(ITERATIONS),
            str(every),
        ]
        return subprocess.Popen(
            [str(word) for word in command],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def finish(self, every=NEVER, directory=None):
        """Let a process run to its end, which must be a good one; return what it printed."""
        process = self.start(every, directory)
        try:
            printed, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert process.returncode == 0, errors.decode()
        return printed.decode()

    def undisturbed(self, directory):
        began = time.monotonic()
        self.finish(directory=directory)
        self.startup = time.monotonic() - began
        self.reference = {iteration: digest for _, iteration, digest in trace(directory)}
        assert sorted(self.reference) == list(range(ITERATIONS + 1))
        return log.times_aside(only_log(directory))

    def writing(self):
        return any(self.directory.glob("checkpoints/*/.writing-*"))

    def kill_once(self, in_a_write):
        """Kill a process with the signal it cannot see: during a write, or at any moment after its first breath."""
        seen = len(trace(self.directory))
        process = self.start(ALWAYS)
        try:
            if in_a_write:
                steps = seen + int(self.rng.integers(1, 5))
                wait(lambda: len(trace(self.directory)) >= steps, process)
                wait(self.writing, process)
                time.sleep(self.rng.uniform(0, 0.15))
            else:
                wait(lambda: (self.directory / "run.json").exists(), process)
                time.sleep(self.rng.uniform(0, 1.5 * self.startup))
            alive = process.poll() is None
        finally:
            process.kill()
        _, errors = process.communicate(timeout=PATIENCE)
        if alive:
            assert process.returncode == -signal.SIGKILL
            self.kills += 1
            self.in_a_write += self.writing()
        else:
            assert process.returncode == 0, errors.decode()
        return alive

    def check(self):
        """Every step of every process is one of the run nobody killed, and none goes far back."""
        by_process = {}
        for process, iteration, digest in trace(self.directory):
            assert digest == self.reference[iteration], (self.method, process, iteration)
            by_process.setdefault(process, []).append(iteration)
        last = None
        for iterations in by_process.values():
            assert iterations == list(range(iterations[0], iterations[-1] + 1))
            if last is not None:
                self.repeated = max(self.repeated, last - iterations[0])
            last = iterations[-1]
        # What was being written when the kill came is lost: one interval, here one step.
        assert self.repeated <= 1

    def __str__(self):
        return (
            f"{self.method}: {self.kills} kills, {self.in_a_write} of them during a checkpoint write, 0 lost runs, "
            f"{self.kills} bit-identical resumes, at most {self.repeated} steps repeated"
        )


def wait(happens, process):
    deadline = time.monotonic() + PATIENCE
    while not happens() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.004)


def trace(directory):
    """Return (process, iteration, hash) of every step noted; a last line cut short is left out."""
    try:
        text = (directory / "trace").read_text()
    except FileNotFoundError:
        return []
    lines = (line.split() for line in text.split("\n")[:-1])
    return [(int(process), int(iteration), digest) for process, iteration, digest in lines]


def only_log(directory):
    (path,) = (directory / "logs").iterdir()
    return log.read(path)


def environment(tmp_path):
    """Return surroundings in which only the first process compiles."""
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
