"""The recorded calls that a place names, in the forms in which Trueline prints one: a site, a name, a line of code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from trueline.judge.recorded.operations import operations_of
from trueline.judge.recorded.step_values import StepValues, Value, read_step
from trueline.schema.errors import CannotTell, InputError
from trueline.schema.site import Site
from trueline.schema.text.words import listed
from trueline.store.reader import Run
from trueline.trials.op.recorded_calls import RecordedCall, op_steps, recorded_calls

_AT_A_STEP = re.compile(r"(\d+)\.\d+/r(\d+)/.+")
_LINE = re.compile(r"([^#]*\.\w+:\d+)(?: .*)?")
_SLOT = re.compile(r"(?<=\d):[A-Za-z_0-9.]+$")
_CUT = "…"
"""What a narrow terminal has in the middle of a site."""
_NEAREST = 3


def calls_at(run: Run, text: str, *, step: int | None = None, rank: int | None = None) -> list[RecordedCall]:
    """The calls of operations behind ``text``, in order and at least one: of a site (with or without its slot, or cut
    in its middle), the name of a call, value or module, or ``file:line``. A text without a step is of the first one
    with operations, unless ``step`` is given. Raises ``InputError`` with the nearest sites where there is none.
    """
    for step_asked, rank_asked in _steps(run, text, step, rank):
        values = read_step(run, step_asked, rank_asked)
        line = _LINE.fullmatch(text)
        # a finding on a series names the slot out0 also of a gradient, which records call grad
        sites = _sites(values, text) or _sites(values, _SLOT.sub("", text))
        keys = {operation.key for site in sites for operation in operations_of(values, site)} or (
            set(_at_line(run, values, line[1])) if line else set()
        )
        calls = recorded_calls(run, step=step_asked, rank=rank_asked)
        chosen = [call for call in calls if (call.micro, call.phase, call.name, call.call) in keys]
        if chosen:
            return chosen
    raise InputError(_nothing_at(run, text))


def _steps(run: Run, text: str, step: int | None, rank: int | None) -> Iterator[tuple[int, int]]:
    """The steps and ranks to look at."""
    at_a_step = _AT_A_STEP.fullmatch(text)
    if at_a_step is None:
        return op_steps(run, step, rank)
    step, rank = int(at_a_step[1]), int(at_a_step[2])
    return iter([(step, rank)] if _is_recorded(run, step, rank) else [])


def _is_recorded(run: Run, step: int, rank: int) -> bool:
    return step in run.record_steps and rank in run.record_ranks


def _sites(values: StepValues, text: str) -> list[Site]:
    """The sites of values that ``text`` spells; without a slot where it has none."""
    pattern = re.compile(".*".join(re.escape(part) for part in text.split(_CUT)))
    named: dict[Site, None] = {}
    for value in values.values:
        site = value.site
        call = f"{site.name}#{site.call}"
        for prefix in (f"{site.step}.{site.micro}/r{site.rank}/{site.phase}/", f"{site.phase}/", ""):
            if pattern.fullmatch(f"{prefix}{call}:{site.slot}"):
                named[site] = None
            elif pattern.fullmatch(f"{prefix}{call}") or pattern.fullmatch(f"{prefix}{site.name}"):
                named[replace(site, slot="")] = None
    return list(named)


def _at_line(run: Run, values: StepValues, line: str) -> Iterator[tuple[int, str, str, int]]:
    """The keys of calls that the line, as ``model.py:41``, made, or that were made below it."""
    for call in values.calls():
        if call.first.stack is not None and _is_below(run, call.first, line):
            yield call.key


def _is_below(run: Run, value: Value, line: str) -> bool:
    if value.stack is None or not run.has_stack(value.site.rank, value.stack):
        return False
    places = (frame.partition(" ")[0] for frame in run.stack_frames(value.site.rank, value.stack))
    return any(place == line or place.endswith(f"/{line}") for place in places)


def _nothing_at(run: Run, text: str) -> str:
    """What to say where no operation is behind ``text``."""
    at_a_step = _AT_A_STEP.fullmatch(text)
    asked = [(int(at_a_step[1]), int(at_a_step[2]))] if at_a_step else []
    try:
        steps = [where for where in asked if _is_recorded(run, *where)]
        sites = [
            call.site
            for where in steps or op_steps(run, None, None)
            for call in recorded_calls(run, step=where[0], rank=where[1])
        ]
    except CannotTell:
        sites = []
    head = f"No operation was recorded in '{run.path}' at '{text}', nor one that computed what is there"
    if not sites:
        return f"{head}; none was recorded at all: the presets ops and mix record them."
    nearest = difflib.get_close_matches(text, sites, n=_NEAREST, cutoff=0.0)
    return f"{head}; the nearest are {listed([repr(site) for site in nearest])}."
