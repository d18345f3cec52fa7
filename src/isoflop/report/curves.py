"""Validation curves over steps, tokens, FLOPs or seconds, above the paired difference to the base over the same axis.

Overlaid loss curves cannot be told apart, so the difference is always drawn below them. Solid lines are means over
finished seeds with the interval of the mean; a run that was lost or is unfinished is a thin line of its own that ends
in a cross. Numbers that were not finite are gaps.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from isoflop.report.palette import INK, arm_style
from isoflop.report.read import Run, Study
from isoflop.report.results import Results
from isoflop.report.series import AXES, Array, Curve, mean_curve, paired_curve, trace
from isoflop.report.style import figure, finite, label

TITLES = {
    "steps": "optimizer steps",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "training seconds (compute only)",
}
MOST_LINES = 8
"""So many arms are drawn at first and named at their line's end; the others wait in the legend."""
SETTLED = 0.4
"""Axes are scaled to what comes after this part of training; a double click shows the steep beginning too."""


def curves(study: Study, axis: str = "steps") -> go.Figure:
    """Absolute curves above, paired differences to the base below; the legend switches an arm in both."""
    if axis not in AXES:
        raise ValueError(f"axis must be one of {', '.join(AXES)}, came {axis!r}")
    results = study.results
    if results is None:
        raise ValueError(f"{study.folder} must hold results.json to draw its curves; run the study first")
    shown = figure(
        on=make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.45, 0.55]),
        height=640,
        margin={"l": 10, "r": 130, "t": 16, "b": 52},
        hovermode="closest",
        legend={
            "orientation": "h",
            "y": -0.13,
            "yanchor": "top",
            "x": 0,
            "itemclick": "toggle",
            "itemdoubleclick": "toggleothers",
        },
    )
    for row in (1, 2):
        _draw(shown, row, study, results, axis)
    first = {arm.name for arm in results.notable(MOST_LINES)}
    waiting = {_group(place) for place, arm in enumerate(results.arms) if arm.name not in first}
    shown.for_each_trace(lambda trace: trace.update(visible="legendonly"), lambda trace: trace.legendgroup in waiting)
    unit = html.escape(results.unit, quote=False)
    shown.update_yaxes(title_text=f"validation, {unit}", automargin=True, row=1)
    shown.update_yaxes(title_text=f"difference to base, {unit}", automargin=True, tickformat="~g", row=2)
    shown.update_xaxes(title={"text": TITLES[axis], "standoff": 8}, row=2, col=1)
    shown.update_xaxes(exponentformat="SI", range=[0, _end(study.runs, axis)])
    shown.add_hline(y=0, line={"color": INK, "width": 1}, row=2, col=1)  # type: ignore[arg-type]
    return shown


def _draw(shown: go.Figure, row: int, study: Study, results: Results, axis: str) -> None:
    """All arms in one panel (row 1: absolute, row 2: differences), with names at the line ends and a settled scale."""
    base, drawn = study.of(results.base.name), {}
    for place, arm in enumerate(results.arms):
        runs = study.of(arm.name)
        if row == 1:
            curve = mean_curve(runs, axis, results.metric, results.confidence)
        else:
            curve = None if arm.is_base else paired_curve(runs, base, axis, results.metric, results.confidence)
        if curve is not None:
            _line(shown, row, arm.name, curve, place, results)
            drawn[place] = curve
        elif row == 1:
            _legend_only(shown, arm.name, place)
        if row == 1:
            for run in runs:
                _unfinished(shown, run, place, axis, results.metric)
    span = _span(drawn.values() or [_as_curve(run, axis, results.metric) for run in study.runs if run.validation])
    if span is None:
        return
    span = (min(span[0], 0.0), max(span[1], 0.0)) if row == 2 else span
    shown.update_yaxes(range=list(span), row=row)
    if row == 2:
        first = results.notable(MOST_LINES)
        named = {place: curve for place, curve in drawn.items() if results.arms[place] in first}
        _name_ends(shown, named, span, results)


def _group(place: int) -> str:
    """The legend group of an arm: its lines in both panels, its band, its name and its lost runs."""
    return f"arm {place}"


def _line(shown: go.Figure, row: int, name: str, curve: Curve, place: int, results: Results) -> None:
    """The interval as a band (an area for each stretch without gap), then the mean."""
    color, dash = arm_style(place)
    group = {
        "legendgroup": _group(place),
        "xaxis": f"x{row}" if row > 1 else "x",
        "yaxis": f"y{row}" if row > 1 else "y",
    }
    x, y = _band(curve)
    if x:
        shown.add_trace(
            go.Scatter(
                x=x,
                y=y,
                fill="toself",
                fillcolor=color,
                opacity=0.14 if row == 2 else 0.07,
                mode="none",
                hoverinfo="skip",
                showlegend=False,
                **group,
            )
        )
    hover = f"%{{fullData.name}}: %{{y:{'+.4f' if row == 2 else '.4f'}}} {html.escape(results.unit, quote=False)} at %{{x:.4s}}, mean of {curve.n}<extra></extra>"
    line = {"color": color, "dash": dash, "width": 2}
    mode = "lines+markers" if len(curve.x) < 2 else "lines"
    shown.add_trace(
        go.Scatter(
            x=finite(curve.x, 7),
            y=finite(curve.y),
            mode=mode,
            name=label(name),
            line=line,
            hovertemplate=hover,
            showlegend=row == 1,
            **group,
        )
    )


