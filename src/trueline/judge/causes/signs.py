"""The signs by which causes are told apart: what an incident shows, what it does not, and what nobody looked at.

A sign is one of

- the code of a finding, as ``worker-scale``;
- its code and kind, as ``reduction-mismatch/scaled``: what ``evidence["kind"]`` says;
- who and when, as ``who:some``, ``who:all``, ``since:start``, ``since:later``, ``steps:one``, ``steps:many``;
- what ranks were fed with, and by what they compute their loss, as ``inputs:other``, ``loss:alike``;
- what the training did, as ``fact:rate-zero``: the mark of a fact (``judge/facts``), whose base rate among healthy
  trainings is measured;
- what a trial answered, as ``trial-sync:ordering`` (``trial_signs.py``);
- how the job was run, as ``ranks:one``, ``adapter:ddp`` (``part-in-ddp``: a part of the model alone is wrapped),
  ``sampler:whole`` (``own``: a class of the user's),
  ``parts:own``, ``rows:shared``, ``split:drawn``, ``order:random``, ``micro:several``, ``precision:float16``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks, numbers
from trueline.judge.facts.training_facts import all_subjects
from trueline.judge.incidents import Incident
from trueline.judge.series.declared_sampling import DeclaredSampling, declared_sampling
from trueline.judge.series.target_places import NEXT, target_places
from trueline.schema.errors import RunError
from trueline.schema.finding import Finding
from trueline.schema.law import codes as declared_codes
from trueline.schema.law import facts_of
from trueline.store.reader import Run

if TYPE_CHECKING:
    from trueline.judge.check_run import CheckReport

FACT = "fact"
"""Topic of signs that are facts of the training."""

_SPLITTING_NOTHING = ("SequentialSampler", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
"""Samplers of torch.utils.data that know of no ranks."""


@dataclass(frozen=True)
class Signs:
    """``fired`` are signs that are there, ``silent`` those that were looked for and are not. Of others nothing is
    known. ``hinted`` are the codes and kinds of findings that are no fault about the same ranks and steps, which are in
    no incident.
    """

    fired: frozenset[str]
    silent: frozenset[str]
    hinted: frozenset[str] = frozenset()

    def looked_at(self, sign: str) -> bool:
        """True if the Run says anything of ``sign``."""
        return sign in self.fired or sign in self.silent

    def with_found(self, code: str) -> Signs:
        """These signs, had the check of ``code`` found something, of whatever kind."""
        return Signs(self.fired | {code}, self.silent - {code}, self.hinted)


def signs_of(report: CheckReport, incident: Incident, known_signs: Collection[str]) -> Signs:
    """State of the ``known_signs`` in ``incident``: kinds only of findings that some cause tells apart by
    them.
    """
    findings = [report.findings[index] for index in incident.findings]
    codes = {finding.code for finding in findings}
    elsewhere = {finding.code for finding in report.findings if finding.is_grave} - codes
    by_kind = {sign.partition("/")[0] for sign in known_signs if "/" in sign}
    fired = codes | {
        _kind_sign(finding, kind) for finding in findings if finding.code in by_kind for kind in _kinds(finding)
    }
    fired |= {f"{part}:{state}" for finding in findings for part, state in _feed_states(finding).items()}
    fired |= (
        _rank_signs(findings, report.judged.world_size)
        | _onset_signs(findings, report)
        | _duration_signs(findings)
        | report.context
    )
    marks, absent_marks = _fact_signs(report)
    fired |= marks
    fired |= {trial.sign for trial in report.trials if not trial.code or trial.code in codes}
    fired.add("ranks:one" if report.judged.world_size == 1 else "ranks:several")
    fired |= {
        f"{facts.asked_as}:{'judged' if code in report.checks_run else 'open'}"
        for code, facts in declared_codes().items()
        if facts.asked_as
    }
    infos = [info for info in report.findings if not info.is_grave and _is_beside(info, findings)]
    hinted = {info.code for info in infos} | {_kind_sign(info, kind) for info in infos for kind in _kinds(info)}
    silent: set[str] = set()
    for sign in known_signs:
        topic, mark, rest = sign.partition("/") if "/" in sign else sign.partition(":")
        if sign in fired:
            continue
        alternatives = {f"{topic}{mark}{kind}" for kind in rest.split("|")}
        if not hinted.isdisjoint(alternatives):
            hinted.add(sign)
        # ``a/x|y`` fires by either kind.
        if rest and not fired.isdisjoint(alternatives):
            fired.add(sign)
            continue
        if "/" in sign:
            judged = topic in codes and any(_kinds(finding) for finding in findings if finding.code == topic)
        elif topic == FACT:
            judged = sign in absent_marks
        elif ":" in sign:
            judged = any(other_sign.startswith(f"{topic}:") for other_sign in fired)
        else:
            judged = sign in report.checks_run and sign not in elsewhere
        if judged:
            silent.add(sign)
    return Signs(frozenset(fired), frozenset(silent), frozenset(hinted))


def is_fact(sign: str) -> bool:
    """True of a sign like ``fact:rate-zero``."""
    return sign.startswith(f"{FACT}:")


def _fact_signs(report: CheckReport) -> tuple[set[str], set[str]]:
    """Signs of the marks that apply to facts of the Run, and of those that do not though the Run tells the fact."""
    if report.facts is None:
        return set(), set()
    fired = {f"{FACT}:{mark}" for fact in report.facts.facts for mark in fact.marks}
    known_marks = {
        f"{FACT}:{mark.name}"
        for subject in all_subjects()
        if subject.words not in report.facts.unknown
        for mark in subject.marks
    }
    return fired, known_marks - fired


def _is_beside(info: Finding, findings: Sequence[Finding]) -> bool:
    """True if ``info`` is about a rank of one of ``findings``, and begins before that ends."""
    return any(
        (not info.ranks or not finding.ranks or not set(info.ranks).isdisjoint(finding.ranks))
        and (info.step_first is None or finding.step_last is None or info.step_first <= finding.step_last)
        for finding in findings
    )


def _kind_sign(finding: Finding, kind: str) -> str:
    return f"{finding.code}/{kind}"


def _kinds(finding: Finding) -> tuple[str, ...]:
    """Kinds that the check states; a check of another package may keep something else under this name."""
    kind = finding.evidence.get("kind")
    if isinstance(kind, str):
        return (kind,)
    kinds = cast(Sequence[Any], kind) if isinstance(kind, list | tuple) else ()
    return tuple(name for name in kinds if isinstance(name, str))


def _feed_states(finding: Finding) -> Mapping[str, str]:
    """States of inputs and labels of the ranks: ``other`` than those of their peers, or ``alike``."""
    states = finding.evidence.get("fed")
    return cast(Mapping[str, str], states) if isinstance(states, Mapping) else {}


def _rank_signs(findings: Sequence[Finding], world_size: int) -> set[str]:
    """Sign that fewer than half of the ranks are named, or all of them; of two ranks only where one is named."""
    naming = [finding for finding in findings if finding.ranks and not finding.evidence.get("undecided")]
    if world_size < 2 or not naming:
        return set()
    sizes = {len(finding.ranks) for finding in naming}
    if 2 * min(sizes) < world_size or (world_size == 2 and 1 in sizes):
        return {"who:some"}
    open_pair = world_size == 2 and all(facts_of(finding.code).names_both for finding in naming)
    return {"who:all"} if world_size in sizes and not open_pair else set()


def _onset_signs(findings: Sequence[Finding], report: CheckReport) -> set[str]:
    """Sign that the fault is there from the first step of the Run on, or began within it."""
    if report.judged.steps is None:
        return set()
    begins: list[int] = []
    for finding in findings:
        if interval := finding.evidence.get("onset_interval"):
            begins.append(int(interval[0]))
        elif facts_of(finding.code).dated and finding.step_first is not None:
            begins.append(finding.step_first)
    if not begins:
        return set()
    return {"since:start"} if min(begins) <= report.judged.steps[0] else {"since:later"}


def _duration_signs(findings: Sequence[Finding]) -> set[str]:
    """Sign that the telling finding is of a single step, or of several."""
    first = findings[0]
    if first.step_first is None or first.step_last is None:
        return set()
    return {"steps:one" if first.step_first == first.step_last else "steps:many"}


def context_of(run: Run) -> frozenset[str]:
    """Signs of how the job was run: framework, sampler, micro-batches, precision; but for what a damaged Run lacks."""
    envs = list(run.env.values())
    context = {f"adapter:{adapter}"} if (adapter := _adapter(run)) else set[str]()
    samplers = {_sampler(env.data) for env in envs} - {""}
    context |= {f"sampler:{sampler}" for sampler in samplers} if len(samplers) == 1 else set()
    context |= _sampling_signs(declared_sampling(run.env, data_parallel_ranks(run)))
    if envs:
        context.add("precision:float16" if any(env.in_float16 for env in envs) else "precision:other")
    for read_signs in (_accumulation_signs, _wrapper_signs, _label_signs):
        with contextlib.suppress(RunError):
            context |= read_signs(run)
    return frozenset(context)


def _adapter(run: Run) -> str:
    """Adapter of the manifest; ``part-in-ddp`` where the script reduces by itself, and DDP wraps a part of its
    model.
    """
    kinds = {part.kind for env in run.env.values() if env.facts for part in env.facts.modules}
    inside = run.manifest.adapter == "manual" and "DistributedDataParallel" in kinds
    return "part-in-ddp" if inside else run.manifest.adapter


def _sampler(data: Mapping[str, object]) -> str:
    """Split of the data by what the loader declares; a sampler of the user's own may split them by itself."""
    if not data:
        return ""
    if data.get("stream") is True:
        return "stream"
    if data.get("num_replicas") not in (None, 1):
        return "split"
    return "whole" if data.get("num_replicas") == 1 or data.get("sampler") in _SPLITTING_NOTHING else "own"


