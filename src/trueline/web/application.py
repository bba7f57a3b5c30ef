"""What the server answers, path by path; what the answers say is made in ``views``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import StreamingResponse

from trueline.schema.errors import InputError, TruelineError
from trueline.store.plan_change import change_plan
from trueline.web.answers import as_json
from trueline.web.entries import Runs, asset, runs_of
from trueline.web.html_document import version
from trueline.web.http_answer import answer
from trueline.web.views.calls import CallDetails, Calls, Outlines, RecordedSteps, Statistic, calls_of, recorded_steps
from trueline.web.views.compared import ComparisonView, RowsView, comparison_of, rows_of, table_of
from trueline.web.views.cosines import Cosines, cosines_of
from trueline.web.views.fault_path import Fault, fault_path_of
from trueline.web.views.graph import Graph, StepGraph, graph_of
from trueline.web.views.heat import Heat, Quantity, Rows, heat_of
from trueline.web.views.incident import IncidentView, incident_of, recording
from trueline.web.views.series import Series, series_of
from trueline.web.views.settings import Settings, settings_of
from trueline.web.views.signals import Signals, signals_of
from trueline.web.views.triage import Triage, triage_of
from trueline.web.watched_run import WatchedRun

_EVENTS_EVERY_S = 0.5
_KEEP_ALIVE = 30
"""Looks after which an event stream says that it is there, so that a connection that was lost is noticed."""
_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}

_TABLE_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

_NO_NAMES: list[str] = []

AnyRun = Annotated[int, InPath(ge=0)]
Step = Annotated[int | None, Query(ge=0)]
Count = Annotated[int, Query()]
OtherRun = Annotated[int | None, Query(ge=0)]
"""The Run that another is shown beside."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What was asked of a job: the first step to record, and the one after the last."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """The names of the reference that are matched by hand from now on, and what they are called here."""

    renames: tuple[tuple[str, str], ...]


def application(runs: Sequence[WatchedRun]) -> FastAPI:
    """The application that shows ``runs``. Whoever may reach it is not its business: see ``guard``."""
    app = FastAPI(title="Trueline", version=version(), docs_url=None, redoc_url=None)
    app.add_exception_handler(TruelineError, _error_answer)
    _add_page(app)
    _add_screens(app, runs)
    _add_drawings(app, runs)
    outlines = Outlines()
    _add_calls(app, runs, outlines)
    _add_graphs(app, runs, outlines)
    _add_events(app, runs)
    return app


def _run(runs: Sequence[WatchedRun], number: int) -> WatchedRun:
    if number >= len(runs):
        raise InputError(f"There is no Run {number}. The page shows {len(runs)}, from 0 on.")
    return runs[number]


def _answer(request: Request, watched: WatchedRun, make: Callable[[], Any], *, other_stamp: object = "") -> Response:
    """``answer`` of a Run, which changes with it and with ``other_stamp``."""
    with watched.reading():
        return answer(request, f"{watched.stamp} {other_stamp}", make)


async def _error_answer(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, InputError) else 500
    return Response(as_json({"error": str(error)}), status_code=status, media_type="application/json")


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return Response(
            asset("index.html"), media_type="text/html; charset=utf-8", headers={"cache-control": "no-store"}
        )

    @app.get("/assets/{name}", include_in_schema=False)
    def file(name: str) -> Response:
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        return Response(asset(name), media_type=kind, headers={"cache-control": "no-cache"})


