"""Which call stands for code that was not recorded, where only calls of modules were: that of the module it is in."""

from __future__ import annotations

from trueline.analyze.compare.judge.step import Step, value_of
from trueline.analyze.compare.judge.values.value_judgement import Compared
from trueline.analyze.compare.match.graph_diff import GraphDifference
from trueline.analyze.recorded.step_values import Call


def module_of(row: Compared) -> str | None:
    """The module whose unrecorded code computed a value, '' outside of the model; None where calls were recorded."""
    return None if row.expectation is None else row.expectation.within


def is_of_modules(step: Step) -> bool:
    """Whether only calls of modules were recorded."""
    return all(value.kind != "op" for side in step.alignment.sides for value in side.values)


def call_around(step: Step, first: Compared, module: str) -> Compared | None:
    """A value that the call of ``module`` returned during which ``first`` was computed; None where none was recorded.

    What the model returned goes through code outside of it too: then, and for such code alone, it is the model's call
    in the forward pass.
    """
    value = value_of(first)
    returned = [row for row in step.rows if _is_returned(row) and value_of(row).site.micro == value.site.micro]
    models = [row for row in returned if not value_of(row).module]
    of_model = not module or (
        any(value_of(row).site.name == module for row in models) and any(row.root == first.root for row in models)
    )
    calls = models if of_model else [row for row in returned if value_of(row).site.name == module]
    phase = "fwd" if of_model else value.site.phase
    calls = [row for row in calls if value_of(row).site.phase == phase] or calls
    return next((row for row in calls if row.place > first.place), None) or next(reversed(calls), None)


def lonely_calls(step: Step, module: str) -> GraphDifference:
    """The calls without a twin that the code of ``module`` makes itself."""
    alone = step.graph_diff.alone
    mine, theirs = ([call for call in calls if _is_by(call, module)] for calls in (alone.mine, alone.theirs))
    return GraphDifference(mine, theirs)


def _is_by(call: Call, module: str) -> bool:
    return call.first.kind == "module" and call.first.module == module


def _is_returned(row: Compared) -> bool:
    value = value_of(row)
    return value.kind == "module" and value.returned
