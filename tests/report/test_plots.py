from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_study import write_study

from isoflop.report import plots
from isoflop.report.curves import spread
from isoflop.report.read import Study, read_study
from isoflop.report.results import Results


@pytest.fixture(scope="module")
def study(study_folder: Path) -> Study:
    return read_study(study_folder)


@pytest.fixture(scope="module")
def results(study: Study) -> Results:
    assert study.results is not None
    return study.results


def test_the_forest_has_one_mark_an_arm_at_its_difference(results: Results) -> None:
    shown = plots.forest(results)
    means = [trace for trace in shown.data if trace.name == "mean"]
    assert [trace.x[0] for trace in means] == pytest.approx(
        [0, *(arm.difference.mean for arm in results.compared if arm.difference)]
    )
    for trace, arm in zip(means[1:], results.compared, strict=True):
        assert arm.difference is not None
        assert trace.x[0] + trace.error_x.array[0] == pytest.approx(arm.difference.high)
        assert trace.x[0] - trace.error_x.arrayminus[0] == pytest.approx(arm.difference.low)
    written = [note.text for note in shown.layout.annotations]
    assert all(any(f"<b>{arm.verdict}</b>" in text for text in written) for arm in results.arms)
    seeds = next(trace for trace in shown.data if trace.name == "seeds")
    assert len(seeds.x) == sum(arm.n for arm in results.arms)


def test_the_forest_shades_the_noise_and_draws_the_margin(results: Results) -> None:
    shapes = {shape.name: shape for shape in plots.forest(results).layout.shapes}
    assert results.noise is not None
    assert (shapes["noise"].x0, shapes["noise"].x1) == (-results.noise.band, results.noise.band)
    assert abs(shapes["margin"].x0) == results.margin


def test_an_outlier_is_an_arrow_at_the_edge_and_the_others_stay_legible(results: Results) -> None:
    far = results.compared[0]
    assert far.difference is not None
    difference = replace(far.difference, mean=8.0, low=7.5, high=8.5, values={0: 8.0})
    arms = [replace(arm, difference=difference) if arm is far else arm for arm in results.arms]
    shown = plots.forest(replace(results, arms=tuple(arms)))
    limit = shown.layout.xaxis.range[1]
    assert limit < 0.3
    mark = [trace for trace in shown.data if trace.name == "mean"][1]
    assert (mark.x[0], mark.marker.symbol) == (limit, "arrow-right")
    assert any("+8.0000" in note.text for note in shown.layout.annotations)


@pytest.mark.parametrize("axis", ["steps", "tokens", "flops", "seconds"])
def test_curves_show_the_mean_the_paired_difference_and_the_gap(study: Study, results: Results, axis: str) -> None:
    shown = plots.curves(study, axis)
    base = next(trace for trace in shown.data if trace.name == "base")
    assert base.y[-1] == pytest.approx(results.base.mean, rel=1e-4)
    last = {"steps": 300, "tokens": 307200, "flops": 307200 * 720_000, "seconds": 3.6}[axis]
    assert base.x[-1] == pytest.approx(last, rel=0.04)
    rms = [trace for trace in shown.data if trace.name == "rms"]
    assert [trace.yaxis for trace in rms] == ["y", "y2"]
    if axis == "steps":
        arm = results.arms[1]
        assert arm.difference is not None
        assert rms[1].y[-1] == pytest.approx(arm.difference.mean, rel=1e-3)
    assert None in rms[1].y
    assert all(len(trace.x) <= 201 for trace in shown.data if trace.mode == "lines")
    crosses = {trace.name for trace in shown.data if trace.name and "seed" in trace.name}
    assert crosses == {
        "post, seed 2: diverged",
        "post, seed 5: diverged",
        "window, seed 4: failed",
        "deep, seed 1: diverged",
    }


def test_an_unknown_axis_and_a_study_without_results_are_refused(study: Study) -> None:
    with pytest.raises(ValueError, match="axis must be one of steps, tokens, flops, seconds, came 'epochs'"):
        plots.curves(study, "epochs")
    with pytest.raises(ValueError, match=r"must hold results\.json"):
        plots.curves(replace(study, results=None))


