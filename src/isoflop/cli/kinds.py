"""`isoflop kinds`: what can be declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from isoflop.cli.output import print_json, stdout

if TYPE_CHECKING:
    from isoflop.catalogue import KindEntry


def kinds(
    name: Annotated[
        str | None, typer.Argument(help="A slot (Norm), a kind (rms), or both (Norm.rms); all when absent.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of an architecture file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False,
    plugin: Annotated[list[str] | None, typer.Option("--plugin", help="A module with kinds of your own.")] = None,
) -> None:
    """List every slot and kind with formula, source, fields and defaults."""
    import isoflop.train  # noqa: F401  # registers the kinds of recipes and data, beside those of the model
    from isoflop.catalogue import catalogue
    from isoflop.model import Architecture
    from isoflop.recipes.plugins import register_entry_points, register_modules

    register_entry_points()
    register_modules(plugin or [])
    if schema:
        if name is not None:
            raise typer.BadParameter("describes a whole file; it goes with no NAME", param_hint="--schema")
        print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Architecture.model_json_schema()})
        return
    entries = _chosen(catalogue(), name)
    if json:
        print_json([entry.dump() for entry in entries])
    elif name is None:
        _overview(entries)
    else:
        for entry in entries:
            _details(entry)


def _chosen(entries: list[KindEntry], name: str | None) -> list[KindEntry]:
    from isoflop.spec import SpecError, did_you_mean

    if name is None:
        return entries
    wanted = name.lower()
    found = [e for e in entries if wanted in {e.slot.lower(), e.kind.lower(), f"{e.slot}.{e.kind}".lower()}]
    if not found:
        known = dict.fromkeys([e.slot for e in entries] + [e.kind for e in entries])
        raise SpecError(f"{name!r} is neither a slot nor a kind.{did_you_mean(name, known)}")
    return found


def _overview(entries: list[KindEntry]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("slot", "kind", "what it is"):
        table.add_column(column, overflow="fold")
    last = None
    for entry in entries:
        if last is not None and entry.slot != last:
            table.add_row()
        kind = f"{entry.kind} *" if entry.default else entry.kind
        table.add_row(entry.slot if entry.slot != last else "", kind, entry.summary)
        last = entry.slot
    stdout.print(table, markup=False)
    stdout.print("\n* the default of its slot. `isoflop kinds NAME` shows formula, source and fields.", markup=False)


def _details(entry: KindEntry) -> None:
    stdout.print(f"[bold]{entry.slot}.{entry.kind}[/bold]" + ("  (default)" if entry.default else ""))
    for text in (entry.text, entry.formula and f"formula  {entry.formula}", entry.paper and f"source   {entry.paper}"):
        if text:
            stdout.print(text, markup=False, highlight=False)
    for field in entry.fields:
        default = (
            "must be given" if field.required else f"default {'absent' if field.default is None else field.default}"
        )
        stdout.print(f"  {field.name:<12} {field.takes} ({default})", markup=False, highlight=False)
    stdout.print()
