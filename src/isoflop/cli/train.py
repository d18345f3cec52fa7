"""`isoflop train`: one architecture, one seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isoflop.cli.output import FAILURE, INTERRUPTED, note, print_json, stdout


def train(
    file: Annotated[str, typer.Argument(help="A recipe's name or an architecture file.")],
    change: Annotated[list[str] | None, typer.Argument(help="Fields to change: width=64, training.steps=500.")] = None,
    out: Annotated[Path, typer.Option(help="The run's folder; a run that is there is continued.")] = Path("runs/run"),
    seed: Annotated[int, typer.Option(min=0, help="Of the weights and of dropout.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the run's record as JSON.")] = False,
) -> None:
    """Train an architecture, or continue where a run stopped."""
    from isoflop.recipes import load_file
    from isoflop.spec import merge_trees, parse_assignments
    from isoflop.train import Interrupted, Training
    from isoflop.train import train as run

    changes: dict[str, Any] = parse_assignments(change or [])
    recipe_change = changes.pop("training", {})
    declared = load_file(file, changes)
    training = Training.parse(merge_trees(declared.training, recipe_change))
    try:
        record = run(declared.architecture, training, out, seed=seed)
    except Interrupted as error:
        note(f"{error}: give the same command again")
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json(record)
    else:
        _print(record, out)
    if record["status"] != "finished":
        note(f"{record['status']}: {record['reason']}")
        raise typer.Exit(FAILURE)


def _print(record: dict[str, Any], out: Path) -> None:
    result = record["result"]
    if result is not None:
        stdout.print(
            f"{result['loss']:.4f} nats/token, {result['bits_per_byte']:.4f} bits/byte on validation; "
            f"{record['cost']['parameters']:,} parameters, {result['tokens_per_second']:,.0f} tokens/s",
            markup=False,
        )
    stdout.print(f"run: {out}", markup=False)
