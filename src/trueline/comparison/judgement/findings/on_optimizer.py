"""Findings on updates, and on the settings of optimizers and of clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trueline.comparison.judgement.cause import cause_of, differing_arguments, in_words
from trueline.comparison.judgement.findings.finding import FIRST_DIVERGENCE, difference_text, finding_on
from trueline.comparison.judgement.settings import SettingsDifference, differing_settings, setting_of
from trueline.comparison.judgement.step import Step, StepRow
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some

_SAME_PARAM_GROUPS = "Build both optimizers from one configuration, and compare their param_groups."


def update_differs(differing: Sequence[StepRow]) -> Finding:
    """The finding on the first of ``differing`` values, which an update computed."""
    first = differing[0]
    step, arguments = first.step, differing_arguments(*first)
    cause = cause_of(*first)
    why = in_words(cause)
    claim = f"The update differs from the reference at {first.site} {difference_text(first.row)}; {why}"
    settings = None if step.ref is None else differing_settings(step.run, step.ref)
    setting = setting_of(
        first.site.name,
        arguments,
        on_param=_takes_parameter(first),
        differing=None if settings is None else settings.settings,
    )
    if setting:
        # The setting ends the sentence on the argument that it makes.
        claim = f"{claim[:-1]}: {setting}."
    advice = (_SAME_PARAM_GROUPS, first.command, *(first.proof if cause.reason == "computation" else ()))
    return finding_on("optimizer-differs", "error", claim, [first], advice=advice)


def _takes_parameter(first: StepRow) -> bool:
    expectation = first.row.expectation
    sources = set[int]() if expectation is None else set(expectation.sources)
    return any(row.param is not None and row.root in sources for row in first.step.rows)


def with_settings(
    findings: Sequence[Finding], settings: SettingsDifference, first: StepRow | None, steps: Sequence[Step]
) -> list[Finding]:
    """``findings`` and that on ``settings``, which leads where they may have caused the first difference, and has then
    the evidence of what the update shows.
    """
    of_update = next((finding for finding in findings if finding.code == "optimizer-differs"), None)
    if settings.only_class and of_update is None:
        claim = f"The optimizers are of different classes: {settings.in_words()}; what they compute agrees."
        return [*findings, Finding("optimizer-differs", "info", claim)]
    is_cause = first is None or settings.may_have_caused(first.step.step, first.site.phase)
    finding = _settings_finding(settings, steps, is_cause=is_cause)
    if is_cause and settings.only_clipping and first is not None and first.site.phase == "grad":
        # The first gradient after clipping only shows what the setting says already.
        remaining = (known_finding for known_finding in findings if known_finding.code != FIRST_DIVERGENCE)
        return [replace(finding, sites=(str(first.site),)), *remaining]
    if not is_cause or of_update is None:
        return [finding, *findings]
    merged = replace(
        of_update,
        claim=f"{finding.claim} {of_update.claim}",
        evidence={**of_update.evidence, **finding.evidence},
        next=tuple(dict.fromkeys((*finding.next, *of_update.next[1:]))),
    )
    return [merged, *(known_finding for known_finding in findings if known_finding is not of_update)]


def _settings_finding(settings: SettingsDifference, steps: Sequence[Step], *, is_cause: bool) -> Finding:
    subject = "Gradients are clipped" if settings.only_clipping else "The optimizers are set"
    claim = f"{subject} differently: {settings.in_words()}."
    for side, names in _updated_in_one_run(steps).items() if settings.of_count else ():
        claim += f" Only {side} updates {named_some(names)}."
    if not is_cause:
        claim += (
            f" That cannot have caused the first difference, which is before the update of step {settings.first_step}."
        )
    return Finding(
        "optimizer-differs",
        "error" if is_cause else "warning",
        claim,
        step_first=settings.first_step,
        evidence={"settings": {name: list(pair) for name, pair in settings.settings.items()}},
        next=("Clip by the same norm in both." if settings.only_clipping else _SAME_PARAM_GROUPS,),
    )


def _updated_in_one_run(steps: Sequence[Step]) -> Mapping[str, list[str]]:
    """By run (RUN, REF), the parameters that it changed between the first step and the last, and the other run not."""
    # One rank stands for all: replicas update alike.
    of_rank = [step for step in steps if step.rank == steps[0].rank] if steps else []
    params = [{row.value.site.name: row for row in step.rows if row.value.site.phase == "param"} for step in of_rank]
    updated: dict[str, list[str]] = {}
    for name, last in params[-1].items() if params else ():
        first = params[0].get(name)
        pairs = [] if first is None else [(first.run_value, last.run_value), (first.ref_value, last.ref_value)]
        moved = [start.stats != end.stats for start, end in pairs if start is not None and end is not None]
        if len(moved) == 2 and moved[0] != moved[1]:
            updated.setdefault("RUN" if moved[0] else "REF", []).append(name)
    return updated
