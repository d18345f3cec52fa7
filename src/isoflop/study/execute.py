"""Running a study: worker processes that share a folder and never take the same run.

A run belongs to whoever holds the lock on its folder. The operating system drops the lock when the holder dies, by
kill -9 too, so nothing has to be cleaned up: the next worker that comes by continues from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import queue
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isoflop.files import read_json, write_json
from isoflop.study.design import Design
from isoflop.study.results import ENDED, Run, read_runs, run_folder

if TYPE_CHECKING:
    from isoflop.data import Corpus
    from isoflop.plan import Cost

THREADS = 1
"""Threads of a worker: small models do not fill two cores, two models do."""
CRASHES = 2
"""A run that has taken this many workers with it is recorded as failed."""


class OtherStudy(ValueError):  # noqa: N818  # says what is there, as RunMismatch does
    """The folder holds a study that this one does not continue."""


@dataclass(frozen=True)
class Event:
    """What a worker tells: `kind` is `start`, `step`, `end`, or `bye`."""

    kind: str
    worker: int
    arm: str = ""
    seed: int = -1
    detail: dict[str, Any] = field(default_factory=dict)


def prepare(design: Design, folder: str | Path) -> Path:
    """Write `study.json`, or check that the folder's study is continued by this one.

    Arms and seeds may be added to a study. An arm that is there already must be what it was.

    Raises:
        OtherStudy: an arm of this name has another architecture or recipe there.
    """
    folder = Path(folder)
    path = folder / "study.json"
    if path.exists():
        there = {arm["name"]: arm for arm in read_json(path).get("arms", [])}
        for arm in design.arms:
            for part, now in (("architecture", arm.architecture.dump()), ("training", arm.training.dump())):
                if arm.name in there and there[arm.name][part] != now:
                    changed = ", ".join(_differences(there[arm.name][part], now))
                    raise OtherStudy(
                        f"{folder} holds another study: the {part} of arm {arm.name!r} differs there ({changed}). "
                        f"Choose another folder with --out, or remove this one"
                    )
    write_json(path, design.dump())
    return folder


def execute(
    folder: str | Path,
    workers: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    only: str | None = None,
) -> None:
    """Run what is left of a study, in worker processes of one thread each.

    Runs are taken seed by seed, arms in turn, so that timings of all arms meet the same machine and a study that is
    stopped early has whole pairs. Runs that failed are tried again, runs that diverged are not.

    Args:
        folder: of the study; see `prepare`.
        workers: how many processes; None for one per core.
        on_event: told what happens, in this process.
        only: run this arm alone.

    Raises:
        KeyboardInterrupt: after the workers have saved their state.
    """
    folder = Path(folder)
    todo = [run for run in read_runs(folder) if run.status not in {"finished", "diverged"} and only in {None, run.arm}]
    if not todo:
        return
    count = min(workers or os.cpu_count() or 1, len(todo))
    pool = _Pool(folder, [(run.arm, run.seed) for run in todo], on_event)
    try:
        with _threads(THREADS):
            for _ in range(count):
                pool.start()
        pool.watch()
    except BaseException:
        pool.stop()
        raise


class _Pool:
    """The worker processes of one `execute`, and what is known of them."""

    def __init__(self, folder: Path, todo: list[tuple[str, int]], on_event: Callable[[Event], None]) -> None:
        self.folder, self.todo, self.on_event = folder, todo, on_event
        # Spawned, not forked: a forked torch inherits thread pools that do not exist.
        self.context = multiprocessing.get_context("spawn")
        self.events: Any = self.context.Queue()
        self.processes: dict[int, Any] = {}
        self.busy: dict[int, tuple[str, int]] = {}
        self.crashes: Counter[tuple[str, int]] = Counter()
        self.number = 0

    def start(self) -> None:
        self.number += 1
        process = self.context.Process(
            target=_work, args=(self.number, str(self.folder), self.todo, self.events), daemon=True
        )
        process.start()
        self.processes[self.number] = process

    def watch(self) -> None:
        """Pass events on until every worker has said goodbye; replace workers that died."""
        while self.processes:
            try:
                self._take(self.events.get(timeout=0.5))
            except queue.Empty:
                for number, process in list(self.processes.items()):
                    if not process.is_alive():
                        self._bury(number, process.exitcode)

    def stop(self) -> None:
        """Ask the workers to save and leave; those that do not are ended."""
        for process in self.processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        for process in self.processes.values():
            process.join(max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()

    def _take(self, event: Event) -> None:
        if event.kind == "start":
            self.busy[event.worker] = (event.arm, event.seed)
        elif event.kind == "end":
            self.busy.pop(event.worker, None)
        elif event.kind == "bye":
            self.processes.pop(event.worker).join()
            return
        self.on_event(event)

    def _bury(self, number: int, exitcode: int | None) -> None:
        """A worker died without goodbye: its run is tried again, and given up when it keeps killing workers."""
        del self.processes[number]
        lost = self.busy.pop(number, None)
        if lost is None:
            raise RuntimeError(f"a worker process ended with code {exitcode} before its first run")
        self.crashes[lost] += 1
        if self.crashes[lost] >= CRASHES:
            _record_crash(self.folder, lost, exitcode)
            self.todo = [item for item in self.todo if item != lost]
            self.on_event(Event("end", number, *lost, {"status": "failed"}))
        with _threads(THREADS):
            self.start()


def locked(folder: Path) -> bool:
    """Whether a living process is at work on a run folder."""
    with _claim(folder) as mine:
        return not mine


@contextlib.contextmanager
def _claim(folder: Path) -> Iterator[bool]:
    """Hold a run folder for as long as the block lasts; False where another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _work(number: int, folder: str, todo: list[tuple[str, int]], events: Any) -> None:
    """A worker process: take runs that nobody has, until none is left."""
    # A session of its own: Ctrl-C in the terminal reaches the parent alone, which then asks once for an orderly stop.
    os.setsid()
    _Worker(number, Path(folder), events).work(todo)


