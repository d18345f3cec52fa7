from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from synthetic_study import write_study

from isoflop.report.read import read_results, read_run, read_study


@pytest.fixture
def copy(study_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(study_folder, tmp_path / "demo"))


def test_a_study_is_read_whole(study_folder: Path) -> None:
    study = read_study(study_folder)
    assert [arm.name for arm in study.file.arms] == ["base", "rms", "swiglu", "rope", "post", "window", "deep"]
    assert len(study.runs) == 42
    assert [run.status for run in study.of("post")] == [
        "finished",
        "finished",
        "diverged",
        "finished",
        "finished",
        "diverged",
    ]
    point = study.of("base")[0].validation[4]
    line = json.loads((study_folder / "runs/base/0/metrics.jsonl").read_text().splitlines()[9])
    assert (point.step, point.tokens, point.seconds) == (line["step"], line["tokens"], line["seconds"])
    assert point.values["bits_per_byte"] == line["bits_per_byte"]
    assert study.results is not None
    raw = json.loads((study_folder / "results.json").read_text())
    assert study.results.arms[2].difference is not None
    assert study.results.arms[2].difference.values == {
        int(k): v for k, v in raw["arms"][2]["difference"]["values"].items()
    }


def test_a_number_that_was_not_finite_is_nan_and_said(study_folder: Path) -> None:
    run = read_run(study_folder / "runs/rms/2")
    bits = {point.step: point.values["bits_per_byte"] for point in run.validation}
    assert [step for step, value in bits.items() if math.isnan(value)] == [150]
    assert run.warnings == ("2 numbers in metrics.jsonl were not finite; they are drawn as gaps",)


def test_a_truncated_last_line_is_dropped_and_said(copy: Path) -> None:
    path = copy / "runs/base/0/metrics.jsonl"
    whole = read_run(path.parent)
    path.write_bytes(path.read_bytes()[:-30])
    cut = read_run(path.parent)
    assert cut.validation == whole.validation[:-1]
    assert cut.train == whole.train
    assert cut.warnings == ("line 60 of metrics.jsonl, the last, is truncated and was dropped",)
    assert "runs/base/0: line 60 of metrics.jsonl, the last, is truncated and was dropped" in read_study(copy).warnings


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(copy: Path) -> None:
    path = copy / "runs/base/0/metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"kind": "tra', *lines[1:]]) + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2 is not valid JSON"):
        read_run(path.parent)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_bare_nan_and_infinity_are_refused(copy: Path, token: str) -> None:
    path = copy / "results.json"
    path.write_text(path.read_text().replace('"confidence": 0.95', f'"confidence": {token}'))
    with pytest.raises(ValueError, match=rf"results\.json: {token} is not a finite number"):
        read_results(path)


def test_missing_runs_are_planned_and_an_unfinished_one_keeps_its_points(copy: Path) -> None:
    shutil.rmtree(copy / "runs/rope/3")
    (copy / "runs/rms/1/metrics.jsonl").unlink()
    (copy / "results.json").unlink()
    path = copy / "runs/swiglu/0/run.json"
    path.write_text(path.read_text().replace('"finished"', '"running"'))
    study = read_study(copy)
    assert study.results is None
    assert study.of("rope")[3].status == "planned"
    assert study.of("swiglu")[0].status == "running"
    assert len(study.of("swiglu")[0].validation) == 30
    assert "runs/rms/1: there is no metrics.jsonl" in study.warnings


def test_a_folder_of_no_arm_is_left_out_and_said(copy: Path) -> None:
    shutil.copytree(copy / "runs/rope/3", copy / "runs/old/3")
    study = read_study(copy)
    assert len(study.runs) == 42
    assert study.warnings[0] == "runs/old/3 belongs to no arm and seed of study.json and is left out"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("study.json", "[]", r"study\.json must be a table with format = 1, came 'list'"),
        ("results.json", '{"format": 2}', r"results\.json must be a table with format = 1, came 2"),
        ("results.json", '{"format": 1, "name": "x"}', r"results\.json: metric: Field required"),
        ("results.json", "\x00\x01", r"results\.json is not valid JSON"),
        (
            "runs/base/0/run.json",
            '{"format": 1, "status": "finished", "seed": "0"}',
            r"run\.json: seed: Input should be a valid integer",
        ),
        ("runs/base/0/metrics.jsonl", '{"epoch": 1}\n{"epoch": 2}\n', r"metrics\.jsonl:1 must be a table with a kind"),
        (
            "runs/base/0/metrics.jsonl",
            '{"kind": "train", "step": 1}\n{}\n',
            r"metrics\.jsonl:1 must have the numbers step, tokens, flops, seconds",
        ),
    ],
)
def test_a_foreign_file_is_an_error_that_names_it(copy: Path, name: str, content: str, message: str) -> None:
    (copy / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_study(copy)


@pytest.mark.parametrize("name", ["../escape", "a/b", "..", ""])
def test_an_arm_that_names_another_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_study(tmp_path / "demo", arms=["base"], seeds=2)
    raw = json.loads((folder / "study.json").read_text())
    raw["arms"].append({"name": name, "change": {}})
    (folder / "study.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="must be usable as the name of a folder"):
        read_study(folder)


def test_what_is_no_study_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a study folder, and is no folder"):
        read_study(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no such file: .*study\.json"):
        read_study(tmp_path)
    with pytest.raises(ValueError, match=r"holds no run\.json"):
        read_run(tmp_path)
