"""Tables for the terminal. They drop less important columns where the terminal is narrow, and say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from isoflop.report import words
from isoflop.report.palette import look
from isoflop.report.read import PLANNED, Run
from isoflop.report.results import Arm, Results, SetOutcome

T = TypeVar("T")
WIDEST_NAME = 24
STATUS_STYLES = {
    "finished": "green",
    "running": "cyan",
    "diverged": "bold red",
    "failed": "bold red",
    "interrupted": "yellow",
    PLANNED: "dim",
}


class Column(NamedTuple):
    """A heading, how important it is (0 is never dropped), where it is aligned, and its cells."""

    heading: str
    rank: int
    right: bool
    cells: list[Text]

    @property
    def width(self) -> int:
        return max(len(self.heading), *(cell.cell_len for cell in self.cells), 1)


class Fitted:
    """A table that shows as many columns as the width allows, dropping the least important first."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = list(columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self.fitting(options.max_width)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column in shown:
            table.add_column(
                Text(column.heading),
                justify="right" if column.right else "left",
                overflow="fold",
                no_wrap=column.rank > 0,
            )
        for cells in zip(*(column.cells for column in shown), strict=True):
            table.add_row(*cells)
        yield table
        dropped = [column.heading for column in self.columns if column not in shown]
        if dropped:
            yield Text(f"(not shown for want of width: {', '.join(dropped)})", style="dim")

    def fitting(self, width: int) -> list[Column]:
        """The columns shown at this width, in their order."""
        shown = list(self.columns)
        while sum(column.width + 3 for column in shown) - 3 > width and any(column.rank for column in shown):
            shown.remove(max(shown, key=lambda column: column.rank))
        return shown


def verdict_table(results: Results, folder: str | Path | None = None) -> RenderableType:
    """The verdict on every arm, what was found in one sentence, what would settle the rest, and where to see more."""
    digits = words.decimals(results)
    lines = [Text(words.finding(results), style="bold"), *(Text(line) for line in words.remarks(results))]
    lines.append(Text(_spent(results), style="dim"))
    if folder is not None:
        lines.append(Text(f"More: isoflop report {folder} writes {Path(folder) / 'report.html'}", style="dim"))
    sets = [Fitted(_set_columns(results)), Text()] if results.sets else []
    return Group(Fitted(_verdict_columns(results.arms, digits, results.confidence)), Text(), *sets, *lines)


def _verdict_columns(arms: Sequence[Arm], digits: int, confidence: float) -> list[Column]:
    return [
        _of("arm", 0, arms, lambda arm: _name(arm.name), right=False),
        _of(
            "verdict",
            0,
            arms,
            lambda arm: Text(words.printable(arm.verdict), style=look(arm.verdict).terminal),
            right=False,
        ),
        _of(f"difference [{confidence:.0%}]", 0, arms, lambda arm: _difference(arm, digits)),
        _of("Holm p", 1, arms, lambda arm: words.probability(arm.difference.p_holm if arm.difference else None)),
        _of("params", 4, arms, lambda arm: words.ratio(arm.ratio.parameters if arm.ratio else None)),
        _of("FLOPs", 5, arms, lambda arm: words.ratio(arm.ratio.flops if arm.ratio else None)),
        _of(
            "seconds",
            6,
            arms,
            lambda arm: words.ratio(arm.ratio.seconds.mean if arm.ratio and arm.ratio.seconds else None),
        ),
        _of("by axis", 7, arms, lambda arm: words.axes_words(arm) or words.NONE, right=False),
        _of("n", 2, arms, lambda arm: str(arm.n)),
        _of("lost", 3, arms, lambda arm: str(arm.lost)),
    ]


def _set_columns(results: Results) -> list[Column]:
    """The mean on every set, in brackets the change against the arm's own training."""

    def cell(row: SetOutcome) -> Callable[[Arm], str]:
        def text(arm: Arm) -> str:
            here = row.of(arm.name)
            change = here.change.mean if here.change else None
            return words.number(here.mean) + (f" ({words.signed(change)})" if change is not None else "")

        return text

    names = _of("arm", 0, results.arms, lambda arm: _name(arm.name), right=False)
    return [
        names,
        *(_of(words.printable(row.set), rank, results.arms, cell(row)) for rank, row in enumerate(results.sets)),
    ]


