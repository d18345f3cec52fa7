"""The progress of a study: a bar and a line for each worker on a terminal, plain lines elsewhere; on stderr."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from isoflop.cli.output import note, stderr

if TYPE_CHECKING:
    from isoflop.study.execute import Event

PLAIN_SECONDS = 10
"""Seconds between plain progress lines."""


class Watch:
    """Told of events by `execute`; shows how far the study is."""

    def __init__(self, folder: Path, only: str | None = None) -> None:
        from isoflop.study.results import SETTLED, read_runs

        runs = [run for run in read_runs(folder) if only in {None, run.arm}]
        self.total = len(runs)
        self.done = sum(run.status in SETTLED for run in runs)
        if self.done:
            note(f"{self.done} of {self.total} runs are there already")
        self.fractions: dict[int, float] = {}
        self.workers: dict[int, TaskID] = {}
        self.said = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)
        self.bar = self.progress.add_task("runs", total=self.total, completed=self.done, detail=self._count())

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        run = f"{event.arm} seed {event.seed}"
        if event.kind == "end":
            self.done += 1
            self.fractions.pop(event.worker, None)
            if event.detail.get("status") != "finished":
                note(f"{run}: {event.detail.get('status')}: {event.detail.get('reason')}")
        elif event.kind == "step":
            steps = event.detail.get("steps") or 1
            self.fractions[event.worker] = event.detail.get("step", 0) / steps
        self._show(event, run)

    def _show(self, event: Event, run: str) -> None:
        if stderr.is_terminal:
            if event.worker not in self.workers:
                self.workers[event.worker] = self.progress.add_task(run, total=1.0, detail="")
            loss = event.detail.get("loss")
            detail = f"loss {loss:.3f}" if isinstance(loss, float) else ""
            self.progress.update(
                self.workers[event.worker],
                description=run,
                completed=self.fractions.get(event.worker, 0.0),
                detail=detail,
            )
            self.progress.update(self.bar, completed=self.done + sum(self.fractions.values()), detail=self._count())
        elif event.kind == "end" and (time.monotonic() - self.said > PLAIN_SECONDS or self.done == self.total):
            self.said = time.monotonic()
            note(f"{self._count()} runs")

    def _count(self) -> str:
        return f"{self.done}/{self.total}"
