"""results.json against scipy and against numbers that are known because they were put there."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from isoflop.report import read_results, verdict_table, write_page
from isoflop.study.results import smallest_difference, summarise
from isoflop.study.stats import Noise
from tiny_runs import strict_json

SEEDS = list(range(8))
Values = dict[int, float | str]
"""Bits per byte by seed, or the status of a run that has none."""


def write_run(
    folder: Path, arm: str, seed: int, value: float | str, parameters: int = 1000, second: float = 0.01
) -> None:
    finished = isinstance(value, float)
    record = {
        "format": 1,
        "status": "finished" if finished else value,
        "reason": None if finished else f"{value} for a reason",
        "seed": seed,
        "cost": {
            "parameters": parameters,
            "components": {"ffn": parameters},
            "training_flops_per_token": 6 * parameters,
        },
        "progress": {"step": 5, "steps": 10, "tokens": 100 + seed, "flops": 2000.0, "seconds": 0.5},
        "result": {"loss": value * math.log(2), "bits_per_byte": value, "step_seconds": second} if finished else None,
    }
    path = folder / "runs" / arm / str(seed)
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(record))


def write_study(folder: Path, arms: dict[str, Values], margin: float = 0.01) -> Path:
    declared = [{"name": arm, "change": {}, "knob": None, "architecture": {}, "training": {}} for arm in arms]
    study = {"format": 1, "name": "made", "arms": declared, "seeds": SEEDS, "margin": margin}
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(study))
    for arm, values in arms.items():
        for seed, value in values.items():
            write_run(folder, arm, seed, value)
    return folder


def draws(shift: float = 0.0, own: float = 0.005, key: int = 0) -> Values:
    """Seeds that share their noise over arms, and some of the arm's own."""
    shared, private = np.random.default_rng(1).normal(0, 0.03, 8), np.random.default_rng(key).normal(0, own, 8)
    return {seed: float(3.4 + shift + shared[seed] + private[seed]) for seed in SEEDS}


def by_name(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {arm["name"]: arm for arm in results["arms"]}


def array(values: Values) -> np.ndarray:
    return np.array([values[seed] for seed in SEEDS])


def test_identical_arms_are_equivalent_with_zero_difference(tmp_path: Path) -> None:
    results = summarise(write_study(tmp_path / "aa", {"base": draws(), "same": draws(), "again": draws()}))
    for name in ("same", "again"):
        arm = by_name(results)[name]
        assert arm["verdict"] == "equivalent"
        found = arm["difference"]
        assert found["values"] == {str(seed): 0.0 for seed in SEEDS}
        assert (found["mean"], found["sd"], found["low"], found["high"]) == (0.0, 0.0, 0.0, 0.0)
        assert (found["p"], found["p_permutation"], found["p_holm"]) == (1.0, 1.0, 1.0)
        assert arm["axes"] == dict.fromkeys(("steps", "tokens", "flops", "seconds"), "equivalent")


def test_numbers_are_those_of_scipy(tmp_path: Path) -> None:
    arms = {"base": draws(), "good": draws(-0.1, key=1), "bad": draws(0.1, key=2), "alike": draws(0.002, key=3)}
    arms["noisy"] = draws(-0.02, own=0.08, key=4)
    results = summarise(write_study(tmp_path / "study", arms))
    base = array(arms["base"])
    assert results["noise"]["mean"] == pytest.approx(base.mean(), rel=1e-12)
    assert results["noise"]["sd"] == pytest.approx(base.std(ddof=1), rel=1e-12)
    assert results["noise"]["band"] == pytest.approx(2 * base.std(ddof=1) / math.sqrt(8), rel=1e-12)
    margin = 0.01 * base.mean()
    assert results["margin"] == pytest.approx(margin, rel=1e-12)
    ps = {name: stats.ttest_rel(array(values), base).pvalue for name, values in arms.items() if name != "base"}
    ordered = sorted(ps, key=lambda name: ps[name])
    holm, largest = {}, 0.0
    for rank, name in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[name]))
        holm[name] = largest
    for name, p in ps.items():
        found, delta = by_name(results)[name]["difference"], array(arms[name]) - base
        low, high = stats.t.interval(0.95, 7, delta.mean(), stats.sem(delta))
        flips = stats.permutation_test((delta,), np.mean, permutation_type="samples", n_resamples=np.inf)
        tost = max(
            stats.ttest_1samp(delta, -margin, alternative="greater").pvalue,
            stats.ttest_1samp(delta, margin, alternative="less").pvalue,
        )
        assert found["n"] == 8
        assert found["values"] == {str(seed): pytest.approx(delta[seed], abs=1e-12) for seed in SEEDS}
        expected = {
            "mean": delta.mean(),
            "sd": delta.std(ddof=1),
            "low": low,
            "high": high,
            "p": p,
            "p_holm": holm[name],
        }
        expected |= {"p_permutation": flips.pvalue, "p_equivalence": tost}
        expected["correlation"] = np.corrcoef(array(arms[name]), base)[0, 1]
        assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-8)
    words = {arm["name"]: arm["verdict"] for arm in results["arms"]}
    assert words == {"base": "base", "good": "better", "bad": "worse", "alike": "equivalent", "noisy": "unresolved"}