def _add_screens(app: FastAPI, runs: Sequence[WatchedRun]) -> None:
    @app.get("/api/runs", response_model=Runs)
    def all_runs(request: Request) -> Response:
        return answer(request, " ".join(watched.stamp for watched in runs), lambda: runs_of(runs, served=True))

    @app.get("/api/runs/{number}/triage", response_model=Triage)
    def triage(request: Request, number: AnyRun) -> Response:
        watched = _run(runs, number)
        return _answer(request, watched, lambda: triage_of(watched), other_stamp=watched.is_judging)

    @app.get("/api/runs/{number}/incidents/{place}", response_model=IncidentView)
    def incident(request: Request, number: AnyRun, place: int) -> Response:
        watched = _run(runs, number)
        return _answer(request, watched, lambda: incident_of(watched, place))

    @app.get("/api/runs/{number}/settings", response_model=Settings)
    def settings(request: Request, number: AnyRun) -> Response:
        watched = _run(runs, number)
        return _answer(request, watched, lambda: settings_of(watched))

    @app.get("/api/runs/{number}/comparison", response_model=ComparisonView)
    def comparison(request: Request, number: AnyRun) -> Response:
        watched = _run(runs, number)
        return _answer(request, watched, lambda: comparison_of(watched))

    @app.get("/api/runs/{number}/comparison/rows", response_model=RowsView)
    def rows(
        request: Request,
        number: AnyRun,
        offset: int = 0,
        limit: int = 200,
        judgement: str = "",
        search: str = "",
        step: Step = None,
    ) -> Response:
        watched = _run(runs, number)
        return _answer(
            request,
            watched,
            lambda: rows_of(watched, offset=offset, limit=limit, judgement=judgement, search=search, step=step),
        )

    @app.get("/api/runs/{number}/comparison/rows.{kind}", response_class=Response)
    def table(
        number: AnyRun, kind: Literal["csv", "xlsx"], judgement: str = "", search: str = "", step: Step = None
    ) -> Response:
        watched = _run(runs, number)
        headers = {"content-disposition": f'attachment; filename="compared.{kind}"', "cache-control": "no-store"}
        data = table_of(watched, kind, judgement, search, step)
        return Response(data, media_type=_TABLE_TYPES[kind], headers=headers)

    @app.post("/api/runs/{number}/renames", response_model=Renamed)
    def renames(
        number: AnyRun,
        old: Annotated[list[str], Query()] = _NO_NAMES,
        new: Annotated[list[str], Query()] = _NO_NAMES,
    ) -> Response:
        if len(old) != len(new):
            raise InputError(f"Old names given: {len(old)}, new ones: {len(new)}. Give as many of each.")
        watched = _run(runs, number)
        watched.compare_with(tuple(zip(old, new, strict=True)))
        return Response(as_json(Renamed(watched.renames)), media_type="application/json")

    @app.post("/api/runs/{number}/record", response_model=Recording)
    def record(number: AnyRun) -> Response:
        watched = _run(runs, number)
        if watched.gone:
            raise InputError(watched.gone)
        steps = recording(watched)
        change_plan(watched.run, steps.keys, by="the page")
        return Response(as_json(Recording(steps.first, steps.end)), media_type="application/json")


def _add_drawings(app: FastAPI, runs: Sequence[WatchedRun]) -> None:
    @app.get("/api/runs/{number}/signals", response_model=Signals)
    def signals(request: Request, number: AnyRun) -> Response:
        watched = _run(runs, number)
        return _answer(request, watched, lambda: signals_of(watched))

    @app.get("/api/runs/{number}/heat", response_model=Heat)
    def heat(
        request: Request,
        number: AnyRun,
        signal: str,
        first: Step = None,
        last: Step = None,
        columns: Count = 1024,
        rows: Rows = "rank",
        shown: Quantity = "value",
        other: OtherRun = None,
        step: Step = None,
    ) -> Response:
        watched = _run(runs, number)
        other_run = None if other is None else _run(runs, other)
        return _answer(
            request,
            watched,
            lambda: heat_of(
                watched,
                signal,
                first=first,
                last=last,
                num_columns=columns,
                rows=rows,
                quantity=shown,
                other_run=other_run,
                step=step,
            ),
            other_stamp=other_run and other_run.stamp,
        )

    @app.get("/api/runs/{number}/series", response_model=Series)
    def series(
        request: Request,
        number: AnyRun,
        signal: str,
        first: Step = None,
        last: Step = None,
        columns: Count = 1024,
        pinned: str = "",
        shown: Quantity = "value",
        lines: Count = 250,
        other: OtherRun = None,
    ) -> Response:
        watched = _run(runs, number)
        other_run = None if other is None else _run(runs, other)
        ranks = [int(rank) for rank in pinned.split(",") if rank.isdecimal() and len(rank) < 10]
        return _answer(
            request,
            watched,
            lambda: series_of(
                watched,
                signal,
                first=first,
                last=last,
                num_columns=columns,
                pinned=ranks,
                quantity=shown,
                max_lines=max(lines, 1),
                other_run=other_run,
            ),
            other_stamp=other_run and other_run.stamp,
        )

    @app.get("/api/runs/{number}/cosines", response_model=Cosines)
    def cosines(request: Request, number: AnyRun, step: int = 0) -> Response:
        watched = _run(runs, number)
        return _answer(request, watched, lambda: cosines_of(watched, step))


