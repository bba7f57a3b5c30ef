"""Origins of values that are not finite, within one recorded step of one rank.

The values of a step are gone through once, in the order of execution. One that is not finite is marked with its
origin: where a call returned it, with that of the value that the call took; where nothing recorded made it, with
itself. So are gradients, which run through the calls the other way. A value is known by the first sighting of it
(``Value.root``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

from trueline.judge.recorded.step_values import NAN, NEG_INF, POS_INF, Call, CallKey, StepValues, Value, key_of

Kind = Literal["made", "turned", "given", "param", "backward", "unseen gradient", "received", "reduced"]
"""The ways that an origin comes about.
``made``: a call took finite values and returned others. ``turned``: a call took infinities that were put there on
purpose and returned NaN, or infinities of the other sign. ``given``: no recorded call returned the value. ``param``: it
is a parameter. ``backward``: a call got a finite gradient and passed on another. ``unseen gradient``: that of a value
whose use was not recorded. ``received``: by a collective. ``reduced``: finite after backward, not when the optimizer
gets it.
"""

_SPELLINGS = {'"nan"': NAN, '"inf"': POS_INF, '"-inf"': NEG_INF}
"""Spellings by ``capture.record.arguments`` of numbers that JSON has no form for."""

_NEVER_MEANT = frozenset(
    {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "bilinear", "layer_norm", "rms_norm", "group_norm"}
    | {"batch_norm", "instance_norm", "embedding", "conv1d", "conv2d", "conv3d", "rmatmul"}
    | {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
)
"""Functions that can make nothing of an infinity: one that reaches them is itself the origin."""

_PASSES_ON = frozenset(
    {"add", "iadd", "radd", "sub", "isub", "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "getitem"}
    | {"contiguous", "flatten", "unflatten", "chunk", "split", "detach", "identity", "clone"}
)
"""Functions whose backward hands the gradient on as it is."""


@dataclass(eq=False)
class Origin:
    """A value that is not finite, with nothing that is not finite before it.

    ``at`` is its index in the order of the step. ``call`` is the call that made it or, of a value that was given, first
    used it; ``further_calls`` may have been it too, where a gradient is the sum over several uses.
    ``deliberate`` marks infinities that an argument asked for, or an input of -inf only: masks. ``maker`` is where the
    infinities came from that were turned.
    """

    value: Value
    kind: Kind
    at: int
    call: CallKey | None = None
    further_calls: tuple[CallKey, ...] = ()
    deliberate: bool = False
    maker: Origin | None = None


class Mark(NamedTuple):
    """A value's origin, the sighting that was marked, and the root of the value that it was made from."""

    origin: Origin
    value: Value
    parent: int | None


