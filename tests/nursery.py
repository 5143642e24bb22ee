"""Processes that start at once: each is forked from one that has imported everything and begun nothing.

A script ends with `nursery.serve(run)`, where `run` takes the words of a command and returns its exit code.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time

PATIENCE = 600
"""Seconds: a process that does not get further in that time is stuck."""
STREAMS = ("stdin", "stdout", "stderr")


class Child:
    """A process; what it does to its exit is what any process does."""

    def __init__(self, nursery, number):
        self._nursery, self.pid, self.returncode = nursery, number, None

    def poll(self):
        """Return how it ended, or None."""
        if self.returncode is None:
            self.returncode = self._nursery.ended().get(self.pid)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Kill it with the signal it cannot see, if it still lives; return how it ended."""
        self.send_signal(signal.SIGKILL)
        return self.wait()

    def wait(self, happens=lambda: False, seconds=PATIENCE):
        """Wait until something happens or the process ends; return how it ended, or None."""
        deadline = time.monotonic() + seconds
        while self.poll() is None and not happens():
            assert time.monotonic() < deadline, "stuck"
            time.sleep(0.004)
        return self.returncode


class Nursery:
    """The process from which the others are forked."""

    def __init__(self, script, around):
        self._parent = subprocess.Popen(
            [sys.executable, str(script)], env=around, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._rest, self._started, self._ended = b"", [], {}

    def start(self, *words, ignore=(), **streams):
        """Start a process.

        Args:
            *words: Its command.
            ignore: Names of signals that it is to ignore from the start.
            **streams: Files to open as stdin, stdout and stderr.
        """
        files = {name: str(path) for name, path in streams.items()}
        request = {"words": [str(word) for word in words], "ignore": list(ignore), **files}
        self._parent.stdin.write(json.dumps(request).encode() + b"\n")
        self._parent.stdin.flush()
        while not self._started:
            self._listen(PATIENCE)
        return Child(self, self._started.pop())

    def ended(self):
        """Return how processes ended, by their numbers."""
        self._listen(0)
        return self._ended

    def _listen(self, seconds):
        while select.select([self._parent.stdout], [], [], seconds)[0]:
            found = os.read(self._parent.stdout.fileno(), 1 << 16)
            assert found, "the parent of all is gone"
            *lines, self._rest = (self._rest + found).split(b"\n")
            for line in lines:
                kind, *numbers = line.split()
                if kind == b"started":
                    self._started.append(int(numbers[0]))
                else:
                    self._ended[int(numbers[0])] = int(numbers[1])
            seconds = 0

    def close(self):
        self._parent.kill()
        self._parent.communicate()


@contextlib.contextmanager
def nursery(script, around):
    found = Nursery(script, around)
    try:
        yield found
    finally:
        found.close()


def serve(run):
    """Fork a process for each line of the input; never return, but in those processes, with their exit code."""
    answers, living = os.dup(1), set()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    rest = b""
    while True:
        if select.select([0], [], [], 0.004 if living else None)[0]:
            found = os.read(0, 1 << 16)
            if not found:
                for child in living:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                return 0
            *lines, rest = (rest + found).split(b"\n")
            for line in lines:
                child = os.fork()
                if child == 0:
                    os.close(answers)
                    return _begin(run, json.loads(line))
                living.add(child)
                os.write(answers, f"started {child}\n".encode())
        while living:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                break
            living.discard(child)
            os.write(answers, f"ended {child} {os.waitstatus_to_exitcode(status)}\n".encode())


def _begin(run, request):
    opened = {}
    for number, name in enumerate(STREAMS):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        default = os.devnull if number < 2 else None
        if (path := request.get(name, default)) is not None:
            key = path, flags  # A pipe is opened once: the second time nobody may be there to read.
            opened[key] = opened[key] if key in opened else os.open(path, flags)
            os.dup2(opened[key], number)
    for name in request["ignore"]:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    try:
        return run(request["words"])
    except SystemExit as end:
        return end.code
