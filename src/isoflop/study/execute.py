"""Running a study: worker processes that share a folder and never take the same run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isoflop.files import write_json
from isoflop.study.claim import claim, claimed
from isoflop.study.results import (
    SETTLED,
    Run,
    read_record,
    read_runs,
    read_study_file,
    recorded_runs,
    run_folder,
)
from isoflop.study.worker import THREADS, Event, record_failure, work

if TYPE_CHECKING:
    from isoflop.study.design import Design

CRASHES = 2
"""A run that has taken this many workers with it is recorded as failed."""
HELD_SECONDS = 0.5
"""After this time a run that another process holds is tried again."""
STOP_SECONDS = 30
"""How long a worker may take to save its state."""


class OtherStudy(ValueError):  # noqa: N818  # says what is there, as RunMismatch does
    """The folder holds a study that this one does not continue."""


def prepare(design: Design, folder: str | Path) -> Path:
    """Write `study.json`, or check that the folder's study is continued by this one; check the data if a run is to come.

    Arms and seeds may be added to a study. An arm of which a run has begun must be what it was, and no run that is on
    record may be left out: a verdict counts all of them.

    Raises:
        OtherStudy: an arm with runs there has another architecture or recipe, or a run there has no place here.
        SpecError: the data cannot be used; see `Design.check_data`.
    """
    folder = Path(folder)
    planned = [run_folder(folder, arm.name, seed) for arm in design.arms for seed in design.study.seeds]
    if (folder / "study.json").exists():
        _check_continued(design, folder, planned)
    if not all(_settled(path) for path in planned):
        design.check_data()
    write_json(folder / "study.json", design.dump())
    return folder


def _check_continued(design: Design, folder: Path, planned: list[Path]) -> None:
    runs = recorded_runs(folder)
    begun = {path.parent.name for path in runs}
    there = {arm["name"]: arm for arm in read_study_file(folder)["arms"] if arm["name"] in begun}
    way_out = "Choose another folder with --out, or remove this one"
    for arm in design.arms:
        for part, now in (("architecture", arm.architecture.dump()), ("training", arm.training.dump())):
            if arm.name in there and there[arm.name][part] != now:
                changed = ", ".join(_differences(there[arm.name][part], now))
                raise OtherStudy(
                    f"{folder} holds another study: the {part} of arm {arm.name!r} differs there ({changed}). {way_out}"
                )
    dropped = [path.relative_to(folder).as_posix() for path in runs if path not in planned]
    if dropped:
        raise OtherStudy(
            f"{folder} holds runs that this study leaves out: {', '.join(dropped[:5])}. "
            f"Every run that was made counts; keep its arm and seed. {way_out}"
        )


def _settled(path: Path) -> bool:
    record = read_record(path)
    return record is not None and record["status"] in SETTLED


def execute(
    folder: str | Path,
    workers: int | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    only: str | None = None,
) -> None:
    """Run what is left of a study, in worker processes of one thread each.

    Runs are taken seed by seed, arms in turn, so that timings of all arms meet the same machine and a study that is
    stopped early has whole pairs. Runs that failed are tried again, once; runs that diverged are not. Runs that another
    `execute` is at work on are waited for.

    Args:
        folder: of the study; see `prepare`.
        workers: how many processes; None for one per core.
        on_event: told what happens, in this process: `start`, `step` and `end` of runs.
        only: run this arm alone.

    Raises:
        KeyboardInterrupt: after the workers have saved their state.
        ChildProcessError: workers end before they can take a run.
    """
    folder = Path(folder)
    todo = [run for run in read_runs(folder) if run.status not in SETTLED and only in {None, run.arm}]
    pool = _Pool(folder, _in_turns([(run.arm, run.seed) for run in todo]), on_event)
    try:
        for _ in range(min(workers or os.cpu_count() or 1, len(todo))):
            pool.start()
        pool.watch()
    except BaseException:
        pool.stop()
        raise


def _in_turns(runs: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The runs seed by seed, each seed beginning with another arm: the first runs of a worker are slow, whichever they are."""
    ordered = []
    for turn, (_, group) in enumerate(groupby(runs, key=lambda run: run[1])):
        arms = list(group)
        first = turn % len(arms)
        ordered += arms[first:] + arms[:first]
    return ordered


@dataclass
class _Member:
    """A worker process, and the run that it was given."""

    number: int
    process: Any
    run: tuple[str, int] | None = None


