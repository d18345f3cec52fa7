"""`isoflop demo`: the 2017 decoder against what came after it, one change at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isoflop.cli.output import note, stdout
from isoflop.cli.study import conclude, run_design, stop_if_runs_failed

PROMPT = "def "
QUICK: dict[str, Any] = {"name": "demo-quick", "seeds": 2, "training": {"steps": 40, "validation_windows": 128}}
"""What `--quick` changes: a look at the machinery, too small for verdicts."""


def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="Under 30 seconds, for a look; too small for verdicts.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The study's folder; study/demo when absent.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; one per core when absent.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print results.json.")] = False,
) -> None:
    """Compare eight architectures on this machine, and see which is better, by how much, and how sure that is."""
    from isoflop.study.design import load_study
    from isoflop.study.examples import DEMO

    design = load_study(DEMO, QUICK if quick else None)
    folder = out or Path("study") / design.study.name
    count = len(design.arms) * len(design.study.seeds)
    note(
        f"{len(design.arms)} architectures x {len(design.study.seeds)} paired seeds = {count} runs, on the standard library's own source"
    )
    run_design(design, folder, workers)
    conclude(folder, json)
    if not json:
        _text_of_the_best(folder)
    stop_if_runs_failed(folder)


def _text_of_the_best(folder: Path) -> None:
    """A few lines from the arm with the lowest mean loss: bad, and trained in seconds."""
    from isoflop.files import read_json
    from isoflop.train import load_model

    arms = [arm for arm in read_json(folder / "results.json")["arms"] if arm["mean"] is not None]
    if not arms:
        return
    best = min(arms, key=lambda arm: arm["mean"])
    run = next(run for run in best["runs"] if run["status"] == "finished")
    model, _, codec = load_model(folder / run["path"])
    [new] = model.generate([codec.encode(PROMPT)], 160, temperature=0.7, top_k=20, stop={codec.end_id})
    stdout.print(f"\nWhat {best['name']} writes after {PROMPT!r}:", markup=False)
    stdout.print(PROMPT + codec.decode(new), markup=False, highlight=False)
    stdout.print(f"\nMore: isoflop generate {folder / run['path']} --prompt 'class '", markup=False, soft_wrap=True)
