"""JSON Schemas of documents that Trueline prints and of files that it reads, made of the types behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from trueline.judge.actions import Action
from trueline.judge.awaited import Stop
from trueline.judge.causes.verdicts import CauseVerdict
from trueline.judge.facts.base_rates import BaseRate
from trueline.judge.facts.fact import Area
from trueline.judge.incidents import Incident
from trueline.schema.errors import InputError
from trueline.schema.finding import Finding, Severity, Where
from trueline.schema.judged import NotRun, Question, State
from trueline.schema.plan import Plan

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_NOT_FINITE = {"enum": ["NaN", "Infinity", "-Infinity"]}
"""What stands for numbers that JSON has no form for: see ``schema.text.documents.finite``."""


class AskedDocument(TypedDict):
    """What ``AskedQuestion.to_json`` makes."""

    question: Question
    state: State
    checks_run: list[str]
    checks_not_run: list[NotRun]


class JudgedDocument(TypedDict):
    """What ``Judged.to_json`` makes."""

    enough: bool
    ranks: list[int]
    world_size: int
    num_steps: int
    step_first: int | None
    step_last: int | None
    unclosed: list[int]
    questions: list[AskedDocument]


class FactDocument(TypedDict):
    """What ``Fact.to_json`` makes."""

    name: str
    area: Area
    text: str
    value: Any
    marks: list[str]
    unusual: dict[str, BaseRate]


class CheckDocument(TypedDict):
    """What `trueline check --json` prints."""

    schema: Literal[1]
    run: str
    status: Literal["fault", "confirm", "fine", "cannot-tell"]
    exit_code: Literal[0, 1, 3]
    verdict: str
    cause: str | None
    actions: list[Action]
    confirm: list[Finding]
    facts: list[FactDocument]
    judged: JudgedDocument
    incidents: list[Incident]
    findings: list[Finding]
    checks_run: list[str]
    checks_not_run: list[NotRun]
    next: list[str]
    notes: list[str]


class DiagnoseDocument(TypedDict):
    """What `trueline diagnose --json` prints."""

    schema: Literal[1]
    run: str
    verdict: str
    verdicts: list[CauseVerdict]
    incidents: list[Incident]
    findings: list[Finding]
    judged: JudgedDocument
    next: list[str]
    notes: list[str]


class BriefFinding(TypedDict):
    """Of a finding, or of what is to confirm, what it takes to decide what to read next."""

    id: str
    code: str
    severity: Severity
    claim: str
    ranks: list[int]
    step_first: int | None
    where: Where


class WaitDocument(TypedDict):
    """What `trueline wait` prints."""

    schema: Literal[1]
    run: str
    until: str
    reached: bool
    stop: Stop
    status: Literal["fault", "confirm", "fine", "cannot-tell"]
    exit_code: Literal[0, 1, 3]
    verdict: str
    cause: str | None
    ended: bool
    num_steps: int
    step_last: int | None
    waited_s: float
    actions: list[Action]
    findings: list[BriefFinding]
    left_out: dict[str, int]


class NumbersLine(TypedDict):
    """A line of the sink ``jsonl`` with the series of one step."""

    schema: Literal[1]
    kind: Literal["numbers"]
    step: int
    values: dict[str, float]


def _live_line() -> dict[str, Any]:
    numbers = TypeAdapter(NumbersLine).json_schema(mode="serialization")
    finding = TypeAdapter(Finding).json_schema(mode="serialization")
    head: dict[str, Any] = {"schema": {"const": 1}, "kind": {"const": "finding"}}
    finding["properties"] = head | finding["properties"]
    finding["required"] = [*head, *finding["required"]]
    parts = {"$defs": finding.pop("$defs")}  # references are from the root of a document
    return parts | {"oneOf": [numbers, finding], "title": "LiveLine", "description": "A line of the sink `jsonl`."}


def _with_ids(schema: dict[str, Any]) -> dict[str, Any]:
    """Findings of a whole Run have a name each."""
    finding = schema["$defs"]["Finding"]
    finding["properties"] = {"id": {"type": "string"}} | finding["properties"]
    finding["required"] = ["id", *finding["required"]]
    return schema


_MAKE_SCHEMA: dict[str, Callable[[], dict[str, Any]]] = {
    "check": lambda: _with_ids(TypeAdapter(CheckDocument).json_schema(mode="serialization")),
    "diagnose": lambda: TypeAdapter(DiagnoseDocument).json_schema(mode="serialization"),
    "wait": lambda: TypeAdapter(WaitDocument).json_schema(mode="serialization"),
    "live": _live_line,
    "plan": Plan.model_json_schema,
}

NAMES: tuple[str, ...] = tuple(_MAKE_SCHEMA)


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of the document ``name``: one of ``NAMES``. Further keys may come. Raises ``InputError``."""
    if name not in _MAKE_SCHEMA:
        raise InputError(f"There is no JSON Schema of '{name}'. There are those of {', '.join(NAMES)}.")
    schema = _MAKE_SCHEMA[name]()
    return {"$schema": DIALECT} | (schema if name == "plan" else cast(dict[str, Any], _with_not_finite(schema)))


def _with_not_finite(part: Any) -> Any:
    """``part`` of a schema, in which every number may also be one of ``_NOT_FINITE``."""
    if isinstance(part, list):
        return [_with_not_finite(item) for item in cast(list[Any], part)]
    if not isinstance(part, dict):
        return part
    items = cast(dict[str, Any], part)
    # Documents write what JSON has no number for as a string, wherever a number may stand.
    if items.get("type") == "number":
        return {"anyOf": [items, _NOT_FINITE]}
    return {key: _with_not_finite(value) for key, value in items.items()}
