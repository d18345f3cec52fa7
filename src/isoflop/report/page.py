"""One self-contained HTML page of a study: no request to anywhere, the same numbers as `results.json`.

The page's policy forbids the network and every script but the two whose hashes it names, so text from files cannot
run even if it escaped its quotes. Text is escaped by the template, data in script elements by `embed`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from isoflop.files import write_atomic
from isoflop.report import plots, words
from isoflop.report.curves import MOST_LINES
from isoflop.report.heat import drawn_arms
from isoflop.report.palette import DARK
from isoflop.report.read import Study, read_study
from isoflop.report.results import Arm, Results
from isoflop.report.series import AXES


def write_page(study_folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a study folder to `out` (`report.html` in the folder) and return its path.

    Raises `ValueError` where the folder is no study, a file is foreign, or there is no `results.json` yet.
    """
    study = read_study(study_folder)
    path = Path(study_folder) / "report.html" if out is None else Path(out)
    write_atomic(path, render(study))
    return path


def render(study: Study) -> str:
    """The page as text."""
    results = study.results
    if results is None:
        raise ValueError(f"{study.folder} must hold results.json; finish the study first, or look at its status")
    script, plotly = _asset("page.js"), get_plotlyjs()
    return _template().render(
        results=results,
        study=study.file,
        raw_results=study.raw_results,
        figures=_figures(study, results),
        finding=words.finding(results),
        remarks=words.remarks(results),
        digits=words.decimals(results),
        warnings=[words.printable(text) for text in study.warnings],
        environments=_environments(study),
        plan={
            "seeds": list(study.file.seeds),
            "match": study.file.match or {},
            "margin": study.file.margin,
            "digest": study.file.digest,
        },
        most_lines=MOST_LINES,
        panels=drawn_arms(study),
        axes=[(axis, words.AXIS_NAMES[axis]) for axis in AXES],
        dark=DARK,
        css=Markup(_asset("page.css")),
        script=Markup(script),
        plotly=Markup(plotly),
        policy=policy(script, plotly),
    )


def policy(*scripts: str) -> str:
    """Content security policy: nothing from anywhere, and only these scripts (by SHA-256)."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"


def embed(value: Any) -> Markup:
    """Strict JSON for a script element: no `<`, `>` or `&` is left that a parser could take for markup."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def exact(value: Any) -> str:
    """A value of `results.json` as JSON writes it, so that a reader of the page gets the same number back."""
    return json.dumps(value, allow_nan=False)


def number_at(arm: Arm, field: str) -> str:
    """The exact number at a dotted path of an arm."""
    value: Any = arm
    for name in field.split("."):
        value = getattr(value, name)
    return exact(value)


def _figures(study: Study, results: Results) -> dict[str, Markup | None]:
    figures: dict[str, go.Figure | None] = {"forest": plots.forest(results)}
    figures |= {f"curves-{axis}": plots.curves(study, axis) for axis in AXES}
    figures |= {"beyond": plots.beyond(results, study.file.training.get("length"))}
    figures |= {"cost": plots.cost(results), "gradients": plots.gradients(study)}
    return {
        name: None if figure is None else embed(json.loads(str(figure.to_json()))) for name, figure in figures.items()
    }


def _environments(study: Study) -> list[Mapping[str, Any]]:
    """Every environment that runs were made in, once, the load average (which differs by run) aside."""
    found: dict[str, Mapping[str, Any]] = {}
    for run in study.runs:
        if run.file and run.file.environment:
            same = {key: value for key, value in run.file.environment.items() if key != "load_average"}
            found.setdefault(json.dumps(same, sort_keys=True), run.file.environment)
    return list(found.values())


def _asset(name: str) -> str:
    return (resources.files("isoflop.report") / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    shared = {
        "pretty": words.pretty,
        "number_at": number_at,
        "exact": exact,
        "embed": embed,
        "percent": lambda share: f"{share:.0%}",
    }
    shared |= {
        "change_lines": words.change_lines,
        "knob_line": words.knob_line,
        "rate_line": words.rate_line,
        "axes_words": words.axes_words,
    }
    shared |= {
        "signed": words.signed,
        "fixed": words.number,
        "ratio": words.ratio,
        "human": words.human,
        "count": words.count,
    }
    shared |= {"probability": words.probability, "duration": words.duration}
    environment.globals.update(shared)
    return environment.from_string(_asset("page.html"))
