"""The studies that are committed: their files declare what their results are of, and the results add up."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from isoflop.files import read_json
from isoflop.report import read_results
from isoflop.study.design import load_study

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*/study.toml"))
LARGEST = 300_000
"""Bytes of a file: what is large can be made again."""


def held(whole: Any, part: Any) -> bool:
    """Whether every value of a dump is still there; kinds may have got fields since."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and held(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(held, whole, part))
    return whole == part


def test_there_are_some() -> None:
    assert STUDIES


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.parent.name)
def test_results_are_of_the_file_beside_them(file: Path) -> None:
    declared, made = load_study(file).dump_content(), read_json(file.with_name("study.json"))
    assert declared["name"] == made["name"] == file.parent.name
    assert held(declared["training"], made["training"])
    assert (declared["seeds"], declared["margin"]) == (made["seeds"], made["margin"])
    for now, then in zip(declared["arms"], made["arms"], strict=True):
        assert (now["name"], now["change"]) == (then["name"], then["change"])
        assert held(now["architecture"], then["architecture"])


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.parent.name)
def test_results_add_up(file: Path) -> None:
    made, results = read_json(file.with_name("study.json")), read_json(file.with_name("results.json"))
    read_results(file.with_name("results.json"))
    for arm, declared in zip(results["arms"], made["arms"], strict=True):
        assert arm["name"] == declared["name"]
        assert [run["seed"] for run in arm["runs"]] == made["seeds"]
        assert {run["status"] for run in arm["runs"]} <= {"finished", "diverged", "failed"}
        assert arm["mean"] == pytest.approx(fmean(run["value"] for run in arm["runs"] if run["value"] is not None))
    for row in results["sets"]:
        for arm in row["arms"]:
            values = [value for value in arm["values"].values() if value is not None]
            assert arm["mean"] == pytest.approx(fmean(values))


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.parent.name)
def test_files_are_small(file: Path) -> None:
    assert [path.name for path in file.parent.iterdir() if path.stat().st_size > LARGEST] == []
