"""Curves over seeds: one x grid, a mean, an interval, and gaps where a number was not finite.

Runs whose x grids are equal are used as they are. Runs whose x differ (seconds, or FLOPs of different architectures)
are interpolated linearly onto an even grid over the range that all of them cover; nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from isoflop.report.read import Point, Run

MOST_POINTS = 200
Array = np.ndarray

AXES: dict[str, Callable[[Point], float]] = {
    "steps": lambda point: point.step,
    "tokens": lambda point: point.tokens,
    "flops": lambda point: point.flops,
    "seconds": lambda point: point.seconds,
}
"""What a curve can be drawn against."""


@dataclass(frozen=True)
class Curve:
    """`y` over `x` with an interval of its mean over `n` seeds (`low` and `high` are NaN for one seed)."""

    x: Array
    y: Array
    low: Array
    high: Array
    n: int


def thin(count: int, most: int = MOST_POINTS) -> Array:
    """Indices of at most `most` of `count` points, evenly spread, first and last among them."""
    return np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).round().astype(int))


def trace(run: Run, axis: str, metric: str) -> tuple[Array, Array]:
    """One run's validation metric over an axis; NaN where the number was not finite or is missing."""
    x = np.array([AXES[axis](point) for point in run.validation], dtype=float)
    y = np.array([point.values.get(metric, np.nan) for point in run.validation], dtype=float)
    keep = thin(len(x))
    return x[keep], y[keep]


def mean_curve(runs: Sequence[Run], axis: str, metric: str, confidence: float = 0.95) -> Curve | None:
    """Mean over the finished runs, or None where there is none with two points."""
    return _average(_table([trace(run, axis, metric) for run in _finished(runs)]), confidence)


def paired_curve(
    runs: Sequence[Run], base: Sequence[Run], axis: str, metric: str, confidence: float = 0.95
) -> Curve | None:
    """Mean of the differences to the base's run of the same seed at equal x; None where no seed has both."""
    partner = {run.seed: run for run in _finished(base)}
    arms = [run for run in _finished(runs) if run.seed in partner]
    table = _table([trace(run, axis, metric) for run in [*arms, *(partner[run.seed] for run in arms)]])
    if table is None:
        return None
    x, values = table
    return _average((x, values[: len(arms)] - values[len(arms) :]), confidence)


def gradient_table(runs: Sequence[Run], most: int) -> tuple[Array, Array] | None:
    """Steps and the median over runs of the gradient norm, block by step; NaN where no run has a finite number.

    The median takes every run, lost ones too: where training breaks is what this is looked at for.
    """
    columns: dict[int, list[tuple[float, ...]]] = {}
    for run in runs:
        for point in run.train:
            if point.by_block:
                columns.setdefault(point.step, []).append(point.by_block)
    steps = sorted(columns)
    if not steps:
        return None
    steps = [steps[i] for i in thin(len(steps), most)]
    return np.array(steps), np.stack([_median(columns[step]) for step in steps], axis=1)


def _median(rows: list[tuple[float, ...]]) -> Array:
    values = np.array(rows, dtype=float)
    values[~np.isfinite(values)] = np.nan
    medians = np.full(values.shape[1], np.nan)
    some = np.isfinite(values).any(axis=0)
    medians[some] = np.nanmedian(values[:, some], axis=0)
    return medians


def _finished(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.status == "finished" and len(run.validation) > 1]


def _table(traces: list[tuple[Array, Array]]) -> tuple[Array, Array] | None:
    """One x grid and a row of values for each trace."""
    if not traces:
        return None
    first = traces[0][0]
    if all(np.array_equal(x, first) for x, _ in traces):
        return first, np.stack([y for _, y in traces])
    low, high = max(x[0] for x, _ in traces), min(x[-1] for x, _ in traces)
    if low >= high:
        return None
    x = np.linspace(low, high, max(len(x) for x, _ in traces))
    return x, np.stack([np.interp(x, *trace) for trace in traces])


def _average(table: tuple[Array, Array] | None, confidence: float) -> Curve | None:
    """Mean and Student interval over rows; a column with any number that is not finite is a gap."""
    if table is None:
        return None
    x, values = table
    n, mean = len(values), values.mean(axis=0)
    if n < 2:
        return Curve(x, mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan), n)
    half = stats.t.ppf((1 + confidence) / 2, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return Curve(x, mean, mean - half, mean + half, n)
