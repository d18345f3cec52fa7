"""From the run files of a study to `results.json`: every arm, every run, every verdict."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoflop.files import read_json, write_json
from isoflop.study import sweep
from isoflop.study.sets import judge_sets
from isoflop.study.stats import Noise, Ratio, Word, axes, compare, noise, power, ratio_interval, verdicts

CONFIDENCE = 0.95
METRIC = "bits_per_byte"
ENDED = frozenset({"finished", "diverged", "failed"})
"""A run in one of these states is not in progress."""
SETTLED = frozenset({"finished", "diverged"})
"""A run in one of these states would come out the same again."""
FORMAT = 1


class NotAStudy(ValueError):  # noqa: N818  # says what is there, as RunMismatch does
    """A folder that is no study's, or a file in it that is of another program."""


@dataclass(frozen=True)
class Run:
    """One (arm, seed): its file, or nothing yet."""

    arm: str
    seed: int
    path: str
    record: dict[str, Any] | None

    @property
    def status(self) -> str:
        return self.record["status"] if self.record else "pending"

    @property
    def result(self) -> dict[str, Any]:
        """The final evaluation; empty unless the run has finished."""
        return (self.record or {}).get("result") or {} if self.status == "finished" else {}

    def dump(self) -> dict[str, Any]:
        progress = (self.record or {}).get("progress") or {}
        return {
            "seed": self.seed,
            "status": self.status,
            "reason": (self.record or {}).get("reason"),
            "value": self.result.get(METRIC),
            "loss": self.result.get("loss"),
            "seconds": progress.get("seconds"),
            "step_seconds": self.result.get("step_seconds"),
            "tokens": progress.get("tokens"),
            "flops": progress.get("flops"),
            "path": self.path,
        }


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    """Where a run of a study lives."""
    return folder / "runs" / arm / str(seed)


def read_study_file(folder: Path) -> dict[str, Any]:
    """`study.json` of a study folder.

    Raises:
        NotAStudy: there is none, or it is of another program.
    """
    path = folder / "study.json"
    if not path.exists():
        raise NotAStudy(f"{folder} is no study folder: it has no study.json")
    study = read_json(path)
    if not isinstance(study, dict) or study.get("format") != FORMAT:
        raise NotAStudy(f"{path} is no study in format {FORMAT}; it may be of another program or version")
    return study


def read_record(path: Path) -> dict[str, Any] | None:
    """The `run.json` in a run folder, None where there is none."""
    if not (path / "run.json").exists():
        return None
    record = read_json(path / "run.json")
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise NotAStudy(f"{path / 'run.json'} is no run in format {FORMAT}; it may be of another program or version")
    return record


def recorded_runs(folder: Path) -> list[Path]:
    """The folders of all runs that were ever begun in a study folder."""
    return sorted(path.parent for path in folder.glob("runs/*/*/run.json"))


def read_runs(folder: Path) -> list[Run]:
    """Every run that a study plans, in order of seed and then of arm."""
    study = read_study_file(folder)
    plan = [(arm["name"], seed) for seed in study["seeds"] for arm in study["arms"]]
    paths = [run_folder(folder, *run) for run in plan]
    return [
        Run(*run, path.relative_to(folder).as_posix(), read_record(path)) for run, path in zip(plan, paths, strict=True)
    ]


def summarise(folder: str | Path) -> dict[str, Any]:
    """Read the runs of a study folder, reach the verdicts, write `results.json` and return its content.

    Runs that diverged or failed are counted and listed, and take no part in means and tests.
    """
    folder = Path(folder)
    study, runs = read_study_file(folder), read_runs(folder)
    by_arm = {arm["name"]: [run for run in runs if run.arm == arm["name"]] for arm in study["arms"]}
    base_name = study["arms"][0]["name"]
    floor = noise([run.result.get(METRIC) for run in by_arm[base_name]], base_name)
    margin = study["margin"] * floor.mean if floor.mean else None
    results = {
        "format": 1,
        "name": study["name"],
        "metric": METRIC,
        "unit": "bits/byte",
        "confidence": CONFIDENCE,
        "margin": margin,
        "margin_fraction": study["margin"],
        "noise": floor.dump(),
        "arms": _arms(study, by_arm, margin, _rates(folder)),
        "sets": judge_sets(by_arm, METRIC, study["margin"], CONFIDENCE, _survivors),
        "spent": _spent(runs + _tuning_runs(folder)),
    }
    write_json(folder / "results.json", results)
    return results


def _rates(folder: Path) -> dict[str, Any]:
    """What the sweep found for each arm; empty without a sweep."""
    path = folder / sweep.FILE
    return read_json(path) if path.exists() else {}