class NonfiniteFlow:
    """The origins of one step on one rank; ``marks`` has every value that is not finite, by root. ``gradients`` are by
    the forward call that they belong to.
    """

    def __init__(self, step: StepValues) -> None:
        self.step = step
        self.marks: dict[int, Mark] = {}
        self.calls: dict[CallKey, Call] = {}
        self.gradients: dict[CallKey, list[Value]] = {}
        self._by_look: dict[tuple[object, ...], int] = {}
        self._in_place: list[CallKey] = []
        self._first_gradient: Origin | None = None
        self._first_sent: Origin | None = None
        self._kinds = frozenset(value.kind for value in step.values)
        self._bad_params = [value for value in step.values if value.site.phase == "param" and self.bad(value)]
        self._mark_all()

    def bad(self, value: Value) -> int:
        """The kinds of numbers in a value that are not finite, as bits."""
        return self.step.nonfinite[value.index]

    def made_by(self, origin: Origin) -> Call | None:
        """The call of an origin, if it was recorded."""
        return None if origin.call is None else self.calls.get(origin.call)

    # -- the pass --------------------------------------------------------------------------------------------------

    def _mark_all(self) -> None:
        executed: CallKey | None = None
        for value in self.step.values:
            phase = value.site.phase
            if value.kind == "param" and phase in ("param", "grad"):
                if self.bad(value):
                    self._mark_at_update(value)
                continue
            if phase == "bwd":
                # A call that runs during backward has its arguments on its first row; a gradient has none.
                executed = key_of(value) if value.args is not None or key_of(value) == executed else None
                if executed is None:
                    self._mark_gradient(value)
                    continue
            self._add_sighting(value)

    def _add_sighting(self, value: Value) -> None:
        key = key_of(value)
        call = self.calls.get(key)
        if call is None:
            call = self.calls[key] = Call(*key)
            if "inplace" in value.flags:
                self._in_place.append(key)
        call.values.append(value)
        if self.bad(value) and value.root not in self.marks:
            if value.returned:
                self._mark_returned(value, call)
            else:
                self._mark_taken(value)

    def _mark_returned(self, value: Value, call: Call) -> None:
        """A call returned the value: mark it with what the call took."""
        kinds, key = self.bad(value), call.key
        causes = [self.marks[arg.root] for arg in call.ins if self.bad(arg)]
        if value.kind == "module":
            causes = self._marks_inside(call.first) or causes
        spelled = _spelled_kinds(call)
        if not causes:
            kind: Kind = "received" if value.site.phase == "comm" else "made"
            deliberate = kind == "made" and bool(spelled) and not kinds & ~spelled
            origin = self._parameter_origin(value, key) or Origin(value, kind, value.index, key, deliberate=deliberate)
            self._mark(value, origin)
            return
        cause = _earliest(causes)
        if cause.origin.deliberate:
            taken_kinds = spelled
            for cause_mark in causes:
                taken_kinds |= self.bad(cause_mark.value)
            if kinds & ~taken_kinds:
                self._mark(value, _turned_origin(value, key, cause.origin), cause)
                return
        self._mark(value, cause.origin, cause)

    def _mark_taken(self, value: Value) -> None:
        """A call took a value that no recorded call returned."""
        key, phase = key_of(value), value.site.phase
        copied = self._by_look.get(_appearance(value))
        if copied is not None:  # a view or copy that was not seen, such as x.T
            self._mark(value, self.marks[copied].origin, self.marks[copied])
            return
        before = self._first_gradient if phase in ("comm", "grad", "opt") else self._first_sent
        if before is None and "op" not in self._kinds and value.module:
            before = next((mark.origin for mark in self.marks.values() if not mark.origin.deliberate), None)
        param = self._parameter_origin(value, key)
        if before is not None and param is None:  # what was between was not recorded
            self._mark(value, before)
        elif phase == "comm" and value.site.name.rpartition(".")[2] == "wait_tensor":
            self._mark(value, Origin(value, "received", value.index, key))
        elif (changed := self._changed_in_place(value)) is not None:
            self._mark_returned(value, changed)
        else:
            # A mask that was made before the step, or a buffer, has nothing but -inf.
            mask = self.bad(value) == NEG_INF
            self._mark(value, param or Origin(value, "given", value.index, key, deliberate=mask))

    def _mark_gradient(self, value: Value) -> None:
        """A gradient arrived, with one sighting for each place that its tensor was seen at."""
        forward = _forward_key(value)
        self.gradients.setdefault(forward, []).append(value)
        if not self.bad(value) or value.root in self.marks:
            return
        sightings = self._sightings(value)
        users = _user_calls(
            [sighting for sighting in sightings if not sighting.returned and sighting.kind in ("op", "module")]
        )
        causes: list[Mark] = []
        passing_calls: list[CallKey] = []
        for key in users:
            returned_gradients = [sighting for sighting in self.gradients.get(key, []) if sighting.returned]
            causes += self._marks_of(returned_gradients)
            causes += [mark for mark in self._marks_of(self._values_of(key)) if not mark.origin.deliberate]
            passing_calls += [key] if returned_gradients else []
        if not causes and not users:
            causes = self._marks_of(
                [
                    forward_value
                    for sighting in sightings
                    if (forward_value := self._forward_value(sighting)) is not None
                ]
            )
        if causes:
            cause = _earliest(causes)
            self._mark(value, cause.origin, cause)
        elif passing_calls:
            # A call that hands its gradient on as it is cannot have made what is not finite.
            passing_calls = [key for key in passing_calls if not self._passes_on(key)] or passing_calls
            sighting_of_call = next(
                (
                    sighting
                    for sighting in sightings
                    if sighting.site.name == passing_calls[0][2] and not sighting.returned
                ),
                value,
            )
            self._mark(
                value, Origin(sighting_of_call, "backward", value.index, passing_calls[0], tuple(passing_calls[1:]))
            )
        else:
            self._mark(value, Origin(value, "unseen gradient", value.index, forward))
        self._first_gradient = self._first_gradient or self.marks[value.root].origin

    def _mark_at_update(self, value: Value) -> None:
        """A parameter, or its gradient, at the update: it is not finite there, wherever that came from."""
        name = value.site.name
        if value.site.phase == "param":
            owner = name.rpartition(".")[0]
            if not any(mark.origin.kind == "param" and mark.origin.value is value for mark in self.marks.values()):
                first_uses = [call.first.index for key, call in self.calls.items() if owner in (key[2], _owner(key))]
                self._mark(value, Origin(value, "param", min(first_uses, default=value.index)))
        elif value.root not in self.marks:
            arrived = [
                gradient for key, gradients in self.gradients.items() if key[2] == name for gradient in gradients
            ]
            gradient_marks = self._marks_of(arrived)
            copied = self._by_look.get(_appearance(value))
            before = self._first_sent if arrived else self._first_gradient
            cause = gradient_marks[0] if gradient_marks else None if copied is None else self.marks[copied]
            if cause is not None:
                self._mark(value, cause.origin, cause)
            else:
                self._mark(value, before or Origin(value, "reduced", value.index))

    # -- parts of it -----------------------------------------------------------------------------------------------

    def _mark(self, value: Value, origin: Origin, cause: Mark | None = None) -> None:
        self.marks[value.root] = Mark(origin, value, None if cause is None else cause.value.root)
        if value.site.phase == "comm" and not origin.deliberate:
            self._first_sent = self._first_sent or origin
        self._by_look[_appearance(value)] = value.root

    def _marks_inside(self, first: Value) -> list[Mark]:
        """Marks since a module began: what happened to its input in between may not have been recorded."""
        return [mark for mark in self.marks.values() if mark.value.index > first.index]

    def _parameter_origin(self, value: Value, key: CallKey) -> Origin | None:
        """The parameter that explains a value of a call, if the update found one of its module to be not finite."""
        is_op = value.kind == "op"
        if is_op and value.returned:
            return None
        owners = {key[2], _owner(key), value.module} if is_op else {key[2]}
        params = [param for param in self._bad_params if param.site.name.rpartition(".")[0] in owners]
        if is_op:
            matching = [param for param in params if (param.shape, param.counts) == (value.shape, value.counts)]
            # Tied weights belong to another module; those of FSDP are whole here and a shard at the update.
            matching = matching or [param for param in self._bad_params if _appearance(param) == _appearance(value)]
            params = matching or (params if len(params) == 1 else [])
        return Origin(params[0], "param", value.index, key) if params else None

    def _changed_in_place(self, value: Value) -> Call | None:
        """The call that may have changed a value without returning it (``x[mask] = value``)."""
        for key in reversed(self._in_place):
            call = self.calls[key]
            is_alike = call.ins and (call.ins[0].shape, call.ins[0].dtype) == (value.shape, value.dtype)
            if is_alike and not call.outs and call.first.index < value.index and key != key_of(value):
                return call
        return None

    def _passes_on(self, key: CallKey) -> bool:
        call = self.calls.get(key)
        return call is not None and call.first.function in _PASSES_ON

    def _values_of(self, key: CallKey) -> list[Value]:
        """The values that a forward call took and returned."""
        call = self.calls.get(key)
        return [] if call is None else [*call.ins, *call.outs]

    def _marks_of(self, values: Iterable[Value]) -> list[Mark]:
        return [self.marks[value.root] for value in values if self.bad(value) and value.root in self.marks]

    def _forward_value(self, gradient: Value) -> Value | None:
        """The forward value that a gradient belongs to."""
        values = self._values_of(_forward_key(gradient))
        return next((value for value in values if value.site.slot == gradient.site.slot), None)

    def _sightings(self, gradient: Value) -> list[Value]:
        """``gradient`` and what follows it of the same gradient of the same value; a sum hands one gradient on to
        several.
        """
        sightings: list[Value] = []
        root: int | None = None
        for value in islice(self.step.values, gradient.index, None):
            if value.site.phase != "bwd" or value.root != gradient.root:
                break
            forward_value = self._forward_value(value)
            if forward_value is not None and root is not None and forward_value.root != root:
                break
            root = forward_value.root if forward_value is not None else root
            sightings.append(value)
        return sightings


