"""Rounding does not change arguments: calls whose arguments differ between two runs, or do so from a later step on.

Calls whose arguments never agreed have findings of their own. Where those of a call agreed at each step and then differ
up to the last step, a setting was changed in one of the runs: ``structure-differs``, a warning. For texts, booleans and
missing arguments one step of agreement before is enough. Numbers need two: one that is computed from values that differ
(a clipping coefficient) would have differed by then. Whole numbers may follow from a decision that went the other way
(how many tokens an expert gets) at any step, and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from trueline.comparison.judgement.step import Step
from trueline.judge.recorded.step_values import Call

Argument = str | None
"""As JSON; None where it was not given."""
Arguments = Mapping[str, tuple[Argument, Argument]]
Key = tuple[int | None, tuple[int, str, str, int]]

STEPS_BEFORE = 2
"""Steps at which numbers must have agreed before."""


@dataclass(frozen=True, slots=True)
class ChangedArguments:
    """A call whose ``arguments`` differ from a step on: ``at`` is the index of that step, ``num_steps`` the number of
    steps before at which they agreed.
    """

    at: int
    call: Call
    arguments: Arguments
    num_steps: int


def first_changed_arguments(steps: Sequence[Step]) -> ChangedArguments | None:
    """The first such call of the forward pass, in the order of steps, then of execution."""
    agreed: dict[Key, int] = {}
    changes: dict[Key, ChangedArguments] = {}
    never: set[Key] = set()
    for at, step in enumerate(steps):
        for call_key, (call, twin) in step.calls.items():
            key = step.rank, call_key
            if call is None or twin is None or call.phase != "fwd" or key in never:
                continue
            differing = _settings(call, twin)
            if not differing:
                agreed[key] = agreed.get(key, 0) + 1
                # Arguments that agree again follow from data, and no setting was changed.
                if changes.pop(key, None) is not None:
                    never.add(key)
            elif key not in changes:
                least = STEPS_BEFORE if any(is_fraction(text) for pair in differing.values() for text in pair) else 1
                if agreed.get(key, 0) < least:
                    never.add(key)
                else:
                    changes[key] = ChangedArguments(at, call, differing, agreed[key])
    return min(changes.values(), key=lambda change: (steps[change.at].step, change.call.first.index), default=None)


def _settings(call: Call, twin: Call) -> Arguments:
    """Arguments that differ, without those that may follow from a decision."""
    if call.first.args == twin.first.args:
        return {}
    differing = different_arguments(call, twin)
    return {name: pair for name, pair in differing.items() if not any(_is_whole(text) for text in pair)}


def _is_whole(argument: Argument) -> bool:
    """True where JSON holds numbers, and is no single fraction."""
    if argument is None or argument.startswith('"'):
        return False
    return not is_fraction(argument) and any(letter.isdigit() for letter in argument)


def different_arguments(call: Call, twin: Call) -> Arguments:
    """Arguments that differ between two calls, by name or place."""
    arguments, ref_arguments = _flat_arguments(call), _flat_arguments(twin)
    pairs = {name: (arguments.get(name), ref_arguments.get(name)) for name in {**arguments, **ref_arguments}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def shown_arguments(different: Arguments) -> dict[str, tuple[str, str]]:
    """Arguments that differ, as texts for people."""
    return {name: (_argument_text(pair[0]), _argument_text(pair[1])) for name, pair in different.items()}


def _argument_text(argument: Argument) -> str:
    return _NOT_GIVEN if argument is None else _TENSOR if argument.startswith('{"in": ') else argument


def arguments_in_words(different: Arguments) -> str:
    """Arguments that differ, in words."""
    return "; ".join(
        f"{name} is {text} and not {ref_text}"
        if None not in different[name]
        else f"{name} is {text} in RUN and {ref_text} in REF"
        for name, (text, ref_text) in shown_arguments(different).items()
    )


_NOT_GIVEN, _TENSOR = "not given", "a tensor"
_DTYPES_AND_DEVICES = ('"torch.', '"cpu', '"cuda', '"npu', '"xpu', '"hpu', '"mps', '"meta')


def is_fraction(argument: Argument) -> bool:
    """True where JSON is a number with a fraction or an exponent."""
    return argument is not None and argument.lstrip("-")[:1].isdigit() and any(mark in argument for mark in ".e")


def is_word(argument: Argument) -> bool:
    """True where JSON is a text, and neither a dtype nor a device."""
    return argument is not None and argument.startswith('"') and not argument.startswith(_DTYPES_AND_DEVICES)


def _flat_arguments(call: Call) -> dict[str, str]:
    # Only one value of a call carries its arguments.
    text = next((value.args for value in call.values if value.args is not None), None)
    if text is None:
        return {}
    document = cast(dict[str, Any], json.loads(text))
    positional = {f"argument {position}": value for position, value in enumerate(document.get("args", []))}
    return {name: json.dumps(value) for name, value in {**positional, **document.get("kwargs", {})}.items()}
