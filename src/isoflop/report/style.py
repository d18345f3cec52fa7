"""What every figure shares. Figures need no theme of their own: `palette.DARK` has the partner of every colour."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go

from isoflop.report import words
from isoflop.report.palette import GRID, INK, MUTED

FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def label(text: str, most: int = 22) -> str:
    """A name from a file as plotly text: shortened, and with no markup of its own."""
    text = words.printable(text)
    return html.escape(text if len(text) <= most else text[: most - 1] + "…", quote=False)


def finite(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Numbers for a figure, shortened; what is not finite is a gap."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def figure(traces: Iterable[Any] = (), on: go.Figure | None = None, **layout: Any) -> go.Figure:
    """A figure (or the subplots `on`) in the house style: no template, thin grid, the page's own font."""
    shown = go.Figure() if on is None else on
    shown.add_traces(list(traces))
    shown.update_layout(
        template=go.layout.Template(),
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"font": {"family": FONT, "size": 13}, "align": "left"},
        **layout,
    )
    quiet = {
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": MUTED,
        "tickcolor": MUTED,
        "title_font": {"color": MUTED, "size": 13},
    }
    shown.update_xaxes(**quiet)
    shown.update_yaxes(**quiet)
    return shown
