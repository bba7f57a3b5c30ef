"""Where values that are not finite come from within one recorded step of one rank, and what they reach.

The rows of a step are gone through once, in the order of execution. A value that is not finite is marked with its
origin: where a call returned it, with that of the value that the call took; where nothing recorded made it, with
itself. The same for gradients, which run through the calls the other way. A value is known by the row that measured
it (``StepRows.root``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from trueline.analyze.recorded.steps import NAN, NEG_INF, POS_INF, CallKey, StepRows

Kind = Literal["made", "turned", "given", "param", "backward", "unseen gradient", "received", "reduced"]
"""How an origin came about.

``made``: a call took finite values and returned others. ``turned``: a call took infinities that were put there on
purpose and returned NaN, or infinities of the other sign. ``given``: no recorded call returned the value. ``param``: it
is a parameter. ``backward``: a call got a finite gradient and passed on another. ``unseen gradient``: that of a value
whose use was not recorded. ``received``: by a collective. ``reduced``: finite after backward, not when the optimizer
gets it.
"""

_SAID = {'"nan"': NAN, '"inf"': POS_INF, '"-inf"': NEG_INF}
"""How ``capture.record.arguments`` writes numbers that JSON has no form for."""

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
    """One row that is not finite, with nothing that is not finite before it.

    ``row`` is the index of the row that shows it and ``at`` where in the order of the step it counts. ``call`` is the
    call that made it or, of a value that was given, first used it; ``others`` are further calls that may have been it,
    where a gradient is the sum over several uses. ``deliberate`` marks infinities that an argument asked for, or an
    input of -inf only: masks. ``maker`` is where the infinities came from that were turned.
    """

    row: int
    kind: Kind
    at: int
    call: CallKey | None = None
    others: tuple[CallKey, ...] = ()
    deliberate: bool = False
    maker: Origin | None = None


class Mark(NamedTuple):
    """Of one value: its origin, the row that was marked, and the root of the value that it was made from."""

    origin: Origin
    row: int
    parent: int | None


@dataclass(eq=False)
class Taken:
    """The rows of one call so far."""

    first: int
    ins: list[int] = field(default_factory=list[int])
    outs: list[int] = field(default_factory=list[int])


class Flow:
    """All origins of one step on one rank; ``marks`` has every value that is not finite, by root."""

    def __init__(self, rows: StepRows) -> None:
        self.rows = rows
        self.marks: dict[int, Mark] = {}
        self.calls: dict[CallKey, Taken] = {}
        self.gradients: dict[CallKey, list[int]] = {}
        """Rows of gradients by the forward call that they belong to."""
        self._alike: dict[tuple[object, ...], int] = {}
        self._in_place: list[CallKey] = []
        self._first_gradient: Origin | None = None
        self._first_sent: Origin | None = None
        self._kinds = frozenset(rows.kind)
        self._bad_params = [i for i in range(len(rows)) if rows.phase[i] == "param" and rows.bad[i]]
        self._run()

    # -- the pass --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        rows = self.rows
        executed: CallKey | None = None
        for i in range(len(rows)):
            if rows.kind[i] == "param" and rows.phase[i] in ("param", "grad"):
                if rows.bad[i]:
                    self._at_update(i)
                continue
            if rows.phase[i] == "bwd":
                # A call that runs during backward has its arguments on its first row; a gradient has none.
                executed = rows.key(i) if rows.args[i] is not None or rows.key(i) == executed else None
                if executed is None:
                    self._gradient(i)
                    continue
            self._call_row(i)

    def _call_row(self, i: int) -> None:
        rows, key = self.rows, self.rows.key(i)
        call = self.calls.get(key)
        if call is None:
            call = self.calls[key] = Taken(i)
            if "inplace" in rows.flags[i]:
                self._in_place.append(key)
        out = rows.is_out(i)
        (call.outs if out else call.ins).append(i)
        if rows.bad[i] and rows.root[i] not in self.marks:
            if out:
                self._returned(i, key, call)
            else:
                self._given(i, key)

    def _returned(self, i: int, key: CallKey, call: Taken) -> None:
        """A call returned the value: mark it with what the call took."""
        rows = self.rows
        causes = [self.marks[rows.root[j]] for j in call.ins if rows.bad[j]]
        if rows.kind[i] == "module":
            causes = self._inside(call.first) or causes
        meant = self._asked_for(call.first)
        if not causes:
            kind: Kind = "received" if rows.phase[i] == "comm" else "made"
            deliberate = kind == "made" and bool(meant) and not rows.bad[i] & ~meant
            self._mark(i, self._of_parameter(i, key) or Origin(i, kind, i, key, deliberate=deliberate))
            return
        cause = _first(causes)
        if cause.origin.deliberate:
            took = meant
            for other in causes:
                took |= rows.bad[other.row]
            if rows.bad[i] & ~took:
                self._mark(i, self._turned(i, key, cause.origin), cause)
                return
        self._mark(i, cause.origin, cause)

    def _turned(self, i: int, key: CallKey, maker: Origin) -> Origin:
        if self.rows.kind[i] == "module" or plain_name(self.rows.api[i]) in _NEVER_MEANT:
            return Origin(maker.row, maker.kind, maker.at, maker.call)
        return Origin(i, "turned", i, key, maker=maker)

    def _given(self, i: int, key: CallKey) -> None:
        """A call took a value that no recorded call returned."""
        rows = self.rows
        alike = self._alike.get(self._look(i))
        if alike is not None:  # a view or copy that was not seen, such as x.T
            self._mark(i, self.marks[alike].origin, self.marks[alike])
            return
        before = self._first_gradient if rows.phase[i] in ("comm", "grad", "opt") else self._first_sent
        if before is None and "op" not in self._kinds and rows.module[i]:
            before = next((mark.origin for mark in self.marks.values() if not mark.origin.deliberate), None)
        if before is not None and self._of_parameter(i, key) is None:  # what was between was not recorded
            self._mark(i, before)
            return
        if rows.phase[i] == "comm" and rows.name[i].rpartition(".")[2] == "wait_tensor":
            self._mark(i, Origin(i, "received", i, key))
            return
        if (changed := self._changed_in_place(i)) is not None:
            self._returned(i, changed, self.calls[changed])
            return
        param = self._of_parameter(i, key)
        # A mask that was made before the step, or a buffer, has nothing but -inf.
        mask = rows.bad[i] == NEG_INF
        self._mark(i, param or Origin(i, "given", i, key, deliberate=mask))

    def _gradient(self, i: int) -> None:
        """A gradient arrived, with one row for each place that its tensor was seen at."""
        rows = self.rows
        micro, _, name, call = rows.key(i)
        self.gradients.setdefault((micro, "fwd", name, call), []).append(i)
        if not rows.bad[i]:
            return
        if rows.root[i] in self.marks:
            return
        places = self._places(i)
        users = self._users([j for j in places if not rows.is_out(j) and rows.kind[j] in ("op", "module")])
        causes: list[Mark] = []
        able: list[CallKey] = []
        for key in users:
            got = [j for j in self.gradients.get(key, []) if rows.is_out(j)]
            causes += self._marks_of(got)
            causes += [mark for mark in self._marks_of(self._rows_of(key)) if not mark.origin.deliberate]
            able += [key] if got else []
        if not causes and not users:
            causes = self._marks_of([value for j in places if (value := self._value(j)) is not None])
        if causes:
            cause = _first(causes)
            self._mark(i, cause.origin, cause)
        elif able:
            able = [key for key in able if not self._passes_on(key)] or able
            at = next((j for j in places if rows.name[j] == able[0][2] and not rows.is_out(j)), i)
            self._mark(i, Origin(at, "backward", i, able[0], tuple(able[1:])))
        else:
            self._mark(i, Origin(i, "unseen gradient", i, (micro, "fwd", name, call)))
        self._first_gradient = self._first_gradient or self.marks[rows.root[i]].origin

    def _at_update(self, i: int) -> None:
        """A parameter, or its gradient, at the update: it is not finite there, wherever that came from."""
        rows = self.rows
        name = rows.name[i]
        if rows.phase[i] == "param":
            owner = name.rpartition(".")[0]
            if not any(mark.origin.kind == "param" and mark.origin.row == i for mark in self.marks.values()):
                used = [call.first for key, call in self.calls.items() if key[2] == owner or _owner(key) == owner]
                self._mark(i, Origin(i, "param", min(used, default=i)))
        elif rows.root[i] not in self.marks:
            arrived = [j for key, found in self.gradients.items() if key[2] == name for j in found]
            bad = [self.marks[rows.root[j]] for j in arrived if rows.bad[j]]
            alike = self._alike.get(self._look(i))
            before = self._first_sent if arrived else self._first_gradient
            cause = bad[0] if bad else None if alike is None else self.marks[alike]
            if cause is not None:
                self._mark(i, cause.origin, cause)
            elif before is not None:
                self._mark(i, before)
            else:
                self._mark(i, Origin(i, "reduced", i))

    # -- parts of it -----------------------------------------------------------------------------------------------

    def _mark(self, i: int, origin: Origin, cause: Mark | None = None) -> None:
        root = self.rows.root[i]
        self.marks[root] = Mark(origin, i, None if cause is None else self.rows.root[cause.row])
        if self.rows.phase[i] == "comm" and not origin.deliberate:
            self._first_sent = self._first_sent or origin
        self._alike[self._look(i)] = root

    def _look(self, i: int) -> tuple[object, ...]:
        rows = self.rows
        return rows.dtype[i], rows.numel[i], rows.counts[i], str(rows.min[i]), str(rows.max[i])

    def _inside(self, first: int) -> list[Mark]:
        """What became not finite since a module began: what happened to it in between may not have been recorded."""
        return [mark for mark in self.marks.values() if mark.row > first]

    def _asked_for(self, first: int) -> int:
        """The kinds of values, as bits, that the arguments of a call spell out."""
        args = self.rows.args[first] or ""
        return sum(kind for text, kind in _SAID.items() if text in args)

    def _of_parameter(self, i: int, key: CallKey) -> Origin | None:
        """The parameter that explains a row of a call, if the update found one of its module to be not finite."""
        rows = self.rows
        owners = {key[2], _owner(key), rows.module[i]} if rows.kind[i] == "op" else {key[2]}
        own = [p for p in self._bad_params if rows.name[p].rpartition(".")[0] in owners]
        if rows.kind[i] == "op":
            if rows.is_out(i):
                return None
            fits = [p for p in own if rows.shape[p] == rows.shape[i] and rows.counts[p] == rows.counts[i]]
            # Tied weights belong to another module; those of FSDP are whole here and a shard at the update.
            fits = fits or [p for p in self._bad_params if self._look(p) == self._look(i)]
            own = fits or (own if len(own) == 1 else [])
        return Origin(own[0], "param", i, key) if own else None

    def _changed_in_place(self, i: int) -> CallKey | None:
        """The call that may have changed a value without returning it (``x[mask] = value``)."""
        rows = self.rows
        for key in reversed(self._in_place):
            call = self.calls[key]
            same = call.ins and (rows.shape[call.ins[0]], rows.dtype[call.ins[0]]) == (rows.shape[i], rows.dtype[i])
            if same and not call.outs and call.first < i and key != rows.key(i):
                return key
        return None

    def _users(self, places: list[int]) -> list[CallKey]:
        """The calls that took a value, without modules of which inner calls are among them."""
        rows = self.rows
        ops = [j for j in places if rows.kind[j] == "op"]
        names = [rows.name[j] for j in places]
        inner = ops or [
            j for j in places if rows.module[j] and not any(name.startswith(rows.name[j] + ".") for name in names)
        ]
        return [(rows.micro[j], "fwd", rows.name[j], rows.call[j]) for j in inner or places]

    def _passes_on(self, key: CallKey) -> bool:
        call = self.calls.get(key)
        return call is not None and plain_name(self.rows.api[call.first]) in _PASSES_ON

    def _rows_of(self, key: CallKey) -> list[int]:
        """What a forward call took and returned."""
        call = self.calls.get(key)
        return [] if call is None else [*call.ins, *call.outs]

    def _marks_of(self, rows: Iterable[int]) -> list[Mark]:
        roots = (self.rows.root[j] for j in rows if self.rows.bad[j])
        return [self.marks[root] for root in roots if root in self.marks]

    def _value(self, i: int) -> int | None:
        """The row of the forward value that a gradient belongs to."""
        micro, _, name, number = self.rows.key(i)
        rows = self._rows_of((micro, "fwd", name, number))
        return next((j for j in rows if self.rows.slot[j] == self.rows.slot[i]), None)

    def _places(self, i: int) -> list[int]:
        """The rows, from ``i`` on, of the same gradient of the same value; a sum hands one gradient on to several."""
        rows, places = self.rows, [i]
        value: int | None = None
        for j in range(i, len(rows)):
            if rows.phase[j] != "bwd" or rows.root[j] != rows.root[i]:
                break
            at = self._value(j)
            if at is not None and value is not None and rows.root[at] != value:
                break
            value = rows.root[at] if at is not None else value
            places += [j] if j != i else []
        return places


def plain_name(api: str) -> str:
    """``softmax`` of ``torch.nn.functional.softmax``, ``truediv`` of ``torch.Tensor.__truediv__``."""
    return api.rpartition(".")[2].strip("_")


def _owner(key: CallKey) -> str:
    return key[2].rpartition(".")[0]


def _first(marks: Iterable[Mark]) -> Mark:
    """The mark with the earliest origin; masks only where there is nothing else."""
    return min(marks, key=lambda mark: (mark.origin.deliberate, mark.origin.at))
