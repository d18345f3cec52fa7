"""Gradient norms, block by step: where in depth and when training breaks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from isoflop.report.palette import INK, MUTED
from isoflop.report.read import Run, Study
from isoflop.report.series import gradient_table
from isoflop.report.style import figure, finite, label

COLUMNS = 3
MOST_STEPS = 80
MOST_PANELS = 12


def drawn_arms(study: Study) -> list[str]:
    """The arms that get a panel unless others are asked for: the most notable ones of a large study."""
    if study.results is None:
        return [arm.name for arm in study.file.arms][:MOST_PANELS]
    return [arm.name for arm in study.results.notable(MOST_PANELS)]


def gradients(study: Study, arms: Sequence[str] | None = None) -> go.Figure | None:
    """One panel an arm on a common logarithmic colour scale; a cross marks the step where a seed ended early.

    The norm is the median over the arm's runs, lost ones included. None where no run wrote norms by block.
    """
    names = drawn_arms(study) if arms is None else arms
    tables = {name: table for name in names if (table := gradient_table(study.of(name), MOST_STEPS)) is not None}
    logs = {name: _log10(norms) for name, (_, norms) in tables.items()}
    known = [values[np.isfinite(values)] for values in logs.values()]
    if not tables or not sum(map(len, known)):
        return None
    low, high = np.percentile(np.concatenate(known), [1, 99])
    columns = min(COLUMNS, len(tables))
    rows = -(-len(tables) // columns)
    deep = max(len(values) for values in logs.values())
    height = max(110, 14 * deep)
    total = 80 + rows * (height + 62)
    grid = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[label(name, 30) for name in tables],
        horizontal_spacing=0.07,
        vertical_spacing=62 / (total - 80) if rows > 1 else 0,
    )
    shown = figure(
        on=grid, height=total, margin={"l": 52, "r": 10, "t": 30, "b": 54}, coloraxis=_scale(float(low), float(high))
    )
    for place, (name, (steps, norms)) in enumerate(tables.items()):
        row, column = place // columns + 1, place % columns + 1
        _panel(shown, row, column, steps, norms, logs[name])
        _ends(shown, row, column, study.of(name), len(norms))
        shown.update_xaxes(
            title={"text": "step" if place >= len(tables) - columns else None, "standoff": 4},
            showgrid=False,
            row=row,
            col=column,
        )
        shown.update_yaxes(
            title_text="block" if column == 1 else None,
            showgrid=False,
            dtick=max(1, deep // 6),
            range=[-0.5, len(norms) - 0.1],
            row=row,
            col=column,
        )
    shown.update_annotations(font={"size": 13, "color": INK})
    return shown


def _log10(norms: np.ndarray) -> np.ndarray:
    return np.log10(norms, out=np.full_like(norms, np.nan), where=norms > 0)


def _panel(shown: go.Figure, row: int, column: int, steps: np.ndarray, norms: np.ndarray, logs: np.ndarray) -> None:
    heat = go.Heatmap(
        x=[int(step) for step in steps], z=[finite(line, 4) for line in logs], customdata=[finite(line, 3) for line in norms], coloraxis="coloraxis",
        hovertemplate="block %{y}, step %{x}: gradient norm %{customdata:.3g}<extra></extra>", hoverongaps=False,
    )  # fmt: skip
    shown.add_trace(heat, row=row, col=column)


def _ends(shown: go.Figure, row: int, column: int, runs: Sequence[Run], depth: int) -> None:
    """A cross above the panel's last block at each lost seed's last step."""
    lost = [run for run in runs if run.status in ("diverged", "failed") and run.train]
    if not lost:
        return
    text = [f"seed {run.seed} {run.status} after step {run.train[-1].step}" for run in lost]
    marker = {"symbol": "x", "size": 9, "color": INK}
    cross = go.Scatter(
        x=[run.train[-1].step for run in lost],
        y=[depth - 0.3] * len(lost),
        mode="markers",
        marker=marker,
        hovertext=text,
        hoverinfo="text",
        showlegend=False,
        cliponaxis=False,
    )
    shown.add_trace(cross, row=row, col=column)


def _scale(low: float, high: float) -> dict[str, object]:
    """Cividis (legible to colour-blind readers) over powers of ten, ticks at 1, 2 and 5."""
    exponents = range(int(np.floor(low)) - 1, int(np.ceil(high)) + 1)
    ticks = [np.log10(lead) + e for e in exponents for lead in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) > 8:
        ticks = [float(e) for e in exponents if low <= e <= high]
    bar = {
        "title": {"text": "gradient<br>norm", "font": {"color": MUTED, "size": 12}},
        "tickvals": ticks,
        "ticktext": [f"{10**tick:.3g}" for tick in ticks],
        "thickness": 12,
        "lenmode": "pixels",
        "len": 220,
        "y": 1.0,
        "yanchor": "top",
        "outlinewidth": 0,
    }
    return {"colorscale": "Cividis", "cmin": low, "cmax": max(high, low + 1e-6), "colorbar": bar}