def _turned_origin(value: Value, key: CallKey, maker: Origin) -> Origin:
    if value.kind == "module" or value.function in _NEVER_MEANT:
        return Origin(maker.value, maker.kind, maker.at, maker.call)
    return Origin(value, "turned", value.index, key, maker=maker)


def _appearance(value: Value) -> tuple[object, ...]:
    """A key that a copy of a value has in common with it."""
    low, high = (None, None) if value.stats is None else (value.stats.min, value.stats.max)
    return value.dtype, value.numel, value.counts, low, high


def _spelled_kinds(call: Call) -> int:
    """The kinds of numbers, as bits, that the arguments of a call spell out."""
    return sum(kind for text, kind in _SPELLINGS.items() if text in (call.first.args or ""))


def _user_calls(sightings: list[Value]) -> list[CallKey]:
    """The calls that took a value, without modules of which inner calls are among them."""
    ops = [sighting for sighting in sightings if sighting.kind == "op"]
    names = [sighting.site.name for sighting in sightings]
    inner = ops or [
        sighting
        for sighting in sightings
        if sighting.module and not any(name.startswith(sighting.site.name + ".") for name in names)
    ]
    return [_forward_key(sighting) for sighting in inner or sightings]


def _forward_key(gradient: Value) -> CallKey:
    """The forward call that a gradient belongs to."""
    site = gradient.site
    return site.micro, "fwd", site.name, site.call


def _owner(key: CallKey) -> str:
    return key[2].rpartition(".")[0]


def _earliest(marks: Iterable[Mark]) -> Mark:
    """The mark with the earliest origin; masks only where there is nothing else."""
    return min(marks, key=lambda mark: (mark.origin.deliberate, mark.origin.at))
