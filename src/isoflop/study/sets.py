"""What the arms came to on sets beyond the training: other lengths of text, larger sizes of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from isoflop.study.stats import Difference, Word, compare, verdicts

if TYPE_CHECKING:
    from isoflop.study.results import Run

Values = dict[int, float | None]
"""A number of each seed."""
Runs = Mapping[str, list["Run"]]
"""The runs of each arm, the base first."""


def judge_sets(
    by_arm: Runs,
    metric: str,
    margin: float,
    confidence: float,
    tempered: Callable[[Word, list[Run], list[Run]], Word],
) -> list[dict[str, Any]]:
    """The `sets` of results.json: a row for each set, with what every arm came to there.

    An arm is compared with the base on the same set, and with itself in training (`change`), both by paired seeds. The
    words are corrected by Holm over all arms and sets together: they are one family of tests, apart from the verdicts.

    Args:
        margin: as a fraction of the base's mean on the set.
        tempered: what is left of a word when an arm has lost seeds.
    """
    base, *others = by_arm
    names = dict.fromkeys(name for runs in by_arm.values() for run in runs for name in _found(run))
    pairs = [(name, arm) for name in names for arm in others]
    compared = verdicts([_compare(by_arm, base, arm, name, metric, margin, confidence) for name, arm in pairs])
    judged = dict(zip(pairs, compared, strict=True))
    rows = []
    for name in names:
        arms = [{**_arm(arm, runs, name, metric, confidence), "verdict": "base", "difference": None}
                for arm, runs in by_arm.items()]  # fmt: skip
        for row in arms[1:]:
            word, difference = judged[name, row["name"]]
            row["verdict"] = tempered(word, by_arm[base], by_arm[row["name"]])
            row["difference"] = difference.dump()
        rows.append({"set": name, "length": _length(by_arm, name), "arms": arms})
    return rows


def _compare(by_arm: Runs, base: str, arm: str, name: str, metric: str, margin: float, confidence: float) -> Difference:
    of_base = _values(by_arm[base], name, metric)
    finite = [value for value in of_base.values() if value is not None]
    negligible = margin * fmean(finite) if finite else 1.0  # without a base there is no pair, whatever the margin is
    return compare(of_base, _values(by_arm[arm], name, metric), margin=negligible, confidence=confidence)


def _arm(arm: str, runs: list[Run], name: str, metric: str, confidence: float) -> dict[str, Any]:
    values = _values(runs, name, metric)
    trained: Values = {run.seed: run.result.get(metric) for run in runs}
    return {
        "name": arm,
        "values": values,
        **_interval(dict.fromkeys(values, 0.0), values, confidence),
        "change": _interval(trained, values, confidence),
        "exact_match": _mean(_values(runs, name, "exact_match")),
        "token_accuracy": _mean(_values(runs, name, "token_accuracy")),
        "by_position": _by_position(runs, name, metric),
    }


def _interval(base: Mapping[int, float | None], values: Values, confidence: float) -> dict[str, Any]:
    """Mean of the differences over seeds, with its Student interval."""
    found = compare(base, values, margin=1.0, confidence=confidence)
    return {"n": found.n, "mean": found.mean, "low": found.low, "high": found.high}


def _by_position(runs: list[Run], name: str, metric: str) -> list[dict[str, Any]]:
    """Means over seeds of the metric between two places in a row."""
    rows = [_found(run)[name].get("by_position", []) for run in runs if name in _found(run)]
    return [
        {"from": parts[0]["from"], "to": parts[0]["to"], "mean": _mean(dict(enumerate(p[metric] for p in parts)))}
        for parts in zip(*rows, strict=True)
    ]


def _values(runs: list[Run], name: str, key: str) -> Values:
    return {run.seed: _found(run).get(name, {}).get(key) for run in runs}


def _found(run: Run) -> dict[str, dict[str, Any]]:
    """What a finished run found, by set."""
    return {row["set"]: row for row in run.result.get("sets", [])}


def _length(by_arm: Runs, name: str) -> int:
    return next(_found(run)[name]["length"] for runs in by_arm.values() for run in runs if name in _found(run))


def _mean(values: Values) -> float | None:
    """The mean of what is there; None where nothing is."""
    finite = [value for value in values.values() if value is not None]
    return fmean(finite) if finite else None
