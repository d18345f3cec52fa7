"""A worker process of a study: asks for a run, trains it, asks for the next."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isoflop.files import write_json
from isoflop.study.claim import claim
from isoflop.study.results import SETTLED, read_record, read_study_file, run_folder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from isoflop.data import AnyCorpus
    from isoflop.plan import Cost

THREADS = 1
"""Threads of a worker: small models do not fill two cores, two models do."""


@dataclass(frozen=True)
class Event:
    """What a worker tells: `kind` is `ready` (for a run), `held` (by another process), `start`, `step` or `end`."""

    kind: str
    worker: int
    arm: str = ""
    seed: int = -1
    detail: dict[str, Any] = field(default_factory=dict)


def work(number: int, folder: str, plugin_folders: tuple[str, ...], parent: Connection) -> None:
    """The worker process: take runs from the parent until it has no more."""
    # A session of its own: Ctrl-C in the terminal reaches the parent alone, which then asks once for an orderly stop.
    os.setsid()
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    sys.path.extend(plugin_folders)
    from isoflop.train import Interrupted

    with contextlib.suppress(KeyboardInterrupt, Interrupted):
        _Worker(number, Path(folder), parent).work()


def _leave_with_the_parent() -> None:
    """When the parent is killed: save and leave, as if it had asked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _Worker:
    """What a worker keeps between its runs: data and costs are loaded once."""

    def __init__(self, number: int, folder: Path, parent: Connection) -> None:
        import torch

        torch.set_num_threads(THREADS)
        self.number, self.folder, self.parent = number, folder, parent
        self.arms = {arm["name"]: arm for arm in read_study_file(folder)["arms"]}
        self.corpora: dict[str, AnyCorpus] = {}
        self.costs: dict[tuple[str, int], Cost] = {}

    def work(self) -> None:
        while (run := self._next()) is not None:
            self._take(*run)

    def _next(self) -> tuple[str, int] | None:
        self._tell("ready")
        try:
            return self.parent.recv()
        except (EOFError, OSError):  # the parent is gone
            return None

    def _take(self, name: str, seed: int) -> None:
        path = run_folder(self.folder, name, seed)
        with claim(path) as mine:
            record = read_record(path)
            if not mine:
                self._tell("held", name, seed)
            elif record is not None and record["status"] in SETTLED:  # by another process, since the work was listed
                self._tell("end", name, seed, {"status": record["status"], "reason": record["reason"]})
            else:
                self._tell("start", name, seed)
                self._tell("end", name, seed, self._run(name, seed, path))

    def _tell(self, kind: str, name: str = "", seed: int = -1, detail: dict[str, Any] | None = None) -> None:
        with contextlib.suppress(OSError):  # a parent that is gone hears nothing; `_leave_with_the_parent` sees to it
            self.parent.send(Event(kind, self.number, name, seed, detail or {}))

    def _run(self, name: str, seed: int, path: Path) -> dict[str, Any]:
        """Train one run. A failure is on record in its folder and does not stop the worker."""
        try:
            record = self._train(name, seed, path)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):  # the disk may be full: then only the parent hears the reason
                record_failure(path, self.arms[name], seed, reason)
            return {"status": "failed", "reason": reason}
        return {"status": record["status"], "reason": record["reason"]}

    def _train(self, name: str, seed: int, path: Path) -> dict[str, Any]:
        from isoflop.data import load
        from isoflop.model import Architecture
        from isoflop.plan.cost import price
        from isoflop.recipes.plugins import register_entry_points, register_modules
        from isoflop.train import Training, train

        _forget_early_failure(path)
        register_entry_points()
        # The user named these modules in his own file when he started the study; a worker is part of that study.
        register_modules(self.arms[name]["architecture"].get("plugins", []))
        architecture = Architecture.parse(self.arms[name]["architecture"])
        training = Training.parse(self.arms[name]["training"])
        priced = architecture.digest, training.length
        if training.data.digest not in self.corpora:
            self.corpora[training.data.digest] = load(training.data)
        if priced not in self.costs:
            self.costs[priced] = price(architecture, training.length)
        return train(
            architecture,
            training,
            path,
            seed=seed,
            corpus=self.corpora[training.data.digest],
            cost=self.costs[priced],
            on_progress=lambda detail: self._tell("step", name, seed, detail),
        )


def record_failure(path: Path, arm: dict[str, Any], seed: int, reason: str) -> None:
    """Put a failure on record: in what `train` left, or, where it did not get that far, in a record that holds no more."""
    early = {
        "format": 1,
        "architecture": arm["architecture"],
        "training": arm["training"],
        "seed": seed,
        "cost": None,
        "progress": None,
        "result": None,
    }
    ended = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    record = read_record(path) or early
    write_json(path / "run.json", {**record, "status": "failed", "reason": reason, "ended": ended})


def _forget_early_failure(path: Path) -> None:
    """A record of a run that never began is none that `train` could go on from."""
    record = read_record(path)
    if record is not None and record["status"] == "failed" and record["progress"] is None:
        (path / "run.json").unlink()
