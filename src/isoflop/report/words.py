"""Numbers and findings in words, the same in the terminal and on the page. Plain ASCII; the page prettifies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from isoflop.report.results import Arm, Results, SetArm

NONE = "-"
AXIS_NAMES = {"steps": "steps", "tokens": "tokens", "flops": "FLOPs", "seconds": "seconds"}


def printable(text: str) -> str:
    """Text from a file with control characters written out, so that it cannot steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def pretty(text: object) -> str:
    """Typographic signs for numbers written in ASCII: a hyphen before a digit is a minus, `+-` is `±`, `1.0x` is `1.0×`."""
    shown = re.sub(r"(?<=\d)x\b", "×", str(text).replace("+-", "±"))
    return re.sub(r"(?<![^\W_])-(?=\d)", "−", shown)


def decimals(results: Results) -> int:
    """Decimals that show three digits of a typical interval's half-width."""
    widths = [
        d.high - d.low for arm in results.compared if (d := arm.measured) and d.high is not None and d.low is not None
    ]
    widths = sorted(width / 2 for width in widths if width > 0)
    if not widths:
        return 4
    return min(7, max(2, 2 - math.floor(math.log10(widths[len(widths) // 2]))))


def number(value: float | None, digits: int = 4) -> str:
    """Fixed decimals, or `-` for no number."""
    return NONE if value is None else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 4) -> str:
    """Fixed decimals with a sign."""
    return NONE if value is None else f"{value:+.{digits}f}"


def interval(low: float | None, high: float | None, digits: int = 4) -> str:
    """`[low, high]` with signs."""
    return NONE if low is None or high is None else f"[{low:+.{digits}f}, {high:+.{digits}f}]"


def probability(value: float | None) -> str:
    """Three decimals, never a p of zero."""
    if value is None:
        return NONE
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def ratio(value: float | None) -> str:
    """Arm over base."""
    return NONE if value is None else f"{value:.3f}x"


def human(value: float | None) -> str:
    """A count with three digits and k, M, G, T, P or E."""
    if value is None:
        return NONE
    for factor, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g}{unit}" if value / factor < 999.5 else f"{value / factor:.0f}{unit}"
    return f"{value:.3g}"


def count(value: float | None) -> str:
    """A whole number with thousands set off."""
    return NONE if value is None else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours, whatever reads best."""
    if seconds is None:
        return NONE
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def change_lines(change: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """A nested change as TOML-like lines: `attention.heads = 8`."""
    for key, value in change.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from change_lines(value, f"{path}.")
        else:
            yield f"{path} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return '"default"'
    return '"' + printable(value).replace('"', '\\"') + '"' if isinstance(value, str) else repr(value)


def knob_line(arm: Arm) -> str | None:
    """How the arm was brought to the base's budget, and how far off it stayed."""
    if not arm.knob:
        return None
    knob = {name: value for name, value in arm.knob.items() if value is not None}
    line = f"{knob['field']} = {_toml(knob.get('value'))}" if "field" in knob else "as it stands"
    if "budget" in knob:
        line += f" for equal {knob['budget']}" if "field" in knob else f", equal in {knob['budget']}"
    if "arm" in knob and "base" in knob:
        line += f": {knob['arm']:,} against {knob['base']:,}"
    return line + (f" ({100 * knob['residual']:+.2f} %)" if "residual" in knob else "")


def rate_line(arm: Arm) -> str | None:
    """The rate that a sweep chose for the arm, and what it chose from."""
    if not arm.rates:
        return None
    points = ", ".join(f"{point['rate']:g}: {number(point['value'])}" for point in arm.rates["curve"])
    edge = "; the best lies at the edge of the grid, a better one may lie beyond" if arm.rates["at_edge"] else ""
    return f"rate = {arm.rates['chosen']:g}, tuned on other seeds ({points}{edge}); sensitivity {number(arm.rates['sensitivity'])}"


def finding(results: Results) -> str:
    """One sentence: how many arms differ, and how fine this study could see."""
    compared = results.compared
    if not compared:
        return _capital(f"only the base was run; {_noise(results)}.")
    better = [printable(arm.name) for arm in compared if arm.verdict == "better"]
    worse = [printable(arm.name) for arm in compared if arm.verdict == "worse"]
    count = len(better) + len(worse)
    arms = (
        "1 arm differs"
        if len(compared) == 1 and count
        else f"{count} of {len(compared)} arms {'differs' if count == 1 else 'differ'}"
    )
    if not count:
        arms = "no arm differs"
    named = "; ".join(f"{word}: {_listed(names)}" for word, names in (("better", better), ("worse", worse)) if names)
    return _capital(f"{arms} from base after Holm correction{f' ({named})' if named else ''}; {_noise(results)}.")


def _noise(results: Results) -> str:
    if results.noise is None or results.noise.band is None:
        return "noise floor unknown (fewer than two seeds)"
    return f"noise floor +-{results.noise.band:.{decimals(results)}f} {results.unit}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _listed(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def remarks(results: Results) -> list[str]:
    """What a reader must know beside the table: seeds needed, arms that win on some axes only, lost seeds."""
    lines: list[str] = []
    unresolved = [arm for arm in results.compared if arm.verdict == "unresolved"]
    needed = [
        f"{printable(a.name)} {_seeds(a.difference.seeds_needed)}"
        for a in unresolved
        if a.difference and a.difference.seeds_needed
    ]
    if needed:
        lines.append(f"Seeds needed to resolve: {_listed(needed, 8)} (this study: {results.base.n}).")
    split: dict[str, list[str]] = {}
    for arm in results.compared:
        if arm.axes and len(set(arm.axes.values())) > 1:
            split.setdefault(axes_words(arm), []).append(printable(arm.name))
    lines += [
        f"{_listed(names, 8)} {'depends' if len(names) == 1 else 'depend'} on the axis: {text}."
        for text, names in split.items()
    ]
    tuned = [
        f"{printable(arm.name)} {arm.rates['chosen']:g}{' (edge of the grid)' if arm.rates['at_edge'] else ''}"
        for arm in results.arms
        if arm.rates
    ]
    lines += [f"Rates, tuned on other seeds: {_listed(tuned, 8)}."] if tuned else []
    lines += [sentence] if (sentence := _longest(results)) else []
    lost = [f"{printable(arm.name)} {lost_words(arm)}" for arm in results.arms if arm.lost]
    return [*lines, f"Lost seeds: {_listed(lost, 8)}."] if lost else lines


def _longest(results: Results) -> str | None:
    """One sentence on the longest set: the arm that is best there and the one that is worst, against their training."""
    if not results.sets:
        return None
    longest = max(results.sets, key=lambda row: row.length)
    ranked = sorted((arm for arm in longest.arms if arm.mean is not None), key=lambda arm: arm.mean or 0.0)
    if len(ranked) < 2:
        return None
    best, worst = (f"{printable(arm.name)} {_with_change(arm)}" for arm in (ranked[0], ranked[-1]))
    return f"On {printable(longest.set)} the lowest is {best}, the highest {worst}; in brackets against training."


def _with_change(arm: SetArm) -> str:
    return f"{number(arm.mean, 3)} ({signed(arm.change.mean if arm.change else None, 3)})"


def _seeds(needed: int) -> str:
    """A number of seeds; the statistics count no further than a thousand."""
    return "1000 or more" if needed >= 1000 else str(needed)


def lost_words(arm: Arm) -> str:
    """`2 diverged, 1 failed`."""
    return ", ".join(f"{count} {word}" for count, word in ((arm.diverged, "diverged"), (arm.failed, "failed")) if count)


def axes_words(arm: Arm) -> str:
    """`better on steps, tokens; unresolved on seconds`."""
    groups: dict[str, list[str]] = {}
    for axis, verdict in (arm.axes or {}).items():
        groups.setdefault(verdict, []).append(AXIS_NAMES.get(axis, axis))
    if len(groups) == 1:
        return f"{next(iter(groups))} on every axis"
    return "; ".join(f"{verdict} on {', '.join(axes)}" for verdict, axes in groups.items())
