"""`isoflop study`: which architecture is better, by how much, and how sure that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoflop.cli.output import FAILURE, INTERRUPTED, how_to_continue, note, print_json, stdout
from isoflop.cli.watch import Watch

if TYPE_CHECKING:
    from isoflop.report import Run
    from isoflop.study.design import Design

app = typer.Typer(help="Compare architectures with paired seeds.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A study file (TOML).")]
Folder = Annotated[Path, typer.Argument(help="A study folder.")]
Change = Annotated[list[str] | None, typer.Argument(help="Fields to change, as training.steps=500 or seeds=10.")]
Out = Annotated[Path | None, typer.Option(help="The study's folder; study/NAME when absent.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Worker processes of one thread each; one per core when absent.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def run(file: File, change: Change = None, out: Out = None, workers: Workers = None, json: Json = False) -> None:
    """Train every arm on every seed, then print the verdicts and write the report. Run again to continue."""
    from isoflop.spec import parse_assignments
    from isoflop.study.design import load_study

    design = load_study(file, parse_assignments(change or []))
    folder = out or Path("study") / design.study.name
    conclude(run_design(design, folder, workers), json)
    stop_if_runs_failed(folder)


@app.command()
def status(folder: Folder, json: Json = False) -> None:
    """Show what is done, what is running and what is left."""
    from isoflop.report import read_study, status_table
    from isoflop.study.execute import status as read_status

    now = {(run.arm, run.seed): run for run in read_status(folder)}
    if json:
        print_json([{"arm": run.arm, **run.dump()} for run in now.values()])
        return
    stdout.print(status_table([_with_status(run, now[run.arm, run.seed].status) for run in read_study(folder).runs]))


@app.command()
def report(
    folder: Folder, out: Annotated[Path | None, typer.Option(help="The page's path.")] = None, json: Json = False
) -> None:
    """Reach the verdicts from the run files again, and write the report."""
    from isoflop.study.results import summarise

    summarise(folder)
    conclude(folder, json, out)


@app.command()
def noise(file: File, change: Change = None, out: Out = None, workers: Workers = None, json: Json = False) -> None:
    """Measure the noise floor: train the base alone on every seed. The runs count for the study later."""
    from isoflop.spec import parse_assignments
    from isoflop.study.design import BASE, load_study
    from isoflop.study.results import smallest_difference, summarise
    from isoflop.study.stats import Noise

    design = load_study(file, parse_assignments(change or []))
    folder = run_design(design, out or Path("study") / design.study.name, workers, only=BASE)
    floor: dict[str, Any] = summarise(folder)["noise"]
    least = smallest_difference(Noise(**floor), len(design.study.seeds))
    if json:
        print_json({**floor, "smallest_difference": least})
        return
    if floor["sd"] is None:
        note("no spread could be measured: fewer than two runs of the base have finished")
        return
    stdout.print(
        f"{floor['n']} seeds of the base: {floor['mean']:.4f} ± {floor['sd']:.4f} bits/byte (sd)", markup=False
    )
    stdout.print(f"noise band of the mean (2 sd / √n): ±{floor['band']:.4f}", markup=False)
    if least is not None:
        stdout.print(
            f"{len(design.study.seeds)} paired seeds see a difference of about {least:.4f} (80 % power, correlation 0.8)",
            markup=False,
        )


def run_design(design: Design, folder: Path, workers: int | None, only: str | None = None) -> Path:
    """Tune the rates where a sweep is declared, then run what is left of the study, and reach the verdicts."""
    from isoflop.study.results import summarise
    from isoflop.study.tuning import tuned

    for arm in design.arms:
        if arm.matched is not None and arm.matched.value is not None:
            note(
                f"{arm.name}: {arm.matched.field}={arm.matched.value} matches {arm.matched.budget} ({arm.matched.residual:+.2%})"
            )
    design = tuned(design, folder, lambda sweep, into: _train(sweep, into, workers), only)
    if design.study.sweep is not None:
        note(
            "rates: "
            + ", ".join(f"{arm.name} {arm.training.rate:g}" for arm in design.arms if only in {None, arm.name})
        )
    _train(design, folder, workers, only)
    summarise(folder)
    return folder


def _train(design: Design, folder: Path, workers: int | None, only: str | None = None) -> None:
    """Run what is left of a study under a progress display. Interrupted, it says how to go on and leaves."""
    from isoflop.study.execute import execute, prepare

    prepare(design, folder)
    try:
        with Watch(folder, only) as watch:
            execute(folder, workers, watch, only)
    except KeyboardInterrupt:
        note("interrupted: finished runs are kept, the others stand at their last step")
        note(how_to_continue())
        raise typer.Exit(INTERRUPTED) from None


def stop_if_runs_failed(folder: Path) -> None:
    """Exit code 1 when runs failed: the verdicts above rest on fewer pairs than were asked for."""
    from isoflop.files import read_json

    failed = read_json(folder / "results.json")["spent"]["failed"]
    if failed:
        note(f"{failed} runs failed; the same command tries them again")
        raise typer.Exit(FAILURE)


def _with_status(run: Run, status: str) -> Run:
    """A run as the report reads it, with what is known of the processes."""
    return replace(run, file=replace(run.file, status=status)) if run.file else run


def conclude(folder: Path, json: bool, out: Path | None = None) -> None:
    """Write the report; print the verdicts, or results.json itself."""
    from isoflop.files import read_json
    from isoflop.report import read_results, verdict_table, write_page

    page = write_page(folder, out)
    if json:
        print_json(read_json(folder / "results.json"))
        return
    stdout.print(verdict_table(read_results(folder / "results.json")))
    stdout.print(f"report: {page}", markup=False, soft_wrap=True)
