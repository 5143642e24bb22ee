"""Ending a run in good order: Ctrl-C and SIGTERM wait for the end of the current step, and so does giving up."""

import signal
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """A run was asked to stop and has: its logs and checkpoints are in order."""

    def __init__(self, by: signal.Signals, directory: Path) -> None:
        super().__init__(by, directory)
        self.by = by
        self.directory = directory

    @property
    def exit_code(self) -> int:
        """The code shells use for an end by this signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.by


class GivenUp(Exception):
    """A training was given up, for the reason that the message is: its log and its checkpoint are in order."""


class Stop:
    """Notes the first signal, for the run to look at between steps; a second one ends it at once."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Stop":
        try:
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        except ValueError:  # Not the main thread: whoever owns it handles signals.
            pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number)
