"""A Run as a trace for https://ui.perfetto.dev: ranks as processes, their steps at their own times, the calls of a
recorded step in their order, collectives as flows between ranks, incidents as instants.

What has no time is not given one: calls were not timed, so those of a recorded step stand on tracks that say so, one
microsecond a recorded value, from the moment on at which the step began. Times of a rank are by the clock of its host.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trueline.render.export.track_events import TraceWriter
from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

ROW_NS = 1000
"""Nanoseconds on the track of calls that stand for one recorded value: no time, the order alone."""

IN_ORDER = "in order, 1 µs a value: no call was timed"

MOST_STEPS = 200_000
"""Slices of steps, over all ranks: a trace of about 25 MB. Of longer Runs every n-th step is drawn."""

_COLUMNS = ("row", "micro", "phase", "name", "call", "kind", "api", "module", "args", "flags")
_KINDS = ("module", "op", "collective")


@dataclass(frozen=True)
class Mark:
    """An incident: the finding that tells when it began, and the ranks that it accuses, none for the whole job."""

    began: Finding
    ranks: tuple[int, ...]
    title: str


@dataclass
class Drawn:
    """What a trace holds, for the sentence about it. ``stride`` is 1 where all steps are drawn, 0 where none has a
    time.
    """

    steps: int = 0
    stride: int = 0
    ranks: int = 0
    calls: int = 0
    flows: int = 0
    incidents: int = 0
    undated: int = 0
    """Incidents that are about no step with a time."""

    def text(self, step: int | None) -> str:
        """``30 steps of 2 ranks at their own times, 50 calls of step 3 in order (no call was timed), 1 incident``."""
        thinned = f" (1 of {self.stride})" if self.stride > 1 else ""
        ranks = counted(self.ranks, "rank")
        parts = [f"{counted(self.steps, 'step')} of {ranks} at their own times{thinned}"] if self.steps else []
        if self.calls:
            parts.append(f"{counted(self.calls, 'call')} of step {step} in order (no call was timed)")
        if self.incidents:
            undated = f" ({self.undated} without a time, at the start)" if self.undated else ""
            parts.append(f"{counted(self.incidents, 'incident')}{undated}")
        return ", ".join(parts)


def write_perfetto(run: Run, path: Path, marks: Sequence[Mark], *, step: int | None) -> Drawn:
    """Write the trace to ``path``, with the calls of the recorded ``step`` if it is not None; what is in it. Raises
    ``InputError`` where the Run has neither times nor recorded calls, ``OSError``.
    """
    times = _times(run)
    calls = {} if step is None else {rank: _calls(run, step, rank) for rank in run.record_ranks}
    calls = {rank: spans for rank, spans in calls.items() if spans}
    if not any(times.values()) and not calls:
        raise InputError(f"Run '{run.path}' has neither times of steps nor a recorded step: there is nothing to draw.")
    flows = _flows(calls)
    start_ns = min((begin for spans in times.values() for begin, _ in spans.values()), default=0)
    measured = {rank: _measured(run, index) for index, rank in enumerate(run.ranks)}
    all_times = {at: span for rank in reversed(run.ranks) for at, span in times[rank].items()}
    stride = -(-sum(map(len, times.values())) // MOST_STEPS)
    drawn = Drawn(stride=stride, ranks=len({*times, *calls}), flows=len(flows))
    with path.open("wb") as file:
        trace = TraceWriter(file)
        trace.clock(start_ns)
        of_job = [mark for mark in marks if not mark.ranks]
        if of_job:
            _draw_marks(trace, trace.track("incidents of the job"), of_job, all_times, start_ns)
        for rank in sorted({*times, *calls}):
            process = trace.process(rank + 1, _rank_name(run, rank))
            own_marks = [mark for mark in marks if rank in mark.ranks]
            if own_marks:
                _draw_marks(trace, trace.track("incidents", parent=process), own_marks, times.get(rank, {}), start_ns)
            if times.get(rank):
                track = trace.track("steps", parent=process)
                drawn.steps = max(drawn.steps, _draw_steps(trace, track, times[rank], measured[rank], stride))
            for kinds, title in ((("module", "op"), "calls"), (("collective",), "collectives")):
                spans = [span for span in calls.get(rank, ()) if span.kind in kinds]
                begin_ns = times.get(rank, {}).get(step or 0, (start_ns, 0))[0]
                _draw_calls(trace, process, f"step {step}: {title} {IN_ORDER}", spans, begin_ns)
                drawn.calls += len(spans)
    drawn.incidents = len(marks)
    drawn.undated = sum(mark.began.step_first not in all_times for mark in marks)
    return drawn


def _rank_name(run: Run, rank: int) -> str:
    env = run.env.get(rank)
    machine = ", ".join(text for text in (env.hostname, env.device) if text) if env else ""
    return f"rank {rank}" + (f" ({machine})" if machine else "")


def _times(run: Run) -> dict[int, dict[int, tuple[int, int]]]:
    """By rank and step its begin and end in Unix nanoseconds, of the steps that were timed."""
    (end_TN, known_TN), (length_TN, timed_TN) = run.pivot("time_ns"), run.pivot("step_s")
    times: dict[int, dict[int, tuple[int, int]]] = {}
    for index, rank in enumerate(run.ranks):
        spans = times.setdefault(rank, {})
        before_ns = 0
        for at in np.flatnonzero(known_TN[:, index] & timed_TN[:, index] & np.isfinite(length_TN[:, index])):
            end_ns = int(end_TN[at, index])
            # Steps lie end to end; the times of their ends are known to 256 ns.
            begin_ns = max(end_ns - round(float(length_TN[at, index]) * 1e9), before_ns)
            if begin_ns < end_ns:
                spans[int(run.steps[at])] = (begin_ns, end_ns)
                before_ns = end_ns
    return times


def _measured(run: Run, index: int) -> dict[int, dict[str, float]]:
    """By step the loss and the norm of the gradient of the ``index``-th rank, as far as they are finite."""
    numbers: dict[int, dict[str, float]] = {}
    for name in ("loss", "grad_norm"):
        values_TN, _ = run.pivot(name)
        for at in np.flatnonzero(np.isfinite(values_TN[:, index])):
            numbers.setdefault(int(run.steps[at]), {})[name] = float(values_TN[at, index])
    return numbers


def _draw_steps(
    trace: TraceWriter,
    track: int,
    times: Mapping[int, tuple[int, int]],
    measured: Mapping[int, Mapping[str, float]],
    stride: int,
) -> int:
    steps = [step for step in times if step % stride == 0]
    for step in steps:
        begin_ns, end_ns = times[step]
        numbers = measured.get(step, {})
        categories = ("step", "sampled") if "grad_norm" in numbers else ("step",)
        trace.begin(track, begin_ns, f"step {step}", categories=categories, about={"step": step, **numbers})
        trace.end(track, end_ns)
    return len(steps)


def _draw_marks(
    trace: TraceWriter,
    track: int,
    marks: Sequence[Mark],
    times: Mapping[int, tuple[int, int]],
    start_ns: int,
) -> None:
    """At the end of the step at which each began, as its evidence is of that step; at the start what is of none."""
    placed = []
    for mark in marks:
        step = mark.began.step_first
        at_ns = times[step][1] if step is not None and step in times else None
        placed.append((start_ns if at_ns is None else at_ns, at_ns is not None, mark))
    for at_ns, dated, mark in sorted(placed, key=lambda entry: entry[0]):
        finding = mark.began
        about = {"code": finding.code, "severity": finding.severity, "claim": mark.title}
        about |= {} if finding.step_first is None else {"step": finding.step_first}
        about |= {} if dated else {"time": "unknown: drawn at the start of the trace"}
        trace.instant(track, at_ns, f"{finding.severity} {finding.code}", categories=("incident",), about=about)


@dataclass
class Call:
    """A call of a recorded step: ``first`` and ``last`` are its recorded values, counted from 0 on its rank."""

    kind: str
    name: str
    site: str
    api: str
    module: str
    pass_of: tuple[int, str]
    """Micro-batch and phase."""
    first: int
    last: int
    args: str = ""
    flows: list[int] = field(default_factory=list[int])


def _calls(run: Run, step: int, rank: int) -> list[Call]:
    """The calls of a recorded step, a module stretched over what ran within it where that is plain."""
    spans: dict[tuple[Any, ...], Call] = {}
    for row in run.records(steps=[step], ranks=[rank], columns=list(_COLUMNS), resolve=False).to_pylist():
        if row["kind"] not in _KINDS:
            continue
        pass_of = (row["micro"] or 0, row["phase"] or "")
        key = (*pass_of, row["name"], row["call"], row["kind"])
        span = spans.get(key)
        if span is None:
            site = f"{step}.{pass_of[0]}/r{rank}/{row['phase']}/{row['name']}#{row['call']}"
            api, module = row["api"] or "", row["module"] or ""
            spans[key] = Call(row["kind"], row["name"], site, api, module, pass_of, row["row"], row["row"])
            span = spans[key]
        span.last = row["row"]
        span.args = span.args or row["args"] or ""
    calls = list(spans.values())
    _stretch(calls)
    return calls


def _stretch(calls: Sequence[Call]) -> None:
    """A module that ran once in a pass takes in the calls within it: of what carries no gradient nothing is recorded
    on the way back, so that it may seem to end before them.
    """
    modules = [call for call in calls if call.kind == "module"]
    counts = Counter((call.pass_of, call.name) for call in modules)
    once = {(call.pass_of, call.name): call for call in modules if counts[call.pass_of, call.name] == 1}
    for call in calls:
        outer, visited = once.get((call.pass_of, call.module)), {id(call)}
        while outer is not None and id(outer) not in visited:
            visited.add(id(outer))
            outer.first, outer.last = min(outer.first, call.first), max(outer.last, call.last)
            outer = once.get((outer.pass_of, outer.module))


def _flows(calls: Mapping[int, Sequence[Call]]) -> dict[tuple[Any, ...], int]:
    """Numbers the collectives that two ranks or more recorded, and gives each call its number: the n-th of an operation
    in a group of ranks is one collective on all of them.
    """
    peers: dict[tuple[Any, ...], list[Call]] = {}
    for spans in calls.values():
        counts: Counter[tuple[Any, ...]] = Counter()
        for call in spans:
            group = _group(call.args) if call.kind == "collective" else ()
            if len(group) > 1:
                key = (call.api, group)
                peers.setdefault((*key, counts[key]), []).append(call)
                counts[key] += 1
    flows = {key: number for number, key in enumerate((key for key in peers if len(peers[key]) > 1), start=1)}
    for key, number in flows.items():
        for call in peers[key]:
            call.flows.append(number)
    return flows


def _group(args: str) -> tuple[int, ...]:
    try:
        return tuple(json.loads(args).get("group") or ())
    except (ValueError, TypeError, AttributeError):
        return ()


def _draw_calls(trace: TraceWriter, process: int, title: str, calls: Sequence[Call], begin_ns: int) -> None:
    for lane in _lanes(calls):
        track = trace.track(title, parent=process)
        opened: list[Call] = []
        for call in lane:
            while opened and opened[-1].last < call.first:
                trace.end(track, begin_ns + (opened.pop().last + 1) * ROW_NS)
            about = {"site": call.site, "called": call.api, "arguments": call.args, "clock": "order, no time"}
            trace.begin(
                track,
                begin_ns + call.first * ROW_NS,
                call.name or call.api,
                categories=(call.kind, call.pass_of[1]),
                about={key: text for key, text in about.items() if text},
                flows=call.flows,
            )
            opened.append(call)
        while opened:
            trace.end(track, begin_ns + (opened.pop().last + 1) * ROW_NS)


def _lanes(calls: Iterable[Call]) -> list[list[Call]]:
    """Calls so that in each lane they nest: gradients of a call are seen while others are under way."""
    lanes: list[list[Call]] = []
    ends: list[list[int]] = []
    """Of each lane the ends of the calls that are open in it."""
    for call in sorted(calls, key=lambda call: (call.first, -call.last, call.kind != "module", call.name.count("."))):
        for lane_ends in ends:
            while lane_ends and lane_ends[-1] < call.first:
                lane_ends.pop()
        fitting = (lane for lane, lane_ends in enumerate(ends) if not lane_ends or lane_ends[-1] >= call.last)
        lane = next(fitting, len(lanes))
        if lane == len(lanes):
            lanes.append([])
            ends.append([])
        lanes[lane].append(call)
        ends[lane].append(call.last)
    return lanes
