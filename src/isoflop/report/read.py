"""Read run and study folders. Missing and unfinished runs are facts to show; a file of another program is an error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from isoflop.report.results import Cost, Results

T = TypeVar("T")
FORMAT = 1
PLANNED = "planned"
AXES = ("step", "tokens", "flops", "seconds")


@dataclass(frozen=True, slots=True)
class Point:
    """One line of `metrics.jsonl`. A number that was not finite is NaN here."""

    step: int
    tokens: float
    flops: float
    seconds: float
    values: Mapping[str, float]
    by_block: tuple[float, ...] = ()


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    step: int = 0
    steps: int = 0
    tokens: float = 0
    flops: float = 0
    seconds: float = 0


@dataclass(frozen=True)
class Result:
    """What a finished run measured."""

    loss: float | None = None
    bits_per_byte: float | None = None
    targets: int | None = None
    bytes: int | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class RunFile:
    """`run.json`."""

    format: int
    status: str
    seed: int
    reason: str | None = None
    cost: Cost | None = None
    progress: Progress | None = None
    result: Result | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    corpus_digest: str | None = None
    stream_digest: str | None = None


@dataclass(frozen=True)
class Run:
    """One run folder. `file` is None for a run that is planned and has not begun."""

    arm: str
    seed: int
    folder: Path
    file: RunFile | None = None
    train: tuple[Point, ...] = ()
    validation: tuple[Point, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """`running | finished | diverged | failed | interrupted`, or `planned`."""
        return self.file.status if self.file else PLANNED


@dataclass(frozen=True)
class ArmFile:
    """One arm as `study.json` declares it."""

    name: str
    change: Mapping[str, Any] = field(default_factory=dict)
    architecture: Mapping[str, Any] = field(default_factory=dict)
    knob: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class StudyFile:
    """`study.json`: the resolved study."""

    format: int
    name: str
    arms: tuple[ArmFile, ...]
    seeds: tuple[int, ...]
    base: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    match: Mapping[str, Any] | None = None
    margin: float | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Study:
    """A study folder. `results` is None while there is no `results.json`."""

    folder: Path
    file: StudyFile
    runs: tuple[Run, ...]
    results: Results | None
    raw_results: Any
    warnings: tuple[str, ...]

    def of(self, arm: str) -> tuple[Run, ...]:
        """The runs of one arm, by seed."""
        return tuple(run for run in self.runs if run.arm == arm)


def read_study(folder: str | Path) -> Study:
    """A study folder with every planned run; `ValueError` names the file that is missing, broken or foreign."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} must be a study folder, and is no folder")
    file, _ = _read(folder / "study.json", StudyFile)
    for arm in file.arms:
        if {"/", "\\"} & set(arm.name) or arm.name in ("", ".", ".."):
            raise ValueError(f"{folder / 'study.json'}: arm name {arm.name!r} must be usable as the name of a folder")
    has_results = (folder / "results.json").exists()
    results, raw = _read_results(folder / "results.json") if has_results else (None, None)
    runs = tuple(
        read_run(folder / "runs" / arm.name / str(seed), arm.name, seed) for arm in file.arms for seed in file.seeds
    )
    known = {run.folder for run in runs}
    strays = [path for path in sorted((folder / "runs").glob("*/*")) if path.is_dir() and path not in known]
    warnings = [
        f"{path.relative_to(folder)} belongs to no arm and seed of study.json and is left out" for path in strays
    ]
    warnings += [f"{run.folder.relative_to(folder)}: {text}" for run in runs for text in run.warnings]
    return Study(folder, file, runs, results, raw, tuple(warnings))


def read_results(path: str | Path) -> Results:
    """`results.json`, checked; `ValueError` says what is wrong with it."""
    return _read_results(Path(path))[0]


def read_run(folder: str | Path, arm: str | None = None, seed: int | None = None) -> Run:
    """A run folder (`<arm>/<seed>` unless both are given). Without `run.json` the run is planned."""
    folder = Path(folder)
    arm = folder.parent.name if arm is None else arm
    if not (folder / "run.json").exists():
        if seed is None:
            raise ValueError(f"{folder} must be a run folder, and holds no run.json")
        return Run(arm, seed, folder)
    file, _ = _read(folder / "run.json", RunFile)
    points, warnings = _read_metrics(folder / "metrics.jsonl")
    train = tuple(point for kind, point in points if kind == "train")
    validation = tuple(point for kind, point in points if kind == "validation")
    return Run(arm, file.seed if seed is None else seed, folder, file, train, validation, warnings)


def strict_json(text: str, where: str) -> Any:
    """Parse JSON and refuse NaN and infinities, which are not JSON; `where` goes into the message."""

    def finite(token: str) -> float:
        value = float(token)
        if not math.isfinite(value):
            raise ValueError(f"{where}: {token} is not a finite number; a number that is not finite is written as null")
        return value

    try:
        return json.loads(text, parse_constant=finite, parse_float=finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not valid JSON ({error}); it may be truncated or of another program") from None


@cache
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _read(path: Path, cls: type[T]) -> tuple[T, Any]:
    """A JSON file as `cls` and as plain data."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"no such file: {path}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8; it is of another program") from None
    raw = strict_json(text, str(path))
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        came = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
        raise ValueError(
            f"{path} must be a table with format = {FORMAT}, came {came!r}; it is of another program or version"
        )
    try:
        return _adapter(cls).validate_json(text, strict=True), raw
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; the file is of another program or version"
        ) from None


def _read_results(path: Path) -> tuple[Results, Any]:
    results, raw = _read(path, Results)
    if sum(arm.is_base for arm in results.arms) != 1:
        raise ValueError(f"{path}: exactly one arm must be the base")
    return results, raw


def _read_metrics(path: Path) -> tuple[list[tuple[str, Point]], tuple[str, ...]]:
    """Points of a metrics file with their kind. A last line that was cut by a kill is dropped, and said."""
    if not path.exists():
        return [], ("there is no metrics.jsonl",)
    lines = path.read_bytes().splitlines()
    points: list[tuple[str, Point]] = []
    for number, line in enumerate(lines, start=1):
        try:
            points += _point(strict_json(line.decode(), f"{path}:{number}"), f"{path}:{number}")
        except ValueError:
            if number < len(lines):
                raise
            return points, (f"line {number} of metrics.jsonl, the last, is truncated and was dropped",)
    gaps = sum(not math.isfinite(value) for _, point in points for value in point.values.values())
    return points, ((f"{gaps} numbers in metrics.jsonl were not finite; they are drawn as gaps",) if gaps else ())


def _point(row: Any, where: str) -> Iterator[tuple[str, Point]]:
    """The point of one line; a line of a kind that has no axes (an event) yields nothing."""
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        raise ValueError(f"{where} must be a table with a kind; the file is of another program")
    if not all(_is_number(row.get(axis)) for axis in AXES):
        if row["kind"] in ("train", "validation"):
            raise ValueError(f"{where} must have the numbers {', '.join(AXES)}; the file is of another program")
        return
    nonfinite = row.get("nonfinite", [])
    values = {name: float(row[name]) for name in row if name not in AXES and _is_number(row[name])}
    values |= {name: math.nan for name in nonfinite if not isinstance(row.get(name), list)}
    by_block = tuple(math.nan if norm is None else float(norm) for norm in row.get("gradient_norm_by_block") or ())
    yield row["kind"], Point(row["step"], row["tokens"], row["flops"], row["seconds"], values, by_block)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
