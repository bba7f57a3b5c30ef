"""What is kept of a training: its facts as numbers, what ``check`` says of it, and its shape."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trueline
from trueline.judge.facts.training_facts import all_subjects
from trueline.schema.errors import CannotTell
from trueline.schema.finding import UNUSUAL
from trueline.schema.text.reading import why
from trueline.store.reader import Run

_SETTINGS = ("lr", "initial_lr", "num_params", "params", "warmup", "step", "max_lr", "min_lr")
"""Of a group of parameters what a schedule changes, or what is a count of the model: not of its shape."""


@dataclass(frozen=True)
class Training:
    """A healthy training that was watched. ``kind`` is ``gallery``, ``frameworks`` or ``examples``; ``origin`` what
    is different of itself: the framework or the repository. ``facts`` are numbers by the name of the fact, ``nothing``
    are facts of which the job has nothing, ``unknown`` the reasons of those that the Run does not tell.
    """

    name: str
    kind: str
    origin: str
    ranks: int
    steps: int
    adapter: str
    facts: Mapping[str, Any]
    nothing: tuple[str, ...]
    unknown: Mapping[str, str]
    findings: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def shape(self) -> str:
        """A digest of what kind of job it is: trainings of one shape are counted as one."""
        text = json.dumps([self.kind, self.origin, self.ranks, self.adapter, _shaped(self.facts)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def tells(self, fact: str) -> bool:
        """Whether the Run tells this fact, or that the job has nothing of the kind. A fact that was not asked when the
        Run was read is not told.
        """
        return fact in self.facts or fact in self.nothing

    def to_json(self) -> dict[str, Any]:
        """As results keep it."""
        return {**asdict(self), "findings": list(self.findings), "nothing": list(self.nothing)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Training:
        """The training that ``to_json`` wrote."""
        return cls(**{**document, "findings": tuple(document["findings"]), "nothing": tuple(document["nothing"])})


def read(path: Path, *, name: str, kind: str, origin: str) -> Training:
    """The training that left the Run at ``path``. Only public examples are checked: ours are where the gallery and
    ``benchmarks.frameworks`` are measured. Raises ``RunError`` where there is none.
    """
    run = Run(path)
    facts: dict[str, Any] = {}
    nothing: list[str] = []
    unknown: dict[str, str] = {}
    for subject in all_subjects():
        try:
            answer = subject.find(run)
        except CannotTell as error:
            unknown[subject.name] = why(error)
            continue
        if answer is None:
            nothing.append(subject.name)
        else:
            facts[subject.name] = answer[1]
    findings = [
        {"code": finding.code, "severity": finding.severity, "ranks": list(finding.ranks), "claim": finding.claim}
        for finding in (trueline.check(path).findings if kind == "examples" else ())
        if finding.is_grave and finding.code != UNUSUAL
    ]
    return Training(
        name,
        kind,
        origin,
        ranks=run.world_size,
        steps=len(run.steps),
        adapter=run.manifest.adapter,
        facts=json.loads(json.dumps(facts, default=_plain)),
        nothing=tuple(nothing),
        unknown=unknown,
        findings=tuple(findings),
    )


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return value.item()


def one_of_each(trainings: Iterable[Training]) -> list[Training]:
    """The first training of each shape."""
    firsts: dict[str, Training] = {}
    for training in trainings:
        firsts.setdefault(training.shape, training)
    return list(firsts.values())


def _shaped(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What of the facts is how the job is made, and not what came of it."""
    same = ("loader", "batch", "tied", "weight-dtypes", "autocast")
    shape: dict[str, Any] = {name: facts.get(name) for name in same}
    # Names of parts are not how many there are.
    parameters = facts.get("parameters") or {}
    shape["parameters"] = {key: value for key, value in parameters.items() if not key.endswith("_parts")}
    optimizer = facts.get("optimizer") or {}
    shape["optimizer"] = optimizer.get("class")
    shape["groups"] = [
        {key: value for key, value in group.items() if key not in _SETTINGS} for group in optimizer.get("groups", ())
    ]
    shape["scheduled"] = len((facts.get("learning-rate") or {}).get("turns", ())) > 1
    shape["clipped"] = (facts.get("clipping") or {}).get("limits")
    shape["scaler"] = "scaler" in facts
    shape["evaluation"] = bool((facts.get("evaluation-modules") or {}).get("most"))
    shape["starts"] = (facts.get("starts") or {}).get("starts")
    return shape