class _Pool:
    """The worker processes of one `execute`, and the runs that are left.

    Each worker has a pipe of its own: one that is killed while it speaks takes no lock with it that others wait for, and
    its death is heard at once.
    """

    def __init__(self, folder: Path, todo: list[tuple[str, int]], on_event: Callable[[Event], None]) -> None:
        self.folder, self.on_event = folder, on_event
        self.todo = deque(todo)
        self.held: list[tuple[str, int]] = []
        # Spawned, not forked: a forked torch inherits thread pools that do not exist.
        self.context = multiprocessing.get_context("spawn")
        self.arms = {arm["name"]: arm for arm in read_study_file(folder)["arms"]}
        self.plugin_folders = _plugin_folders(self.arms.values())
        self.members: dict[Connection, _Member] = {}
        self.idle: list[Connection] = []
        self.processes: list[Any] = []
        self.crashes: Counter[tuple[str, int] | None] = Counter()

    def start(self) -> None:
        ours, theirs = self.context.Pipe()
        number = len(self.processes) + 1
        arguments = (number, str(self.folder), self.plugin_folders, theirs)
        process = self.context.Process(target=work, args=arguments, daemon=True)
        with _threads(THREADS), _deaf_to_ctrl_c():
            process.start()
        theirs.close()  # so that the pipe ends with the worker
        self.members[ours] = _Member(number, process)
        self.processes.append(process)

    def watch(self) -> None:
        """Give runs out and pass events on until nothing is left."""
        look_again = time.monotonic()
        while True:
            if self.held and time.monotonic() >= look_again:
                self.todo.extend(self.held)
                self.held.clear()
                look_again = time.monotonic() + HELD_SECONDS
            self._give_out()
            if not self.members:
                break
            for connection in wait(list(self.members), HELD_SECONDS if self.held else None):
                assert isinstance(connection, Connection)
                self._hear(connection)
        for process in self.processes:
            process.join()

    def stop(self) -> None:
        """Ask the workers to save and leave; those that do not are ended."""
        for process in self.processes:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()

    def _give_out(self) -> None:
        """A run to each idle worker; leave to go where there is none and none can come back."""
        waiting, self.idle = self.idle, []
        for connection in waiting:
            if not self.todo and self.held:
                self.idle.append(connection)
                continue
            run = self.todo.popleft() if self.todo else None
            self.members[connection].run = run
            with contextlib.suppress(OSError):  # a worker that has died is heard of in its turn
                connection.send(run)
            if run is None:
                del self.members[connection]

    def _hear(self, connection: Connection) -> None:
        member = self.members[connection]
        try:
            event = connection.recv()
        except (EOFError, OSError):
            self._bury(connection)
            return
        if event.kind in {"held", "end"}:
            member.run = None
        if event.kind == "ready":
            self.idle.append(connection)
        elif event.kind == "held":
            self.held.append((event.arm, event.seed))
        else:
            self.on_event(event)

    def _bury(self, connection: Connection) -> None:
        """A worker died at work: its run is tried again, and given up when it keeps killing workers."""
        member = self.members.pop(connection)
        self.idle = [other for other in self.idle if other is not connection]
        member.process.join()
        code, run = member.process.exitcode, member.run
        self.crashes[run] += 1
        if self.crashes[run] < CRASHES:
            self.todo.extendleft([run] if run else [])
        elif run is None:
            raise ChildProcessError(
                f"{CRASHES} worker processes ended (the last with code {code}) before they took a run"
            )
        else:
            self._give_up(member.number, run, code)
        self.start()

    def _give_up(self, number: int, run: tuple[str, int], code: int | None) -> None:
        reason = f"the worker process ended with code {code} in {CRASHES} attempts; it may have run out of memory"
        path = run_folder(self.folder, *run)
        with claim(path) as mine:
            if mine:
                record_failure(path, self.arms[run[0]], run[1], reason)
        self.on_event(Event("end", number, *run, {"status": "failed", "reason": reason}))


def status(folder: str | Path) -> list[Run]:
    """Every run of a study as it stands now: `running` is said of those that a process is at work on, and of no other."""
    folder = Path(folder)
    return [_as_it_stands(run, folder / run.path) for run in read_runs(folder)]


def _as_it_stands(run: Run, path: Path) -> Run:
    if run.status in SETTLED:
        return run
    if claimed(path):
        return replace(run, record={**(run.record or {"reason": None}), "status": "running"})
    if run.status == "running":  # its worker was killed
        return replace(run, record={**(run.record or {}), "status": "interrupted"})
    return run


def _plugin_folders(arms: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Where the modules that the arms name were found when the study was loaded, for workers to find them too."""
    names = {name.partition(".")[0] for arm in arms for name in arm["architecture"].get("plugins", [])}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in sorted(names)]
    return tuple(str(_home(Path(file))) for file in files if file)


def _home(file: Path) -> Path:
    return file.parent.parent if file.name == "__init__.py" else file.parent


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A child that is started here is not cut by Ctrl-C before it has a session of its own."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
