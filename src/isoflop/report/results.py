"""What a study wrote into `results.json`, as frozen values. Differences are arm minus base; negative means better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Change = Mapping[str, Any]
Number = int | float
"""A JSON number as it stood in the file: 3 stays 3, so that the page can show exactly what was written."""


@dataclass(frozen=True)
class Cost:
    """What an architecture costs: parameters by component, FLOPs and KV bytes a token."""

    parameters: int
    components: Mapping[str, int] = field(default_factory=dict)
    forward_flops_per_token: Number | None = None
    training_flops_per_token: Number | None = None
    kv_bytes_per_token: Number | None = None


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval; the bounds are None where there are too few seeds."""

    mean: Number | None = None
    low: Number | None = None
    high: Number | None = None


@dataclass(frozen=True)
class Difference:
    """Paired differences (arm minus base, by seed) and the tests made on them."""

    n: int
    values: Mapping[int, Number] = field(default_factory=dict)
    mean: Number | None = None
    sd: Number | None = None
    low: Number | None = None
    high: Number | None = None
    p: Number | None = None
    p_permutation: Number | None = None
    p_holm: Number | None = None
    p_equivalence: Number | None = None
    seeds_needed: int | None = None
    correlation: Number | None = None


@dataclass(frozen=True)
class Ratio:
    """Arm over base."""

    parameters: Number | None = None
    flops: Number | None = None
    seconds: Interval | None = None


@dataclass(frozen=True)
class Outcome:
    """One run of an arm: one seed."""

    seed: int
    status: str
    reason: str | None = None
    value: Number | None = None
    loss: Number | None = None
    seconds: Number | None = None
    step_seconds: Number | None = None
    tokens: Number | None = None
    flops: Number | None = None
    path: str | None = None


@dataclass(frozen=True)
class Arm:
    """One architecture of the study with its runs, its difference to the base and the verdict on it."""

    name: str
    is_base: bool
    verdict: str
    change: Change = field(default_factory=dict)
    knob: Change | None = None
    rates: Change | None = None
    cost: Cost | None = None
    axes: Mapping[str, str] | None = None
    difference: Difference | None = None
    ratio: Ratio | None = None
    runs: tuple[Outcome, ...] = ()
    n: int = 0
    failed: int = 0
    diverged: int = 0
    mean: Number | None = None
    sd: Number | None = None

    @property
    def lost(self) -> int:
        """Seeds that gave no value because the run failed or diverged."""
        return self.failed + self.diverged

    @property
    def measured(self) -> Difference | None:
        """The difference, if there is a mean to show."""
        return self.difference if self.difference is not None and self.difference.mean is not None else None


@dataclass(frozen=True)
class SetArm:
    """What an arm came to on a set, over seeds, and how it compares there with the base and with its own training."""

    name: str
    verdict: str
    n: int = 0
    mean: Number | None = None
    low: Number | None = None
    high: Number | None = None
    change: Interval | None = None
    difference: Difference | None = None
    exact_match: Number | None = None
    token_accuracy: Number | None = None
    by_position: tuple[Mapping[str, Number | None], ...] = ()
    """`from`, `to` and the `mean` between these places of a row."""


@dataclass(frozen=True)
class SetOutcome:
    """A set beyond the training: text in windows of a length, or items of a size."""

    set: str
    length: int
    arms: tuple[SetArm, ...]

    def of(self, name: str) -> SetArm:
        """What an arm came to here."""
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True)
class Noise:
    """Spread of one arm over seeds; `band` is the half-width of the interval of its mean."""

    arm: str
    n: int
    mean: Number | None = None
    sd: Number | None = None
    band: Number | None = None


@dataclass(frozen=True)
class Spent:
    """What the whole study cost, lost runs included."""

    runs: int
    finished: int = 0
    diverged: int = 0
    failed: int = 0
    seconds: Number | None = None
    tokens: Number | None = None
    flops: Number | None = None


@dataclass(frozen=True)
class Results:
    """`results.json` of a study."""

    format: int
    name: str
    metric: str
    unit: str
    confidence: Number
    arms: tuple[Arm, ...]
    noise: Noise | None = None
    spent: Spent | None = None
    margin: Number | None = None
    margin_fraction: Number | None = None
    sets: tuple[SetOutcome, ...] = ()

    @cached_property
    def base(self) -> Arm:
        """The arm that all others are compared with."""
        return next(arm for arm in self.arms if arm.is_base)

    @cached_property
    def compared(self) -> tuple[Arm, ...]:
        """Every arm but the base."""
        return tuple(arm for arm in self.arms if not arm.is_base)

    def notable(self, most: int) -> tuple[Arm, ...]:
        """The base and those arms a reader wants first, in the study's order: decided, then lost, then far from the base."""

        def interest(arm: Arm) -> tuple[bool, bool, bool, float]:
            size = abs(arm.measured.mean or 0.0) if arm.measured else 0.0
            return arm.is_base, arm.verdict in ("better", "worse"), arm.lost > 0, size

        first = sorted(self.arms, key=interest, reverse=True)[:most]
        return tuple(arm for arm in self.arms if arm in first)
