from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs
from synthetic_study import write_study

from isoflop.report import write_page

playwright = pytest.importorskip("playwright.sync_api", reason="the browser extra (playwright) is not installed")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
SWITCHES = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
SECONDS_TO_READY = 15
"""A generous bound for a loaded machine; two free cores need two to four seconds."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield launched
        launched.close()


class Visit:
    """One page opened offline, with everything it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}, **options)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on(
            "console",
            lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("body[data-ready]", timeout=1000 * SECONDS_TO_READY)

    def figure(self, name: str, expression: str) -> Any:
        return self.page.evaluate(
            f"() => {{ const div = document.querySelector('[data-figure={name}]'); return {expression}; }}"
        )

    def assert_quiet(self) -> None:
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.fixture(scope="module")
def report(study_folder: Path) -> Path:
    return write_page(study_folder)


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Visit]:
    opened = Visit(browser, report)
    yield opened
    opened.context.close()


def test_it_is_drawn_offline_without_a_request_or_a_complaint(visit: Visit) -> None:
    assert visit.page.locator(".main-svg").count() >= 4
    visit.assert_quiet()


def test_the_forest_has_a_mark_an_arm(visit: Visit, study_folder: Path) -> None:
    arms = json.loads((study_folder / "results.json").read_text())["arms"]
    marks = visit.figure(
        "forest",
        "div.data.map((t, i) => t.name === 'mean' ? div.querySelectorAll('.scatterlayer .trace')[i].querySelectorAll('path.point').length : 0)",
    )
    assert sum(marks) == len(arms)
    assert visit.page.locator("[data-figure=forest] .yaxislayer-above .ytick").count() == len(arms)
    written = visit.page.locator("[data-figure=forest]").inner_text()
    assert all(arm["verdict"] in written for arm in arms)


def test_the_axis_toggle_changes_what_is_drawn(visit: Visit) -> None:
    seen = []
    for axis in ("steps", "tokens", "flops", "seconds"):
        visit.page.check(f"input[name=axis][value={axis}]", force=True)
        visit.page.wait_for_function(
            "() => document.querySelector('[data-figure=curves]').layout.xaxis2.title.text", timeout=5000
        )
        title = visit.page.locator("[data-figure=curves] .x2title").text_content()
        last = visit.figure("curves", "div.data.find(t => t.name === 'base').x.at(-1)")
        seen.append((title, last))
    assert [title for title, _ in seen] == [
        "optimizer steps",
        "training tokens",
        "training FLOPs",
        "training seconds (compute only)",
    ]
    assert seen[0][1] == 300
    assert seen[1][1] == 307200
    assert seen[2][1] == pytest.approx(307200 * 720_000)
    assert 3.5 < seen[3][1] < 3.8
    visit.assert_quiet()


def test_the_toggle_works_from_the_keyboard_and_a_hidden_arm_stays_hidden(visit: Visit) -> None:
    place = visit.figure("curves", "div.data.findIndex(t => t.name === 'post')")
    group = visit.figure("curves", f"div.data[{place}].legendgroup")
    visit.page.locator("[data-figure=curves] .legendtoggle").nth(4).click()
    hidden = f"() => document.querySelector('[data-figure=curves]').data.filter(t => t.legendgroup === '{group}').every(t => t.visible === 'legendonly')"
    visit.page.wait_for_function(hidden, timeout=5000)
    visit.page.focus("input[name=axis][value=steps]")
    visit.page.keyboard.press("ArrowRight")
    assert visit.page.is_checked("input[name=axis][value=tokens]")
    visit.page.wait_for_function(
        "() => document.querySelector('[data-figure=curves]').layout.xaxis2.title.text === 'training tokens'",
        timeout=5000,
    )
    assert visit.page.evaluate(hidden)
    assert visit.figure("curves", "div.data.find(t => t.name === 'base').visible !== 'legendonly'")


