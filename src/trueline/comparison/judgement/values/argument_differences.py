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
    begun: dict[Key, ChangedArguments] = {}
    never: set[Key] = set()
    for at, step in enumerate(steps):
        for call_key, (mine, theirs) in step.calls.items():
            key = step.rank, call_key
            if mine is None or theirs is None or mine.phase != "fwd" or key in never:
                continue
            other = _settings(mine, theirs)
            if not other:
                agreed[key] = agreed.get(key, 0) + 1
                if begun.pop(key, None) is not None:
                    never.add(key)
            elif key not in begun:
                least = STEPS_BEFORE if any(is_fraction(text) for pair in other.values() for text in pair) else 1
                if agreed.get(key, 0) < least:
                    never.add(key)
                else:
                    begun[key] = ChangedArguments(at, mine, other, agreed[key])
    return min(begun.values(), key=lambda each: (steps[each.at].step, each.call.first.index), default=None)


def _settings(mine: Call, theirs: Call) -> Arguments:
    """Arguments that differ, without those that may follow from a decision."""
    if mine.first.args == theirs.first.args:
        return {}
    found = different_arguments(mine, theirs)
    return {name: pair for name, pair in found.items() if not any(_is_whole(text) for text in pair)}


def _is_whole(argument: Argument) -> bool:
    """Whether JSON holds numbers, and is no single fraction."""
    if argument is None or argument.startswith('"'):
        return False
    return not is_fraction(argument) and any(letter.isdigit() for letter in argument)


def different_arguments(mine: Call, theirs: Call) -> Arguments:
    """Arguments that differ between two calls, by name or place."""
    one, other = _flat_arguments(mine), _flat_arguments(theirs)
    pairs = {name: (one.get(name), other.get(name)) for name in {**one, **other}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def shown_arguments(different: Arguments) -> dict[str, tuple[str, str]]:
    """Arguments that differ, as texts for people."""
    return {name: (_shown(mine), _shown(theirs)) for name, (mine, theirs) in different.items()}


def _shown(argument: Argument) -> str:
    return _NOT_GIVEN if argument is None else _TENSOR if argument.startswith('{"in": ') else argument


def arguments_in_words(different: Arguments) -> str:
    """Arguments that differ, in words."""
    return "; ".join(
        f"{name} is {mine} and not {theirs}"
        if None not in different[name]
        else f"{name} is {mine} in RUN and {theirs} in REF"
        for name, (mine, theirs) in shown_arguments(different).items()
    )


_NOT_GIVEN, _TENSOR = "not given", "a tensor"
_DTYPES_AND_DEVICES = ('"torch.', '"cpu', '"cuda', '"npu', '"xpu', '"hpu', '"mps', '"meta')


def is_fraction(argument: Argument) -> bool:
    """Whether JSON is a number with a fraction or an exponent."""
    return argument is not None and argument.lstrip("-")[:1].isdigit() and any(mark in argument for mark in ".e")


def is_word(argument: Argument) -> bool:
    """Whether JSON is a text, and neither a dtype nor a device."""
    return argument is not None and argument.startswith('"') and not argument.startswith(_DTYPES_AND_DEVICES)


def _flat_arguments(call: Call) -> dict[str, str]:
    text = next((value.args for value in call.values if value.args is not None), None)
    if text is None:
        return {}
    document = cast(dict[str, Any], json.loads(text))
    places = {f"argument {place}": value for place, value in enumerate(document.get("args", []))}
    return {name: json.dumps(value) for name, value in {**places, **document.get("kwargs", {})}.items()}
