"""run.json: what a run is, on what it ran, how far it is and what came out."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from isoflop.data import Batches
from isoflop.files import read_json
from isoflop.model import Architecture
from isoflop.plan import Cost
from isoflop.train.training import Training

FORMAT = 1
IDENTITY = ("architecture_digest", "training_digest", "seed", "corpus_digest", "stream_digest")
"""Two runs that agree in these are the same run."""

PARTS = ("training", "validation")
"""Of a corpus."""


class RunMismatch(ValueError):  # noqa: N818
    """A folder that holds something else than the run which is to be trained into it."""


def new_record(
    architecture: Architecture, training: Training, seed: int, loader: Batches, cost: Cost
) -> dict[str, Any]:
    """The record of a run that has not begun."""
    return {
        "format": FORMAT,
        "status": "running",
        "reason": None,
        "architecture": architecture.dump(),
        "architecture_digest": architecture.digest,
        "training": training.dump(),
        "training_digest": training.digest,
        "seed": seed,
        "stream_digest": loader.stream_digest(training.steps),
        "corpus_digest": loader.corpus.digest,
        "dropped": dict(zip(PARTS, loader.dropped, strict=True)),
        "environment": environment(),
        "cost": cost.dump(),
        "progress": {"step": 0, "steps": training.steps, "tokens": 0, "flops": 0, "seconds": 0.0},
        "result": None,
        "started": now(),
        "ended": None,
    }


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record in a folder; None where nothing was trained yet.

    Raises:
        RunMismatch: the folder holds files, and no record; they are not a run's.
    """
    path = folder / "run.json"
    if path.exists():
        record = read_json(path)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise RunMismatch(f"{path} is not the record of a run in format {FORMAT}; choose another folder")
        return record
    others = [item.name for item in folder.iterdir() if not item.name.startswith(".")] if folder.exists() else []
    if others:
        raise RunMismatch(f"{folder} must be empty or hold a run, it holds {', '.join(sorted(others)[:5])}")
    return None


def check_same_run(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise `RunMismatch`, naming every field that differs, unless both records are of one run."""
    if all(old.get(key) == new[key] for key in IDENTITY):
        return
    differences = [
        f"{path} was {before!r}, now {after!r}"
        for part, ignored in (("architecture", Architecture.outside_digest), ("training", Training.outside_digest))
        for path, before, after in _differences(_without(old.get(part), ignored), _without(new[part], ignored), part)
    ]
    if old.get("seed") != new["seed"]:
        differences.append(f"seed was {old.get('seed')}, now {new['seed']}")
    if not differences:
        differences.append("the text behind training.data.source has changed")
    raise RunMismatch(
        f"{folder} holds another run: {'; '.join(differences)}. Choose another folder, or remove this one"
    )


def environment() -> dict[str, Any]:
    """What a measured time depends on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "isoflop": version("isoflop"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2),
        "gpu": device,
    }


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class PeakMemory:
    """Bytes by which memory rose at its highest since this was made: allocated on a GPU, resident in the process on a CPU.

    A process's high-water mark never falls, so on a CPU the figure is a lower bound, and None where an earlier run in
    the same process stood higher.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._start = _high_water()

    def read(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _high_water() - self._start or None


def _high_water() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _without(table: Any, names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in (table or {}).items() if name not in names}


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        yield path, old, new
