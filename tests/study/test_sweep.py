"""Rates tuned for every arm alike, on seeds of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from isoflop.files import read_json, write_json
from isoflop.report import read_results, write_page
from isoflop.report.words import rate_line, remarks
from isoflop.spec import SpecError
from isoflop.study.design import Design, load_study
from isoflop.study.execute import execute, prepare
from isoflop.study.results import summarise
from isoflop.study.sweep import UNIFORM, Curve, Sweep, Untuned, extended, tune
from isoflop.study.tuning import tuned
from study_folders import TINY_BASE

GRID = (1e-3, 3e-3, 1e-2)


def valley(best: dict[str, float]) -> Any:
    """A trainer whose loss is the distance from the best rate in decades, and a log of what it was asked for."""
    import math

    asked: list[tuple[str, float]] = []

    def losses(pairs: list[tuple[str, float]]) -> dict[tuple[str, float], float | None]:
        asked.extend(pair for pair in pairs if pair not in asked)
        return {(arm, rate): 3 + abs(math.log10(rate / best[arm])) for arm, rate in pairs}

    return losses, asked


def test_each_arm_gets_its_best_rate_and_an_edge_is_extended(tmp_path: Path) -> None:
    losses, asked = valley({"base": 3e-3, "fast": 3.3e-2})
    curves = tune(["base", "fast"], Sweep(rates=GRID), tmp_path, losses)
    assert {arm: curve.chosen for arm, curve in curves.items()} == {"base": 3e-3, "fast": 0.0333}
    assert not curves["base"].at_edge
    assert not curves["fast"].at_edge
    assert ("fast", 0.0333) in asked
    assert ("fast", 0.111) in asked
    assert all(rate in GRID for arm, rate in asked if arm == "base")
    assert read_json(tmp_path / "rates.json")["fast"] == curves["fast"].dump()


def test_a_best_rate_that_stays_at_the_edge_is_said(tmp_path: Path) -> None:
    losses, asked = valley({"base": 100.0})
    curve = tune(["base"], Sweep(rates=GRID, extensions=1), tmp_path, losses)["base"]
    assert curve.at_edge
    assert curve.chosen == max(rate for _, rate in asked) == 0.0333


def test_a_rate_that_loses_seeds_is_never_chosen(tmp_path: Path) -> None:
    curve = Curve.of({1e-3: 3.5, 3e-3: 3.25, 1e-2: None})
    assert curve is not None
    assert curve.chosen == 3e-3
    # Wortsman et al. 2023: the mean over the grid of min(loss, loss of no model) minus the best.
    assert curve.sensitivity == pytest.approx((3.5 + 3.25 + UNIFORM) / 3 - 3.25)
    with pytest.raises(Untuned, match=r"'base' finished at none of the rates \[0.001, 0.003, 0.01\]"):
        tune(["base"], Sweep(rates=GRID), tmp_path, lambda pairs: dict.fromkeys(pairs))


def test_the_grid_grows_by_the_ratio_at_its_edge() -> None:
    assert extended([1e-3, 3e-3, 1e-2], 1e-2) == [1e-3, 3e-3, 1e-2, 0.0333]
    assert extended([1e-3, 3e-3, 1e-2], 1e-3) == [0.000333, 1e-3, 3e-3, 1e-2]


@pytest.mark.parametrize("rates", [[1e-3, 3e-3], [3e-3, 1e-3, 1e-2], [1e-3, 1e-3, 1e-2]])
def test_a_grid_is_three_rising_rates(rates: list[float]) -> None:
    with pytest.raises(SpecError, match="rates: must hold at least three rising rates"):
        Sweep(rates=rates)


STUDY = f"""
name = "tuned"
seeds = 2
{TINY_BASE}
[training]
steps = 4
batch = 2
length = 16
rate = 1e-3
validation_windows = 4
schedule = {{ kind = "wsd", warmup = 1 }}
[training.data]
limit = 60000
[match]
budget = "none"
[sweep]
rates = [1e-3, 1e-2, 1e-1]
extensions = 0
[arms.alibi]
position = "alibi"
"""


def test_a_study_with_a_sweep_trains_at_the_rates_it_found(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    folder = tmp_path / "study"
    design = tuned(load_study(file), folder, lambda sweep, into: execute(prepare(sweep, into), 1))
    rates = read_json(folder / "rates.json")
    assert {arm.name: arm.training.rate for arm in design.arms} == {arm: row["chosen"] for arm, row in rates.items()}
    for arm, row in rates.items():
        of_files = {
            point["rate"]: json.loads((folder / f"rates/runs/{arm}@{point['rate']:g}/1000/run.json").read_text())
            for point in row["curve"]
        }
        values = {rate: record["result"]["bits_per_byte"] for rate, record in of_files.items()}
        assert {point["rate"]: point["value"] for point in row["curve"]} == values
        assert row["chosen"] == min(values, key=lambda rate: values[rate])
    execute(prepare(design, folder), 1)
    results = summarise(folder)
    assert [arm["rates"] for arm in results["arms"]] == [rates["base"], rates["alibi"]]
    assert results["spent"]["runs"] == 2 * 2 + 2 * 3
    page = write_page(folder).read_text()
    shown = read_results(folder / "results.json")
    assert any(line.startswith("Rates, tuned on other seeds: base") for line in remarks(shown))
    assert f"rate = {rates['alibi']['chosen']:g}, tuned on other seeds" in (rate_line(shown.arms[1]) or "")
    assert "Tuned:" in page


def test_verdict_seeds_are_not_tuning_seeds(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY.replace("seeds = 2", "seeds = [0, 1000]"))
    with pytest.raises(SpecError, match="seeds: from 1000 on are for tuning the rate, came 1000"):
        load_study(file)


def test_an_extended_sweep_and_one_arm_of_it_can_be_asked_for_again(tmp_path: Path) -> None:
    """The noise floor before the study, the study, the study again, and the noise floor of it."""
    file, folder = tmp_path / "study.toml", tmp_path / "study"
    file.write_text(STUDY.replace("extensions = 0", "extensions = 1"))
    trained: list[str] = []

    def run(design: Design, into: Path) -> None:
        """Trains nothing: a higher rate is better, so that the grid is extended."""
        prepare(design, into)
        for path, arm in (
            (into / f"runs/{arm.name}/{seed}", arm) for arm in design.arms for seed in design.study.seeds
        ):
            if not (path / "run.json").exists():
                trained.append(arm.name)
                record = {"format": 1, "status": "finished", "reason": None, "progress": None, "cost": None}
                write_json(path / "run.json", {**record, "result": {"bits_per_byte": 3 - arm.training.rate}})

    for only, new in (("base", 4), (None, 4), (None, 0), ("base", 0)):
        trained.clear()
        design = tuned(load_study(file), folder, run, only)
        assert len(trained) == new
        prepare(design, folder)
        if only is None:
            run(design, folder)
    assert {arm.name: arm.training.rate for arm in design.arms} == {"base": 1.0, "alibi": 1.0}
    assert set(read_json(folder / "rates.json")) == {"base", "alibi"}