def _legend_only(shown: go.Figure, name: str, place: int) -> None:
    """An arm without a finished seed is named all the same."""
    color, _ = arm_style(place)
    line = {"color": color, "width": 1, "dash": "dot"}
    shown.add_trace(
        go.Scatter(
            x=[None],
            y=[None],
            mode="lines",
            name=f"{label(name)} (no finished seed)",
            line=line,
            legendgroup=_group(place),
        )
    )


def _band(curve: Curve) -> tuple[list[float | None], list[float | None]]:
    """Outlines of the interval, one closed stretch after another, parted by None."""
    known = np.isfinite(curve.low) & np.isfinite(curve.high)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(int), [0]])))
    x: list[float | None] = []
    y: list[float | None] = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        part = slice(int(start), int(end))
        x += [*finite(curve.x[part], 7), *finite(curve.x[part][::-1], 7), None]
        y += [*finite(curve.high[part]), *finite(curve.low[part][::-1]), None]
    return x, y


def _unfinished(shown: go.Figure, run: Run, place: int, axis: str, metric: str) -> None:
    """A run that gave no result: as far as it came, thin, with a cross where it ended."""
    x, y = trace(run, axis, metric)
    known = np.flatnonzero(np.isfinite(y))
    if run.status == "finished" or not len(known):
        return
    color, _ = arm_style(place)
    sizes = [0] * len(x)
    sizes[int(known[-1])] = 8
    shown.add_trace(
        go.Scatter(
            x=finite(x, 7), y=finite(y), mode="lines+markers", name=f"{label(run.arm)}, seed {run.seed}: {label(run.status)}", legendgroup=_group(place), showlegend=False,
            line={"color": color, "width": 1, "dash": "dot"}, marker={"symbol": "x", "size": sizes, "color": color}, hovertemplate="%{fullData.name}<br>%{y:.4f} at %{x:.4s}<extra></extra>",
        )
    )  # fmt: skip


def _end(runs: Sequence[Run], axis: str) -> float:
    return max((AXES[axis](run.validation[-1]) for run in runs if run.validation), default=1.0)


def _as_curve(run: Run, axis: str, metric: str) -> Curve:
    x, y = trace(run, axis, metric)
    return Curve(x, y, y, y, 1)


def _span(drawn: Iterable[Curve]) -> tuple[float, float] | None:
    """The y range that holds every mean after the steep beginning, with a little air."""
    parts: list[Array] = []
    for curve in drawn:
        late = curve.x >= curve.x[0] + SETTLED * (curve.x[-1] - curve.x[0])
        parts += [side[late] for side in (curve.y, curve.low, curve.high)]
    values = np.concatenate(parts) if parts else np.array([])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    air = 0.08 * (high - low) or 0.01
    return low - air, high + air


def _name_ends(shown: go.Figure, drawn: dict[int, Curve], span: tuple[float, float], results: Results) -> None:
    """Names at the ends of the difference lines, pushed apart; each goes with its line when the legend hides it."""
    ends = {}
    for place, curve in drawn.items():
        known = np.flatnonzero(np.isfinite(curve.y))
        if len(known):
            ends[place] = float(np.clip(curve.y[known[-1]], *span))
    step = 0.06 * (span[1] - span[0])
    right = max(float(curve.x[-1]) for curve in drawn.values()) if drawn else 0.0
    for place, y in spread(ends, step).items():
        color, _ = arm_style(place)
        name = label(results.arms[place].name, 16)
        shown.add_trace(
            go.Scatter(
                x=[right],
                y=[y],
                mode="text",
                text=[f" {name}"],
                textposition="middle right",
                textfont={"color": color, "size": 12},
                legendgroup=_group(place),
                showlegend=False,
                hoverinfo="skip",
                cliponaxis=False,
                xaxis="x2",
                yaxis="y2",
            )
        )


def spread(ends: dict[int, float], step: float) -> dict[int, float]:
    """Heights moved apart to at least `step`, in their order, as little as a single sweep around the middle allows."""
    order = sorted(ends, key=lambda place: ends[place])
    middle = len(order) // 2
    moved = dict(ends)
    for left, right in zip(order[middle:], order[middle + 1 :], strict=False):
        moved[right] = max(moved[right], moved[left] + step)
    for right, left in zip(order[: middle + 1][::-1], order[:middle][::-1], strict=False):
        moved[left] = min(moved[left], moved[right] - step)
    return moved
