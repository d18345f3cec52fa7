"""metrics.jsonl and progress."""

import json
from pathlib import Path

import pytest

from isoflop.train.log import MetricsLog, Reporter, strict


def test_non_finite_numbers_are_null_and_named() -> None:
    values = {"step": 2, "loss": float("nan"), "norms": [1.0, float("-inf")], "rate": 0.1, "absent": None}
    expected = {
        "step": 2,
        "loss": None,
        "norms": [1.0, None],
        "rate": 0.1,
        "absent": None,
        "nonfinite": ["loss", "norms"],
    }
    assert strict(values) == expected
    assert strict({"loss": 1.0}) == {"loss": 1.0}


def test_each_line_is_on_disk_at_once_and_those_beyond_the_step_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 0)
    for step in (1, 2, 3):
        log.write({"kind": "train", "step": step})
        assert len(path.read_text().splitlines()) == step
    log.close()
    again = MetricsLog(path, 2)
    again.write({"kind": "train", "step": 3, "loss": 1.5})
    again.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"kind": "train", "step": 1},
        {"kind": "train", "step": 2},
        {"kind": "train", "step": 3, "loss": 1.5},
    ]


@pytest.mark.parametrize("cut", ['{"kind": "tr', '{"kind": "train"}', "[3]", "\x00\x00"])
def test_a_line_that_a_kill_has_cut_is_dropped(tmp_path: Path, cut: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n' + cut)
    MetricsLog(path, 5).close()
    assert path.read_text() == '{"kind": "train", "step": 1}\n'


def test_progress_is_plain_lines_on_stderr_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = {"kind": "train", "step": 1, "steps": 4, "loss": 2.5, "tokens": 100, "seconds": 1.0}
    with Reporter(4) as report:
        report({"kind": "message", "text": "going on [from] step 0"})
        report(line)
        report({**line, "step": 2, "tokens": 1300, "seconds": 3.0, "loss": None})
        report({**line, "kind": "validation", "step": 2, "bits_per_byte": 3.25})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "going on [from] step 0",
        "step 1/4  train loss 2.5000",
        "step 2/4  train loss not finite  600 tokens/s",
        "step 2/4  validation loss 2.5000  3.2500 bits/byte",
    ]
