"""Findings beside the first difference: arguments, buffers, values without a twin, and what rounding explains."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from trueline.comparison.judgement.findings.finding import finding_on
from trueline.comparison.judgement.findings.on_parameters import BUFFERS
from trueline.comparison.judgement.step import Step, StepRow, step_rows
from trueline.comparison.judgement.structure_text import difference_in_words
from trueline.comparison.judgement.values.argument_differences import (
    arguments_in_words,
    different_arguments,
    is_fraction,
    is_word,
    shown_arguments,
)
from trueline.comparison.judgement.values.compared import LIMIT
from trueline.comparison.result import command_for
from trueline.judge.recorded.step_values import Call
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some

_ArgumentTexts = Mapping[str, Sequence[str]]
"""Arguments that differ, as a finding has them: of the run and of the reference."""


def arguments_differ(steps: Sequence[Step], *, findings: Sequence[Finding]) -> list[Finding]:
    """The finding on calls whose fractional arguments (an epsilon) or words (an approximation) differ: worth knowing
    even where rounding hides the effect. Arguments of ``findings`` are left out.
    """
    evidence: list[Any] = [finding.evidence.get("arguments") for finding in findings]
    reported = {
        (name, *pair)
        for arguments in evidence
        if isinstance(arguments, dict)
        for name, pair in cast(_ArgumentTexts, arguments).items()
    }
    texts: list[str] = []
    for call, twin in _calls_of_other_arguments(steps):
        for name, (argument, ref_argument) in different_arguments(call, twin).items():
            pair = {name: (argument, ref_argument)}
            if (name, *shown_arguments(pair)[name]) in reported:
                continue
            # Whole numbers are mostly sizes, which batches and shapes change.
            if (is_fraction(argument) and is_fraction(ref_argument)) or is_word(argument) or is_word(ref_argument):
                texts.append(f"at {call.first.site} {arguments_in_words(pair)}")
    if not texts:
        return []
    more = f", and {len(texts) - 3} more" if len(texts) > 3 else ""
    claim = f"Calls have different arguments than in the reference: {'; '.join(texts[:3])}{more}."
    return [finding_on("structure-differs", "info", claim, [], evidence={"arguments": texts[:100]})]


def _calls_of_other_arguments(steps: Sequence[Step]) -> Iterator[tuple[Call, Call]]:
    """Calls of the forward pass of the first step that both runs make, with other arguments."""
    for call, twin in steps[0].alignment.calls if steps else ():
        if call is not None and twin is not None and call.phase == "fwd" and call.first.args != twin.first.args:
            yield call, twin


def buffers_updated_otherwise(steps: Sequence[Step]) -> Iterator[Finding]:
    """The finding on the first call that updates buffers by another momentum: no result of it shows that before an
    evaluation uses them.
    """
    for call, twin in _calls_of_other_arguments(steps):
        if (call.first.function, "in1") not in BUFFERS:
            continue
        pair = different_arguments(call, twin).get("momentum")
        # In evaluation mode buffers are read and not updated.
        row = next((row for row in steps[0].rows if row.run_value is call.first), None)
        if pair is None or row is None or '"training":false' in (call.first.args or ""):
            continue
        momentum, ref_momentum = shown_arguments({"momentum": pair})["momentum"]
        frame = steps[0].frame(call.first)
        claim = (
            f"{call.first.module} updates its buffers running_mean and running_var by another momentum than in the "
            f"reference: momentum is {momentum} and not {ref_momentum}, in "
            f"{call.first.site}{f' ({frame})' if frame else ''}."
        )
        evidence = {"arguments": {"momentum": (momentum, ref_momentum)}, "where": frame}
        advice = ("Set the same momentum in both.", command_for(steps[0].run.path, call.first.site))
        evidence_rows = [StepRow(steps[0], row)]
        yield finding_on("structure-differs", "error", claim, evidence_rows, evidence=evidence, advice=advice)
        return


def sites_missing(steps: Sequence[Step]) -> list[Finding]:
    """The finding on values that one run alone has, and why; [] where there are none."""
    unmatched = [pair for pair in step_rows(steps) if pair.row.unmatched]
    if not unmatched:
        return []
    reasons = Counter(row.note for _, row in unmatched)
    frequent = reasons.most_common(3)
    reason_texts = [f"{num:,} {reason}" for reason, num in frequent]
    if num_others := len(unmatched) - sum(num for _, num in frequent):
        reason_texts.append(f"{num_others:,} for other reasons")
    has = "has" if len(unmatched) == 1 else "have"
    claim = f"{counted(len(unmatched), 'value')} of one run {has} no twin in the other: {'; '.join(reason_texts)}."
    params = [pair for pair in unmatched if pair.site.phase == "param"]
    if params:
        names = list(dict.fromkeys(pair.site.name for pair in params))
        claim += f" Among them {counted(len(names), 'parameter')}: {named_some(names)}."
    cut_otherwise = _have_as_many_numbers(params)
    if cut_otherwise:
        claim += (
            " They have as many numbers in both runs: where modules are split or merged, --map says how, and the "
            "parameters are compared too."
        )
    step = unmatched[0].step
    lone = step.graph_diff.alone
    words = difference_in_words(step, lone) if lone.mine or lone.theirs else ""
    claim += f" In the forward pass {words}." if words else ""
    severity = "warning" if params and not cut_otherwise else "info"
    # Parameters matter most: what is computed from them is unmatched as well.
    shown_rows = (params or unmatched)[:3]
    return [finding_on("site-missing", severity, claim, shown_rows, evidence={"reasons": dict(reasons)})]


def _have_as_many_numbers(params: Sequence[StepRow]) -> bool:
    """True where parameters without a twin have as many numbers in the run as in the reference: they go by other names,
    or are cut otherwise. Their equality shows in what calls make of them.
    """
    numel = Counter[bool]()
    for step, row in params:
        if step.step == params[0].step.step:
            numel[row.run_value is None] += math.prod(row.value.shape)
    return 0 < numel[True] == numel[False]


def explained_by_rounding(steps: Sequence[Step]) -> list[Finding]:
    """The finding on differences that are all within rounding, at the largest of them; [] where there are none."""
    explained = [pair for pair in step_rows(steps) if pair.row.judgement == "within"]
    if not explained:
        return []
    largest = max(explained, key=lambda pair: pair.row.times or 0.0)
    differ = f"{counted(len(explained), 'value')} {'differs' if len(explained) == 1 else 'differ'}"
    claim = (
        f"Rounding explains every difference that could be judged: {differ}, by at most "
        f"{largest.row.times or 0.0:.2g} times what is expected, at {largest.site}. Up to "
        f"{LIMIT['tensor']:.0f} times, or {LIMIT['statistics']:.0f} where it is measured less well, counts as rounding."
    )
    return [finding_on("explained-by-rounding", "info", claim, [largest])]
