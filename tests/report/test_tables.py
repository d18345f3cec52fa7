from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from isoflop.report import words
from isoflop.report.read import Study, read_study
from isoflop.report.tables import run_table, status_table, verdict_table


@pytest.fixture(scope="module")
def study(study_folder: Path) -> Study:
    return read_study(study_folder)


def printed(renderable: RenderableType, width: int, terminal: bool = False) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        legacy_windows=False,
    )
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [name])


def test_the_numbers_are_those_of_results_json(study: Study) -> None:
    assert study.results is not None
    text = printed(verdict_table(study.results), 170)
    raw = json.loads((study.folder / "results.json").read_text())
    for arm in raw["arms"][1:]:
        d, cells = arm["difference"], row(text, arm["name"])
        assert cells[1] == arm["verdict"]
        assert [float(re.sub(r"[\[\],]", "", cell)) for cell in cells[2:5]] == pytest.approx(
            [d["mean"], d["low"], d["high"]], abs=5.1e-5
        )
        assert float(cells[5].strip("<")) == pytest.approx(d["p_holm"], abs=5.1e-4)
        ratios = arm["ratio"]["parameters"], arm["ratio"]["flops"], arm["ratio"]["seconds"]["mean"]
        assert [float(cell[:-1]) for cell in cells[6:9]] == pytest.approx(ratios, abs=5.1e-4)
        assert [int(cell) for cell in cells[-2:]] == [arm["n"], arm["failed"] + arm["diverged"]]
    assert row(text, "deep")[9:-2] == ["unresolved", "on", "steps,", "tokens,", "FLOPs;", "worse", "on", "seconds"]


def test_eighty_columns_keep_what_decides_and_name_what_is_dropped(study: Study) -> None:
    assert study.results is not None
    text = printed(verdict_table(study.results), 80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.splitlines()[0].split() == ["arm", "verdict", "difference", "[95%]", "Holm", "p", "params", "n", "lost"]
    assert "(not shown for want of width: FLOPs, seconds, by axis)" in text
    assert row(text, "rope")[1] == "better"


def test_no_colour_off_a_terminal_and_colour_on_one(study: Study) -> None:
    assert study.results is not None
    assert "\x1b" not in printed(verdict_table(study.results), 80)
    assert "\x1b[1;31mworse" in printed(verdict_table(study.results), 80, terminal=True)


def test_the_finding_counts_names_and_gives_the_noise(study: Study) -> None:
    assert study.results is not None
    assert study.results.noise is not None
    text = " ".join(printed(verdict_table(study.results, study.folder), 400).split())
    band = f"{study.results.noise.band:.4f}"
    assert (
        f"3 of 6 arms differ from base after Holm correction (better: swiglu, rope; worse: post); noise floor +-{band} bits/byte."
        in text
    )
    assert "Seeds needed to resolve: rms 9, deep 9 (this study: 6)." in text
    assert "deep depends on the axis: unresolved on steps, tokens, FLOPs; worse on seconds." in text
    assert "Lost seeds: post 2 diverged, window 1 failed, deep 1 diverged." in text
    assert f"More: isoflop report {study.folder} writes {study.folder / 'report.html'}" in text


def test_a_name_from_a_file_cannot_steer_the_terminal(study: Study) -> None:
    text = printed(run_table([type(study.runs[0])("[red]x[/red]\x1b[2J", 0, study.folder)]), 80)
    assert r"[red]x[/red]\x1b[2J" in text
    assert "\x1b" not in text


def test_the_status_counts_every_state(study: Study) -> None:
    text = printed(status_table(study.runs), 100)
    assert row(text, "post")[:5] == ["post", "4/6", "-", "-", "2"]
    values = [run.file.result.bits_per_byte for run in study.of("post") if run.file and run.file.result]
    assert float(row(text, "post")[5]) == pytest.approx(sum(v for v in values if v is not None) / 4, abs=5.1e-5)
    assert "42 of 42 runs are over." in text
    assert "post seed 2 diverged: loss became non-finite at step 120" in text


def test_a_run_table_shows_what_each_run_measured(study: Study) -> None:
    text = printed(run_table(study.of("deep")), 160)
    lines = [line.split() for line in text.splitlines() if line.startswith("deep")]
    assert lines[1][:4] == ["deep", "1", "diverged", "120/300"]
    assert lines[1][-6:] == ["loss", "became", "non-finite", "at", "step", "120"]
    result = study.of("deep")[0].file
    assert result is not None
    assert result.result is not None
    assert float(lines[0][4]) == pytest.approx(result.result.bits_per_byte, abs=5.1e-5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (999.6, "1k"),
        (119424, "119k"),
        (1.2e12, "1.2T"),
        (999.9e9, "1T"),
        (2.5e18, "2.5E"),
        (12, "12"),
    ],
)
def test_counts_are_short(value: float | None, text: str) -> None:
    assert words.human(value) == text


def test_a_change_reads_like_toml() -> None:
    change = {"ffn": {"kind": "glu", "hidden": 257}, "priors": [{"kind": 'a"b', "on": True}], "window": None}
    assert list(words.change_lines(change)) == [
        'ffn.kind = "glu"',
        "ffn.hidden = 257",
        'priors = [{ kind = "a\\"b", on = true }]',
        'window = "default"',
    ]


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0, "<0.001"), (0.0499, "0.050"), (1.0, "1.000")])
def test_a_p_is_never_zero(value: float | None, text: str) -> None:
    assert words.probability(value) == text
