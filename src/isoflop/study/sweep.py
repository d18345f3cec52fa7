"""Learning rates tuned for every arm alike, on seeds that no verdict rests on (rules R3 and R4).

A sweep is a study of its own in the folder `rates/`: one arm for each arm and rate. The best rate of an arm is then fixed
in the study proper. A best rate at the edge of the grid is no best rate yet, so the grid is extended there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from isoflop.files import read_json, write_json
from isoflop.spec import Many, Spec, SpecError

FIRST_SEED = 1000
"""Tuning seeds start here; a verdict's seeds must lie below."""
UNIFORM = 8.0
"""Bits per byte of text that is sent as it is: what a diverged run counts as in the sensitivity."""
FOLDER, FILE = "rates", "rates.json"

Rate = Annotated[float, Field(gt=0)]


class Sweep(Spec):
    """How rates are tuned.

    Fields:
        rates: the grid, at least three rising rates; half decades are usual.
        seeds: tuning seeds, numbered from 1000.
        extensions: how often the grid may be extended where the best rate lies at its edge.
    """

    rates: Many[Rate]
    seeds: Annotated[int, Field(ge=1)] = 1
    extensions: Annotated[int, Field(ge=0, le=6)] = 2

    @model_validator(mode="after")
    def _is_a_grid(self) -> Self:
        if len(self.rates) < 3 or any(left >= right for left, right in zip(self.rates, self.rates[1:], strict=False)):
            raise SpecError.at("rates", f"must hold at least three rising rates, came {list(self.rates)}")
        return self

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        return tuple(range(FIRST_SEED, FIRST_SEED + self.seeds))


@dataclass(frozen=True)
class Curve:
    """Loss of one arm against the rate.

    Attributes:
        points: mean bits/byte over the tuning seeds by rate; None where a seed did not finish.
        chosen: the rate of the lowest loss.
        at_edge: the lowest loss lies at an end of the grid, so a better rate may lie beyond.
    """

    points: Mapping[float, float | None]
    chosen: float
    at_edge: bool

    @classmethod
    def of(cls, points: Mapping[float, float | None]) -> Curve | None:
        """The curve through these points; None where no rate has finished."""
        finished = {rate: loss for rate, loss in points.items() if loss is not None}
        if not finished:
            return None
        chosen = min(finished, key=lambda rate: finished[rate])
        return cls(dict(sorted(points.items())), chosen, chosen in {min(points), max(points)})

    @property
    def sensitivity(self) -> float:
        """How much a wrong rate costs: mean over the grid of min(loss, uniform) - best loss (Wortsman et al. 2023)."""
        best = self.points[self.chosen]
        assert best is not None
        losses = [UNIFORM if loss is None else min(loss, UNIFORM) for loss in self.points.values()]
        return fmean(losses) - best

    def dump(self) -> dict[str, Any]:
        return {
            "chosen": self.chosen,
            "at_edge": self.at_edge,
            "sensitivity": self.sensitivity,
            "curve": [{"rate": rate, "value": loss} for rate, loss in self.points.items()],
        }


class Untuned(ValueError):  # noqa: N818  # what the arm is
    """No rate of the grid trains an arm."""


def at_rate(arm: str, rate: float) -> str:
    """What an arm at a rate is called in the study that tunes."""
    return f"{arm}@{rate:g}"


def tune(
    arms: Sequence[str],
    sweep: Sweep,
    folder: Path,
    losses: Callable[[list[tuple[str, float]]], dict[tuple[str, float], float | None]],
) -> dict[str, Curve]:
    """The curve of every arm; `rates.json` in the study's folder holds them beside those of arms tuned before.

    Args:
        losses: trains (arm, rate) pairs on the tuning seeds and returns their mean loss; pairs that are there already
            cost nothing.

    Raises:
        Untuned: an arm diverged or failed at every rate.
    """
    grids = {arm: list(sweep.rates) for arm in arms}
    curves: dict[str, Curve] = {}
    for extension in range(sweep.extensions + 1):
        found = losses([(arm, rate) for arm, grid in grids.items() for rate in grid])
        for arm, grid in grids.items():
            curve = Curve.of({rate: found[arm, rate] for rate in grid})
            if curve is None:
                raise Untuned(f"arm {arm!r} finished at none of the rates {grid}; lower the grid")
            curves[arm] = curve
        at_edge = [arm for arm, curve in curves.items() if curve.at_edge]
        if not at_edge or extension == sweep.extensions:
            break
        for arm in at_edge:
            grids[arm] = extended(grids[arm], curves[arm].chosen)
    before = read_json(folder / FILE) if (folder / FILE).exists() else {}
    write_json(folder / FILE, {**before, **{arm: curve.dump() for arm, curve in curves.items()}})
    return curves


def extended(grid: Sequence[float], edge: float) -> list[float]:
    """The grid with one rate more beyond its edge, at the ratio of the two rates there."""
    low = edge == grid[0]
    ratio = grid[1] / grid[0] if low else grid[-1] / grid[-2]
    beyond = edge / ratio if low else edge * ratio
    rounded = float(f"{beyond:.3g}")  # 0.01, not 0.010000000000000002: a rate is also the name of an arm
    return [rounded, *grid] if low else [*grid, rounded]
