"""What the arms came to beyond their training: over the length of a window, and inside of the longest one.

Left, the metric on every set against its length; right, for text, against the place in the longest window, or, for
answers, how many are right. Both panels name an arm by the same colour, and the legend switches it in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from isoflop.report.curves import MOST_LINES, spread
from isoflop.report.palette import MUTED, arm_style
from isoflop.report.results import Arm, Results, SetArm, SetOutcome
from isoflop.report.style import figure, finite, label

Line = tuple[list[Any], list[float | None], list[tuple[float, float] | None]]
"""x (a length, or the words for a part of a window), y, and the interval of each y where there is one."""


def beyond(results: Results, trained: int | None) -> go.Figure | None:
    """The figure; None where nothing was evaluated beyond the training.

    Args:
        trained: the length of the training, which a dotted line marks.
    """
    if not results.sets:
        return None
    panels = [(_over_sets(results), _LENGTHS, results.unit), *_second_panel(results)]
    grid = make_subplots(rows=1, cols=len(panels), horizontal_spacing=0.1, column_widths=[0.5] * len(panels))
    shown = figure(
        on=grid,
        height=470,
        margin={"l": 10, "r": 130, "t": 30, "b": 52},
        hovermode="closest",
        legend={"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0},
    )
    first = {arm.name for arm in results.notable(MOST_LINES)}
    for column, (lines, title, unit) in enumerate(panels, start=1):
        for place, arm in enumerate(results.arms):
            if arm.name in lines:
                _draw(shown, column, arm, place, lines[arm.name], unit, visible=arm.name in first)
        shown.update_xaxes(**_scale(lines), title={"text": title, "standoff": 8}, col=column)
        shown.update_yaxes(title={"text": unit}, tickformat="~g", automargin=True, range=_span(lines), col=column)
    if trained is not None:
        _mark_training(shown, trained)
    _name_ends(shown, len(panels), panels[-1][0], results, first)
    return shown


_LENGTHS = "tokens of a window"


def _over_sets(results: Results) -> dict[str, Line]:
    sets = sorted(results.sets, key=lambda row: row.length)
    return {arm.name: _line([(row.length, row.of(arm.name)) for row in sets]) for arm in results.arms}


def _second_panel(results: Results) -> Iterator[tuple[dict[str, Line], str, str]]:
    """By place in the longest window, or the share of right answers; nothing for a single window length."""
    longest = max(results.sets, key=lambda row: row.length)
    if any(arm.by_position for arm in longest.arms):
        lines = {arm.name: _inside(arm) for arm in longest.arms}
        yield lines, f"place in a window of {longest.length}", results.unit
    elif any(arm.exact_match is not None for arm in longest.arms):
        sets = sorted(results.sets, key=lambda row: row.length)
        yield {arm.name: _answers(sets, arm.name) for arm in results.arms}, _LENGTHS, "answers without a wrong token"


def _line(points: Sequence[tuple[int, SetArm]]) -> Line:
    intervals = [None if a.low is None or a.high is None else (float(a.low), float(a.high)) for _, a in points]
    return [float(x) for x, _ in points], [a.mean for _, a in points], intervals


def _inside(arm: SetArm) -> Line:
    parts = [f"{part['from']}–{part['to']}" for part in arm.by_position]  # a range
    return parts, [part["mean"] for part in arm.by_position], [None] * len(parts)


def _answers(sets: Sequence[SetOutcome], name: str) -> Line:
    return [float(row.length) for row in sets], [row.of(name).exact_match for row in sets], [None] * len(sets)


def _scale(lines: dict[str, Line]) -> dict[str, Any]:
    """A logarithmic axis with a tick at every length; parts of a window side by side."""
    ticks = list(dict.fromkeys(x for line in lines.values() for x in line[0]))
    if isinstance(ticks[0], str):
        return {"type": "category"}
    return {"type": "log", "tickvals": sorted(ticks), "ticktext": [f"{x:g}" for x in sorted(ticks)]}


def _span(lines: dict[str, Line]) -> list[float] | None:
    """The y range of all means with air; the intervals of few seeds may reach beyond it."""
    values = [y for line in lines.values() for y in line[1] if y is not None]
    if not values:
        return None
    air = 0.12 * (max(values) - min(values)) or 0.01
    return [min(values) - air, max(values) + air]


def _draw(shown: go.Figure, column: int, arm: Arm, place: int, line: Line, unit: str, *, visible: bool) -> None:
    color, dash = arm_style(place)
    x, y, intervals = line
    known = [value if value is not None else float("nan") for value in y]
    up = [0.0 if bounds is None else bounds[1] - value for bounds, value in zip(intervals, known, strict=True)]
    down = [0.0 if bounds is None else value - bounds[0] for bounds, value in zip(intervals, known, strict=True)]
    error = {
        "type": "data",
        "array": finite(up),
        "arrayminus": finite(down),
        "color": color,
        "thickness": 1.2,
        "width": 3,
    }
    shown.add_trace(
        go.Scatter(
            x=x,
            y=finite(known),
            mode="lines+markers",
            name=label(arm.name),
            line={"color": color, "dash": dash, "width": 2},
            marker={"size": 6, "color": color},
            error_y=error if any(up) else None,
            legendgroup=f"arm {place}",
            showlegend=column == 1,
            visible=True if visible else "legendonly",
            hovertemplate=f"%{{fullData.name}}: %{{y:.4f}} {label(unit, 40)} at %{{x}}<extra></extra>",
        ),
        row=1,
        col=column,
    )


def _mark_training(shown: go.Figure, trained: int) -> None:
    shown.add_vline(x=trained, line={"color": MUTED, "width": 1, "dash": "dot"}, row=1, col=1)  # type: ignore[arg-type]
    note = {"text": f"trained on {trained}", "showarrow": False, "font": {"size": 11, "color": MUTED}}
    shown.add_annotation(x=math.log10(trained), xref="x", y=1.0, yref="paper", yanchor="bottom", **note)


def _name_ends(shown: go.Figure, column: int, lines: dict[str, Line], results: Results, first: set[str]) -> None:
    """Names behind the last points of the last panel, pushed apart."""
    ends = {
        place: float(y)
        for place, arm in enumerate(results.arms)
        if arm.name in lines and arm.name in first and (y := lines[arm.name][1][-1]) is not None
    }
    low, high = _span(lines) or (0.0, 1.0)
    step = 0.05 * (high - low)
    for place, y in spread(ends, step).items():
        arm = results.arms[place]
        shown.add_trace(
            go.Scatter(
                x=[lines[arm.name][0][-1]],
                y=[y],
                mode="text",
                text=[f"  {label(arm.name, 16)}"],
                textposition="middle right",
                textfont={"color": arm_style(place)[0], "size": 12},
                legendgroup=f"arm {place}",
                showlegend=False,
                hoverinfo="skip",
                cliponaxis=False,
            ),
            row=1,
            col=column,
        )
