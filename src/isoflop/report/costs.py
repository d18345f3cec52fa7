"""Cost of every arm: parameters by component and FLOPs a token, as stacked bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from isoflop.report import words
from isoflop.report.palette import BACKWARD, COMPONENTS, FORWARD
from isoflop.report.results import Arm, Cost, Results
from isoflop.report.style import figure, label


def cost(results: Results) -> go.Figure | None:
    """Left parameters by component, right training FLOPs a token (forward, backward), one row an arm; totals written out."""
    priced = [(arm, arm.cost) for arm in results.arms if arm.cost is not None]
    if not priced:
        return None
    grid = make_subplots(
        rows=1,
        cols=2,
        shared_yaxes=True,
        horizontal_spacing=0.09,
        subplot_titles=["parameters by component", "training FLOPs per token"],
    )
    layout = {
        "height": 140 + 26 * len(priced),
        "barmode": "stack",
        "bargap": 0.35,
        "margin": {"l": 10, "r": 60, "t": 34, "b": 46},
    }
    shown = figure(
        on=grid,
        legend={"orientation": "h", "y": -46 / (60 + 26 * len(priced)), "yanchor": "top", "traceorder": "normal"},
        **layout,
    )
    rows = list(range(len(priced)))
    components = dict.fromkeys(name for _, c in priced for name, count in c.components.items() if count)
    for place, name in enumerate(components):
        _bars(shown, 1, rows, [c.components.get(name, 0) for _, c in priced], name, COMPONENTS[place % len(COMPONENTS)])
    forward = [c.forward_flops_per_token or 0 for _, c in priced]
    _bars(shown, 2, rows, forward, "forward FLOPs", FORWARD)
    _bars(shown, 2, rows, [_backward(c) for _, c in priced], "backward FLOPs", BACKWARD)
    _totals(shown, 1, rows, [c.parameters for _, c in priced], "{:,}".format)
    _totals(shown, 2, rows, [c.training_flops_per_token or 0 for _, c in priced], words.human)
    shown.update_annotations(font_size=13)
    shown.update_yaxes(
        tickvals=rows,
        ticktext=[_name(arm) for arm, _ in priced],
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
        automargin=True,
    )
    shown.update_xaxes(exponentformat="SI", nticks=5, rangemode="tozero")
    return shown


def _name(arm: Arm) -> str:
    return f"<b>{label(arm.name)}</b>" if arm.is_base else label(arm.name)


def _backward(cost: Cost) -> float:
    return max(0.0, (cost.training_flops_per_token or 0) - (cost.forward_flops_per_token or 0))


def _bars(shown: go.Figure, column: int, rows: list[int], values: Sequence[float], name: str, color: str) -> None:
    bars = go.Bar(
        x=values,
        y=rows,
        orientation="h",
        name=label(name),
        marker={"color": color},
        hovertemplate="%{fullData.name}: %{x:,.0f}<extra></extra>",
    )
    shown.add_trace(bars, row=1, col=column)


def _totals(
    shown: go.Figure, column: int, rows: list[int], values: Sequence[float], written: Callable[[float], str]
) -> None:
    text = [f" {written(value)}" for value in values]
    shown.add_trace(
        go.Scatter(
            x=values,
            y=rows,
            mode="text",
            text=text,
            textposition="middle right",
            showlegend=False,
            hoverinfo="skip",
            cliponaxis=False,
        ),
        row=1,
        col=column,
    )