def _sampling_signs(declared: DeclaredSampling) -> set[str]:
    """Signs of sampling: if each rank's sampler declares a rank, and its data set holds rows, that no other's does; in
    which order samplers that split nothing go through it. A split is ``drawn`` where ranks hold other rows of one data
    set, in no even order.
    """
    signs: set[str] = set()
    for topic, key in (("parts", "sampler_rank"), ("rows", "rows_digest")):
        values = declared.of_each(key) or {}
        if len(values) > 1:
            signs.add(f"{topic}:{'own' if len(set(values.values())) == len(values) else 'shared'}")
    if declared.draws_splits:
        signs.add("split:drawn")
    order = {"SequentialSampler": "file", "RandomSampler": "random"}.get(declared.all_equal("sampler"))
    return signs | {f"order:{order}"} if order else signs


def _wrapper_signs(run: Run) -> set[str]:
    """Signs of DDP: if it was called, and if every step had a backward pass that it was to reduce: none is under
    ``no_sync``.
    """
    if run.manifest.adapter != "ddp":
        return set()
    passes, measured = numbers(run, "passes", run.ranks)
    outside = {env.forward_outside for env in run.env.values()}
    if True in outside:  # what went around DDP is no pass of its
        return {"wrapper:bypassed"}
    wrapper = {"wrapper:called"} if outside - {None} else set[str]()
    new_passes = np.diff(passes, axis=0, prepend=0.0)
    synced = "sync:on" if measured.all() and (new_passes > 0).all() else "sync:off"
    return wrapper | {synced}


def _label_signs(run: Run) -> set[str]:
    """Sign that each rank's targets are the next tokens of its own inputs, so that they belong to these."""
    offsets = target_places(run).values()
    return {"labels:of-inputs"} if offsets and all(offset == NEXT for offset in offsets) else set()


def _accumulation_signs(run: Run) -> set[str]:
    counts, measured = numbers(run, "num_micro", run.ranks)
    num_micro = counts[measured]
    return {"micro:several" if num_micro.max() > 1 else "micro:one"} if num_micro.size else set()
