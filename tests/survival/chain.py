"""One training in many processes, each killed: what it should have been, and whether it was."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from nursery import Nursery, nursery

from natgrad_paper.training import log

SOURCE = Path(log.__file__).parents[2]
VICTIM = Path(__file__).with_name("victim.py")
ITERATIONS = 400
NEVER, ALWAYS = 1e9, 0


def environment(tmp_path):
    """Return surroundings in which only the first process compiles."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        **os.environ,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTHONPATH": str(SOURCE),
    }


def victims(tmp_path):
    """Return where processes to be killed come from."""
    return nursery(VICTIM, environment(tmp_path))


@dataclass
class Chain:
    """One training, killed again and again."""

    directory: Path
    method: str
    processes: Nursery
    rng: np.random.Generator
    reference: dict = field(default_factory=dict)
    """The hash at each iteration of the run nobody killed."""
    startup: float = 0.0
    """Seconds a process took to its first step."""
    kills: int = 0
    in_a_write: int = 0
    repeated: int = 0
    """The most iterations that had to be done again after a kill."""
    left: dict = field(default_factory=dict)
    """What the process before left half written, which stays until the next write."""

    def start(self, every, directory=None):
        return self.processes.start(directory or self.directory, self.method, ITERATIONS, every)

    def finish(self, directory=None):
        """Let a process run to its end, which must be a good one."""
        assert self.start(NEVER, directory).wait() == 0

    def undisturbed(self, directory):
        self.finish(directory)
        self.reference = {iteration: digest for _, iteration, digest in trace(directory)}
        assert sorted(self.reference) == list(range(ITERATIONS + 1))
        return records(directory)

    def half_written(self):
        found = {}
        for path in self.directory.glob("checkpoints/*/.writing-*"):
            with suppress(FileNotFoundError):
                found[path] = path.stat().st_ino
        return found

    def writing(self):
        """Whether this process is in the middle of a write."""
        return bool(self.half_written().items() - self.left.items())

    def kill_once(self, in_a_write):
        """Kill a process: during a write, or at any moment from its first breath on; return whether it lived."""
        seen, began, self.left = len(trace(self.directory)), time.monotonic(), self.half_written()
        process = self.start(ALWAYS)
        if in_a_write:
            process.wait(lambda: len(trace(self.directory)) > seen)
            self.startup = time.monotonic() - began
            steps = seen + int(self.rng.integers(1, 4))
            process.wait(lambda: len(trace(self.directory)) >= steps)
            while process.poll() is None and not self.writing():
                pass  # A write takes a few milliseconds.
            time.sleep(self.rng.uniform(0, 0.003))
        else:
            process.wait(lambda: (self.directory / "run.json").exists())
            moment = time.monotonic() + self.rng.uniform(0, self.startup + 0.5)
            process.wait(lambda: time.monotonic() > moment)
        if process.kill() != -signal.SIGKILL:
            assert process.returncode == 0
            return False
        self.kills += 1
        self.in_a_write += self.writing()
        return True

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


def records(directory):
    """Return what two runs of a seed share: the records of the only log, without times and resumptions."""
    (path,) = (directory / "logs").iterdir()
    found = [log.record_in(line) for line in path.read_text().splitlines()]
    return [log.without_times(record) for record in found if record["record"] != "resumed"]
