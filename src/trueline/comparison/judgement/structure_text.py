"""A difference of two call graphs in words: which calls only one run makes, or from where a call takes its inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.structure import innermost
from trueline.comparison.match.graph_diff import GraphDifference, Seam
from trueline.judge.recorded.step_values import Call, Value
from trueline.schema.text.words import listed, named_some, numberless

_MOST_LINES = 3
"""Lines of code that are named of each run."""

_REWIRED = "connect the same operations differently"


def difference_in_words(step: Step, difference: GraphDifference) -> str:
    """``only in RUN: `amax` (model.py:41 forward); only in REF: `mean` (model.py:43 forward)``."""
    run_calls, ref_calls = innermost(difference.mine), innermost(difference.theirs)
    if difference.seam is not None and not run_calls and not ref_calls:
        return _rewired(step, difference.seam)
    inside, classes = _other_class(step, run_calls, ref_calls)
    parts = [
        f"only in {name}: {_named_calls(step, calls, known_module=inside, of_reference=name == 'REF')}"
        for name, calls in (("RUN", run_calls), ("REF", ref_calls))
        if calls
    ]
    return "; ".join([*classes, *parts])


def the_runs_part(difference: GraphDifference, words: str) -> str:
    """A sentence on what the two runs do differently, in ``words``: other calls, or the same, connected otherwise."""
    how = "call different operations" if innermost(difference.mine) or innermost(difference.theirs) else _REWIRED
    return f"The two runs {how}: {words}."


def _other_class(step: Step, calls: Sequence[Call], ref_calls: Sequence[Call]) -> tuple[str, Sequence[str]]:
    """The innermost module that all calls are in, or the first of repeated ones, and a sentence where it is of another
    class in each run; '' and none where it is of one.
    """
    names = [call.module for call in (*calls, *ref_calls)]
    # Repeated modules (``h.0``, ``h.1``) are one place in the code.
    inside = names[0] if len({numberless(name) for name in names}) == 1 else _common(names)
    classes: dict[str, tuple[str, str]] = {}
    for call, twin in step.alignment.calls if inside else ():
        if call is not None and twin is not None and _is_module(call, inside) and _is_module(twin):
            classes[call.name] = _class_of(call), _class_of(twin)
    class_name, ref_class = classes.get(inside, ("", ""))
    if class_name == ref_class:
        return "", ()
    alike = sum(pair == (class_name, ref_class) for pair in classes.values()) - 1
    subject = f"modules `{inside}` and {alike} like it are" if alike else f"module `{inside}` is"
    return inside, (f"{subject} {class_name} in RUN and {ref_class} in REF",)


def _is_module(call: Call, like: str = "") -> bool:
    """True where ``call`` is one of a module in the forward pass, of the name ``like`` or of one that repeats it."""
    is_one = call.phase == "fwd" and call.first.kind == "module"
    return is_one and (not like or numberless(call.name) == numberless(like))


def _common(names: Sequence[str]) -> str:
    """The module that all others are in."""
    shortest = min(names, key=len, default="")
    return shortest if all(name == shortest or name.startswith(f"{shortest}.") for name in names) else ""


def _class_of(call: Call) -> str:
    return call.first.api.rpartition(".")[2]


def _named_calls(step: Step, calls: Sequence[Call], *, known_module: str, of_reference: bool) -> str:
    """The first calls by module and line of code: repeated modules together, and not that which is ``known_module``."""
    lines: dict[tuple[bool, str, str], list[Call]] = {}
    for call in calls:
        line = line_of(step, call.first, of_reference=of_reference)
        lines.setdefault((call.first.kind == "module", numberless(call.module), line), []).append(call)
    texts = [_named_line(calls_of_line, line, known_module) for (_, _, line), calls_of_line in lines.items()]
    return listed(texts if len(texts) <= _MOST_LINES else [*texts[:_MOST_LINES], f"{len(texts) - _MOST_LINES} more"])


def _named_line(calls: Sequence[Call], line: str, known_module: str) -> str:
    """```amax` and `add` in `h.0.attn` and 11 like it (model.py:41 forward)``."""
    where = f" ({line})" if line else ""
    if calls[0].first.kind == "module":
        return f"module {named_some([f'`{call.name}`' for call in calls])}{where}"
    modules = list(dict.fromkeys(call.module for call in calls))
    inside = f" in `{modules[0]}`" if modules[0] and modules[0] != known_module else ""
    inside += f" and {len(modules) - 1} like it" if inside and len(modules) > 1 else ""
    return f"{named_some(list(dict.fromkeys(f'`{call.op}`' for call in calls)))}{inside}{where}"


def line_of(step: Step, value: Value, *, of_reference: bool = False) -> str:
    """``model.py:41 forward``: the line that called, without the folder of the file; '' where no stack was taken."""
    return step.frame(value, of_reference=of_reference).rpartition("/")[2]


def _rewired(step: Step, seam: Seam) -> str:
    """``input 0 of `cat` comes from `up`, in REF from `skip```."""
    site = seam.mine.site
    function = site.name.rpartition(".")[2] if seam.mine.kind == "op" else site.name
    subject = "the result" if seam.mine.returned else f"input {_input_text(site.slot)}"
    inside = f" in `{seam.mine.module}`" if seam.mine.module else ""
    # The seam is the first place where the same call is fed by other calls.
    makers = _makers(step, seam)
    lines = [line_of(step, value, of_reference=bool(side)) for side, value in enumerate((seam.mine, seam.theirs))]
    where = f" ({lines[0]}{f'; in REF {lines[1]}' if lines[1] != lines[0] else ''})" if lines[0] else ""
    return f"{subject} of `{function}`{inside} comes from {makers[0]}, in REF from {makers[1]}{where}"


def _input_text(slot: str) -> str:
    """The name of an input: ``0`` of ``in0``, ``weight`` of ``weight``."""
    match = re.fullmatch(r"in(\d.*)", slot)
    return match.group(1) if match else f"`{slot}`"


def _makers(step: Step, seam: Seam) -> tuple[str, str]:
    """The call that returned the value in each run; with its number and the slot where the names are the same."""
    pairs = (seam.mine_of, seam.mine, step.alignment.mine), (seam.theirs_of, seam.theirs, step.alignment.theirs)
    names = [_maker(call) for call, _, _ in pairs]
    if names[0] == names[1]:
        names = [_maker(call, values.values[value.root].site.slot) for call, value, values in pairs]
    return names[0], names[1]


def _maker(call: Call | None, slot: str = "") -> str:
    if call is None:
        return "a value that no recorded call computed"
    name = call.name if call.first.kind == "module" else f"{call.module}.{call.op}" if call.module else call.op
    return f"`{name}#{call.number}:{slot}`" if slot else f"`{name}`"
