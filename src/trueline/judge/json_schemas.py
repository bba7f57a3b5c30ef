"""JSON Schemas of documents that Trueline prints and of files that it reads, made of the types behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NotRequired, cast

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from trueline.comparison.result import ComparedRow, JudgedPass, Judgement, OneSidedCall, StepSummary
from trueline.judge.actions import Action
from trueline.judge.awaited import Stop
from trueline.judge.causes.verdicts import CauseVerdict
from trueline.judge.facts.base_rates import BaseRate
from trueline.judge.facts.fact import Area
from trueline.same_job.fact_pair import FactPair
from trueline.same_job.vocabulary import Starts
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


class IncidentDocument(TypedDict):
    """What ``CheckReport.incident_documents`` makes of one."""

    ranks: list[int]
    step_first: int | None
    severity: Severity
    findings: list[int]
    title: str
    ids: list[str]


class Pages(TypedDict):
    """Keys of a document that was cut by `--max-bytes`."""

    page: NotRequired[int]
    next_page: NotRequired[int | None]
    left_out: NotRequired[dict[str, int]]


class CheckDocument(Pages):
    """What `trueline check --json` prints."""

    schema: Literal[1]
    run: str
    status: Literal["fault", "confirm", "fine", "cannot-tell"]
    exit_code: Literal[0, 1, 3]
    verdict: str
    cause: str | None
    not_judged: list[Question]
    actions: list[Action]
    confirm: list[Finding]
    facts: list[FactDocument]
    judged: JudgedDocument
    incidents: list[IncidentDocument]
    findings: list[Finding]
    checks_run: list[str]
    checks_not_run: list[NotRun]
    next: list[str]
    notes: list[str]


class DiagnoseDocument(Pages):
    """What `trueline diagnose --json` prints."""

    schema: Literal[1]
    run: str
    status: Literal["fault", "confirm", "fine", "cannot-tell"]
    exit_code: Literal[0, 1, 3]
    verdict: str
    cause: str | None
    not_judged: list[Question]
    actions: list[Action]
    verdicts: list[CauseVerdict]
    incidents: list[IncidentDocument]
    findings: list[Finding]
    judged: JudgedDocument
    next: list[str]
    notes: list[str]


class FactsDocument(Pages):
    """What `trueline facts --json` prints."""

    schema: Literal[1]
    run: str
    status: Literal["not-judged"]
    exit_code: Literal[0]
    cause: None
    actions: list[Action]
    facts: list[FactDocument]
    unknown: dict[str, str]


class PassesDocument(TypedDict):
    """How many values of some passes were judged."""

    step: NotRequired[int | None]
    values: int
    judged: int
    calls_in_one_run: int
    passes: list[JudgedPass]


class ComparedValuesDocument(PassesDocument):
    """What ``comparison.result.Judged.to_json`` makes."""

    enough: bool
    lacking: str
    first_step: PassesDocument


class TwoSides(Pages):
    """What documents about a job and its reference begin with."""

    schema: Literal[1]
    run: str
    ref: str
    status: Literal["same", "different", "cannot-tell"]
    exit_code: Literal[0, 1, 3]
    verdict: str
    cause: str | None
    actions: list[Action]


class CompareDocument(TwoSides):
    """What `trueline compare --json` prints."""

    findings: list[Finding]
    first: ComparedRow | None
    counts: dict[Judgement, int]
    judged: ComparedValuesDocument
    missing: dict[str, int]
    one_sided_calls: list[OneSidedCall]
    steps: list[StepSummary]
    rows: list[ComparedRow]
    notes: list[str]
    written: list[str]


class DifferenceDocument(TypedDict):
    """What ``Difference.to_json`` makes, with its name."""

    id: str
    code: str
    severity: Severity
    topic: str
    name: str
    says: str
    run: str
    ref: str
    likely: int
    changes_first: Starts
    run_where: str
    ref_where: str
    note: str


class SettingsDocument(TypedDict):
    """Settings of both jobs in the words of the vocabulary."""

    run: dict[str, str]
    ref: dict[str, str]


class DiffDocument(TwoSides):
    """What `trueline diff --json` prints."""

    began: Literal["at the first loss", "later", "never", ""]
    differences: list[DifferenceDocument]
    findings: list[Finding]
    compared: dict[str, int]
    facts: list[FactPair]
    settings: SettingsDocument
    notes: list[str]
    written: list[str]


class ArmDocument(TypedDict):
    """One way to run the job: how often it was run, and in how many of these runs it showed what is asked for."""

    name: str
    runs: int
    showed: int


class TrialDocument(Pages):
    """What `trueline trial VERB --json` prints, of each verb; with `--dry-run` it has ``plan`` and ``takes`` in place
    of the answer. ``table``, ``outputs`` and ``operations`` are of single verbs.
    """

    schema: Literal[1]
    trial: str
    status: Literal["confirmed", "excluded", "undecided", "not-judged"]
    exit_code: Literal[0, 3]
    verdict: str
    cause: str | None
    actions: list[Action]
    plan: NotRequired[list[str]]
    takes: NotRequired[str]
    question: NotRequired[str]
    answer: NotRequired[Literal["confirmed", "excluded", "undecided"]]
    says: NotRequired[list[str]]
    arms: NotRequired[list[ArmDocument]]
    error_asked: NotRequired[float | None]
    runs: NotRequired[int]
    rate: NotRequired[dict[str, float]]
    credible: NotRequired[list[str]]
    next: NotRequired[list[str]]
    findings: NotRequired[list[Finding]]
    table: NotRequired[list[dict[str, Any]]]
    site: NotRequired[str]
    device: NotRequired[str]
    counts: NotRequired[dict[str, int]]
    outputs: NotRequired[dict[str, Any]]
    operations: NotRequired[list[Any]]
    written: NotRequired[list[str]]


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


def _schema_with_ids(document: Any) -> dict[str, Any]:
    """The schema of a document whose findings have a name each."""
    schema = TypeAdapter(document).json_schema(mode="serialization")
    if "Finding" not in schema["$defs"]:
        return schema
    finding = schema["$defs"]["Finding"]
    finding["properties"] = {"id": {"type": "string"}} | finding["properties"]
    finding["required"] = ["id", *finding["required"]]
    return schema


_MAKE_SCHEMA: dict[str, Callable[[], dict[str, Any]]] = {
    "check": lambda: _schema_with_ids(CheckDocument),
    "diagnose": lambda: _schema_with_ids(DiagnoseDocument),
    "compare": lambda: _schema_with_ids(CompareDocument),
    "diff": lambda: _schema_with_ids(DiffDocument),
    "facts": lambda: _schema_with_ids(FactsDocument),
    "trial": lambda: _schema_with_ids(TrialDocument),
    "wait": lambda: _schema_with_ids(WaitDocument),
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