def test_gradients_are_logarithmic_on_a_common_scale(study: Study) -> None:
    shown = plots.gradients(study)
    assert shown is not None
    heats = [trace for trace in shown.data if trace.type == "heatmap"]
    assert len(heats) == 7
    rows = [json.loads(line) for line in (study.folder / "runs/base/0/metrics.jsonl").read_text().splitlines()]
    first = [json.loads((study.folder / f"runs/base/{s}/metrics.jsonl").read_text().splitlines()[0]) for s in range(6)]
    assert len(heats[0].x) == sum(line["kind"] == "train" for line in rows)
    assert heats[0].z[2][0] == pytest.approx(
        np.log10(np.median([line["gradient_norm_by_block"][2] for line in first])), abs=1e-3
    )
    assert {trace.coloraxis for trace in heats} == {"coloraxis"}
    crosses = [trace.hovertext for trace in shown.data if trace.type == "scatter"]
    assert crosses[0] == ("seed 2 diverged after step 120", "seed 5 diverged after step 120")


def test_cost_bars_add_up_to_the_cost(results: Results) -> None:
    shown = plots.cost(results)
    assert shown is not None
    bars = [trace for trace in shown.data if trace.type == "bar"]
    left = np.sum([trace.x for trace in bars if trace.xaxis == "x"], axis=0)
    right = np.sum([trace.x for trace in bars if trace.xaxis == "x2"], axis=0)
    assert left.tolist() == [arm.cost.parameters for arm in results.arms if arm.cost]
    assert right.tolist() == [arm.cost.training_flops_per_token for arm in results.arms if arm.cost]


def test_a_study_whose_every_run_diverged_is_drawn(tmp_path: Path) -> None:
    lost = {(arm, seed): "diverged" for arm in ("base", "rms") for seed in range(2)}
    folder = write_study(
        tmp_path / "sunk", arms=["base", "rms"], seeds=2, lost=lost | {("base", 0): "finished", ("base", 1): "finished"}
    )
    study = read_study(folder)
    assert study.results is not None
    shown = plots.forest(study.results)
    assert [trace.text[0] for trace in shown.data if trace.name == "none"] == ["no finished pair of seeds (2 diverged)"]
    names = [trace.name for trace in plots.curves(study).data]
    assert "rms (no finished seed)" in names
    assert "rms, seed 1: diverged" in names
    assert plots.gradients(study) is not None


def test_markup_in_a_name_is_inert(results: Results) -> None:
    name = '<a href="x">&</a>'
    shown = plots.forest(replace(results, arms=(results.arms[0], replace(results.arms[1], name=name))))
    assert shown.layout.yaxis.ticktext[1] == '&lt;a href="x"&gt;&amp;&lt;/a&gt;'


def test_labels_are_moved_apart_in_their_order() -> None:
    assert spread({}, 1.0) == {}
    moved = spread({0: 0.0, 1: 0.1, 2: 5.0, 3: 0.05}, 1.0)
    order = sorted(moved, key=lambda place: moved[place])
    assert order == [0, 3, 1, 2]
    heights = [moved[place] for place in order]
    assert min(np.diff(heights)) >= 1.0 - 1e-12
    assert moved[2] == 5.0


def test_a_large_study_shows_the_notable_arms_first(tmp_path: Path) -> None:
    arms = ["base", *(f"arm{i:02d}" for i in range(14)), "rope"]
    study = read_study(
        write_study(tmp_path / "large", arms=arms, seeds=3, lost={("arm03", 0): "diverged"}, evaluations=4)
    )
    assert study.results is not None
    notable = [arm.name for arm in study.results.notable(3)]
    assert notable == ["base", "arm03", "rope"]
    shown = plots.curves(study)
    visible = {trace.name for trace in shown.data if trace.visible is None and trace.showlegend}
    assert len(visible) == 8
    assert {"base", "arm03", "rope"} <= visible
    named = [trace.text[0].strip() for trace in shown.data if trace.mode == "text"]
    assert set(named) == visible - {"base"}
    heat = plots.gradients(study)
    assert heat is not None
    assert sum(trace.type == "heatmap" for trace in heat.data) == 12
