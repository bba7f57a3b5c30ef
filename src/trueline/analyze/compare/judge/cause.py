"""Why a call returns another value than in the reference: which of its inputs, weights or arguments differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trueline.analyze.compare.judge.argument_differences import Arguments, arguments_in_words, different_arguments
from trueline.analyze.compare.judge.step import Step, value_of
from trueline.analyze.compare.judge.value_judgement import Compared
from trueline.analyze.compare.op_names import RANDOM, function_of


@dataclass(frozen=True, slots=True)
class Cause:
    """The remaining reason for a call's difference, and the parameters or arguments that differ, as a text."""

    reason: Literal["random", "parameters", "arguments", "backward", "computation"]
    different: str = ""


def cause_of(step: Step, row: Compared) -> Cause:
    """What differs in the inputs of the call of a value, or that nothing does."""
    value = value_of(row)
    if function_of(value.api) in RANDOM:
        return Cause("random")
    names = _differing_params(step, row)
    if names:
        return Cause("parameters", ", ".join(names[:2]))
    different = differing_arguments(step, row)
    if different:
        return Cause("arguments", arguments_in_words(different))
    return Cause("backward" if value.site.phase == "bwd" else "computation")


def in_words(cause: Cause, *, agree: str = "its inputs agree") -> str:
    """The cause as a sentence; ``agree`` is its beginning, which says that inputs are not the reason."""
    return {
        "random": "it draws random numbers, and the two runs draw different ones.",
        "parameters": f"{agree}, but its weight {cause.different} does not.",
        "arguments": f"{agree}, but its arguments do not: {cause.different}.",
        "backward": "its incoming gradient and its forward inputs agree, so its backward computation differs.",
        "computation": "its inputs and arguments agree, so its computation differs.",
    }[cause.reason]


def _differing_params(step: Step, row: Compared) -> list[str]:
    """Parameters that went into the call of a value and differ by more than rounding explains."""
    sources = set(row.expectation.sources) if row.expectation is not None else set[int]()
    wrong = {other.root: other.param for other in step.beyond("param")}
    return [name for root, name in wrong.items() if root in sources and name is not None]


def differing_arguments(step: Step, row: Compared) -> Arguments:
    """Arguments of the call of a value that differ between the runs, by name or place."""
    site = value_of(row).site
    phase = "fwd" if site.phase == "bwd" else site.phase
    mine, theirs = step.calls.get((site.micro, phase, site.name, site.call), (None, None))
    if mine is None or theirs is None:
        return {}
    return different_arguments(mine, theirs)
