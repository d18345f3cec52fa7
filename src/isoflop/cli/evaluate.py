"""`isoflop evaluate`: the validation of a run again, at other lengths or on more text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoflop.cli.output import note, print_json, stdout

if TYPE_CHECKING:
    from rich.table import Table


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    lengths: Annotated[
        str | None, typer.Option(help="Lengths of windows, as 64,128,256; those of the run when absent.")
    ] = None,
    windows: Annotated[
        int | None, typer.Option(min=1, help="Windows of the training length to evaluate; as in the run when absent.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A file to write the JSON to.")] = None,
    plugin: Annotated[list[str] | None, typer.Option("--plugin", help="A module with kinds of your own.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate a run's model on its validation text and its further sets. Nothing is written without --out."""
    from isoflop.files import write_json
    from isoflop.recipes.plugins import register_entry_points, register_modules
    from isoflop.spec import SpecError
    from isoflop.train import evaluate_run

    register_entry_points()
    register_modules(plugin or [], beside=Path())
    try:
        found = evaluate_run(folder, None if lengths is None else _numbers(lengths), windows)
    except SpecError as error:
        [problem, *_] = error.problems
        if problem.path != ("evaluate_lengths",):
            raise
        raise typer.BadParameter(problem.message, param_hint="--lengths") from None
    if not found["same_text"]:
        note("the source has changed since the run: its validation text may hold what the run was trained on")
    if out is not None:
        write_json(out, found)
    if json:
        print_json(found)
    else:
        stdout.print(f"step {found['step']}", markup=False)
        rows = [{"set": "validation", **found["validation"]}, *found["sets"]]
        # A set that is the validation text again says more of it: which answers were right.
        stdout.print(set_table(list({(row["set"], row["length"]): row for row in rows}.values())))


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        message = f"must be whole numbers with commas between, as 64,128, came {text!r}"
        raise typer.BadParameter(message, param_hint="--lengths") from None


def set_table(rows: list[dict[str, Any]]) -> Table:
    """A line for each set of run.json; shares of right answers where they were counted."""
    from rich.table import Table

    answered = any("exact_match" in row for row in rows)
    table = Table(box=None, pad_edge=False)
    for name in ("set", "length", "bits/byte", "nats/token", "targets", *(("exact match",) if answered else ())):
        table.add_column(name, justify="left" if name == "set" else "right")
    for row in rows:
        cells = [_decimals(row["bits_per_byte"]), _decimals(row["loss"]), f"{row['targets']:,}"]
        exact = [f"{row['exact_match']:.1%}" if "exact_match" in row else "-"] if answered else []
        table.add_row(row["set"], str(row["length"]), *cells, *exact)
    return table


def _decimals(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"
