from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_study import write_study

from isoflop.report import words, write_page
from isoflop.report.page import embed, policy, render
from isoflop.report.read import read_study

HOSTILE = ["base", "<script>alert(1)<", '"><img src=x onerror=alert(2)>', "%{y} {{ 7*7 }} <!--"]


class Elements(HTMLParser):
    """Tags with their attributes, and the text of script elements by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs).get("id"), ""))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            name, text = self.scripts[-1]
            self.scripts[-1] = (name, text + data)

    def embedded(self, name: str) -> Any:
        return json.loads(next(text for found, text in self.scripts if found == name))


@pytest.fixture(scope="module")
def page(study_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(study_folder, tmp_path_factory.mktemp("page") / "report.html").read_text()


def at(arm: dict[str, Any], field: str) -> Any:
    value: Any = arm
    for name in field.split("."):
        value = value[name]
    return value


def test_every_number_of_the_page_is_that_of_results_json(page: str, study_folder: Path) -> None:
    raw = json.loads((study_folder / "results.json").read_text())
    arms = {arm["name"]: arm for arm in raw["arms"]}
    elements = Elements(page)
    assert elements.embedded("results") == raw
    fields = [a for _, a in elements.tags if "data-field" in a]
    for attributes in fields:
        value = at(arms[str(attributes["data-arm"])], str(attributes["data-field"]))
        assert attributes["data-value"] == (value if isinstance(value, str) else json.dumps(value))
    shown = {(a["data-arm"], a["data-field"]) for a in fields}
    for arm in raw["arms"][1:]:
        for field in (
            "verdict",
            "difference.mean",
            "difference.low",
            "difference.high",
            "difference.p_holm",
            "ratio.parameters",
            "ratio.flops",
            "ratio.seconds.mean",
            "n",
            "failed",
            "diverged",
            "cost.parameters",
        ):
            assert (arm["name"], field) in shown
    runs = {
        (a["data-arm"], int(str(a["data-seed"]))): json.loads(str(a["data-value"]))
        for _, a in elements.tags
        if "data-seed" in a
    }
    assert runs == {(arm["name"], run["seed"]): run["value"] for arm in raw["arms"] for run in arm["runs"]}


def test_the_page_asks_nothing_of_the_network(page: str) -> None:
    for tag, attributes in Elements(page).tags:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        for name in ("src", "srcset", "action"):
            assert name not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
    rule = next(a["content"] for t, a in Elements(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert rule is not None
    assert rule.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in rule.split("style-src")[0]
    assert "http" not in rule
    assert "@import" not in page[: page.index("</style>")]
    assert "url(" not in page[: page.index("</style>")]


def test_the_page_says_what_was_lost_and_what_it_cost(page: str) -> None:
    text = re.sub(r"\s+", " ", page[: page.index('<script type="application/json"')])
    assert "3 of 6 arms differ from base after Holm correction" in text
    assert "loss became non-finite at step 120" in text
    assert "MemoryError: &lt;/script&gt;&lt;b&gt;out of memory&lt;/b&gt;" in text
    assert "(38 finished, 3 diverged, 1 failed), 2.9 min of training compute" in text
    assert "ffn.hidden = 257 for equal params: 119,400 against 119,424 (−0.02 %)" in text
    assert "runs/rms/2: 2 numbers in metrics.jsonl were not finite" in text
    assert text.index('data-figure="forest"') < text.index('id="verdict-table"') < text.index('data-figure="curves"')


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "hostile", arms=HOSTILE, seeds=3)
    elements = Elements(render(read_study(folder)))
    assert not [a for tag, a in elements.tags if tag == "img" or any(name.startswith("on") for name in a)]
    assert sum(tag == "script" and "type" not in a for tag, a in elements.tags) == 2
    assert [arm["name"] for arm in elements.embedded("results")["arms"]] == HOSTILE
    assert any(a.get("data-arm") == HOSTILE[2] for _, a in elements.tags)
    assert "&lt;script&gt;alert(1)&lt;" in json.dumps(elements.embedded("figure-forest"))


def test_embedded_data_is_strict_and_cannot_close_its_element() -> None:
    value = {"a": "</script><!--&\u2028", "b": [1.5, None]}
    text = embed(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        embed({"loss": float("nan")})


def test_the_policy_names_scripts_by_hash() -> None:
    # printf 'alert(1)' | openssl dgst -sha256 -binary | base64
    assert "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='" in policy("alert(1)")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-0.5", "−0.5"),
        ("[-1, +2]", "[−1, +2]"),
        ("top-1", "top-1"),
        ("noise +-0.1", "noise ±0.1"),
        ("1.004x", "1.004×"),
        ("-", "-"),
        ("2024-01-02", "2024-01-02"),
    ],
)
def test_signs_are_typographic_and_names_are_kept(text: str, shown: str) -> None:
    assert words.pretty(text) == shown


def test_the_page_lies_in_the_study_folder_and_needs_results(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "demo", arms=["base", "rms"], seeds=2)
    assert write_page(folder) == folder / "report.html"
    (folder / "results.json").unlink()
    with pytest.raises(ValueError, match=r"must hold results\.json"):
        write_page(folder)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_study_of_few_seeds_or_of_lost_arms_has_a_page(tmp_path: Path, seeds: int) -> None:
    lost = {("rms", seed): "diverged" for seed in range(seeds)}
    folder = write_study(tmp_path / "few", arms=["base", "rms", "rope"], seeds=seeds, lost=lost)
    text = render(read_study(folder))
    assert f"rms {seeds} diverged" in text
    assert Elements(text).embedded("figure-forest")["data"]
