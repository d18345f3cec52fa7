"""Learning-rate schedules as pure functions of the update's number, so that nothing is stepped, saved or restored.

Update n = 0, 1, ... of N uses `peak * factor(n, N)`. During a warm-up of W updates the factor is (n + 1) / W: the first
update is never lost to a rate of 0, and the peak is used once at the hand-over. A decay starts from the update after the
peak and reaches its floor at n = N, the first update after the end; beyond that the factor stays at the floor.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated

from pydantic import AfterValidator, Field

from isoflop.spec import Slot, SpecError


def _check_span(value: int | float) -> int | float:
    if value < 0 or (isinstance(value, float) and value >= 1):
        raise ValueError("must be a whole number of updates (0 or more) or a fraction of the steps (0 <= f < 1)")
    return value


Span = Annotated[int | float, AfterValidator(_check_span)]
"""A stretch of training: an integer counts updates, a fraction below 1 is a part of the steps."""

Fraction = Annotated[float, Field(ge=0, lt=1)]


def span_updates(span: int | float, steps: int) -> int:
    """How many updates a span covers in a run of `steps`; a fraction is rounded to the nearest update."""
    return span if isinstance(span, int) else round(span * steps)


class Schedule(Slot, default="wsd"):
    """How the rate moves between the first update and the last."""

    @abstractmethod
    def factor(self, update: int, steps: int) -> float:
        """Rate of update number `update` (from 0) as a fraction of the peak, in a run of `steps` updates."""

    def check(self, steps: int) -> None:
        """Raise `SpecError`, with a path inside the schedule, where it does not fit into `steps`."""


class Constant(Schedule, kind="constant"):
    """The peak throughout, after an optional warm-up of W updates (n counts updates from 0).

    Formula: min(1, (n + 1) / W)
    """

    warmup: Span = 0

    def factor(self, update: int, steps: int) -> float:
        return warm(update, span_updates(self.warmup, steps))

    def check(self, steps: int) -> None:
        _check_within("warmup", span_updates(self.warmup, steps), steps)


class WSD(Schedule, kind="wsd"):
    """Warm-up, stable, decay: constant, then a cooldown over the last C of N updates (n counts from 0).

    Formula: floor + (1 - floor)(1 - sqrt((n - S + 1) / (C + 1))) from update S = N - C on
    Paper: Hägele et al. 2024, arXiv 2405.18392
    """

    warmup: Span = 0.02
    cooldown: Span = 0.2
    floor: Fraction = 0.0

    def factor(self, update: int, steps: int) -> float:
        cooldown = span_updates(self.cooldown, steps)
        start = steps - cooldown
        if update < start or not cooldown:
            return warm(update, span_updates(self.warmup, steps))
        return _between(self.floor, 1 - math.sqrt(_progress(update - start + 1, cooldown + 1)))

    def check(self, steps: int) -> None:
        warmup, cooldown = span_updates(self.warmup, steps), span_updates(self.cooldown, steps)
        _check_within("cooldown", warmup + cooldown, steps, f"warmup {warmup} + cooldown {cooldown}")
        if self.floor and not cooldown:
            raise SpecError.at("floor", f"has no effect without a cooldown, came {self.floor}; remove it")


class Cosine(Schedule, kind="cosine"):
    """Warm-up of W updates, then half a cosine down to a floor over the rest of N (n counts from 0).

    Formula: floor + (1 - floor)(1 + cos(π t)) / 2, t = (n - W + 1) / (N - W + 1) clamped to [0, 1]
    Paper: Loshchilov & Hutter 2017, arXiv 1608.03983
    """

    warmup: Span = 0.02
    floor: Fraction = 0.1

    def factor(self, update: int, steps: int) -> float:
        # Without a warm-up the first update is the peak, as the last of a warm-up is.
        warmup = max(1, span_updates(self.warmup, steps))
        if update < warmup:
            return warm(update, warmup)
        progress = _progress(update - warmup + 1, steps - warmup + 1)
        return _between(self.floor, (1 + math.cos(math.pi * progress)) / 2)

    def check(self, steps: int) -> None:
        _check_within("warmup", span_updates(self.warmup, steps), steps)


class InverseSqrt(Schedule, kind="inverse_sqrt"):
    """Warm-up of W updates, then one over the square root of the update's number n (from 0); has no end.

    Formula: min((n + 1) / W, sqrt(W / (n + 1)))
    Paper: Vaswani et al. 2017, arXiv 1706.03762
    """

    warmup: Span = 0.1

    def factor(self, update: int, steps: int) -> float:
        warmup = max(1, span_updates(self.warmup, steps))
        return min((update + 1) / warmup, math.sqrt(warmup / (update + 1)))

    def check(self, steps: int) -> None:
        warmup = span_updates(self.warmup, steps)
        _check_within("warmup", warmup, steps)
        if isinstance(self.warmup, int) and warmup == 0:
            raise SpecError.at("warmup", "must be at least 1, since the decay is counted in warm-ups, came 0")


def warm(update: int, warmup: int) -> float:
    """(n + 1) / W up to the peak, 1 after it."""
    return min(1.0, (update + 1) / warmup) if warmup else 1.0


def _progress(done: int, total: int) -> float:
    return min(1.0, done / total)


def _between(floor: float, fraction: float) -> float:
    return floor + (1 - floor) * fraction


def _check_within(path: str, updates: int, steps: int, what: str | None = None) -> None:
    if updates > steps:
        raise SpecError.at(path, f"must fit into the {steps} steps, came {what or f'{updates} updates'}")
