from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from isoflop.report.read import Point, Run, RunFile
from isoflop.report.series import gradient_table, mean_curve, paired_curve, thin


def run(
    seed: int, x: list[float], y: list[float], status: str = "finished", norms: list[tuple[float, ...]] | None = None
) -> Run:
    points = tuple(
        Point(i, 0, 0, seconds, {"loss": value}) for i, (seconds, value) in enumerate(zip(x, y, strict=True))
    )
    train = tuple(Point(i, 0, 0, 0, {}, norm) for i, norm in enumerate(norms or []))
    return Run("arm", seed, Path("arm"), RunFile(1, status, seed), train, points)


def test_the_mean_and_its_interval_are_scipys() -> None:
    runs = [run(0, [1, 2], [3.0, 2.0]), run(1, [1, 2], [3.5, 2.1]), run(2, [1, 2], [3.1, 2.6])]
    curve = mean_curve(runs, "seconds", "loss")
    assert curve is not None
    assert curve.n == 3
    for i, values in enumerate(([3.0, 3.5, 3.1], [2.0, 2.1, 2.6])):
        low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
        assert [curve.y[i], curve.low[i], curve.high[i]] == pytest.approx([np.mean(values), low, high], rel=1e-12)


def test_lost_runs_are_left_out_and_no_finished_run_gives_no_curve() -> None:
    runs = [run(0, [1, 2], [3.0, 2.0]), run(1, [1, 2], [9.0, 9.0], status="diverged")]
    curve = mean_curve(runs, "steps", "loss")
    assert curve is not None
    assert curve.y.tolist() == [3.0, 2.0]
    assert np.isnan(curve.low).all()
    assert mean_curve(runs[1:], "steps", "loss") is None
    assert paired_curve(runs[1:], runs, "steps", "loss") is None


def test_pairs_are_matched_by_seed() -> None:
    arm = [run(1, [1, 2], [1.5, 1.4]), run(0, [1, 2], [1.0, 0.9])]
    base = [run(0, [1, 2], [2.0, 2.0]), run(1, [1, 2], [3.0, 3.0]), run(7, [1, 2], [50.0, 50.0])]
    curve = paired_curve(arm, base, "steps", "loss")
    assert curve is not None
    assert curve.y == pytest.approx([(-1.5 - 1.0) / 2, (-1.6 - 1.1) / 2])
    assert curve.n == 2


def test_runs_of_different_speed_are_compared_at_equal_seconds_without_extrapolation() -> None:
    base, arm = [run(0, [0, 10], [10.0, 0.0])], [run(0, [0, 5], [8.0, 3.0])]  # 10 - s against 8 - s
    curve = paired_curve(arm, base, "seconds", "loss")
    assert curve is not None
    assert (curve.x[0], curve.x[-1]) == (0, 5)
    assert curve.y == pytest.approx([-2.0] * len(curve.x))
    assert paired_curve([run(0, [20, 30], [1.0, 1.0])], base, "seconds", "loss") is None


def test_a_number_that_is_not_finite_is_a_gap_not_a_zero() -> None:
    curve = mean_curve([run(0, [1, 2, 3], [3.0, np.nan, 2.0]), run(1, [1, 2, 3], [3.0, 2.5, 2.0])], "seconds", "loss")
    assert curve is not None
    assert np.isnan(curve.y).tolist() == [False, True, False]


def test_thinning_keeps_the_ends() -> None:
    kept = thin(10_001, 200)
    assert len(kept) == 200
    assert (kept[0], kept[-1]) == (0, 10_000)
    assert thin(3).tolist() == [0, 1, 2]


def test_gradient_norms_are_medians_over_runs_that_have_a_finite_one() -> None:
    runs = [run(s, [], [], norms=[(v, np.nan), (1.0, np.inf)]) for s, v in enumerate([1.0, 2.0, 9.0])]
    table = gradient_table([*runs, run(3, [], [])], most=80)
    assert table is not None
    steps, norms = table
    assert steps.tolist() == [0, 1]
    assert norms[0].tolist() == [2.0, 1.0]
    assert np.isnan(norms[1]).all()
    assert gradient_table([run(3, [], [])], most=80) is None
