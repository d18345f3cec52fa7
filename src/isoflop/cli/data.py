"""`isoflop data`: what there is to train on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from isoflop.cli.output import print_json, stdout

if TYPE_CHECKING:
    from isoflop.data import SourceRow

LANGUAGES_SHOWN = 3
"""Languages with most catalogues, in the table."""

app = typer.Typer(help="Data that is on this machine.", no_args_is_help=True)


@app.callback()
def _data() -> None:
    """Data that is on this machine."""


@app.command("list")
def list_sources(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the built-in sources: size, licence, present or not; with --json every language there is, which takes a while."""
    from isoflop.data import sources, translations

    rows = [*sources(), *translations(only=None if json else LANGUAGES_SHOWN)]
    if json:
        print_json([row._asdict() for row in rows])
        return
    _show(rows)


def _show(rows: list[SourceRow]) -> None:
    from rich.table import Table

    from isoflop.data import Task
    from isoflop.data.translation import languages

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "size", "files", "licence", "present", "what it is"):
        table.add_column(column, justify="right" if column in {"size", "files"} else "left")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.bytes / 1e6:.1f} MB",
            str(row.files),
            row.licence,
            "yes" if row.present else "no",
            row.description,
        )
    stdout.print(table)
    tasks = ", ".join(f"task:{name}" for name, kind in Task.kinds.items() if issubclass(kind, Task))
    more = f"There are catalogues of {len(languages())} languages here; --json counts the pairs of all."
    stdout.print(f"\n{more}\nPairs made on the spot: {tasks} (`isoflop kinds Pairs`).", markup=False)
    stdout.print("A path works too: a folder of text, or a .txt, .jsonl or .parquet file.", markup=False)
