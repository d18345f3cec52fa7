"""The figures of a report by name; each is a function of the data and returns a plotly figure."""

from __future__ import annotations

from isoflop.report.beyond import beyond
from isoflop.report.costs import cost
from isoflop.report.curves import curves
from isoflop.report.forest import forest
from isoflop.report.heat import gradients

__all__ = ["beyond", "cost", "curves", "forest", "gradients"]
