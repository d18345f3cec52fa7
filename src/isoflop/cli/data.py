"""`isoflop data`: what there is to train on."""

from __future__ import annotations

from typing import Annotated

import typer

from isoflop.cli.output import print_json, stdout

app = typer.Typer(help="Data that is on this machine.", no_args_is_help=True)


@app.callback()
def _data() -> None:
    """Data that is on this machine."""


@app.command("list")
def list_sources(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the built-in sources: size, licence, present or not."""
    from isoflop.data import sources

    rows = sources()
    if json:
        print_json([row._asdict() for row in rows])
        return
    from rich.table import Table

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
    stdout.print("\nA path works too: a folder of text, or a .txt, .jsonl or .parquet file.", markup=False)