def _name(name: str) -> Text:
    text = words.printable(name)
    return Text(text if len(text) <= WIDEST_NAME else text[: WIDEST_NAME - 2] + "..")


def _difference(arm: Arm, digits: int) -> str:
    if arm.is_base:
        return f"{words.number(arm.mean, digits)} (mean)"
    d = arm.difference
    return (
        words.NONE
        if d is None or d.mean is None
        else f"{words.signed(d.mean, digits)} {words.interval(d.low, d.high, digits)}"
    )


def _spent(results: Results) -> str:
    spent = results.spent
    if spent is None:
        return f"Differences are arm minus base in {results.unit}; negative is better."
    return (
        f"Differences are arm minus base in {results.unit}; negative is better. "
        f"Spent: {spent.runs} runs, {words.duration(spent.seconds)}, {words.human(spent.flops)} FLOPs."
    )


def status_table(runs: Sequence[Run]) -> RenderableType:
    """A study in progress, one row an arm: how many runs are in which state, and how far the present one is."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    groups = [[run for run in runs if run.arm == arm] for arm in arms]

    def count(*statuses: str) -> Callable[[list[Run]], str]:
        return lambda group: str(sum(run.status in statuses for run in group) or words.NONE)

    table = Fitted(
        [
            _of("arm", 0, groups, lambda group: _name(group[0].arm), right=False),
            _of("done", 0, groups, lambda group: f"{sum(run.status == 'finished' for run in group)}/{len(group)}"),
            _of("running", 0, groups, _running, right=False),
            _of("planned", 2, groups, count(PLANNED, "interrupted")),
            _of("lost", 0, groups, count("diverged", "failed")),
            _of("bits/byte so far", 1, groups, _mean),
            _of(
                "seconds",
                3,
                groups,
                lambda group: words.duration(
                    sum(run.file.progress.seconds for run in group if run.file and run.file.progress)
                ),
            ),
        ]
    )
    done = sum(run.status in ("finished", "diverged", "failed") for run in runs)
    lost = [
        Text(f"{_name(run.arm)} seed {run.seed} {run.status}: {_reason(run)}")
        for run in runs
        if run.status in ("diverged", "failed")
    ]
    return Group(table, Text(), Text(f"{done} of {len(runs)} runs are over.", style="bold"), *lost)


def run_table(runs: Sequence[Run]) -> RenderableType:
    """One row a run: its state, how far it is, what it measured, and why it was lost."""
    return Fitted(
        [
            _of("arm", 0, runs, lambda run: _name(run.arm), right=False),
            _of("seed", 0, runs, lambda run: str(run.seed)),
            _of(
                "status",
                0,
                runs,
                lambda run: Text(words.printable(run.status), style=STATUS_STYLES.get(run.status, "")),
                right=False,
            ),
            _of("step", 1, runs, _steps),
            _of(
                "bits/byte",
                0,
                runs,
                lambda run: words.number(run.file.result.bits_per_byte if run.file and run.file.result else None),
            ),
            _of(
                "loss",
                3,
                runs,
                lambda run: words.number(run.file.result.loss if run.file and run.file.result else None),
            ),
            _of(
                "tokens/s",
                4,
                runs,
                lambda run: words.human(run.file.result.tokens_per_second if run.file and run.file.result else None),
            ),
            _of(
                "seconds",
                5,
                runs,
                lambda run: words.duration(run.file.progress.seconds if run.file and run.file.progress else None),
            ),
            _of("reason", 2, runs, _reason, right=False),
        ]
    )


def _of(heading: str, rank: int, rows: Sequence[T], cell: Callable[[T], str | Text], right: bool = True) -> Column:
    return Column(heading, rank, right, [text if isinstance(text := cell(row), Text) else Text(text) for row in rows])


def _reason(run: Run) -> str:
    return words.printable(run.file.reason) if run.file and run.file.reason else words.NONE


def _steps(run: Run) -> str:
    return f"{run.file.progress.step}/{run.file.progress.steps}" if run.file and run.file.progress else words.NONE


def _running(group: list[Run]) -> str:
    return ", ".join(f"seed {run.seed} at {_steps(run)}" for run in group if run.status == "running") or words.NONE


def _mean(group: list[Run]) -> str:
    values = [
        run.file.result.bits_per_byte
        for run in group
        if run.file and run.file.result and run.file.result.bits_per_byte is not None
    ]
    return words.number(sum(values) / len(values)) if values else words.NONE
