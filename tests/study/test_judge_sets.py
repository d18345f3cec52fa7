"""The sets of results.json against scipy, and words that are known because the numbers were put there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from isoflop.study.results import summarise

SEEDS = range(8)
LENGTHS = (64, 512)
Values = dict[tuple[str, int], list[float | None]]
"""Bits per byte of each seed, by arm and length; an arm's first length is that of its training."""


def write_study(folder: Path, values: Values, diverged: tuple[str, int] | None = None, **extra: Any) -> Path:
    """A study of which all arms are evaluated at 64, where they are trained, and at 512."""
    arms = list(dict.fromkeys(arm for arm, _ in values))
    declared = [{"name": arm, "change": {}, "knob": None, "architecture": {}, "training": {}} for arm in arms]
    study = {"format": 1, "name": "made", "arms": declared, "seeds": [*SEEDS], "margin": 0.01}
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps(study))
    for arm in arms:
        for seed in SEEDS:
            lost = (arm, seed) == diverged
            sets = [
                {"set": f"length {length}", "length": length, "bits_per_byte": values[arm, length][seed], **extra}
                for length in LENGTHS
                if (arm, length) in values
            ]
            result = {"bits_per_byte": values[arm, 64][seed], "step_seconds": 0.1, "sets": sets}
            record = {"format": 1, "status": "diverged" if lost else "finished", "reason": None, "seed": seed,
                      "cost": None, "progress": None, "result": None if lost else result}  # fmt: skip
            path = folder / "runs" / arm / str(seed)
            path.mkdir(parents=True)
            (path / "run.json").write_text(json.dumps(record))
    return folder


def draws(mean: float, key: int = 0, own: float = 0.004) -> list[float | None]:
    """Seeds that share their noise over arms and lengths, and some of their own."""
    shared, private = np.random.default_rng(1).normal(0, 0.03, 8), np.random.default_rng(key).normal(0, own, 8)
    return [float(value) for value in mean + shared + private]


def made() -> Values:
    """One arm is better in training and worse beyond it, one is the same, one is like the base with noise."""
    base = {("base", 64): draws(3.0, 1), ("base", 512): draws(3.2, 2)}
    turned = {("turned", 64): draws(2.9, 3), ("turned", 512): draws(4.0, 4)}
    return {**base, **turned, ("same", 64): base["base", 64], ("same", 512): base["base", 512],
            ("near", 64): draws(3.0, 5, own=0.2), ("near", 512): draws(3.2, 6, own=0.2)}  # fmt: skip


def cell(results: dict[str, Any], length: int, arm: str) -> dict[str, Any]:
    row = next(row for row in results["sets"] if row["length"] == length)
    return next(found for found in row["arms"] if found["name"] == arm)


def test_words_at_each_length(tmp_path: Path) -> None:
    results = summarise(write_study(tmp_path / "s", made()))
    assert [(row["set"], row["length"]) for row in results["sets"]] == [("length 64", 64), ("length 512", 512)]
    words = {
        name: [cell(results, length, name)["verdict"] for length in LENGTHS]
        for name in ("base", "turned", "same", "near")
    }
    assert words == {
        "base": ["base", "base"],
        "turned": ["better", "worse"],
        "same": ["equivalent", "equivalent"],
        "near": ["unresolved", "unresolved"],
    }
    assert json.loads((tmp_path / "s" / "results.json").read_text())["sets"] == json.loads(json.dumps(results["sets"]))


def test_numbers_are_those_of_scipy(tmp_path: Path) -> None:
    values = made()
    results = summarise(write_study(tmp_path / "s", values))
    for arm, length in values:
        found, here = cell(results, length, arm), np.array(values[arm, length], float)
        trained, base = np.array(values[arm, 64], float), np.array(values["base", length], float)
        mean = stats.ttest_1samp(here, 0.0).confidence_interval(0.95)
        assert (found["n"], found["mean"]) == (8, pytest.approx(here.mean()))
        assert (found["low"], found["high"]) == pytest.approx((mean.low, mean.high))
        assert found["change"]["mean"] == pytest.approx((here - trained).mean(), abs=1e-12)
        if length == 512:
            change = stats.ttest_rel(here, trained).confidence_interval(0.95)
            assert (found["change"]["low"], found["change"]["high"]) == pytest.approx((change.low, change.high))
        if arm in {"turned", "near"}:
            assert found["difference"]["p"] == pytest.approx(stats.ttest_rel(here, base).pvalue)
    assert cell(results, 64, "base")["difference"] is None


def test_words_are_corrected_over_arms_and_sets_together(tmp_path: Path) -> None:
    """Holm: the smallest of the six p counts sixfold, the next fivefold."""
    results = summarise(write_study(tmp_path / "s", made()))
    rows = [cell(results, length, arm)["difference"] for length in LENGTHS for arm in ("turned", "same", "near")]
    ordered = sorted(rows, key=lambda row: row["p"])
    assert ordered[0]["p_holm"] == pytest.approx(6 * ordered[0]["p"])
    assert ordered[1]["p_holm"] == pytest.approx(max(5 * ordered[1]["p"], 6 * ordered[0]["p"]))
    verdicts = {arm["name"]: arm["difference"]["p_holm"] for arm in results["arms"][1:]}
    alone = cell(results, 64, "turned")["difference"]["p"]
    assert verdicts["turned"] == pytest.approx(3 * alone)  # the verdicts proper are a family of their own


def test_an_arm_that_loses_seeds_is_not_praised(tmp_path: Path) -> None:
    results = summarise(write_study(tmp_path / "s", made(), diverged=("turned", 3)))
    assert [cell(results, length, "turned")["verdict"] for length in LENGTHS] == ["unresolved", "worse"]
    assert cell(results, 64, "turned")["n"] == 7
    assert cell(results, 64, "turned")["values"]["3" if "3" in cell(results, 64, "turned")["values"] else 3] is None


def test_a_loss_that_is_not_finite_is_no_value(tmp_path: Path) -> None:
    values = made()
    values["turned", 512] = [None] * 8
    values["near", 512][2] = None
    results = summarise(write_study(tmp_path / "s", values))
    broken, near = cell(results, 512, "turned"), cell(results, 512, "near")
    assert (broken["verdict"], broken["mean"], broken["n"], broken["change"]["n"]) == ("failed", None, 0, 0)
    assert (near["n"], near["change"]["n"]) == (7, 7)


def test_parts_of_a_window_and_answers_are_means_over_seeds(tmp_path: Path) -> None:
    parts = [{"from": 0, "to": 64, "bits_per_byte": 3.0}, {"from": 64, "to": 512, "bits_per_byte": None}]
    extra = {"by_position": parts, "exact_match": 0.25, "token_accuracy": 0.5}
    found = cell(summarise(write_study(tmp_path / "s", made(), **extra)), 512, "near")
    assert found["by_position"] == [{"from": 0, "to": 64, "mean": 3.0}, {"from": 64, "to": 512, "mean": None}]
    assert (found["exact_match"], found["token_accuracy"]) == (0.25, 0.5)


def test_a_study_without_sets_has_none(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", made())
    for path in folder.glob("runs/*/*/run.json"):
        record = json.loads(path.read_text())
        del record["result"]["sets"]
        path.write_text(json.dumps(record))
    assert summarise(folder)["sets"] == []
