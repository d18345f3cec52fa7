"""The forest plot: every arm's difference to the base with its interval, its seeds, and what counts as noise."""

from __future__ import annotations

import html

import plotly.graph_objects as go

from isoflop.report import words
from isoflop.report.palette import BLUE, INK, MUTED, VERMILLION, look
from isoflop.report.results import Arm, Results
from isoflop.report.style import figure, label

ROW = 40
"""Pixels of an arm's row."""
OUTLIER = 6
"""An arm this many times further out than the median arm is drawn at the edge, so that the others stay legible."""


def forest(results: Results) -> go.Figure:
    """Difference to the base, one row an arm: mean with its paired interval, every seed, the noise band, the margin.

    Every arm has exactly one mark in the traces named `mean` (or `none`, for an arm without a finished pair).
    """
    arms, limit = results.arms, _limit(results)
    rows = {arm.name: len(arms) - 1 - i for i, arm in enumerate(arms)}
    shown = figure(
        [_seed_dots(results, rows, limit), *(_mean_mark(arm, rows[arm.name], limit, results) for arm in arms)],
        height=130 + ROW * len(arms),
        margin={"l": 10, "r": 215, "t": 62, "b": 56},
        showlegend=False,
        hovermode="closest",
    )
    title = f"arm minus base, {html.escape(results.unit, quote=False)} ({results.confidence:.0%} interval)"
    shown.update_xaxes(range=[-limit, limit], title={"text": title, "standoff": 10}, tickformat="~g", nticks=9)
    names = ["<b>" + label(arm.name) + "</b>" if arm.is_base else label(arm.name) for arm in arms]
    shown.update_yaxes(
        tickvals=list(rows.values()),
        ticktext=names,
        range=[-0.6, len(arms) - 0.4],
        showgrid=False,
        automargin=True,
        ticks="",
    )
    sides = [_side(arm, rows[arm.name], results) for arm in arms]
    shown.update_layout(shapes=_shapes(results), annotations=[*sides, *_headings(results)])
    return shown


