"""Ctrl-C and SIGTERM, held back to the end of the step that they arrive in."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Training was stopped from outside; says what was saved and how to go on.

    A KeyboardInterrupt, so that `except Exception` does not swallow it and a caller that handles Ctrl-C handles this.
    """


class Interrupts:
    """While this is entered, the first signal is noted in `received`; the second raises KeyboardInterrupt at once.

    A step that is cut in the middle leaves weights and moments that belong to no step, hence the wait. Outside the main
    thread Python lets nobody handle signals, and nothing is changed.
    """

    def __init__(self) -> None:
        self.received: str | None = None

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
