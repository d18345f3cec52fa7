"""The log of a run: a line of strict JSON for each measurement, and progress for a person."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isoflop.files import write_atomic

OnProgress = Callable[[dict[str, Any]], None]
"""Told of each line of the log, with `steps` added, and of `{"kind": "message", "text": ...}`."""


def strict(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with each non-finite number as None, and the names of those that had one under `nonfinite`."""
    clean = {name: _finite(value) for name, value in values.items()}
    flagged = [name for name, value in values.items() if _has_nonfinite(value)]
    return {**clean, "nonfinite": flagged} if flagged else clean


class MetricsLog:
    """metrics.jsonl: each line is with the operating system when `write` returns.

    A run that goes on from step n first drops the lines beyond n, and a last line that a kill has cut.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line in _lines(path) if line["step"] <= step]
        write_atomic(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in kept))
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115  # closed by `close`

    def write(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line and return what it says."""
        line = strict(values)
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        return line

    def close(self) -> None:
        self._file.close()


class Reporter:
    """Progress on stderr: a bar with rate, loss and time left on a terminal, plain lines elsewhere."""

    def __init__(self, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True)
        columns = (TextColumn("{task.completed}/{task.total}"), BarColumn(), TextColumn("{task.description}"))
        shown = self.console.is_terminal
        self.progress = Progress(
            *columns, TimeRemainingColumn(), console=self.console, transient=True, disable=not shown
        )
        self.task = self.progress.add_task("", total=steps)
        self.before = (0, 0.0)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, line: Mapping[str, Any]) -> None:
        text = line["text"] if line["kind"] == "message" else self._sentence(line)
        if not self.console.is_terminal:
            print(text, file=sys.stderr, flush=True)
        elif line["kind"] == "train":
            self.progress.update(self.task, completed=line["step"], description=text)
        else:
            self.progress.print(text, markup=False, highlight=False)

    def _sentence(self, line: Mapping[str, Any]) -> str:
        loss = "not finite" if line["loss"] is None else f"{line['loss']:.4f}"
        bits = line.get("bits_per_byte")
        detail = self._speed(line) if bits is None else f"{bits:.4f} bits/byte"
        if "exact_match" in line:
            detail += f"  {line['exact_match']:.1%} exact matches"
        what = line.get("set", line["kind"])
        return f"step {line['step']}/{line['steps']}  {what} loss {loss}  {detail}".rstrip()

    def _speed(self, line: Mapping[str, Any]) -> str:
        """Tokens per second since the last line; nothing for the first, whose seconds leave out a step."""
        (tokens, seconds), self.before = self.before, (line["tokens"], line["seconds"])
        return (
            f"{(line['tokens'] - tokens) / (line['seconds'] - seconds):,.0f} tokens/s"
            if tokens and line["seconds"] > seconds
            else ""
        )


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log up to the first that is not whole."""
    found = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(value, dict) or "step" not in value:
            break
        found.append(value)
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _has_nonfinite(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_nonfinite, value))
    return isinstance(value, float) and not math.isfinite(value)
