"""`isoflop train`: one architecture, one seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoflop.cli.evaluate import set_table
from isoflop.cli.output import FAILURE, INTERRUPTED, how_to_continue, note, print_json, stdout

if TYPE_CHECKING:
    from isoflop.model import Architecture
    from isoflop.train import Training


def train(
    file: Annotated[str, typer.Argument(help="A recipe's name or an architecture file.")],
    change: Annotated[list[str] | None, typer.Argument(help="Fields to change: width=64, training.steps=500.")] = None,
    out: Annotated[Path, typer.Option(help="The run's folder; a run that is there is continued.")] = Path("runs/run"),
    seed: Annotated[int, typer.Option(min=0, help="Of the weights, of dropout and of the order of the data.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the run's record as JSON.")] = False,
) -> None:
    """Train an architecture, or continue where a run stopped."""
    from isoflop.train import Interrupted
    from isoflop.train import train as run

    architecture, training = _declared(file, change or [])
    try:
        record = run(architecture, training, out, seed=seed)
    except Interrupted:  # the progress display has said what is saved
        note(how_to_continue())
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json(record)
    else:
        _print(record, out)
    if record["status"] != "finished":
        note(f"{record['status']}: {record['reason']}")
        raise typer.Exit(FAILURE)


def _declared(file: str, change: list[str]) -> tuple[Architecture, Training]:
    from isoflop.recipes import load_file
    from isoflop.spec import SpecError, merge, parse_assignments
    from isoflop.train import Training

    changes: dict[str, Any] = parse_assignments(change)
    training_change = changes.pop("training", {})
    declared = load_file(file, changes)
    try:
        return declared.architecture, Training.parse(merge(declared.training, training_change))
    except SpecError as error:
        raise error.under("training") from None


def _print(record: dict[str, Any], out: Path) -> None:
    result = record["result"]
    if result is not None:
        rate = result["tokens_per_second"]  # of the steps after the first, of which there may be none
        speed = "" if rate is None else f", {rate:,.0f} tokens/s"
        stdout.print(
            f"{result['loss']:.4f} nats/token, {result['bits_per_byte']:.4f} bits/byte on validation; "
            f"{record['cost']['parameters']:,} parameters{speed}",
            markup=False,
        )
        if result.get("sets"):
            stdout.print(set_table(result["sets"]))
    stdout.print(f"run: {out}", markup=False)