def _add_calls(app: FastAPI, runs: Sequence[WatchedRun], outlines: Outlines) -> None:
    @app.get("/api/runs/{number}/steps", response_model=RecordedSteps)
    def steps(request: Request, number: AnyRun) -> Response:
        watched = _run(runs, number)
        return _answer(request, watched, lambda: recorded_steps(watched))

    @app.get("/api/runs/{number}/calls", response_model=Calls)
    def calls(
        request: Request,
        number: AnyRun,
        step: int,
        rank: int,
        offset: int = 0,
        limit: int = 200,
        search: str = "",
        phase: str = "",
        statistic: Statistic = "not_finite",
        at: str = "",
    ) -> Response:
        watched = _run(runs, number)
        return _answer(
            request,
            watched,
            lambda: calls_of(
                outlines.outline_of(watched, step, rank),
                offset=offset,
                limit=limit,
                search=search,
                phase=phase,
                statistic=statistic,
                at=at,
            ),
        )

    @app.get("/api/runs/{number}/calls/{place}", response_model=CallDetails)
    def call(request: Request, number: AnyRun, place: int, step: int, rank: int) -> Response:
        watched = _run(runs, number)
        return _answer(request, watched, lambda: outlines.outline_of(watched, step, rank).details(place))


def _add_graphs(app: FastAPI, runs: Sequence[WatchedRun], outlines: Outlines) -> None:
    @app.get("/api/runs/{number}/graph", response_model=Graph)
    def graph(
        request: Request,
        number: AnyRun,
        step: int,
        rank: int,
        module: str | None = None,
        micro: int | None = None,
        statistic: Statistic = "not_finite",
        search: str = "",
        unfolded: bool = False,
        begin: int | None = None,
        fault: Fault | None = None,
    ) -> Response:
        watched = _run(runs, number)

        def make() -> Graph:
            step_graph = StepGraph(outlines.outline_of(watched, step, rank))
            micro_chosen = step_graph.micros[0] if micro is None else micro
            return graph_of(
                step_graph,
                module=module,
                micro=micro_chosen,
                statistic=statistic,
                search=search,
                unfolded=unfolded,
                begin=begin,
                fault_path=None
                if fault is None
                else fault_path_of(watched, step_graph.outline, step_graph.operands(micro_chosen), fault),
            )

        return _answer(request, watched, make)


def _add_events(app: FastAPI, runs: Sequence[WatchedRun]) -> None:
    @app.get("/api/events", response_class=StreamingResponse)
    async def events(request: Request) -> StreamingResponse:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_changes(request, runs), media_type="text/event-stream", headers=headers)


async def _changes(request: Request, runs: Sequence[WatchedRun]) -> AsyncIterator[str]:
    """Of each Run which tables have grown since the last look, and its last step; nothing else."""
    versions_sent = [dict(run.versions) for run in runs]
    judging = [run.is_judging for run in runs]
    yield ": watching\n\n"
    looks = 0
    while not await request.is_disconnected():
        for number, run in enumerate(runs):
            now = dict(run.versions)
            tables = [table for table, number_now in now.items() if number_now != versions_sent[number].get(table)]
            if tables or judging[number] != run.is_judging:
                versions_sent[number], judging[number] = now, run.is_judging
                event = {"run": number, "tables": tables, "last_step": run.last_step, "live": run.live}
                yield f"data: {json.dumps(event)}\n\n"
        looks += 1
        if looks % _KEEP_ALIVE == 0:
            yield ": still here\n\n"
        await asyncio.sleep(_EVENTS_EVERY_S)
