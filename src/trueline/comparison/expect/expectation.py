"""The relative difference that rounding explains for each value of a step, value by value in the order of execution.

When a value is judged, the differences of its call's inputs are known: measured ones, or expected ones where nothing
was measured. The result is expected to differ by these, passed on as ``propagation`` says, and by the call's own
rounding on both sides (``ops``). A value that no recorded call computed is expected to be equal.

Gradients run through the same calls in the other direction: the gradient that a call's backward returns for an input
depends on the gradient that it received and on the inputs of the forward call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from trueline.comparison.expect.ops import op_rounding_rel
from trueline.comparison.expect.propagation import (
    Operand,
    backward_rel,
    condition_of,
    forward_rel,
    lowest_apart,
    reduction_length,
    size_of,
)
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, coarser, rounding_rel
from trueline.comparison.expect.unrecorded import Unrecorded, rounding_of_code
from trueline.comparison.op_names import LINEAR, function_of, op_class_of
from trueline.judge.recorded.step_values import CallKey, StepValues, Value, key_of
from trueline.schema.fact import fact

Origin = Literal["call", "given", "param", "gradient", "wiring", "unrecorded"]
"""Where a value comes from: a recorded call, no recorded call, the parameters, the backward of a call that is not
recorded; or (``wiring``) it was seen before with another twin: the two runs connect their calls differently. Where only
calls of modules were recorded, the code between them (``unrecorded``)."""

UNRELATED = math.sqrt(2)
"""The relative difference of two unrelated values of the same norm."""


@fact()
class Expectation:
    """The difference ``rel`` of a value that rounding explains, and the values that it was computed from.

    ``own`` is the part that is due to the rounding of ``call``, which computed the value, ``sources`` are the roots of
    the inputs, and ``tainted`` says that one of these differs by more than rounding explains. ``decided``: before it
    came a decision (an index, a comparison) that the two runs take differently, or random numbers that they do not
    share. ``explained`` is the difference to expect if those of tainted inputs had no effect on it; None where that is
    not known. ``within`` is the innermost module whose unrecorded code computed the value, '' outside of the model.
    ``carried`` is what to expect if the differences of inputs that the two runs make in different ways reach it; 0.0
    where it has none of them.
    """

    rel: float
    own: float
    origin: Origin
    tainted: bool = False
    sources: tuple[int, ...] = ()
    call: CallKey | None = None
    decided: bool = False
    explained: float | None = None
    within: str | None = None
    carried: float = 0.0


@dataclass(slots=True)
class _Known:
    """What is known of a value when a call takes it."""

    operand: Operand
    dtype: str
    tainted: bool = False
    decided: bool = False
    explained: float = 0.0
    """The relative difference that rounding explains, at most that of ``operand``."""
    carried: float = 0.0
    """The measured one, of a value that the two runs make in different ways; else 0.0."""


@dataclass(slots=True)
class _Called:
    """What a call has taken so far; for a backward, ``taken`` are the gradients that it received."""

    api: str
    taken: list[int] = field(default_factory=list[int])
    slots: list[str] = field(default_factory=list[str])
    worst_inside: float = 0.0


class Expected:
    """The expectation of each value of ``side``: ask for values in order, and ``learn`` each measured difference."""

    def __init__(self, side: StepValues, *, of_reference: bool = False, autocast: str = "") -> None:
        self._of_reference = of_reference
        self._autocast = autocast
        self._compiled = side.compiled
        self.largest_gradient = max(
            (each.stats.norm for each in side.values if each.kind == "param" and _is_backward(each) and each.stats),
            default=0.0,
        )
        self._known: dict[int, _Known] = {}
        self._calls: dict[CallKey, _Called] = {}
        self._gradients: dict[int, list[int]] = {}
        self._uses: dict[int, list[tuple[int, str, str, int, str]]] = {}
        """Forward calls that took a value, without those that returned the same tensor, which has the same gradient."""
        self._arrived: set[tuple[int, str, int, str]] = set()
        self._param_roots = {value.root: value.site.name for value in side.values if value.site.phase == "param"}
        self._by_param = {name: root for root, name in self._param_roots.items()}
        self._grad_roots: dict[str, int] = {}
        self._norm_rel: float | None = None
        self._unrecorded = Unrecorded(side)
        self._any_tainted = False
        self._worst = 0.0
        self._worst_backward = 0.0
        self._leaves = {name.rsplit(".", 1)[0] for name in self._by_param}
        self._executed: CallKey | None = None
        self._forward_roots: dict[tuple[int, str, int, str], int] = {}
        self._latest: dict[tuple[int, str, str], int] = {}
        self._sized: tuple[Value, tuple[float | None, float, float]] | None = None
        self._around: tuple[tuple[int, str, str], list[_Called]] | None = None
        """Where ``_open_modules`` looked last, and what it found; None once another module was called."""

    def of(self, value: Value, twin: Value | None) -> Expectation:
        """The expectation for a value that is seen for the first time (``root`` is its own index)."""
        expectation = self._by_origin(value, twin)
        rel = math.hypot(expectation.rel, lowest_apart(value, twin))
        if rel > UNRELATED:
            rel = min(rel, self._unrelated(value, twin))
        return expectation if rel == expectation.rel else replace(expectation, rel=rel)

    def _by_origin(self, value: Value, twin: Value | None) -> Expectation:
        dtype = coarser(value.dtype, twin.dtype) if twin is not None else value.dtype
        if value.kind == "param":
            return self._of_param(value, twin, self._operand(value, twin, 0.0), dtype)
        if self._is_gradient(value):
            return self._of_gradient(value, self._operand(value, twin, 0.0), dtype)
        call = self._calls.get(key_of(value)) if value.returned else None
        if call is None:
            return self._of_given(value, twin)
        return self._of_call(value, twin, call, self._operand(value, twin, 0.0), dtype)

    def param_of(self, root: int) -> str | None:
        """The name of the parameter that a value is, None where it is none."""
        return self._param_roots.get(root)

    @property
    def of_modules(self) -> bool:
        """Whether only calls of modules were recorded."""
        return self._unrecorded.applies

    def knows(self, root: int) -> bool:
        """Whether a value was seen before."""
        return root in self._known

    def again(self, value: Value) -> Expectation:
        """The expectation for a value that was seen before, with another twin than then."""
        known = self._known[value.root]
        origin: Origin = "param" if value.root in self._param_roots else "wiring"
        return Expectation(known.operand.rel, 0.0, origin, known.tainted)

    def learn(
        self,
        value: Value,
        twin: Value | None,
        rel: float,
        *,
        dtype: str,
        tainted: bool,
        decided: bool = False,
        explained: float | None = None,
        carried: float = 0.0,
    ) -> None:
        """Note that a value that was seen for the first time differs by ``rel``."""
        decided |= rel > 0 and not _is_float(value.dtype)
        explained = rel if explained is None else min(explained, rel)
        self._known[value.root] = _Known(self._operand(value, twin, rel), dtype, tainted, decided, explained, carried)
        self._any_tainted |= tainted
        if not tainted and value.kind != "param":
            self._worst = max(self._worst, rel)
            if value.site.phase == "bwd":
                self._worst_backward = max(self._worst_backward, rel)

    def _operand(self, value: Value, twin: Value | None, rel: float) -> Operand:
        reference = self._reference(value, twin)
        if self._sized is None or self._sized[0] is not reference:
            self._sized = reference, size_of(reference)  # asked for twice, before and after it is measured
        rms, spread, excess = self._sized[1]
        return Operand(rel, rms, value.shape, spread, value.site.slot, excess)

    def _unrelated(self, value: Value, twin: Value | None) -> float:
        """The relative difference of two unrelated values of these sizes: the largest that is ever expected."""
        reference = self._reference(value, twin)
        run = twin if reference is value else value
        if run is None or run.stats is None or reference.stats is None:
            return UNRELATED
        one, other = run.stats.rms, reference.stats.rms
        return max(UNRELATED, math.hypot(1, one / other) if one and other else 0.0)

    def _reference(self, value: Value, twin: Value | None) -> Value:
        """The one of the two that differences are relative to: noise may be far larger on one side."""
        other = None if self._of_reference or twin is None or twin.stats is None else twin
        return other or value

    def seen(self, value: Value) -> None:
        """Note where a value, new or not, was taken or returned; after ``learn``, and for every value of the step."""
        key, root, slot, returned = key_of(value), value.root, value.site.slot, value.returned
        micro, phase, name, number = key
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Called(value.api)
            if value.kind == "module":
                self._latest[micro, phase, name] = number
                self._around = None
        if phase == "fwd":
            self._forward_roots[micro, name, number, slot] = root
            uses = self._uses.setdefault(root, [])
            if value.kind == "op" and not returned:
                uses.append((*key, slot))
            elif uses and uses[-1][:4] == key:
                uses.pop()
        if phase == "bwd" and self._is_gradient(value):
            self._seen_gradient(value, call)
        elif not returned:
            call.taken.append(root)
            call.slots.append(slot)
        known = self._known[root]
        rel = known.operand.rel
        if self._unrecorded.applies:
            self._unrecorded.note(value, known.explained if known.tainted else rel)
        if rel > 0:
            for open_call in self._open_modules(value):
                if rel > open_call.worst_inside:
                    open_call.worst_inside = rel

    def _seen_gradient(self, value: Value, call: _Called) -> None:
        if value.returned:
            call.taken.append(value.root)
            call.slots.append(value.site.slot)
        elif (root := self._forward_root(value)) is not None:
            self._gradients.setdefault(root, []).append(value.root)
            self._arrived.add((value.site.micro, value.site.name, value.site.call, value.site.slot))
        if value.kind == "param":
            self._grad_roots[value.site.name] = value.root
            self._norm_rel = None

    def is_taken(self, value: Value) -> bool:
        """Whether a call took the value: as an argument, or in backward as the gradient of its result."""
        return value.returned if self._is_gradient(value) else not value.returned

    def taken_by(self, key: CallKey) -> tuple[int, ...]:
        """The roots of what a call took so far."""
        call = self._calls.get(key)
        return tuple(call.taken) if call is not None else ()

    def decides(self, key: CallKey | None) -> bool:
        """Whether a call passes gradients by a decision (the sign of a number, the largest of several), on numbers that
        differ by rounding.
        """
        call = None if key is None else self._calls.get((key[0], "fwd", key[2], key[3]))
        if call is None or function_of(call.api) not in _DECIDING:
            return False
        return any(each.operand.rel > 0 for each in self._all(call.taken))

    # -- by origin ---------------------------------------------------------------------------------------------------

    def _of_param(self, value: Value, twin: Value | None, out: Operand, dtype: str) -> Expectation:
        name, phase = value.site.name, value.site.phase
        if phase == "grad" and name in self._grad_roots:
            source = self._grad_roots[name]
            own = _both(rounding_rel(_unit(dtype)) * math.sqrt(max(len(value.ranks), 2)))
            rel = math.hypot(self._known[source].operand.rel, self._scale_rel())
            return self._made(rel, own, "call", (source,), key_of(value))
        if phase == "bwd":
            return self._of_gradient(value, out, dtype)
        if phase == "grad":
            return self._unseen(out, dtype, key_of(value))
        return Expectation(_cast(value, twin), 0.0, "param")

    def _scale_rel(self) -> float:
        """The relative difference of the norm of all gradients, at most: what clips by it scales each of them so."""
        if self._norm_rel is None:
            self._norm_rel = self._rel_together(list(self._grad_roots.values()))
        return self._norm_rel

    def _rel_together(self, roots: Sequence[int]) -> float:
        """The relative difference of values as one, that rounding explains."""
        known = self._operands([root for root in roots if root in self._known], explained=True)
        sizes = [(each.rel, (each.rms or 0.0) * math.sqrt(each.numel)) for each in known]
        norm = math.hypot(*(size for _, size in sizes))
        return math.hypot(*(rel * size for rel, size in sizes)) / norm if norm else 0.0

    def _of_given(self, value: Value, twin: Value | None) -> Expectation:
        cast = _cast(value, twin)
        if value.root in self._param_roots:
            return Expectation(cast, 0.0, "param")
        if self._unrecorded.applies and value.site.phase == "fwd" and value.module:
            return self._of_code(value, twin, value.site.name if value.returned else value.module)
        # Something that is not recorded may have made it from what is known.
        derived = self._worst if _is_float(value.dtype) else 0.0
        tainted = self._any_tainted and _is_float(value.dtype)
        return Expectation(math.hypot(cast, derived), 0.0, "given", tainted)

    def _of_code(self, value: Value, twin: Value | None, module: str, call: _Called | None = None) -> Expectation:
        """The expectation for what the unrecorded code of a module computed: for something that it calls, or for what
        its ``call`` returns.
        """
        dtype = coarser(value.dtype, twin.dtype) if twin is not None else value.dtype
        params = [root for root in self._unrecorded.params_of(module) if root in self._known]
        had = [self._known[root].operand.rel for root in params]
        rel = math.hypot(_cast(value, twin), self._unrecorded.forward_rel(value, module, had, dtype))
        made = Expectation(
            rel,
            0.0,
            "unrecorded",
            self._any_tainted,
            tuple(params),
            decided=rel > 0 and not _is_float(value.dtype),
            explained=rel,
            within=module,
        )
        if not value.returned:
            return made
        sources = (*(() if call is None else call.taken), *params)
        return replace(made, origin="call", sources=sources, call=key_of(value))

    def _of_call(self, value: Value, twin: Value | None, call: _Called, out: Operand, dtype: str) -> Expectation:
        if self._unrecorded.applies and self._unrecorded.is_code(value.site.name):
            return self._of_code(value, twin, value.site.name, call)
        by_inside = call.worst_inside or (value.site.name not in self._leaves and not self._unrecorded.applies)
        if value.kind == "module" and by_inside:
            rel = math.hypot(
                call.worst_inside, max((self._known[root].operand.rel for root in call.taken), default=0.0)
            )
            own = _both(op_rounding_rel("unknown", dtype, dtype)) if _is_float(dtype) else 0.0
            if value.site.name in self._compiled:
                own = self._rounding_within(value.site.name, dtype)
            return self._made(rel, own, "call", tuple(call.taken), key_of(value))
        taken = _of_element(value, call)
        if value.kind == "module":
            params = [root for _, root in self._params_in(value.site.name)]
            if not params and self._unrecorded.applies and function_of(value.api) in ("linear", "embedding"):
                params = self._unrecorded.tied
            taken += [root for root in params if root in self._known]
        function = function_of(value.api)
        ins = [self._known[root].operand for root in taken]
        own = self._own_rounding(function, taken, out, dtype)
        own = max(own, _cast(value, twin))  # numbers among the arguments are rounded to the dtype, whatever is done
        rel = max(forward_rel(function, ins, out) if _is_float(value.dtype) else 0.0, self._decided(value, taken))
        made = self._made(rel, own, "call", tuple(taken), key_of(value))
        known = self._all(taken)
        if any(each.carried for each in known):
            carried = [replace(each.operand, rel=max(each.operand.rel, each.carried)) for each in known]
            made = replace(made, carried=forward_rel(function, carried, out))
        if not made.tainted:
            return made
        return replace(
            made, explained=math.hypot(forward_rel(function, self._operands(taken, explained=True), out), own)
        )

    def _rounding_within(self, module: str, dtype: str) -> float:
        """What a compiled ``module`` adds to differences: those of its weights, which pass on what the ones before them
        did, and a rounding for each parameter, in the coarsest dtype that is seen; under autocast three, of what a
        product takes, of the parameter and of the result.
        """
        names = dict(self._params_in(module)) or self._by_param
        for root in names.values():
            if root in self._known and _is_float(self._known[root].dtype):
                dtype = coarser(dtype, self._known[root].dtype)
        dtype = coarser(dtype, self._autocast) if self._autocast else dtype
        num = (len(names) or 1) * (3 if self._autocast else 1)
        own = _both(op_rounding_rel("unknown", dtype, dtype)) * math.sqrt(num) if _is_float(dtype) else 0.0
        known = [self._known[root].operand for root in names.values() if root in self._known]
        return math.hypot(own, *(each.rel for each in known if len(each.shape) > 1))

    def _params_in(self, module: str) -> Iterator[tuple[str, int]]:
        """Names and roots of the parameters of a module and of those in it."""
        return ((name, root) for name, root in self._by_param.items() if name.startswith(f"{module}."))

    def _of_gradient(self, value: Value, out: Operand, dtype: str) -> Expectation:
        key = key_of(value)
        if self._unrecorded.applies and value.kind == "module":
            return self._of_code_gradient(value, dtype)
        if not value.returned and value.kind != "param":
            return self._passed_back(key, value, out.in_slot(value.site.slot), dtype)
        sources = self._gradients.get(self._forward_root(value) or -1, [])
        if not sources:
            return self._of_early_gradient(value, out, dtype)
        own = _both(rounding_rel(_unit(dtype))) * math.sqrt(len(sources))
        hidden = list(self._hidden(value, out, dtype))
        rel = math.hypot(_summed_rel(self._operands(sources), out), *(each.rel for each in hidden))
        made = self._made(rel, own, "call", (*sources, *(root for each in hidden for root in each.sources)), key)
        if not made.tainted or any(each.tainted and each.explained is None for each in hidden):
            return made
        of_hidden = (each.rel if each.explained is None else each.explained for each in hidden)
        return replace(
            made, explained=math.hypot(_summed_rel(self._operands(sources, explained=True), out), own, *of_hidden)
        )

    def _of_code_gradient(self, value: Value, dtype: str) -> Expectation:
        """The expectation for a gradient where only calls of modules were recorded: the sum over all uses of a value,
        of which some may be in code between them.
        """
        root = self._forward_root(value)
        if root is None:
            return self._unseen(self._operand(value, None, 0.0), dtype, key_of(value))
        rel = self._unrecorded.backward_rel(value, root, dtype)
        within = self._unrecorded.within(value.site.micro, root)
        origin: Origin = "gradient" if within is None else "unrecorded"
        return Expectation(rel, 0.0, origin, self._any_tainted, call=key_of(value), explained=rel, within=within)

    def _hidden(self, value: Value, out: Operand, dtype: str) -> Iterator[Expectation]:
        """Expectations of terms of a gradient that were not seen by themselves: some calls only show the sum."""
        root = self._forward_root(value)
        for micro, phase, name, number, slot in self._uses.get(root, []) if root is not None else []:
            call = self._calls.get((micro, "bwd", name, number))
            if phase == "fwd" and call is not None and call.taken and (micro, name, number, slot) not in self._arrived:
                yield self._passed_back((micro, "bwd", name, number), value, out.in_slot(slot), dtype)

    def _of_early_gradient(self, value: Value, out: Operand, dtype: str) -> Expectation:
        """The expectation for a gradient that arrives before that of the call that used the value."""
        hidden = list(self._hidden(value, out, dtype))
        if not hidden:
            return self._of_module_param(value, out, dtype)
        if len(hidden) == 1:
            return hidden[0]
        rel, own = (math.hypot(*numbers) for numbers in zip(*((each.rel, each.own) for each in hidden), strict=True))
        tainted = any(each.tainted for each in hidden)
        sources = tuple(root for each in hidden for root in each.sources)
        return replace(hidden[0], rel=rel, own=own, tainted=tainted, sources=sources)

    def _of_module_param(self, value: Value, out: Operand, dtype: str) -> Expectation:
        """The expectation for a parameter's gradient where calls were not recorded: a sum of the gradients that its
        module received, which may cancel.
        """
        key = key_of(value)
        unseen = self._unseen(out, dtype, key)
        if self._unrecorded.applies and value.kind == "param":
            rel = self._unrecorded.backward_rel(value, None, dtype)
            unseen = replace(unseen, rel=rel, explained=rel)
        compiled = self._unrecorded.compiled_around(value.site.name) if value.kind == "param" else None
        if compiled is not None:
            own = self._rounding_within(compiled, dtype)
            # As that of a bias of keys, a gradient that ought to be 0 is what rounding left.
            is_noise = (out.rms or 0.0) * math.sqrt(out.numel) <= _NOISE_FRAC * own * self.largest_gradient
            rel = math.inf if is_noise else math.hypot(unseen.rel, own, rounding_of_code(value, dtype))
            unseen = replace(unseen, rel=rel, explained=rel, origin="unrecorded", within=compiled)
        module, micro = value.site.name.rpartition(".")[0], value.site.micro
        call, forward = self._calls.get((micro, "bwd", module, 0)), self._calls.get((micro, "fwd", module, 0))
        if value.kind != "param" or call is None or not call.taken:
            return unseen
        given = self._given_to(call)
        summed = [backward_rel("add", given, [], out), _summed_rounding(given, out, dtype)]
        if self._unrecorded.applies and forward is not None and forward.taken and len(out.shape) > 1:
            ins = [given, self._known[forward.taken[0]].operand]
            length = max(given.numel // max(given.shape[-1:] or (1,)), 1)
            own = op_rounding_rel("matmul", dtype, dtype, length, condition_of("matmul", ins, out))
            summed = [forward_rel("matmul", ins, out), _both(own)]
        rel = math.hypot(unseen.rel, *summed)
        return replace(unseen, rel=rel, explained=None if unseen.explained is None else rel)

    def _passed_back(self, key: CallKey, value: Value, out: Operand, dtype: str) -> Expectation:
        """The expectation for the gradient that the backward of a call returns for the input in the slot of ``out``."""
        call, forward = self._calls.get(key), self._calls.get((key[0], "fwd", key[2], key[3]))
        if call is None or not call.taken:
            return self._unseen(out, dtype, key)
        taken, slots = (forward.taken, forward.slots) if forward is not None else ([], [])
        if value.kind == "module" and self._leaf(value):
            own = [(root, name) for name, root in self._params_in(value.site.name) if root in self._known]
            taken, slots = [*taken, *(root for root, _ in own)], [*slots, *(name for _, name in own)]
        inputs = [self._known[root].operand.in_slot(slot) for root, slot in zip(taken, slots, strict=True)]
        given = self._given_to(call)
        function = function_of(call.api)
        as_module = value.kind == "module" and not self._leaf(value)
        if as_module:
            rel = max(given.rel, call.worst_inside)
        else:
            rel = max(backward_rel(function, given, inputs, out), self._decided(value, taken))
        own = self._own_rounding(function, [*call.taken, *taken], out, dtype)
        made_in = self._made_in(call, dtype)
        own = max(own, _both(rounding_rel(_unit(made_in))))
        own = math.hypot(own, _summed_rounding(given, out, dtype, function, made_in))
        needed = taken
        if function in LINEAR:  # all else that the backward needs are indices
            needed = [root for root in taken if not _is_float(self._known[root].dtype)]
        made = self._made(rel, own, "call", (*call.taken, *needed), key)
        if not made.tainted or as_module:
            return made
        inputs = [one.in_slot(slot) for one, slot in zip(self._operands(taken, explained=True), slots, strict=True)]
        unaffected = backward_rel(function, self._given_to(call, explained=True), inputs, out)
        return replace(made, explained=math.hypot(unaffected, own))

    def _made_in(self, call: _Called, dtype: str) -> str:
        """The dtype in which the backward of a call computes a gradient of ``dtype``: that of the gradients which it
        received where they are coarser. Autocast casts a weight, and its gradient back; CPU kernels of norms add up in
        the dtype of the batch.
        """
        if not _is_float(dtype):
            return dtype
        for root in call.taken:
            if _is_float(self._known[root].dtype):
                dtype = coarser(dtype, self._known[root].dtype)
        return dtype

    def _given_to(self, call: _Called, *, explained: bool = False) -> Operand:
        """The largest gradient that a backward received."""
        return max(self._operands(call.taken, explained=explained), key=lambda each: each.numel)

    def _operands(self, roots: Sequence[int], *, explained: bool = False) -> list[Operand]:
        """What is known of values; with ``explained`` as if they differed by no more than rounding explains."""
        if not explained:
            return [self._known[root].operand for root in roots]
        return [replace(each.operand, rel=each.explained) for each in self._all(roots)]

    def _unseen(self, out: Operand, dtype: str, key: CallKey) -> Expectation:
        """The expectation for a gradient whose call was not recorded: the largest difference of any value before it."""
        rel = max(self._worst_backward, self._worst) if out.numel > 1 else 0.0
        rel = math.hypot(rel, rounding_rel(_unit(dtype)) if rel else 0.0)
        return Expectation(rel, 0.0, "gradient", self._any_tainted, call=key)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _made(self, rel: float, own: float, origin: Origin, sources: tuple[int, ...], call: CallKey) -> Expectation:
        tainted = decided = False
        for each in self._all(sources):
            tainted |= each.tainted
            decided |= each.decided
        return Expectation(math.hypot(rel, own), own, origin, tainted, sources, call, decided)

    def _own_rounding(self, function: str, taken: list[int], out: Operand, dtype: str) -> float:
        if not _is_float(dtype):
            return 0.0
        floats = [self._known[root].dtype for root in taken if _is_float(self._known[root].dtype)]
        dtype_in = coarser(dtype, self._autocast) if self._autocast and function in _CAST_WITHIN else dtype
        for each in floats[:2]:
            dtype_in = coarser(dtype_in, each) if _unit(each) < 0.1 else dtype_in
        ins = [self._known[root].operand for root in taken]
        op_class = op_class_of(function)
        length = reduction_length(function, ins, out)
        return _both(op_rounding_rel(op_class, dtype_in, dtype, length, condition_of(function, ins, out)))

    def _decided(self, value: Value, taken: list[int]) -> float:
        """The difference of values that depend on decisions which may differ: integers and masks that are computed from
        numbers that differ (the experts that a router chooses), or that differ themselves. 0 where there are none.
        """
        known = [each for each in self._all(taken) if each.operand.rel > 0]
        if not _is_float(value.dtype):
            lengths = function_of(value.api) in _OF_LENGTHS
            return UNRELATED if any(not lengths or not _is_float(each.dtype) for each in known) else 0.0
        return UNRELATED if any(not _is_float(each.dtype) for each in known) else 0.0

    def _is_gradient(self, value: Value) -> bool:
        """Whether a row of the backward pass is a gradient; calls that run in backward have arguments."""
        if value.site.phase != "bwd":
            return False
        if value.args is not None:
            self._executed = key_of(value)
        return self._executed is None or self._executed != key_of(value)

    def _forward_root(self, value: Value) -> int | None:
        """The root of the value whose gradient this is."""
        if value.kind == "param":
            return self._by_param.get(value.site.name)
        site = value.site
        return self._forward_roots.get((site.micro, site.name, site.call, site.slot))

    def _open_modules(self, value: Value) -> list[_Called]:
        """The calls of modules around a value in its phase that have not returned yet."""
        if not value.module:
            return []
        place = value.site.micro, value.site.phase, value.module
        if self._around is None or self._around[0] != place:
            self._around = place, list(self._latest_around(*place))
        return self._around[1]

    def _latest_around(self, micro: int, phase: str, module: str) -> Iterator[_Called]:
        parts = module.split(".")
        for end in range(len(parts), 0, -1):
            name = ".".join(parts[:end])
            number = self._latest.get((micro, phase, name))
            if number is not None:
                yield self._calls[micro, phase, name, number]

    def _leaf(self, value: Value) -> bool:
        return value.site.name in self._leaves

    def _all(self, roots: Sequence[int]) -> list[_Known]:
        return [self._known[root] for root in roots]


_DECISIONS = (
    "relu relu6 leaky_relu hardtanh clamp abs max amax min amin maximum minimum topk sort median kthvalue max_pool1d "
    "max_pool2d max_pool3d"
)
_DECIDING = frozenset(_DECISIONS.split())
"""Functions whose backward passes a gradient on or not, or to one element of several."""

_NOISE_FRAC = 0.1
"""Of what compiled code rounds of the largest gradient: a norm below it is taken for noise. With 1, two thirds of the
gradients of a compiled Mamba under autocast were."""

_CAST_WITHIN = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"})
"""Functions that autocast makes compute in 16 bits though what they take and return is float32."""


def _is_backward(value: Value) -> bool:
    return value.site.phase == "bwd"


_OF_LENGTHS = frozenset({"pack_padded_sequence", "pad_packed_sequence"})
"""Functions whose integers are made of integers, whatever numbers they move."""


def _of_element(value: Value, call: _Called) -> list[int]:
    """What ``call`` took for a result; a function of lists (``torch._foreach_mul``) makes each tensor of those at its
    place in the lists, and of what is no list.
    """
    if "._foreach_" not in call.api:
        return list(call.taken)
    place = value.site.slot.removeprefix("out")
    own = [(root, slot.partition(".")[2]) for root, slot in zip(call.taken, call.slots, strict=True)]
    return [root for root, at in own if at in ("", place)]


def _summed_rel(terms: Sequence[Operand], out: Operand) -> float:
    """The relative difference of a sum of gradients from those of its terms."""
    scale = out.rms or max((each.rms or 0.0 for each in terms), default=0.0)
    squares = sum((each.rel * (each.rms or 0.0)) ** 2 for each in terms)
    return math.sqrt(squares) / scale if scale else max(each.rel for each in terms)


def _cast(value: Value, twin: Value | None) -> float:
    """The rounding of a cast between two dtypes; 0 where dtypes are equal."""
    if twin is None or twin.dtype == value.dtype or not (_is_float(value.dtype) and _is_float(twin.dtype)):
        return 0.0
    return rounding_rel(_unit(coarser(value.dtype, twin.dtype)))


def _both(rel: float) -> float:
    """Both sides round, independently of each other."""
    return math.sqrt(2) * rel


def _summed_rounding(given: Operand, out: Operand, dtype: str, function: str = "add", made_in: str = "") -> float:
    """The rounding of a gradient that is summed over the dims that its input was broadcast to; else one rounding.

    Partial sums are float32 or finer in products, whatever the dtype, and in other calls where ``made_in``, the dtype
    that the backward computes in, is that of the result; norms add up in 16 bits where that is their dtype.
    """
    terms = given.numel // max(out.numel, 1)
    if terms <= 1 or not given.rms or not out.rms:
        return _both(rounding_rel(_unit(dtype)))
    # No upper limit: terms that cancel altogether, as in a gradient that ought to be 0, leave nothing but rounding.
    condition = max(given.rms * math.sqrt(terms) / out.rms, 1e-3)
    if not _is_float(dtype):
        return 0.0
    op_class, made_in = op_class_of(function), made_in or dtype
    in_16_bits = op_class == "normalization" and _unit(made_in) > _unit("float32")
    if op_class not in ("matmul", "matvec") and (made_in != dtype or in_16_bits):
        return _both(op_rounding_rel("scatter", made_in, made_in, terms, condition))
    return _both(op_rounding_rel("sum", dtype, dtype, terms, condition))


def _is_float(dtype: str) -> bool:
    return dtype in UNIT_ROUNDOFF


def _unit(dtype: str) -> float:
    return UNIT_ROUNDOFF.get(dtype, 0.0)
