"""A Run compared with its reference: the verdict, and values in the order of execution with what rounding explains."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from trueline.comparison.result import JUDGEMENTS, ComparedRow, StepSummary
from trueline.judge.recorded.step_values import CallKey
from trueline.render.comparison.compare_csv import write_csv
from trueline.render.comparison.compare_growth import by_step
from trueline.render.comparison.compare_rows import JUDGEMENT_WORDS, place_text, shape_text
from trueline.render.comparison.compare_story import Story
from trueline.render.comparison.compare_xlsx import write_xlsx
from trueline.schema.errors import InputError
from trueline.schema.site import Site
from trueline.web.judging import Compared
from trueline.web.views.along import GRAVITY, MAX_TIMES, Along, along
from trueline.web.watched_run import WatchedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one step, over all ranks: the largest difference in times of what rounding explains (at most ``MAX_TIMES``),
    how far the losses are apart, relative to them, and how many values are beyond rounding. None: not measured.
    """

    step: int
    times: float | None
    loss_rel: float | None
    beyond: int


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """The head of the screen. ``story`` is None while it is compared, or where ``failed`` says why it cannot be.
    ``counts`` are (judgement, in words, values); ``first_at`` is where among all rows the first difference is.
    ``left_out`` is how many rows a file has no room for. ``renames`` are names of the reference and what they are
    called here, as they were matched by hand.
    """

    run: str
    ref: str
    story: Story | None
    failed: str
    comparing: bool
    counts: tuple[tuple[str, str, int], ...]
    num_rows: int
    first_at: int | None
    largest_times: float | None
    growth: tuple[Growth, ...]
    along: Along | None
    left_out: int
    renames: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RowView:
    """One value and its twin; numbers as in ``ComparedRow``, ``also_in`` is what REF calls it where that differs.
    ``name`` and ``ref_name`` are those of the call here and in REF, "" where it is not there.
    """

    at: int
    step: int
    rank: int | None
    site: str
    also_in: str
    judgement: str
    said: str
    api: str
    dtype: str
    ref_dtype: str
    shape: str
    measured: float | None
    expected: float | None
    times: float | None
    how: str
    where: str
    note: str
    name: str
    ref_name: str


@dataclass(frozen=True, slots=True)
class RowsView:
    """Rows ``offset`` and after among the ``total`` that the filters leave."""

    offset: int
    total: int
    rows: tuple[RowView, ...]


def comparison_of(watched: WatchedRun) -> ComparisonView:
    """The head of the screen. Raises ``InputError`` where no reference was given."""
    ref, compared, failed = watched.require_ref(), watched.compared, watched.compare_failed
    if compared is not None:
        return replace(compared_view(compared, watched.name, ref), failed=failed, renames=watched.renames)
    return ComparisonView(
        run=watched.name,
        ref=ref,
        story=None,
        failed=failed,
        comparing=not failed,
        counts=(),
        num_rows=0,
        first_at=None,
        largest_times=None,
        growth=(),
        along=None,
        left_out=0,
        renames=watched.renames,
    )


def compared_view(compared: Compared, run: str, ref: str, *, left_out: int = 0) -> ComparisonView:
    """The head of the screen about what was compared."""
    comparison = compared.comparison
    first_at = next((at for at, row in enumerate(comparison.rows) if row == comparison.first), None)
    return ComparisonView(
        run=run,
        ref=ref,
        story=compared.story,
        failed="",
        comparing=False,
        counts=tuple((name, JUDGEMENT_WORDS[name], comparison.counts.get(name, 0)) for name in JUDGEMENTS),
        num_rows=len(comparison.rows),
        first_at=first_at,
        largest_times=max((row.times for row in comparison.rows if row.times is not None), default=None),
        growth=_growth(comparison.steps),
        along=along(comparison.rows, first_at),
        left_out=left_out,
        renames=(),
    )


def row_views(rows: Iterable[tuple[int, ComparedRow]]) -> tuple[RowView, ...]:
    """Rows as they are listed, each with its place among all."""
    return tuple(_row(at, row) for at, row in rows)


