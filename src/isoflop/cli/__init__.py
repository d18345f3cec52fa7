"""The command line. Every verb imports what it needs when it runs, so that `--help` answers at once.

Exit codes: 0 ok, 1 failure, 2 usage (a declaration, a file or an option that cannot be used), 4 infeasible budget,
130 interrupted (state is kept, and how to go on is printed).
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from isoflop import __version__
from isoflop.cli import data, demo, evaluate, exchange, generate, kinds, plan, study, train
from isoflop.cli.output import problem

app = typer.Typer(
    help="Compose, price, train and fairly compare Transformer architectures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("kinds")(kinds.kinds)
app.command("plan")(plan.plan)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("generate")(generate.generate)
app.command("import")(exchange.import_)
app.command("export")(exchange.export)
app.command("report")(study.report)
app.add_typer(study.app, name="study")
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        typer.echo(f"isoflop {__version__}")
        raise typer.Exit


def main() -> None:
    """The `isoflop` command."""
    try:
        app(prog_name="isoflop")
    except Exception as error:
        code = problem(error)
        if code is None:
            raise
        sys.exit(code)
