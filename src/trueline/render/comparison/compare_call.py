"""The call that a value of a comparison belongs to, as its Run recorded it: arguments, module and lines of code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from trueline.schema.errors import TruelineError
from trueline.schema.site import Site
from trueline.store.reader import Run

_INSTALLED = ("/site-packages/", "/dist-packages/")
_COLUMNS = ("rank", "row", "micro", "name", "call", "module", "args", "stack")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """What was recorded of a call except its values. ``arguments`` are texts by position or name, in order, {} where
    none were recorded; ``frames`` is the call stack, innermost frame first, () where none was taken.
    """

    module: str
    arguments: Mapping[str, str]
    frames: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """``file:line function`` of the innermost frame and, where a library has that, of the script that called it."""
        return tuple(dict.fromkeys(frame for frame in (*self.frames[:1], own_frame(self.frames)) if frame))

    @property
    def code(self) -> str:
        """``lines`` as one text, "" without a stack."""
        return ", called from ".join(self.lines)


def own_frame(frames: Sequence[str]) -> str:
    """The innermost of ``frames`` that is in no installed library, "" where all are."""
    return next((frame for frame in frames if not _installed(frame)), "")


def recorded_call(run: Run | None, site: str | None) -> RecordedCall | None:
    """The call at ``site`` (text form) of ``run``; None where there is no such Run, or it recorded none there."""
    if run is None or site is None:
        return None
    try:
        where = Site.parse(site)
        rows = run.records(
            steps=[where.step], ranks=[where.rank], phases=[where.phase], columns=list(_COLUMNS), resolve=False
        )
        keep = pc.and_(
            pc.and_(pc.equal(rows["name"], where.name), pc.equal(rows["call"], where.call)),
            pc.equal(rows["micro"], where.micro),
        )
        call_rows = rows.filter(keep).to_pylist()
        return call_of(run, call_rows) if call_rows else None
    except TruelineError:
        return None


def differing_arguments(call: RecordedCall, ref: RecordedCall) -> list[tuple[str, str, str]]:
    """(name, text of ``call``, text of ``ref``) of each argument that is not the same; "–" where one has none."""
    names = list(dict.fromkeys([*call.arguments, *ref.arguments]))
    pairs = [(name, call.arguments.get(name, "–"), ref.arguments.get(name, "–")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def call_text(function: str, call: RecordedCall) -> str:
    """``rms_norm(in0, [64], eps=1e-06)``."""
    words = [text if name.isdigit() else f"{name}={text}" for name, text in call.arguments.items()]
    return f"{function}({', '.join(words)})"


def call_of(run: Run, rows: list[dict[str, Any]]) -> RecordedCall:
    """The call whose ``rows``, at least one, have the columns of ``_COLUMNS``."""
    args = next((row["args"] for row in rows if row["args"]), None)
    stack = next((row["stack"] for row in rows if row["stack"] is not None), None)
    frames: tuple[str, ...] = ()
    if stack is not None:
        try:
            frames = run.stack_frames(rows[0]["rank"], stack)
        except TruelineError:
            frames = ()
    return RecordedCall(rows[0]["module"] or "", _arguments(args), frames)


def _arguments(text: str | None) -> dict[str, str]:
    try:
        document = json.loads(text) if text else None
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    positional = {str(index): value for index, value in enumerate(document.get("args") or [])}
    return {name: _argument(value) for name, value in {**positional, **(document.get("kwargs") or {})}.items()}


def _argument(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"in"}:
        return str(value["in"])
    return json.dumps(value, ensure_ascii=False)


def _installed(frame: str) -> bool:
    return any(part in frame.replace("\\", "/") for part in _INSTALLED)
