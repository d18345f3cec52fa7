"""Fault 022: the rate rises again after the planned end, or after resuming with another length."""

from pathlib import Path

import pytest

from isoflop.train import RunMismatch, Schedule
from tiny_runs import tiny_run


@pytest.mark.parametrize("kind", ["cosine", "wsd"])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_ten_steps_run_for_fourteen(kind: str, floor: float) -> None:
    schedule = Schedule.parse({"kind": kind, "warmup": 2, "floor": floor})
    factors = [schedule.factor(update, 10) for update in range(14)]
    assert factors[10:] == [floor] * 4
    assert factors[2:] == sorted(factors[2:], reverse=True)


def test_another_length_is_refused_when_a_run_goes_on(tmp_path: Path) -> None:
    tiny_run(tmp_path, steps=10)
    with pytest.raises(RunMismatch, match=r"training\.steps was 10, now 20"):
        tiny_run(tmp_path, steps=20)