def test_lost_and_unfinished_runs_are_counted_and_shown(tmp_path: Path) -> None:
    lost: Values = {**draws(-0.1, key=1), 0: "diverged", 1: "failed", 2: "interrupted", 3: "running"}
    del lost[4]
    folder = write_study(tmp_path / "study", {"base": {**draws(), 7: "failed"}, "arm": lost})
    results = summarise(folder)
    arm = by_name(results)["arm"]
    assert {key: arm[key] for key in ("n", "diverged", "failed", "unfinished")} == {
        "n": 3,
        "diverged": 1,
        "failed": 1,
        "unfinished": 3,
    }
    assert [(run["status"], run["reason"]) for run in arm["runs"]][:5] == [
        *((status, f"{status} for a reason") for status in ("diverged", "failed", "interrupted", "running")),
        ("pending", None),
    ]
    assert [run["value"] for run in arm["runs"]][:5] == [None] * 5
    assert sorted(arm["difference"]["values"]) == ["5", "6"], "a pair needs both"
    assert arm["mean"] == pytest.approx(np.mean([lost[seed] for seed in (5, 6, 7)]))
    assert results["spent"] == {
        "runs": 16,
        "finished": 10,
        "diverged": 1,
        "failed": 2,
        "seconds": 0.5 * 15,
        "tokens": sum(100 + seed for seed in SEEDS) * 2 - 104,
        "flops": 2000.0 * 15,
    }


@pytest.mark.parametrize(
    ("shift", "status", "whole", "with_loss"),
    [
        (-0.1, "diverged", "better", "unresolved"),
        (0.0, "diverged", "equivalent", "unresolved"),
        (0.1, "diverged", "worse", "worse"),
        (-0.1, "failed", "better", "better"),
    ],
)
def test_an_arm_is_not_praised_for_the_seeds_that_it_survived(
    tmp_path: Path, shift: float, status: str, whole: str, with_loss: str
) -> None:
    arm = draws(shift, own=0.001, key=1)
    for name, values, word in (("whole", arm, whole), ("lost", {**arm, 3: status}, with_loss)):
        assert summarise(write_study(tmp_path / name, {"base": draws(), "arm": values}))["arms"][1]["verdict"] == word
    both = write_study(tmp_path / "both", {"base": {**draws(), 3: status}, "arm": {**arm, 3: status}})
    assert summarise(both)["arms"][1]["verdict"] == whole, "where the base is lost too, nothing is held against the arm"


def test_without_a_base_nothing_is_said(tmp_path: Path) -> None:
    for name, base in (("lost", dict.fromkeys(SEEDS, "diverged")), ("pending", {})):
        folder = write_study(tmp_path / name, {"base": base, "arm": draws()})  # type: ignore[dict-item]
        results = summarise(folder)
        assert results["margin"] is None
        assert results["noise"] == {"arm": "base", "n": 0, "mean": None, "sd": None, "band": None}
        assert results["arms"][1]["verdict"] == "failed"
        assert results["arms"][1]["difference"]["mean"] is None
        assert read_results(folder / "results.json").arms[1].verdict == "failed"


def test_ratios_of_cost_and_time(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", {"base": draws(), "arm": {}})
    times = np.linspace(0.011, 0.012, 8)
    for seed, value in draws(-0.1, key=1).items():
        write_run(folder, "arm", seed, value, parameters=1250, second=float(times[seed]))
    found = summarise(folder)["arms"][1]
    logs = np.log(times / 0.01)
    low, high = np.exp(stats.t.interval(0.95, 7, logs.mean(), stats.sem(logs)))
    assert (found["ratio"]["parameters"], found["ratio"]["flops"]) == (1.25, 1.25)
    assert found["ratio"]["seconds"] == pytest.approx({"mean": np.exp(logs.mean()), "low": low, "high": high})
    # Better at equal steps; dearer, so that equal FLOPs and seconds are another question.
    assert found["axes"] == {"steps": "better", "tokens": "better", "flops": "unresolved", "seconds": "unresolved"}


def test_the_file_is_strict_json_and_what_the_report_reads(tmp_path: Path) -> None:
    lost: Values = {**draws(-0.1, key=1), 0: "diverged", 1: "failed"}
    folder = write_study(tmp_path / "study", {"base": draws(), "arm": lost, "gone": dict.fromkeys(SEEDS, "failed")})
    results = summarise(folder)
    assert strict_json((folder / "results.json").read_text()) == results
    read = read_results(folder / "results.json")
    assert [(arm.name, arm.verdict, arm.n, arm.diverged, arm.failed) for arm in read.arms] == [
        ("base", "base", 8, 0, 0),
        ("arm", "unresolved", 6, 1, 1),
        ("gone", "failed", 0, 0, 8),
    ]
    assert verdict_table(read) is not None
    assert "gone" in write_page(folder).read_text()


@pytest.mark.parametrize(("pairs", "correlation"), [(3, 0.8), (6, 0.8), (6, 0.0), (12, 0.5)])
def test_the_smallest_difference_is_seen_four_times_in_five(pairs: int, correlation: float) -> None:
    """Simulated pairs: two arms with the spread of the base, correlated, one shifted."""
    sd, studies = 0.02, 20_000
    least = smallest_difference(Noise("base", pairs, 3.4, sd, None), pairs, correlation)
    assert least is not None
    cov = sd**2 * np.array([[1, correlation], [correlation, 1]])
    draw = np.random.default_rng(7).multivariate_normal([0, least], cov, (studies, pairs))
    seen = stats.ttest_rel(draw[..., 1], draw[..., 0], axis=1).pvalue < 0.05
    assert seen.mean() == pytest.approx(0.8, abs=4 * math.sqrt(0.8 * 0.2 / studies))


def test_no_smallest_difference_without_spread_or_pairs() -> None:
    assert smallest_difference(Noise("base", 6, 3.4, None, None), 6) is None
    assert smallest_difference(Noise("base", 6, 3.4, 0.0, None), 6) is None
    assert smallest_difference(Noise("base", 6, 3.4, 0.1, None), 1) is None
