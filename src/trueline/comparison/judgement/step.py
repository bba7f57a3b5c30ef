"""One judged step of a run: where it first differs from the reference, and the lines of code that it ran."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from trueline.comparison.judgement.values.compared import LIMIT, Compared
from trueline.comparison.match.align import Alignment
from trueline.comparison.match.graph_diff import GraphDiff
from trueline.comparison.result import command_for
from trueline.judge.recorded.operations import operations_of
from trueline.judge.recorded.step_values import Call, Value
from trueline.schema.errors import RunError
from trueline.schema.site import Site
from trueline.store.reader import Run

_OWN_FRAMES = ("/torch/", "/trueline/", "<frozen")
"""Parts of paths of files whose frames are not shown: they are of neither a model nor a script."""


@dataclass(frozen=True)
class Step:
    """One step of one rank (None: merged), judged; ``run`` and ``ref`` have the call stacks.

    ``before`` is the step just before it, if parameters and gradients were equal there: parameters of this step may
    then differ only by what the update itself rounds.
    """

    run: Run
    step: int
    rank: int | None
    alignment: Alignment
    rows: Sequence[Compared]
    before: Step | None = None
    ref: Run | None = None

    @cached_property
    def equal_before_update(self) -> bool:
        """True where the update starts from the same in both runs: all parameters and their gradients are equal."""
        params = [row for row in self.rows if row.value.kind == "param"]
        phases = {row.value.site.phase for row in params}
        return {"param", "grad"} <= phases and all(row.judgement == "equal" for row in params)

    @cached_property
    def first(self) -> Compared | None:
        """The first value whose difference neither rounding nor its inputs explain."""
        return next((row for row in self.rows if row.judgement == "beyond"), None)

    @cached_property
    def rewired_rows(self) -> Sequence[Compared]:
        """Values that differ because their calls take different inputs than in the reference. Empty where a call is to
        blame, or where the final results agree: the last value of the forward pass, and gradients of parameters, by
        what rounding explains of them in the backward pass, as the update has them where that was recorded (those
        before may be scaled with the loss). Multiples, which rounding does not make, are no agreement.
        """
        if self.first is not None:
            return ()
        measured = [row for row in self.rows if row.run_value is not None and row.distance is not None]
        # Results that agree excuse whatever is wired otherwise inside.
        forward = next((row for row in reversed(measured) if row.value.site.phase == "fwd"), None)
        if forward is not None and forward.rewired:
            return [row for row in self.rows if row.rewired]
        params = [row for row in measured if row.value.kind == "param"]
        # The backward pass may be scaled with the loss; what the update takes is not.
        used_gradients = {row.value.site.name: row for row in params if row.value.site.phase == "grad"}
        rewired = [row for row in measured if row.rewired and (row.value.kind == "param" or _is_multiple(row))]
        if any(_differs_as(used_gradients.get(row.value.site.name, row), row) for row in rewired):
            return [row for row in self.rows if row.rewired and row.value.site.phase in ("bwd", "grad")]
        return ()

    @cached_property
    def graph_diff(self) -> GraphDiff:
        """Differences between the connections of calls in both runs."""
        return GraphDiff(self.alignment)

    @cached_property
    def calls(self) -> Mapping[tuple[int, str, str, int], tuple[Call | None, Call | None]]:
        """Both calls by the key of that of the run, or of the reference where only that has one."""
        return {_call_key(run_call or ref_call): (run_call, ref_call) for run_call, ref_call in self.alignment.calls}

    def beyond(self, *origins: str) -> Iterator[Compared]:
        """Values beyond rounding that come from one of ``origins``."""
        for row in self.rows:
            if row.judgement == "beyond" and row.expectation is not None and row.expectation.origin in origins:
                yield row

    def row_of(self, call: Call) -> Compared:
        """The row of the first value of ``call``."""
        return next(row for row in self.rows if call.first in (row.run_value, row.ref_value))

    def frame(self, value: Value, *, of_reference: bool = False) -> str:
        """``file:line function`` of the model's or the script's line that called; '' where no stack was taken."""
        stack, site = value.stack, value.site
        if stack is None:
            # Gradients have no stack of their own: the line of their call in the forward pass is shown.
            stack = self._stacks[of_reference].get((site.micro, site.name, site.call))
        if stack is None:
            return ""
        key = of_reference, site.rank, stack
        # A stack is read from a file, and many values share it.
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = _user_frame(self.ref if of_reference else self.run, site.rank, stack)
        return frame

    @cached_property
    def _stacks(self) -> tuple[Mapping[tuple[int, str, int], int | None], ...]:
        """Of the run and of the reference, the stacks of calls of the forward pass by micro-batch, name and number."""
        return tuple(
            {
                (call.micro, call.name, call.number): call.first.stack
                for call in (pair[side] for pair in self.alignment.calls)
                if call is not None and call.phase == "fwd"
            }
            for side in (0, 1)
        )

    @cached_property
    def _frames(self) -> dict[tuple[bool, int, int], str]:
        """The frames that were looked up, by whether the reference has them, rank and stack."""
        return {}


Order = tuple[int, float, int]
"""Step, position in the order of execution, and rank: an earlier value may be the cause of a later one."""


class StepRow(NamedTuple):
    """A compared pair of values, and the step it is of."""

    step: Step
    row: Compared

    @property
    def value(self) -> Value:
        """The value of the run, or that of the reference where only it has one."""
        return self.row.value

    @property
    def site(self) -> Site:
        """The site of ``value``."""
        return self.row.value.site

    @property
    def order(self) -> Order:
        """The key by which values of several steps are sorted."""
        return self.step.step, self.row.position, self.step.rank or 0

    @property
    def frame(self) -> str:
        """``file:line function`` of the line that called; '' where no stack was taken."""
        return self.step.frame(self.value)

    @property
    def call_text(self) -> str:
        """``torch.add, model.py:12 forward``: the function, or the kind of the value, and the line that called."""
        frame = self.frame
        return f"{self.value.api or self.value.kind}{', ' + frame if frame else ''}"

    @property
    def command(self) -> str:
        """The command that prints the call of the value with its call stack."""
        return command_for(self.step.run.path, self.site)

    @property
    def proof(self) -> tuple[str, ...]:
        """The command that judges the operation behind the value by itself; none where the Run does not hold its
        arguments and the numbers that it took.
        """
        if self.row.run_value is None or self.step.rank is None:
            return ()
        values = self.step.alignment.mine
        operations = operations_of(values, self.row.run_value.site)
        arrived = {call.key: call.outs for call in values.calls() if call.phase == "bwd"}
        needed = [
            value
            for call in operations
            for value in (*call.ins, *arrived.get((call.micro, "bwd", call.name, call.number), ()))
        ]
        held = all(call.first.args is not None and "compiled" not in call.first.flags for call in operations)
        if not needed or not held or any(value.load is None for value in needed):
            return ()
        return (shlex.join(["trueline", "trial", "op", self.step.run.path, str(self.site)]),)


def step_rows(steps: Iterable[Step]) -> Iterator[StepRow]:
    """All compared pairs of ``steps``, in order."""
    return (StepRow(step, row) for step in steps for row in step.rows)


def _differs_as(row: Compared, expected: Compared) -> bool:
    """True where a value differs by more than rounding explains of another one, ``expected``, which does."""
    if row.hardly_differs or row.distance is None or expected.expectation is None:
        return False
    rel = row.distance.rel
    return rel is None or _is_multiple(expected) or rel > LIMIT["statistics"] * expected.expectation.rel


def _is_multiple(row: Compared) -> bool:
    return row.distance is not None and row.distance.factor is not None


def _user_frame(run: Run | None, rank: int, stack: int) -> str:
    if run is None or rank not in run.record_ranks:
        return ""
    try:
        frames = run.stack_frames(rank, stack)
    except RunError:
        return ""
    return next((frame for frame in frames if not any(path_part in frame for path_part in _OWN_FRAMES)), "")


def _call_key(call: Call | None) -> tuple[int, str, str, int]:
    assert call is not None
    return call.micro, call.phase, call.name, call.number
