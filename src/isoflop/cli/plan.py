"""`isoflop plan`: what an architecture costs before it is trained."""

from __future__ import annotations

from typing import Annotated

import typer

from isoflop.cli.output import print_json, stdout


def plan(
    file: Annotated[str, typer.Argument(help="A recipe's name, an architecture file or a run folder.")],
    change: Annotated[list[str] | None, typer.Argument(help="Fields to change, as attention.heads=8.")] = None,
    length: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 1024,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count parameters, FLOPs and KV cache of an architecture; nothing is allocated."""
    from isoflop.plan import price
    from isoflop.recipes import load_file
    from isoflop.spec import parse_assignments

    cost = price(load_file(file, parse_assignments(change or [])).architecture, length)
    if json:
        print_json(cost.dump())
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = [("parameters", cost.parameters), *((f"  {name}", count) for name, count in cost.components.items())]
    rows += [
        ("FLOPs per token, forward (causal pairs)", round(cost.forward_flops_per_token)),
        ("FLOPs per token, forward (all pairs)", round(cost.forward_flops_per_token_full)),
        ("FLOPs per token, training (causal pairs)", round(cost.training_flops_per_token)),
    ]
    if cost.kv_elements_per_token:  # an encoder keeps no cache
        rows.append(("KV cache bytes per token (bf16)", cost.kv_bytes_per_token()))
    if cost.kv_elements_per_source_token:
        rows.append(("KV cache bytes per token of the source (bf16)", 2 * cost.kv_elements_per_source_token))
    for name, value in rows:
        table.add_row(name, f"{value:,}")
    stdout.print(table)