def _growth(steps: Sequence[StepSummary]) -> tuple[Growth, ...]:
    times = by_step(steps, lambda summary: summary.largest_times)
    losses = by_step(steps, lambda summary: None if summary.loss_rel is None else abs(summary.loss_rel))
    beyond = Counter({summary.step: 0 for summary in steps})
    for summary in steps:
        beyond[summary.step] += summary.counts.get("beyond", 0)
    return tuple(
        Growth(step, _drawable(times.get(step)), _drawable(losses.get(step)), count)
        for step, count in sorted(beyond.items())
    )


def _drawable(value: float | None) -> float | None:
    # JSON has no infinity, and an axis needs an end
    return None if value is None else min(value, MAX_TIMES)


def rows_of(
    watched: WatchedRun, *, offset: int, limit: int, judgement: str, search: str, step: int | None = None
) -> RowsView:
    """A page of rows. Raises ``InputError``."""
    if not 1 <= limit <= MAX_PAGE or offset < 0:
        raise InputError(f"{limit} rows from {offset} on were asked for. Ask for 1 to {MAX_PAGE}, from 0 on.")
    rows = _filtered_rows(watched.compared, judgement, search, step)
    return RowsView(offset, len(rows), row_views(rows[offset : offset + limit]))


def table_of(watched: WatchedRun, kind: Literal["csv", "xlsx"], judgement: str, search: str, step: int | None) -> bytes:
    """The rows that the filters leave as a file, as `compare --csv` or `--xlsx` writes it. Raises ``InputError``."""
    if watched.compared is None:
        raise InputError("There are no rows yet: the Runs are not compared.")
    rows = [row for _, row in _filtered_rows(watched.compared, judgement, search, step)]
    # the writers of files take a path
    with TemporaryDirectory(prefix="trueline-view-") as folder:
        target = Path(folder, f"rows.{kind}")
        if kind == "csv":
            write_csv(target, rows)
        else:
            write_xlsx(target, replace(watched.compared.comparison, rows=rows), watched.compared.story)
        return target.read_bytes()


def judgements_of(rows: Sequence[ComparedRow], step: int, rank: int, place_of: Mapping[CallKey, int]) -> Sequence[str]:
    """[C] of each call of a recorded step on a rank the gravest judgement of its values, "" where none was compared."""
    judgements = [""] * len(place_of)
    for row in rows:
        # a row without a rank is of all of them
        if row.step != step or row.rank not in (None, rank) or row.site is None:
            continue
        site = Site.parse(row.site)
        index = place_of.get((site.micro, site.phase, site.name, site.call))
        if index is not None and (
            not judgements[index] or GRAVITY.index(row.judgement) > GRAVITY.index(judgements[index])
        ):
            judgements[index] = row.judgement
    return judgements


def _filtered_rows(
    compared: Compared | None, judgement: str, search: str, step: int | None
) -> Sequence[tuple[int, ComparedRow]]:
    judgements, search = {name for name in judgement.split(",") if name}, search.lower()
    rows = () if compared is None else compared.comparison.rows
    return [
        (at, row)
        for at, row in enumerate(rows)
        if (not judgements or row.judgement in judgements)
        and (step is None or row.step == step)
        and (not search or search in place_text(row).lower() or search in row.api.lower())
    ]


def _row(at: int, row: ComparedRow) -> RowView:
    return RowView(
        at=at,
        step=row.step,
        rank=row.rank,
        site=place_text(row),
        also_in="" if row.ref_site in (None, row.site) else str(row.ref_site),
        judgement=row.judgement,
        said=JUDGEMENT_WORDS[row.judgement],
        api=row.api,
        dtype=row.dtype,
        ref_dtype=row.ref_dtype,
        shape=shape_text(row.shape),
        measured=row.measured,
        expected=row.expected,
        times=row.times,
        how=row.how,
        where=row.where,
        note=row.note,
        name=Site.parse(row.site).name if row.site else "",
        ref_name=Site.parse(row.ref_site).name if row.ref_site else "",
    )
