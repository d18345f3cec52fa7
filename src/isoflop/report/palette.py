"""Colours of figures and pages: told apart by colour-blind readers, and each with a partner for dark pages.

Light colours follow Okabe and Ito (https://jfly.uni-koeln.de/color/), darkened where a thin line on white would fall
under a contrast of 3:1. `DARK` maps every colour used in a figure to what a dark page draws instead.
"""

from __future__ import annotations

from typing import NamedTuple

INK, MUTED, GRID, PAPER = "#1f2328", "#5b6471", "#dfe3e8", "#ffffff"
BLUE, VERMILLION, GREEN, PURPLE, OCHRE = "#0072b2", "#c64f00", "#007f5c", "#a8457f", "#8f6400"
FORWARD, BACKWARD = "#777f8a", "#b9c0c8"
COMPONENTS = ("#3a5f7d", "#d08a2e", "#3d8f78", "#b0608f", "#56b4e9", "#b5a642", "#7a6bb0", "#6f8f3f")

DARK = {
    INK: "#e6e9ee",
    MUTED: "#a3acb8",
    GRID: "#2f353d",
    PAPER: "#14171b",
    BLUE: "#5cb3e8",
    VERMILLION: "#f5894c",
    GREEN: "#35c79e",
    PURPLE: "#e08fbd",
    OCHRE: "#e3b94f",
}

ARMS = (BLUE, VERMILLION, GREEN, PURPLE, OCHRE)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


class Look(NamedTuple):
    """How one verdict is drawn; the symbol and the word carry it, the colour helps."""

    color: str
    symbol: str
    terminal: str


LOOKS = {
    "better": Look(BLUE, "circle", "bold green"),
    "worse": Look(VERMILLION, "diamond", "bold red"),
    "equivalent": Look(GREEN, "square", "cyan"),
    "unresolved": Look(MUTED, "circle-open", "yellow"),
    "failed": Look(PURPLE, "x", "bold magenta"),
    "base": Look(INK, "star", "bold"),
}


def look(verdict: str) -> Look:
    """How a verdict is drawn; an unknown word looks unresolved and is still written out."""
    return LOOKS.get(verdict, LOOKS["unresolved"])


def arm_style(position: int) -> tuple[str, str]:
    """Colour and dash of the arm in this place; the base is place 0 and has the colour of text."""
    if position == 0:
        return INK, "solid"
    return ARMS[(position - 1) % len(ARMS)], DASHES[(position - 1) // len(ARMS) % len(DASHES)]
