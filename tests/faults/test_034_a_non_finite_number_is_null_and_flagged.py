"""Fault 034: a NaN or infinite metric breaks the log or the JSON file."""

import math
from pathlib import Path

import pytest

from isoflop.train.log import MetricsLog
from tiny_runs import strict_json, tiny_run


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_line_stays_strict_json(value: float, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 0)
    for step, loss in enumerate([1.0, value, 0.5, 0.25], start=1):
        log.write({"kind": "train", "step": step, "loss": loss})
    log.close()
    lines = [strict_json(line) for line in path.read_text().splitlines()]
    assert [line["loss"] for line in lines] == [1.0, None, 0.5, 0.25]
    assert [line.get("nonfinite") for line in lines] == [None, ["loss"], None, None]


def test_a_diverged_run_says_so_in_strict_json(tmp_path: Path) -> None:
    tiny_run(tmp_path, rate=1e38, clip="off")
    record = strict_json((tmp_path / "run.json").read_text())
    assert record["status"] == "diverged"
    assert record["result"] is None
    lines = [strict_json(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] is None
    assert "loss" in lines[-1]["nonfinite"]
