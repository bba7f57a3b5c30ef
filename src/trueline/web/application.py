"""What the server answers: a table of paths and views, each of which is asked for what its own parameters say."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import StreamingResponse

from trueline.schema.errors import InputError, TruelineError
from trueline.store.plan_change import change_plan
from trueline.web.answers import ARRAYS, Arrays, as_json
from trueline.web.entries import Runs, asset, runs_of
from trueline.web.html_document import version
from trueline.web.views.calls import (
    AskedStatistic,
    CallDetails,
    Calls,
    Outlines,
    RecordedSteps,
    calls_of,
    recorded_steps,
)
from trueline.web.views.compared import ComparisonView, RowsView, comparison_of, rows_of, table_of
from trueline.web.views.cosines import Cosines, cosines_of
from trueline.web.views.fault_path import Fault, fault_path_of
from trueline.web.views.graph import Graph, StepGraph, graph_of
from trueline.web.views.heat import Heat, Quantity, Rows, heat_of
from trueline.web.views.incident import IncidentView, incident_of, recording
from trueline.web.views.overview import Overview, overview_of
from trueline.web.views.series import Series, series_of
from trueline.web.views.settings import Settings, settings_of
from trueline.web.views.signals import Signals, signals_of
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

    @app.get("/api/runs", response_model=Runs)
    def all_runs(request: Request) -> Response:
        return _answer(request, " ".join(watched.stamp for watched in runs), lambda: runs_of(runs, served=True))

    for path, (name, model, view) in _views(runs).items():
        _add_view(app, runs, path, name, model, view)
    _add_table(app, runs)
    _add_orders(app, runs)
    _add_events(app, runs)
    return app


def _views(runs: Sequence[WatchedRun]) -> Mapping[str, tuple[str, type, Callable[..., Any]]]:
    """Below the path of a Run: the name of each view, the type of its answer, and the function that makes it of the Run
    and of what is asked, its further parameters.
    """
    outlines = Outlines()

    def heat(
        watched: WatchedRun,
        signal: str,
        first: Step = None,
        last: Step = None,
        columns: Count = 1024,
        rows: Rows = "rank",
        shown: Quantity = "value",
        other: OtherRun = None,
        step: Step = None,
    ) -> Arrays:
        other_run = None if other is None else _run(runs, other)
        drawn = {"first": first, "last": last, "num_columns": columns, "rows": rows, "quantity": shown}
        return heat_of(watched, signal, **drawn, other_run=other_run, step=step)

    def series(
        watched: WatchedRun,
        signal: str,
        first: Step = None,
        last: Step = None,
        columns: Count = 1024,
        pinned: str = "",
        shown: Quantity = "value",
        lines: Count = 250,
        other: OtherRun = None,
    ) -> Arrays:
        ranks = [int(rank) for rank in pinned.split(",") if rank.isdecimal() and len(rank) < 10]
        other_run = None if other is None else _run(runs, other)
        drawn = {"first": first, "last": last, "num_columns": columns, "pinned": ranks, "quantity": shown}
        return series_of(watched, signal, **drawn, max_lines=max(lines, 1), other_run=other_run)

    def rows(
        watched: WatchedRun,
        offset: int = 0,
        limit: int = 200,
        judgement: str = "",
        search: str = "",
        step: Step = None,
    ) -> RowsView:
        return rows_of(watched, offset=offset, limit=limit, judgement=judgement, search=search, step=step)

    def calls(
        watched: WatchedRun,
        step: int,
        rank: int,
        offset: int = 0,
        limit: int = 200,
        search: str = "",
        phase: str = "",
        statistic: AskedStatistic = "auto",
        at: str = "",
        index: Annotated[int | None, Query(ge=0)] = None,
        closed: str = "none",
    ) -> Calls:
        page = {"offset": offset, "limit": limit, "search": search, "phase": phase, "at": at}
        page |= {"index": index, "closed": closed}
        return calls_of(outlines.outline_of(watched, step, rank), **page, statistic=statistic)

    def call(watched: WatchedRun, place: int, step: int, rank: int) -> CallDetails:
        return outlines.outline_of(watched, step, rank).details(place)

    def graph(
        watched: WatchedRun,
        step: int,
        rank: int,
        module: str | None = None,
        micro: int | None = None,
        statistic: AskedStatistic = "auto",
        search: str = "",
        unfolded: bool = False,
        begin: int | None = None,
        fault: Fault | None = None,
    ) -> Graph:
        step_graph = StepGraph(outlines.outline_of(watched, step, rank))
        micro = step_graph.micros[0] if micro is None else micro
        path = fault and fault_path_of(watched, step_graph.outline, step_graph.operands(micro), fault)
        opened = {"module": module, "micro": micro, "search": search, "unfolded": unfolded, "begin": begin}
        return graph_of(step_graph, **opened, statistic=statistic, fault_path=path)

    return {
        "overview": ("overview", Overview, overview_of),
        "incidents/{place}": ("incident", IncidentView, incident_of),
        "settings": ("settings", Settings, settings_of),
        "comparison": ("comparison", ComparisonView, comparison_of),
        "comparison/rows": ("rows", RowsView, rows),
        "signals": ("signals", Signals, signals_of),
        "heat": ("heat", Heat, heat),
        "series": ("series", Series, series),
        "cosines": ("cosines", Cosines, cosines_of),
        "steps": ("steps", RecordedSteps, recorded_steps),
        "calls": ("calls", Calls, calls),
        "calls/{place}": ("call", CallDetails, call),
        "graph": ("graph", Graph, graph),
    }


def _add_view(
    app: FastAPI, runs: Sequence[WatchedRun], path: str, name: str, model: type, view: Callable[..., Any]
) -> None:
    def endpoint(request: Request, number: int, **query: Any) -> Response:
        watched, other_number = _run(runs, number), query.get("other")
        stamps = (watched.stamp, watched.is_judging, other_number is not None and _run(runs, other_number).stamp)
        with watched.reading():
            return _answer(request, " ".join(map(str, stamps)), lambda: view(watched, **query))

    # FastAPI reads what may be asked from the signature: that of the view, with the number of the Run for the Run.
    _, *query_parameters = inspect.signature(view, eval_str=True).parameters.values()
    leading = (("request", Request), ("number", AnyRun))
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in leading]
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in query_parameters]
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    endpoint.__name__ = name
    app.get(f"/api/runs/{{number}}/{path}", response_model=model)(endpoint)


def _run(runs: Sequence[WatchedRun], number: int) -> WatchedRun:
    if number >= len(runs):
        raise InputError(f"There is no Run {number}. The page shows {len(runs)}, from 0 on.")
    return runs[number]


def _answer(request: Request, stamp: str, make: Callable[[], Any]) -> Response:
    """What ``make`` gives, unless the browser has it already: ``stamp`` is another one whenever that may differ."""
    wants_json = "application/json" in request.headers.get("accept", "")
    state = f"{request.url.path}?{request.url.query} {stamp} {wants_json}"
    tag = f'"{hashlib.blake2b(state.encode(), digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    facts = make()
    if isinstance(facts, Arrays) and not wants_json:
        return Response(facts.packed(), media_type=ARRAYS, headers=headers)
    return Response(as_json(facts), media_type="application/json", headers=headers)


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


def _add_table(app: FastAPI, runs: Sequence[WatchedRun]) -> None:
    @app.get("/api/runs/{number}/comparison/rows.{kind}", response_class=Response)
    def table(
        number: AnyRun, kind: Literal["csv", "xlsx"], judgement: str = "", search: str = "", step: Step = None
    ) -> Response:
        watched = _run(runs, number)
        headers = {"content-disposition": f'attachment; filename="compared.{kind}"', "cache-control": "no-store"}
        data = table_of(watched, kind, judgement, search, step)
        return Response(data, media_type=_TABLE_TYPES[kind], headers=headers)


def _add_orders(app: FastAPI, runs: Sequence[WatchedRun]) -> None:
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
        if watched.read_failure:
            raise InputError(watched.read_failure)
        steps = recording(watched)
        change_plan(watched.run, steps.keys, asker="the page")
        return Response(as_json(Recording(steps.first, steps.end)), media_type="application/json")


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
        while len(judging) < len(runs):  # of a directory of Runs one that has just begun
            versions_sent.append({})
            judging.append(False)
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
