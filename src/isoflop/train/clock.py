"""Seconds of training alone."""

from __future__ import annotations

import time

import torch


class Clock:
    """Adds up the time of training steps: batch, forward, backward, update.

    Left out: evaluation, checkpoints, logging, and the first step of every session (it compiles, allocates and warms
    caches); the `steps` that were timed leave it out too. A GPU is waited for only when the clock stops.
    """

    def __init__(self, device: torch.device, seconds: float = 0.0, steps: int = 0) -> None:
        self.seconds, self.steps = seconds, steps
        self._device, self._warm = device, False
        self._since: float | None = None

    @property
    def step_seconds(self) -> float | None:
        """Mean time of a step; None before two steps were made."""
        return self.seconds / self.steps if self.steps else None

    def start(self) -> None:
        self._since = time.perf_counter()

    def tick(self) -> None:
        """One step was made."""
        if self._warm:
            self.steps += 1
            return
        self._warm = True
        self._wait()
        self.start()

    def stop(self) -> None:
        """Stop counting; nothing happens to a clock that stands."""
        self._wait()
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since if self._warm else 0.0
        self._since = None

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