class _Worker:
    """What a worker keeps between its runs: data and costs are loaded once."""

    def __init__(self, number: int, folder: Path, events: Any) -> None:
        import torch

        torch.set_num_threads(THREADS)
        self.number, self.folder, self.events = number, folder, events
        self.parent = os.getppid()
        self.arms = {arm["name"]: arm for arm in read_json(folder / "study.json")["arms"]}
        self.corpora: dict[str, Corpus] = {}
        self.costs: dict[tuple[str, int], Cost] = {}

    def work(self, todo: list[tuple[str, int]]) -> None:
        from isoflop.train import Interrupted

        with contextlib.suppress(KeyboardInterrupt, Interrupted):
            for name, seed in todo:
                path = run_folder(self.folder, name, seed)
                with _claim(path) as mine:
                    if not mine or _ended(path):
                        continue
                    self.tell("start", name, seed)
                    status = self.run(name, seed, path)
                    self.tell("end", name, seed, {"status": status})
        self.tell("bye")

    def tell(self, kind: str, name: str = "", seed: int = -1, detail: dict[str, Any] | None = None) -> None:
        self.events.put(Event(kind, self.number, name, seed, detail or {}))
        if os.getppid() != self.parent:  # the parent was killed: save and leave, as if it had asked
            os.kill(os.getpid(), signal.SIGTERM)

    def run(self, name: str, seed: int, path: Path) -> str:
        """Train one run; a failure is on record in its folder and does not stop the worker."""
        from isoflop.data import load
        from isoflop.model import Architecture
        from isoflop.plan.cost import price
        from isoflop.recipes.plugins import register_entry_points, register_modules
        from isoflop.train import Training, train

        register_entry_points()
        # The user named these modules in his own file when he started the study; a worker is part of that study.
        register_modules(self.arms[name]["architecture"].get("plugins", []), beside=Path())
        architecture = Architecture.parse(self.arms[name]["architecture"])
        training = Training.parse(self.arms[name]["training"])
        priced = architecture.digest, training.length
        try:
            if training.data.digest not in self.corpora:
                self.corpora[training.data.digest] = load(training.data)
            if priced not in self.costs:
                self.costs[priced] = price(architecture, training.length)
            record = train(
                architecture,
                training,
                path,
                seed=seed,
                corpus=self.corpora[training.data.digest],
                cost=self.costs[priced],
                on_progress=lambda detail: self.tell("step", name, seed, dict(detail)),
            )
            return record["status"]
        except Exception:
            return "failed"


def _ended(path: Path) -> bool:
    """Whether another worker has ended this run since the work was listed."""
    return (path / "run.json").exists() and read_json(path / "run.json")["status"] in {"finished", "diverged"}


def _record_crash(folder: Path, run: tuple[str, int], exitcode: int | None) -> None:
    path = run_folder(folder, *run) / "run.json"
    if path.exists():
        reason = f"the worker process ended with code {exitcode} in {CRASHES} attempts; it may have run out of memory"
        write_json(path, {**read_json(path), "status": "failed", "reason": reason})


def status(folder: str | Path) -> list[tuple[Run, bool]]:
    """Every run of a study, and whether a process is at work on it."""
    folder = Path(folder)
    return [
        (run, run.status not in ENDED and (folder / run.path).exists() and locked(folder / run.path))
        for run in read_runs(folder)
    ]


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """The thread count that child processes inherit; it must stand in their environment before they import torch."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _differences(there: Any, now: Any, path: str = "") -> list[str]:
    """Dotted paths at which two dumps differ."""
    if isinstance(there, dict) and isinstance(now, dict):
        keys = list(dict.fromkeys([*there, *now]))
        return [p for key in keys for p in _differences(there.get(key), now.get(key), f"{path}.{key}".lstrip("."))]
    return [] if there == now else [path]
