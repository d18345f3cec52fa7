"""The figure and the table of what happens beyond the training: the numbers of results.json, and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_study import write_study
from test_page import Elements
from test_tables import printed

from isoflop.report import plots, words, write_page
from isoflop.report.read import Study, read_study
from isoflop.report.results import Results
from isoflop.report.tables import verdict_table

ARMS = ("base", "rope", "post")
LENGTHS = (64, 128, 512)


def sets() -> list[dict[str, Any]]:
    """Each arm gets worse by its own slope; one number is missing."""
    rows = []
    for place, length in enumerate(LENGTHS):
        arms: list[dict[str, Any]] = []
        for slope, name in enumerate(ARMS):
            mean = None if (name, length) == ("post", 128) else 3.0 + 0.1 * slope + 0.05 * slope * place
            change = None if mean is None else 0.05 * slope * place
            interval = {"low": mean and mean - 0.02, "high": mean and mean + 0.03}
            parts = [{"from": 0, "to": 64, "mean": 3.1}, {"from": 64, "to": 512, "mean": 3.2 + slope}]
            verdict = "base" if name == "base" else ("worse" if mean else "failed")
            arms.append({"name": name, "verdict": verdict, "n": 6, "mean": mean, **interval,
                         "change": {"n": 6, "mean": change, "low": None, "high": None}, "difference": None,
                         "exact_match": None, "token_accuracy": None,
                         "by_position": parts if length == 512 else []})  # fmt: skip
        rows.append({"set": f"length {length}", "length": length, "arms": arms})
    return rows


def study_with(folder: Path, rows: list[dict[str, Any]]) -> Study:
    write_study(folder, ARMS)
    results = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**results, "sets": rows}))
    return read_study(folder)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return study_with(tmp_path / "study", sets())


def results_of(study: Study) -> Results:
    assert study.results is not None
    return study.results


def test_the_lines_are_the_means_with_their_intervals(study: Study) -> None:
    shown = plots.beyond(results_of(study), 64)
    assert shown is not None
    lines = [trace for trace in shown.data if trace.mode == "lines+markers"]
    left, right = lines[:3], lines[3:]
    for trace, name in zip(left, ARMS, strict=True):
        cells = [row["arms"][ARMS.index(name)] for row in sets()]
        assert (trace.name, tuple(trace.x)) == (name, LENGTHS)
        assert list(trace.y) == [cell["mean"] and pytest.approx(cell["mean"]) for cell in cells]
        assert trace.error_y.array[0] == pytest.approx(0.03)
        assert trace.error_y.arrayminus[0] == pytest.approx(0.02)
    assert [tuple(trace.x) for trace in right] == [("0–64", "64–512")] * 3  # a range
    assert [trace.y[1] for trace in right] == pytest.approx([3.2, 4.2, 5.2])
    assert {trace.legendgroup for trace in left} == {trace.legendgroup for trace in right}
    assert [shape.x0 for shape in shown.layout.shapes] == [64]
    assert "trained on 64" in [note.text for note in shown.layout.annotations]
    assert {trace.text[0].strip() for trace in shown.data if trace.mode == "text"} == {*ARMS}


def test_answers_are_drawn_where_there_are_some(tmp_path: Path) -> None:
    rows = sets()
    for row in rows:
        for arm in row["arms"]:
            arm |= {"by_position": [], "exact_match": 64 / row["length"]}
    shown = plots.beyond(results_of(study_with(tmp_path / "pairs", rows)), None)
    assert shown is not None
    lines = [trace for trace in shown.data if trace.mode == "lines+markers"]
    assert [trace.y for trace in lines[3:]] == [(1.0, 0.5, 0.125)] * 3
    assert shown.layout.yaxis2.title.text == "answers without a wrong token"
    assert not shown.layout.shapes


def test_the_table_and_the_sentence_say_the_same(study: Study, tmp_path: Path) -> None:
    page = write_page(study.folder, tmp_path / "page.html").read_text()
    cells = [tag for _, tag in Elements(page).tags if "data-set" in tag]
    expected = {(row["set"], arm["name"]): arm["mean"] for row in sets() for arm in row["arms"]}
    assert {(tag["data-set"], tag["data-arm"]): json.loads(tag["data-value"] or "") for tag in cells} == expected
    assert 'href="#beyond"' in page
    sentence = "On length 512 the lowest is base 3.000 (+0.000), the highest post 3.400 (+0.200); in brackets against training."
    assert sentence in words.remarks(results_of(study))
    text = printed(verdict_table(results_of(study)), 150)
    rows = [line.split() for line in text.splitlines()]
    assert ["rope", "3.1000", "(+0.0000)", "3.1500", "(+0.0500)", "3.2000", "(+0.1000)"] in rows
    assert ["post", "3.2000", "(+0.0000)", "-", "3.4000", "(+0.2000)"] in rows


def test_a_study_without_sets_shows_none_of_it(study: Study, tmp_path: Path) -> None:
    bare = replace(results_of(study), sets=())
    assert plots.beyond(bare, 64) is None
    assert not any("in brackets" in line for line in words.remarks(bare))
    assert "length 512" not in printed(verdict_table(bare), 150)
    write_study(tmp_path / "bare", ARMS)
    page = write_page(tmp_path / "bare").read_text()
    assert "beyond" not in page.partition("<script>")[0]
