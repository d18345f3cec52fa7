"""A study's sweep, run: the study that tunes, and the study proper at the rates that it found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from isoflop.files import read_json
from isoflop.study.design import Design
from isoflop.study.results import METRIC, read_runs, read_study_file, recorded_runs
from isoflop.study.sweep import FILE, FOLDER, at_rate, tune


def tuned(design: Design, folder: Path, run: Callable[[Design, Path], None], only: str | None = None) -> Design:
    """The design with every arm at its best rate; as it is where no sweep is declared.

    Args:
        folder: of the study; the sweep is a study in its folder `rates`.
        run: trains what is left of a study.
        only: tune this arm alone.

    Raises:
        Untuned: an arm finishes at no rate.
    """
    sweep = design.study.sweep
    if sweep is None:
        return design

    def losses(pairs: list[tuple[str, float]]) -> dict[tuple[str, float], float | None]:
        # What an earlier call has begun stays in, an extension of the grid for instance: no run on record is left out.
        begun = dict.fromkeys([*pairs, *_begun(folder / FOLDER)])
        run(design.at_rates(begun, sweep.seed_numbers), folder / FOLDER)
        values: dict[str, list[float | None]] = {}
        for done in read_runs(folder / FOLDER):
            values.setdefault(done.arm, []).append(done.result.get(METRIC))
        return {pair: _mean(values[at_rate(*pair)]) for pair in pairs}

    tune([arm.name for arm in design.arms if only in {None, arm.name}], sweep, folder, losses)
    return design.with_rates({arm: row["chosen"] for arm, row in read_json(folder / FILE).items()})


def _begun(folder: Path) -> list[tuple[str, float]]:
    """The arms and rates of the sweep in a folder that have a run on record."""
    if not (folder / "study.json").exists():
        return []
    begun = {path.parent.name for path in recorded_runs(folder)}
    arms = [arm for arm in read_study_file(folder)["arms"] if arm["name"] in begun]
    return [(arm["name"].rpartition("@")[0], arm["training"]["rate"]) for arm in arms]


def _mean(values: list[float | None]) -> float | None:
    """The mean; None where a seed did not finish: a rate that loses seeds is no rate to choose."""
    finished = [value for value in values if value is not None]
    return fmean(finished) if len(finished) == len(values) else None
