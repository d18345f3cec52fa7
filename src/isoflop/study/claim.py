"""Who works on a run: whoever holds the lock on its folder.

The operating system drops a lock when its holder dies, by kill -9 too, so nothing has to be cleaned up: the next worker
that comes by continues from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """Hold a run folder for as long as the block lasts; yields False where another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def claimed(folder: Path) -> bool:
    """Whether a living process is at work on a run folder. Looking takes no run away: see `_Pool` on runs that are held."""
    if not (folder / LOCK).exists():
        return False
    with open(folder / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
