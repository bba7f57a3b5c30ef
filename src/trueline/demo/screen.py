"""The terminal output of the demo: a progress bar on standard error while it runs, then tables on standard output."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import progress as bar
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from trueline.demo.fine_tune import Progress
from trueline.demo.settings import SETTINGS
from trueline.demo.settings_summary import ABOUT_CURVES, SPREADS, Judged, advice, rank_text

COLOURS = {"out": "red", "suspect": "yellow", "clear": "green", "unknown": "cyan"}
EVERY_S = 30.0
"""Time between two lines in a log."""
STAGE_WIDTH = max(len(setting.name) for setting in SETTINGS)
COLUMN_TITLES = {
    "loss_std": "loss std",
    "loss_range": "loss range",
    "grad_norm_std": "gradient norm std",
    "cosine_mean": "mean pairwise cosine",
}


@contextlib.contextmanager
def progress_bars(console: Console) -> Iterator[Progress]:
    """A bar a stage on ``console`` for as long as the block runs, or a line now and then where nobody watches it be
    written; yields what to call with the news.
    """
    if not console.file.isatty():
        yield _Lines(console)
        return
    columns = (
        bar.TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=STAGE_WIDTH)),
        bar.BarColumn(bar_width=20),
        bar.MofNCompleteColumn(),
        bar.TimeElapsedColumn(),
        bar.TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, ratio=1)),
    )
    with bar.Progress(*columns, console=console, expand=True) as bars:
        tasks: dict[str, bar.TaskID] = {}

        def show(stage: str, done: int, total: int, note: str) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total, note="")
            bars.update(tasks[stage], completed=done, total=total, note=escape(note))

        yield show


class _Lines:
    """Prints the progress when a stage begins, and every ``EVERY_S`` seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._told_at = 0.0

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if stage != self._stage or now - self._told_at >= EVERY_S:
            self._stage, self._told_at = stage, now
            self._console.print(f"{stage}: {done} of {total}, {note}", markup=False, highlight=False, soft_wrap=True)


def summary(settings: Sequence[Judged], *, out: Path, page: Path) -> RenderableType:
    """Verdicts, what to do, dispersions, what these can tell, and where to look closer."""
    return Group(
        _verdicts(settings),
        Text(),
        *_advice(settings),
        _dispersions(settings),
        Text(ABOUT_CURVES),
        Text(),
        Text(f"Report: {page}"),
        Text(f"One Run closer: trueline check {out / _telling(settings).trained.setting.name}"),
    )


def _telling(settings: Sequence[Judged]) -> Judged:
    """The first setting in which something was found, or the first of all."""
    return next((judged for judged in settings if judged.grave), settings[0])


def _verdicts(settings: Sequence[Judged]) -> Table:
    table = Table(title="Six ways to train the same model", title_justify="left", show_lines=True)
    for column in ("setting", "what was done", "verdict"):
        table.add_column(column, no_wrap=column == "setting")
    table.add_column("found (ranks, since)", overflow="fold")
    for judged in settings:
        setting = judged.trained.setting
        verdict = Text(judged.verdict, style=COLOURS[judged.status])
        table.add_row(setting.name, setting.planted_text(judged.num_workers), verdict, _findings_text(judged))
    return table


def _findings_text(judged: Judged) -> Text:
    lines: list[str] = []
    for finding in judged.grave:
        circumstances = [rank_text(finding.ranks, judged.num_workers)] if finding.ranks else []
        circumstances += [] if finding.step_first is None else [f"step {finding.step_first}"]
        where = f" ({', '.join(circumstances)})" if circumstances else ""
        lines.append(f"{finding.severity} {finding.code}{where}")
    return Text("\n".join(dict.fromkeys(lines)) or "nothing")


def _dispersions(settings: Sequence[Judged]) -> Table:
    table = Table(title="Dispersion over workers, mean over steps; mean loss, first to last step", title_justify="left")
    table.add_column("setting", no_wrap=True)
    for key in SPREADS:
        table.add_column(COLUMN_TITLES[key], justify="right")
    table.add_column("mean loss", justify="right", no_wrap=True)
    for judged in settings:
        losses = f"{judged.trained.loss_first:.2f} to {judged.trained.loss_last:.2f}"
        table.add_row(judged.trained.setting.name, *(_number(judged.spread(key)) for key in SPREADS), losses)
    return table


def _advice(settings: Sequence[Judged]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for code, names, steps in advice(settings):
        lines.append(Text(f"{code} ({', '.join(names)}): what to do", style="bold"))
        lines += [Padding(Text(step), (0, 0, 0, 2)) for step in steps]
    return [*lines, Text()] if lines else []


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4f}"
