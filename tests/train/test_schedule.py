"""First and last rates of each schedule, written out."""

import math
from typing import Any

import pytest

from isoflop.spec import SpecError
from isoflop.train import Schedule, Training


def rates(schedule: Any, steps: int, count: int | None = None) -> list[float]:
    parsed = Schedule.parse(schedule)
    return [parsed.factor(update, steps) for update in range(count or steps)]


def test_constant() -> None:
    assert rates("constant", 3) == [1, 1, 1]
    assert rates({"kind": "constant", "warmup": 4}, 7) == [0.25, 0.5, 0.75, 1, 1, 1, 1]


def test_wsd_cools_down_by_one_minus_the_root() -> None:
    found = rates({"kind": "wsd", "warmup": 2, "cooldown": 3}, 8, 10)
    expected = [0.5, 1, 1, 1, 1, 1 - math.sqrt(1 / 4), 1 - math.sqrt(2 / 4), 1 - math.sqrt(3 / 4), 0, 0]
    assert found == pytest.approx(expected, abs=1e-15)
    assert found[5] == 0.5


def test_wsd_with_fractions_and_floor() -> None:
    found = rates({"kind": "wsd", "warmup": 0.2, "cooldown": 0.2, "floor": 0.1}, 10, 12)
    tail = [0.1 + 0.9 * (1 - math.sqrt(part)) for part in (1 / 3, 2 / 3)]
    assert found == pytest.approx([0.5, *[1] * 7, *tail, 0.1, 0.1], abs=1e-15)


def test_wsd_without_cooldown_stays() -> None:
    assert rates({"kind": "wsd", "warmup": 4, "cooldown": 0}, 6, 8) == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]


def test_cosine() -> None:
    found = rates({"kind": "cosine", "warmup": 2, "floor": 0.1}, 5, 8)
    # t = 1/4, 2/4, 3/4 after the peak, then the floor from the first update beyond the end on
    tail = [0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2 for part in (0.25, 0.5, 0.75)]
    assert found == pytest.approx([0.5, 1, *tail, 0.1, 0.1, 0.1], abs=1e-15)
    assert found[3] == pytest.approx(0.55)


def test_cosine_without_warmup_begins_at_the_peak() -> None:
    assert rates({"kind": "cosine", "warmup": 0, "floor": 0.0}, 2, 3) == pytest.approx([1, 0.5, 0])


def test_inverse_sqrt() -> None:
    found = rates({"kind": "inverse_sqrt", "warmup": 4}, 8, 16)
    assert found[:4] == [0.25, 0.5, 0.75, 1]
    assert found[4] == pytest.approx(math.sqrt(4 / 5))
    assert found[15] == 0.5


@pytest.mark.parametrize("kind", sorted(Schedule.kinds))
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_no_update_is_lost_to_a_rate_of_zero(kind: str, steps: int) -> None:
    found = rates(kind, steps)
    assert all(0 < rate <= 1 for rate in found)
    assert max(found) == 1


@pytest.mark.parametrize(
    ("schedule", "path"),
    [
        ({"kind": "wsd", "warmup": 6, "cooldown": 5}, "schedule.cooldown"),
        ({"kind": "wsd", "cooldown": 0, "floor": 0.1}, "schedule.floor"),
        ({"kind": "cosine", "warmup": 11}, "schedule.warmup"),
        ({"kind": "inverse_sqrt", "warmup": 0}, "schedule.warmup"),
        ({"kind": "constant", "warmup": 1.0}, "schedule.warmup"),
        ({"kind": "constant", "warmup": -1}, "schedule.warmup"),
    ],
)
def test_what_cannot_work_is_refused_by_path(schedule: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        Training(steps=10, rate=0.1, schedule=schedule)
    assert str(caught.value).startswith(f"{path}: ")
