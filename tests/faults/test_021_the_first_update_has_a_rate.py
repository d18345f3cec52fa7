"""Fault 021: the first update has rate 0, or the hand-over repeats or skips a value."""

from pathlib import Path

import pytest

from isoflop.train import Schedule
from tiny_runs import metrics, tiny_run


def test_warm_up_of_four_then_constant() -> None:
    schedule = Schedule.parse({"kind": "constant", "warmup": 4})
    assert [schedule.factor(update, 7) for update in range(7)] == [0.25, 0.5, 0.75, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["cosine", "inverse_sqrt"])
def test_the_peak_is_used_once_where_a_decay_follows(kind: str) -> None:
    schedule = Schedule.parse({"kind": kind, "warmup": 4})
    factors = [schedule.factor(update, 10) for update in range(10)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1]
    assert factors.count(1) == 1
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[4] > 0.85  # no value is skipped either


def test_these_are_the_rates_that_a_run_uses(tmp_path: Path) -> None:
    tiny_run(tmp_path, steps=7, rate=0.08, schedule={"kind": "constant", "warmup": 4})
    rates = [line["rate"] for line in metrics(tmp_path) if line["kind"] == "train"]
    assert rates == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.08, 0.08, 0.08], rel=1e-12)