def _limit(results: Results) -> float:
    """Half the width of the forest's axis: every interval and seed but those of outlying arms, band and margin too."""
    reach = sorted(max(map(abs, _extent(arm)), default=0.0) for arm in results.compared)
    reach = [value for value in reach if value > 0]
    references = [value for value in (results.noise and results.noise.band, results.margin) if value]
    typical = max([reach[len(reach) // 2] if reach else 0.0, *references], default=0.0)
    inside = [value for value in reach if value <= OUTLIER * typical]
    return 1.08 * max([*inside, *references], default=1.0)


def _extent(arm: Arm) -> list[float]:
    d = arm.measured
    return [v for v in (d.low, d.high, d.mean, *d.values.values()) if v is not None] if d else []


def _base_deviations(results: Results) -> dict[int, float]:
    base = results.base
    return {run.seed: run.value - base.mean for run in base.runs if run.value is not None and base.mean is not None}


def _seed_dots(results: Results, rows: dict[str, int], limit: float) -> go.Scatter:
    """Every seed as a faint dot, spread vertically by its place so that equal values stay visible."""
    x, y, text = [], [], []
    for arm in results.arms:
        values = _base_deviations(results) if arm.is_base else (arm.difference.values if arm.difference else {})
        for place, (seed, value) in enumerate(values.items()):
            x.append(min(limit, max(-limit, value)))
            y.append(rows[arm.name] + 0.44 * ((place * 0.618034) % 1 - 0.5))
            against = "base's mean" if arm.is_base else "base"
            text.append(f"{label(arm.name, 60)}, seed {seed}: {value:+.5f} against {against}")
    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        name="seeds",
        marker={"size": 5, "color": MUTED, "opacity": 0.55},
        hovertext=text,
        hoverinfo="text",
        cliponaxis=False,
    )


def _mean_mark(arm: Arm, row: int, limit: float, results: Results) -> go.Scatter:
    style, d = look(arm.verdict), arm.measured
    if d is None and not arm.is_base:
        why = f"no finished pair of seeds ({words.lost_words(arm) or 'none was run'})"
        return go.Scatter(
            x=[0], y=[row], mode="text", text=[why], textfont={"color": style.color}, name="none", hoverinfo="skip"
        )
    mean, low, high = (d.mean, d.low, d.high) if d is not None else (0.0, None, None)
    assert mean is not None
    outside = abs(mean) > limit
    symbol = ("arrow-right" if mean > 0 else "arrow-left") if outside else style.symbol
    x = min(limit, max(-limit, mean))
    error = (
        {
            "type": "data",
            "array": [min(limit, high) - x],
            "arrayminus": [x - max(-limit, low)],
            "color": style.color,
            "thickness": 2,
            "width": 5,
        }
        if low is not None and high is not None and not outside
        else None
    )
    marker = {
        "size": 12,
        "symbol": symbol,
        "color": style.color,
        "line": {"color": style.color, "width": 2 if style.symbol.endswith("open") else 0},
    }
    return go.Scatter(
        x=[x],
        y=[row],
        mode="markers",
        name="mean",
        marker=marker,
        error_x=error,
        hovertext=[_hover(arm, results)],
        hoverinfo="text",
        cliponaxis=False,
    )


def _hover(arm: Arm, results: Results) -> str:
    if arm.is_base:
        return f"<b>{label(arm.name, 60)}</b>: mean {words.number(arm.mean)} {html.escape(results.unit, quote=False)}, sd {words.number(arm.sd)}, n {arm.n}"
    d = arm.difference
    assert d is not None
    lines = [
        f"<b>{label(arm.name, 60)}</b>: {label(arm.verdict)}",
        f"difference {words.signed(d.mean, 5)} {words.interval(d.low, d.high, 5)}",
    ]
    lines += [f"Holm p {words.probability(d.p_holm)} (raw p {words.probability(d.p)}), n {d.n}, lost {arm.lost}"]
    return "<br>".join(lines)


def _side(arm: Arm, row: int, results: Results) -> dict[str, object]:
    """The verdict word with the numbers, at the right of the row."""
    d, digits = arm.measured, words.decimals(results)
    text = f"<b>{label(arm.verdict)}</b>"
    if arm.is_base:
        text += f"  {words.number(arm.mean, 3)} (n = {arm.n})"
    elif d is not None:
        text += words.pretty(f"  {words.signed(d.mean, digits)}<br>{words.interval(d.low, d.high, digits)}")
    place = {"x": 1.0, "xref": "paper", "xanchor": "left", "xshift": 10, "y": row, "showarrow": False, "align": "left"}
    return {"text": text, "font": {"color": look(arm.verdict).color, "size": 12}, **place}


def _shapes(results: Results) -> list[dict[str, object]]:
    """The noise band, the margin and zero, over the whole height."""
    whole = {"y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    shapes: list[dict[str, object]] = []
    if results.noise and results.noise.band:
        band = results.noise.band
        fill = {"fillcolor": MUTED, "opacity": 0.16, "line": {"width": 0}}
        shapes.append({"type": "rect", "name": "noise", "x0": -band, "x1": band, **fill, **whole})
    for edge in (-results.margin, results.margin) if results.margin else ():
        dotted = {"color": MUTED, "width": 1, "dash": "dot"}
        shapes.append({"type": "line", "name": "margin", "x0": edge, "x1": edge, "line": dotted, **whole})
    return [*shapes, {"type": "line", "name": "zero", "x0": 0, "x1": 0, "line": {"color": INK, "width": 1}, **whole}]


def _headings(results: Results) -> list[dict[str, object]]:
    """Labels above the plot: what the band and the dotted lines are, and which side is better."""
    top = {"yref": "paper", "y": 1.0, "yanchor": "bottom", "showarrow": False}
    small = {"font": {"size": 11, "color": MUTED}, **top}
    notes: list[dict[str, object]] = [
        {
            "x": 0.0,
            "xref": "paper",
            "xanchor": "left",
            "text": "◀ better than base",
            "font": {"size": 12, "color": BLUE},
            "yshift": 36,
            **top,
        },
        {
            "x": 1.0,
            "xref": "paper",
            "xanchor": "right",
            "text": "worse than base ▶",
            "font": {"size": 12, "color": VERMILLION},
            "yshift": 36,
            **top,
        },
    ]
    if results.noise and results.noise.band:
        notes.append({"x": 0, "text": f"noise of base ±{results.noise.band:.3g}", "yshift": 2, **small})
    if results.margin:
        notes.append({"x": results.margin, "text": f"margin ±{results.margin:.3g}", "yshift": 18, **small})
    return notes
