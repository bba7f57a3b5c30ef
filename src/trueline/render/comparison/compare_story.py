"""A comparison in words: the verdict, the first difference, what to do next, and how differences develop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueline.comparison.result import JUDGEMENTS, ComparedRow, Comparison, Judged, OneSidedCall, command_for
from trueline.render.comparison.compare_call import RecordedCall, call_text, differing_arguments
from trueline.render.comparison.compare_details import details_text, place_of
from trueline.render.comparison.compare_growth import steps_lines
from trueline.render.comparison.compare_rows import JUDGEMENT_WORDS, shape_text
from trueline.render.wording import number
from trueline.schema.errors import SiteError
from trueline.schema.finding import SEVERITIES, Finding
from trueline.schema.site import Site
from trueline.schema.text.words import counted, listed, numberless

_MAX_SLOTS = 4
"""Values of the first call that are named one by one for each judgement."""


@dataclass(frozen=True, slots=True)
class Story:
    """Sentences, each whole.

    - ``status``: ``out``, ``suspect``, ``clear`` or ``unknown``, as the report's verdicts have it.
    - ``title``: the headline in the words of the call that it is about.
    - ``judged``: how much was judged, '' where that is not known.
    - ``facts``: (label, text) about the first difference.
    - ``one_sided``: calls that only one run makes.
    """

    status: str
    title: str
    headline: str
    judged: str
    facts: tuple[tuple[str, str], ...]
    next: tuple[str, ...]
    findings: tuple[Finding, ...]
    counts: str
    steps: tuple[str, ...]
    missing: tuple[str, ...]
    one_sided: tuple[str, ...]
    notes: tuple[str, ...]


def story_of(comparison: Comparison, call: RecordedCall | None = None, ref_call: RecordedCall | None = None) -> Story:
    """The texts for ``comparison``; ``call`` and ``ref_call`` are what the Runs recorded at its first difference."""
    findings = tuple(sorted(comparison.findings, key=lambda finding: SEVERITIES.index(finding.severity)))
    grave = [finding for finding in findings if finding.is_grave]
    leading = grave[0] if grave else None
    return Story(
        status=_status(comparison, leading),
        title=_title(comparison, leading, call, ref_call),
        headline=_headline(comparison, leading),
        judged=judged_text(comparison.judged),
        facts=() if comparison.first is None else tuple(_facts(comparison, comparison.first, call, ref_call)),
        next=_next(comparison, leading),
        findings=tuple(finding for finding in findings if finding is not leading),
        counts=counts_text(comparison),
        steps=tuple(steps_lines(comparison.steps)),
        missing=tuple(missing_lines(comparison)),
        one_sided=tuple(one_sided_lines(comparison)),
        notes=comparison.notes,
    )


def counts_text(comparison: Comparison) -> str:
    """``1,449 values: 1,204 equal, 10 within rounding, 1 beyond rounding, …``, without judgements that no row has."""
    counts = comparison.counts
    parts = [f"{counts[name]:,} {JUDGEMENT_WORDS[name]}" for name in JUDGEMENTS if counts[name]]
    return f"{counted(len(comparison.rows), 'value')}: {', '.join(parts)}." if parts else "No values were aligned."


def missing_lines(comparison: Comparison) -> list[str]:
    """One line for each reason why values have no twin, the most common first."""
    missing = sorted((comparison.missing or {}).items(), key=lambda entry: -entry[1])
    return [f"{counted(count, 'value')}: {reason}" for reason, count in missing]


def judged_text(judged: Judged) -> str:
    """``1,980 of 2,016 values at step 0, forward, backward and update; 4,283 of 6,050 in 3 steps; 56 calls in one run
    only``; '' where nothing is known.
    """
    if not judged.passes:
        return ""
    first, whole = judged.sums(judged.at_first_step), judged.sums(judged.passes)
    names = [judged_pass.name for judged_pass in judged.at_first_step]
    text = f"{_share(first)} values at step {judged.first_step}, {listed(names)}"
    if whole != first:
        text += f"; {_share(whole)} in all {counted(judged.num_steps, 'step')}"
        text += ", as updates move parameters apart" if whole["judged"] < whole["values"] else ""
    lone = whole["calls_in_one_run"]
    return text + (f"; {counted(lone, 'call')} in one run only" if lone else "")


def _share(sums: Mapping[str, int]) -> str:
    return f"{sums['judged']:,} of {sums['values']:,}"


def one_sided_lines(comparison: Comparison) -> list[str]:
    """``only in RUN: blocks.*.attn.amax at model.py:41, 36 times in 12 modules``, in the order of execution."""
    together: dict[tuple[bool, str, str], list[OneSidedCall]] = {}
    for call in comparison.one_sided:
        together.setdefault((call.in_reference, numberless(call.name), call.where), []).append(call)
    return [
        f"only in {'REF' if in_reference else 'RUN'}: {name if len(calls) > 1 else calls[0].name}"
        f"{' at ' + where if where else ''}{_times(calls)}"
        for (in_reference, name, where), calls in together.items()
    ]


def one_sided_modules(comparison: Comparison) -> list[str]:
    """``only in RUN: 36 calls in blocks.*.attn, 4 in the model``, one line a run, modules with the most calls first."""
    calls_by_module: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for call in comparison.one_sided:
        calls_by_module[call.in_reference][numberless(call.name).rpartition(".")[0] or "the model"] += call.num
    return [
        f"only in {'REF' if in_reference else 'RUN'}: "
        + ", ".join(f"{counted(num, 'call')} in {module}" for module, num in modules.most_common())
        for in_reference, modules in calls_by_module.items()
        if modules
    ]


def _times(calls: Sequence[OneSidedCall]) -> str:
    num = sum(call.num for call in calls)
    if len(calls) > 1:
        return f", {num:,} times in {len(calls)} modules"
    return f", {num:,} times" if num > 1 else ""


def size_text(row: ComparedRow) -> str:
    """The size of the difference of ``row``, the one that rounding explains, and what it was measured on."""
    if row.measured is None:
        return "its size was not measured" + (f"; detected by {_measured_on(row)}" if row.how else "")
    measured = f"{number(row.measured, 3)} relative"
    if row.expected is None:
        expected = "; what rounding explains is not known"
    elif row.expected == 0:
        expected = "; rounding explains none of it"
    else:
        expected = f"; rounding explains {number(row.expected, 3)}"
        expected += "" if row.times is None else f": {times_text(row.times)}"
    return f"{measured}{expected}" + (f"; measured on {_measured_on(row)}" if row.how else "")


def times_text(times: float) -> str:
    """``38 times``."""
    return f"{number(times, 2 if 1 <= abs(times) < 100 else 3)} times"


def _status(comparison: Comparison, leading: Finding | None) -> str:
    if leading is not None:
        return "out" if leading.severity == "error" else "suspect"
    return "clear" if comparison.exit_code == 0 else "unknown"


def _headline(comparison: Comparison, leading: Finding | None) -> str:
    counts, rows = comparison.counts, len(comparison.rows)
    if leading is not None:
        return f"Different: {leading.claim}"
    if comparison.exit_code != 0:
        return f"Cannot tell: {comparison.judged.lacking if counts['equal'] + counts['within'] else _none_of(rows)}."
    compared = rows - counts["not-comparable"]
    if counts["equal"] == compared:
        return f"The same: {_all_of(compared)} equal, bit for bit as far as was recorded."
    differing = compared - counts["equal"]
    if counts["within"] == differing:
        sums = comparison.judged.sums(comparison.judged.passes)
        extent = "all of it" if sums["judged"] == sums["values"] else "all that could be judged"
        return (
            f"Rounding explains {extent}: {differing:,} of {counted(compared, 'value')} "
            f"{'differs' if differing == 1 else 'differ'}, none by more than rounding does."
        )
    return f"No value to blame: {counts_text(comparison)}"


def _title(
    comparison: Comparison, leading: Finding | None, call: RecordedCall | None, ref_call: RecordedCall | None
) -> str:
    """``gelu in h.0.act is called otherwise: approximate is "tanh", in REF "none"``; the headline where the first
    difference is no recorded call's.
    """
    first = comparison.first
    if leading is None or first is None or call is None or first.site not in leading.sites:
        return _headline(comparison, leading)
    operation = first.api.rpartition(".")[2] or first.kind
    place = f" in {call.module}" if call.module and first.kind == "op" else ""
    different = [] if ref_call is None else differing_arguments(call, ref_call)
    if different:
        return f"{operation}{place} is called otherwise: {_differing_text(different)}"
    size = f", {times_text(first.times)} what rounding explains" if first.times is not None else ""
    return f"{operation}{place} makes something else{size}"


def _differing_text(different: Sequence[tuple[str, str, str]]) -> str:
    return listed(
        [
            f"{'argument ' if name.isdigit() else ''}{name} is {run_value}, in REF {ref_value}"
            for name, run_value, ref_value in different
        ]
    )


def _none_of(count: int) -> str:
    if count == 0:
        return "no values were aligned"
    if count == 1:
        return "the one value that was aligned could not be compared"
    return f"none of the {count:,} values that were aligned could be compared"


def _all_of(count: int) -> str:
    return "the one value that was compared is" if count == 1 else f"all {count:,} values that were compared are"


def _facts(
    comparison: Comparison, first: ComparedRow, call: RecordedCall | None, ref_call: RecordedCall | None
) -> list[tuple[str, str]]:
    ref_site = first.ref_site if first.ref_site != first.site else None
    facts = [
        ("first", first.site or f"only in REF: {first.ref_site}"),
        ("in REF", ref_site if first.site and ref_site else ""),
        ("what", _value_text(first, call)),
        ("code", call.code if call is not None else ""),
        ("in REF", ref_call.code if call is not None and ref_call is not None and ref_call.code != call.code else ""),
        ("difference", size_text(first) if first.judgement != "not-comparable" else ""),
        ("numbers", details_text(first.details)),
        ("place", place_of(first.details)),
        ("its call", _its_call(comparison, first)),
        ("arguments", _arguments(first, call, ref_call)),
        ("where", "" if call is not None and first.where in call.lines else first.where),
        ("note", first.note),
    ]
    return [(label, text) for label, text in facts if text]


def _value_text(first: ComparedRow, call: RecordedCall | None) -> str:
    module = call.module if call is not None else ""
    operation = first.api or first.kind
    in_module = f" in {module}" if module and first.kind == "op" else ""
    dtypes = first.dtype or first.ref_dtype
    if first.dtype and first.ref_dtype and first.dtype != first.ref_dtype:
        dtypes = f"{first.dtype} (REF {first.ref_dtype})"
    return f"{operation}{in_module}, {dtypes} {shape_text(first.shape)}"


def _its_call(comparison: Comparison, first: ComparedRow) -> str:
    """Which values of the call are equal and which are not: ``in0, weight equal; out0 beyond rounding``."""
    key = _call_key(first)
    if key is None:
        return ""
    slots: dict[str, list[str]] = {}
    for row in comparison.rows:
        if _call_key(row) == key:
            slots.setdefault(row.judgement, []).append(_slot(row.site))
    return "; ".join(f"{_slots(slots[name])} {JUDGEMENT_WORDS[name]}" for name in JUDGEMENTS if name in slots)


def _call_key(row: ComparedRow) -> str | None:
    """The site without its slot."""
    return row.site.rpartition(":")[0] if row.site else None


def _slot(site: str | None) -> str:
    return (site or "").rpartition(":")[2]


def _slots(names: Sequence[str]) -> str:
    if len(names) <= _MAX_SLOTS:
        return ", ".join(names)
    return f"{', '.join(names[: _MAX_SLOTS - 1])} and {len(names) - _MAX_SLOTS + 1} more"


def _arguments(first: ComparedRow, call: RecordedCall | None, ref_call: RecordedCall | None) -> str:
    if call is None or not call.arguments:
        return ""
    text = call_text(first.api.rpartition(".")[2] or first.kind, call)
    if ref_call is None or not ref_call.arguments:
        return text
    different = differing_arguments(call, ref_call)
    if not different:
        return f"the same: {text}"
    return f"{text}; differs: {_differing_text(different)}"


def _measured_on(row: ComparedRow) -> str:
    return {"tensor": "stored values", "fingerprint": "fingerprints", "statistics": "statistics"}.get(row.how, row.how)


_SETTLES = {
    "shapes differ": "Give both runs batches of one shape, padding included, then compare again.",
    "of that name": "Say which names are the same with --map, then compare again.",
    "may explain": 'Record both runs in float32, or values with depth = "tensor" in the Plan, then compare again.',
}
"""What lets compare judge more, by what is said where it could not."""


def _next(comparison: Comparison, leading: Finding | None) -> tuple[str, ...]:
    advice = leading.next if leading is not None else ()
    if leading is None and comparison.exit_code == 3:
        return tuple(text for reason, text in _SETTLES.items() if reason in comparison.judged.lacking)[:1]
    first = comparison.first
    if first is None or first.site is None:
        return advice
    try:
        command = command_for(comparison.run, Site.parse(first.site))
    except SiteError:
        return advice
    return advice if command in advice else (*advice, command)