def test_numbers_in_the_dom_the_embedded_json_and_the_file_are_one(visit: Visit, study_folder: Path) -> None:
    raw = json.loads((study_folder / "results.json").read_text())
    assert visit.page.evaluate("() => JSON.parse(document.getElementById('results').textContent)") == raw
    for arm in raw["arms"][1:]:
        for field in ("mean", "low", "high"):
            cell = visit.page.evaluate(
                "([arm, field]) => [...document.querySelectorAll('#verdict-table [data-field]')].filter(e => e.dataset.arm === arm && e.dataset.field === field).map(e => [e.dataset.value, e.innerText])[0]",
                [arm["name"], f"difference.{field}"],
            )
            assert float(cell[0]) == arm["difference"][field]
            assert float(cell[1].replace("−", "-")) == pytest.approx(arm["difference"][field], abs=5.1e-5)
    drawn = visit.figure("forest", "div.data.filter(t => t.name === 'mean').map(t => t.x[0])")
    assert drawn == pytest.approx([0, *(arm["difference"]["mean"] for arm in raw["arms"][1:])], rel=1e-9)


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast of two `rgb(r, g, b)`."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color.strip("rgba()").split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(browser: Any, report: Path, scheme: str) -> None:
    opened = Visit(browser, report, color_scheme=scheme)
    style = "([selector, property]) => [...document.querySelectorAll(selector)].map(e => getComputedStyle(e)[property])"
    paper = opened.page.evaluate(style, ["body", "backgroundColor"])[0]
    assert (contrast(paper, "rgb(255, 255, 255)") > 10) is (scheme == "dark")
    colors = opened.page.evaluate(style, ["p, th, td, figcaption, .verdict, dt", "color"])
    drawn = opened.page.evaluate(style, ["[data-figure] text", "fill"])
    assert len(drawn) > 50
    assert min(contrast(color, paper) for color in {*colors, *drawn}) >= 4.5
    lines = opened.page.evaluate(style, ["[data-figure=curves] .scatterlayer .js-line", "stroke"])
    assert min(contrast(color, paper) for color in {*lines}) >= 3
    opened.assert_quiet()
    opened.context.close()


def test_it_fits_a_narrow_window_and_prints(browser: Any, report: Path) -> None:
    opened = Visit(browser, report)
    opened.page.set_viewport_size({"width": 700, "height": 900})
    opened.page.wait_for_function(
        "() => document.documentElement.scrollWidth <= 700 && document.querySelector('[data-figure=forest] .main-svg').getBoundingClientRect().width <= 700",
        timeout=5000,
    )
    assert len(opened.page.pdf()) > 50_000
    opened.assert_quiet()
    opened.context.close()


def test_hostile_names_and_lost_arms_are_harmless(browser: Any, tmp_path: Path) -> None:
    arms = ["base", "<script>alert(1)<", '"><img src=x onerror=alert(2)>', "%{y} <b>bold"]
    lost = {(arms[1], seed): "diverged" for seed in range(3)}
    opened = Visit(browser, write_page(write_study(tmp_path / "hostile", arms=arms, seeds=3, lost=lost)))
    rows = opened.page.locator("#verdict-table tbody th").all_inner_texts()
    assert rows == arms
    assert opened.page.locator("img").count() == 0
    ticks = opened.page.locator("[data-figure=forest] .ytick text").all_text_contents()
    assert {"<script>alert(1)<", "%{y} <b>bold"} <= set(ticks)
    opened.assert_quiet()
    opened.context.close()


def test_three_hundred_runs_are_ready_in_seconds_and_small(browser: Any, tmp_path: Path) -> None:
    arms = ["base", *(f"arm{i:02d}" for i in range(49))]
    path = write_page(write_study(tmp_path / "large", arms=arms, seeds=6, evaluations=20))
    ours = path.stat().st_size - len(get_plotlyjs().encode())
    assert ours < 3_000_000, f"{ours} bytes beside plotly for 300 runs"
    opened = Visit(browser, path)
    ready = opened.page.evaluate("() => performance.now()")
    assert ready < 1000 * SECONDS_TO_READY
    assert opened.page.locator("[data-figure=forest] .yaxislayer-above .ytick").count() == 50
    opened.assert_quiet()
    opened.context.close()