def _tuning_runs(folder: Path) -> list[Run]:
    """The runs of the sweep, which the study has cost too."""
    return read_runs(folder / sweep.FOLDER) if (folder / sweep.FOLDER / "study.json").exists() else []


def _arms(
    study: dict[str, Any], by_arm: dict[str, list[Run]], margin: float | None, rates: dict[str, Any]
) -> list[dict[str, Any]]:
    base_name, *others = by_arm
    base_values = _by_seed(by_arm[base_name], METRIC)
    # Without a base there is no margin and nothing to compare: every arm has no pair, and is called failed.
    differences = [
        compare(base_values, _by_seed(by_arm[name], METRIC), margin=margin or 1.0, confidence=CONFIDENCE)
        for name in others
    ]
    declared = {arm["name"]: arm for arm in study["arms"]}
    rows = [
        {
            **_arm(declared[base_name], by_arm[base_name], rates.get(base_name)),
            "is_base": True,
            "verdict": "base",
            "axes": None,
            "difference": None,
            "ratio": None,
        }
    ]
    for name, (judged, difference) in zip(others, verdicts(differences), strict=True):
        word = _survivors(judged, by_arm[base_name], by_arm[name])
        seconds = ratio_interval(
            _by_seed(by_arm[base_name], "step_seconds"), _by_seed(by_arm[name], "step_seconds"), CONFIDENCE
        )
        ratio = _cost_ratio(by_arm[base_name], by_arm[name])
        flops = Ratio.exact(ratio["flops"]) if ratio["flops"] else Ratio(None, None, None)
        rows.append(
            {
                **_arm(declared[name], by_arm[name], rates.get(name)),
                "is_base": False,
                "verdict": word,
                "axes": axes(word, flops=flops, seconds=seconds),
                "difference": difference.dump(),
                "ratio": {**ratio, "seconds": seconds.dump()},
            }
        )
    return rows


def _survivors(word: Word, base: list[Run], arm: list[Run]) -> Word:
    """The word, unless it praises an arm for the seeds that it survived: one that diverges where the base does not is at best unresolved."""
    finished = {run.seed for run in base if run.status == "finished"}
    lost = any(run.status == "diverged" and run.seed in finished for run in arm)
    return "unresolved" if lost and word in {"better", "equivalent"} else word


def _arm(declared: dict[str, Any], runs: list[Run], rates: dict[str, Any] | None) -> dict[str, Any]:
    counts = Counter(run.status for run in runs)
    spread: Noise = noise([run.result.get(METRIC) for run in runs], declared["name"])
    return {
        "name": declared["name"],
        "change": declared["change"],
        "knob": declared["knob"],
        "rates": rates,
        "cost": _cost(runs),
        "runs": [run.dump() for run in runs],
        "n": spread.n,
        "mean": spread.mean,
        "sd": spread.sd,
        "failed": counts["failed"],
        "diverged": counts["diverged"],
        "unfinished": sum(counts.values()) - sum(counts[status] for status in ENDED),
    }


def _cost(runs: list[Run]) -> dict[str, Any] | None:
    """What the architecture of these runs costs, from the first that got as far as to be priced."""
    return next((run.record["cost"] for run in runs if run.record and run.record.get("cost")), None)


def _by_seed(runs: list[Run], key: str) -> dict[int, float | None]:
    return {run.seed: run.result.get(key) for run in runs}


def _cost_ratio(base: list[Run], arm: list[Run]) -> dict[str, float | None]:
    of_base, of_arm = _cost(base), _cost(arm)
    if of_base is None or of_arm is None:
        return {"parameters": None, "flops": None}
    return {
        "parameters": of_arm["parameters"] / of_base["parameters"],
        "flops": of_arm["training_flops_per_token"] / of_base["training_flops_per_token"],
    }


def _spent(runs: list[Run]) -> dict[str, Any]:
    """What it all cost, unfinished and failed runs included (rule R16)."""
    counts = Counter(run.status for run in runs)
    progress = [run.record["progress"] for run in runs if run.record and run.record.get("progress")]
    return {
        "runs": len(runs),
        **{status: counts[status] for status in sorted(ENDED)},
        **{key: sum(row.get(key) or 0 for row in progress) for key in ("seconds", "tokens", "flops")},
    }


def smallest_difference(floor: Noise, pairs: int, correlation: float = 0.8) -> float | None:
    """The difference that so many paired seeds would detect with 80 % power, at a correlation between arms.

    The standard deviation of a paired difference is sd sqrt(2 (1 - correlation)).
    """
    if not floor.sd or pairs < 2:
        return None
    low, high = 0.0, 64.0  # in units of the difference's own sd
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, pairs) >= 0.8 else (middle, high)
    return high * floor.sd * math.sqrt(2 * (1 - correlation))
