"""History of a step up to a value: differences learned so far, the inputs of calls, and the uses of values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from trueline.comparison.expect.dtypes import is_float
from trueline.comparison.expect.expectation import UNRELATED
from trueline.comparison.expect.propagation import (
    Operand,
    size_of,
)
from trueline.comparison.expect.unrecorded import Unrecorded
from trueline.judge.recorded.step_values import CallKey, StepValues, Value, key_of


@dataclass(slots=True)
class SeenValue:
    """State of a value at the time when a call takes it."""

    operand: Operand
    dtype: str
    tainted: bool = False
    decided: bool = False
    explained: float = 0.0
    """Relative difference that rounding explains, at most that of ``operand``."""
    carried: float = 0.0
    """Measured relative difference of a value that the two runs make in different ways; else 0.0."""


@dataclass(slots=True)
class SeenCall:
    """Inputs of a call so far; those of a backward are the gradients that it received."""

    api: str
    inputs: list[int] = field(default_factory=list[int])
    slots: list[str] = field(default_factory=list[str])
    worst_inside: float = 0.0


class History:
    """Record of the values of ``side``: ``learn`` each measured difference, then note each value as ``seen``."""

    def __init__(self, side: StepValues, *, of_reference: bool = False, autocast: str = "") -> None:
        self._of_reference = of_reference
        self._autocast = autocast
        self._compiled = side.compiled
        self.largest_gradient = max(
            (
                value.stats.norm
                for value in side.values
                if value.kind == "param" and value.site.phase == "bwd" and value.stats
            ),
            default=0.0,
        )
        self._values: dict[int, SeenValue] = {}
        self._calls: dict[CallKey, SeenCall] = {}
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
        self._executed_in_backward: CallKey | None = None
        self._forward_roots: dict[tuple[int, str, int, str], int] = {}
        self._latest: dict[tuple[int, str, str], int] = {}
        self._size_cache: tuple[Value, tuple[float | None, float, float]] | None = None
        self._open_modules_cache: tuple[tuple[int, str, str], list[SeenCall]] | None = None
        """Last argument and result of ``_open_modules``; None once another module was called."""

    def param_of(self, root: int) -> str | None:
        """Name of the parameter with this root; None for other values."""
        return self._param_roots.get(root)

    @property
    def of_modules(self) -> bool:
        """True where only calls of modules were recorded."""
        return self._unrecorded.applies

    def knows(self, root: int) -> bool:
        """Tell whether a value was seen before."""
        return root in self._values

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
        # An index or a mask that differs at all is another decision.
        decided |= rel > 0 and not is_float(value.dtype)
        explained = rel if explained is None else min(explained, rel)
        self._values[value.root] = SeenValue(
            self._operand(value, twin, rel), dtype, tainted, decided, explained, carried
        )
        self._any_tainted |= tainted
        if not tainted and value.kind != "param":
            self._worst = max(self._worst, rel)
            if value.site.phase == "bwd":
                self._worst_backward = max(self._worst_backward, rel)

    def _operand(self, value: Value, twin: Value | None, rel: float) -> Operand:
        reference = self._norm_side(value, twin)
        if self._size_cache is None or self._size_cache[0] is not reference:
            self._size_cache = reference, size_of(reference)  # asked for twice, before and after it is measured
        rms, spread, excess = self._size_cache[1]
        return Operand(rel, rms, value.shape, spread, value.site.slot, excess)

    def _unrelated_rel(self, value: Value, twin: Value | None) -> float:
        """Relative difference of two unrelated values of these sizes: the largest that is ever expected."""
        reference = self._norm_side(value, twin)
        other_side = twin if reference is value else value
        if other_side is None or other_side.stats is None or reference.stats is None:
            return UNRELATED
        rms, reference_rms = other_side.stats.rms, reference.stats.rms
        return max(UNRELATED, math.hypot(1, rms / reference_rms) if rms and reference_rms else 0.0)

    def _norm_side(self, value: Value, twin: Value | None) -> Value:
        """Value that differences are relative to: noise may be far larger on one side."""
        measured_twin = None if self._of_reference or twin is None or twin.stats is None else twin
        return measured_twin or value

    def seen(self, value: Value) -> None:
        """Note where a value, new or not, was taken or returned; after ``learn``, and for every value of the step."""
        key, root, slot, returned = key_of(value), value.root, value.site.slot, value.returned
        micro, phase, name, number = key
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = SeenCall(value.api)
            if value.kind == "module":
                self._latest[micro, phase, name] = number
                self._open_modules_cache = None
        if phase == "fwd":
            self._forward_roots[micro, name, number, slot] = root
            uses = self._uses.setdefault(root, [])
            if value.kind == "op" and not returned:
                uses.append((*key, slot))
            # An in-place call returned the tensor that it took: both have one gradient.
            elif uses and uses[-1][:4] == key:
                uses.pop()
        if phase == "bwd" and self._is_gradient(value):
            self._seen_gradient(value, call)
        elif not returned:
            call.inputs.append(root)
            call.slots.append(slot)
        seen_value = self._values[root]
        rel = seen_value.operand.rel
        if self._unrecorded.applies:
            self._unrecorded.note(value, seen_value.explained if seen_value.tainted else rel)
        if rel > 0:
            for open_call in self._open_modules(value):
                if rel > open_call.worst_inside:
                    open_call.worst_inside = rel

    def _seen_gradient(self, value: Value, call: SeenCall) -> None:
        if value.returned:
            call.inputs.append(value.root)
            call.slots.append(value.site.slot)
        elif (root := self._forward_root(value)) is not None:
            self._gradients.setdefault(root, []).append(value.root)
            self._arrived.add((value.site.micro, value.site.name, value.site.call, value.site.slot))
        if value.kind == "param":
            self._grad_roots[value.site.name] = value.root
            self._norm_rel = None

    def is_taken(self, value: Value) -> bool:
        """Tell whether a call took the value: as an argument, or in backward as the gradient of its result."""
        return value.returned if self._is_gradient(value) else not value.returned

    def taken_by(self, key: CallKey) -> tuple[int, ...]:
        """Roots of the inputs of a call so far."""
        call = self._calls.get(key)
        return tuple(call.inputs) if call is not None else ()

    def _rel_together(self, roots: Sequence[int]) -> float:
        """Relative difference that rounding explains of several values taken as one."""
        operands = self._operands([root for root in roots if root in self._values], explained=True)
        sizes = [(operand.rel, (operand.rms or 0.0) * math.sqrt(operand.numel)) for operand in operands]
        norm = math.hypot(*(size for _, size in sizes))
        return math.hypot(*(rel * size for rel, size in sizes)) / norm if norm else 0.0

    def _operands(self, roots: Sequence[int], *, explained: bool = False) -> list[Operand]:
        """Operands of roots; with ``explained`` as if they differed by no more than rounding explains."""
        if not explained:
            return [self._values[root].operand for root in roots]
        return [replace(seen_value.operand, rel=seen_value.explained) for seen_value in self._seen_values(roots)]

    def _is_gradient(self, value: Value) -> bool:
        """Tell whether a row of the backward pass is a gradient; calls that run in backward have arguments."""
        if value.site.phase != "bwd":
            return False
        if value.args is not None:
            self._executed_in_backward = key_of(value)
        return self._executed_in_backward is None or self._executed_in_backward != key_of(value)

    def _forward_root(self, value: Value) -> int | None:
        """Root of the forward value whose gradient this is."""
        if value.kind == "param":
            return self._by_param.get(value.site.name)
        site = value.site
        return self._forward_roots.get((site.micro, site.name, site.call, site.slot))

    def _open_modules(self, value: Value) -> list[SeenCall]:
        """Calls of modules around a value in its phase that have not returned yet."""
        if not value.module:
            return []
        place_key = value.site.micro, value.site.phase, value.module
        if self._open_modules_cache is None or self._open_modules_cache[0] != place_key:
            self._open_modules_cache = place_key, list(self._latest_around(*place_key))
        return self._open_modules_cache[1]

    def _latest_around(self, micro: int, phase: str, module: str) -> Iterator[SeenCall]:
        parts = module.split(".")
        for end in range(len(parts), 0, -1):
            name = ".".join(parts[:end])
            number = self._latest.get((micro, phase, name))
            if number is not None:
                yield self._calls[micro, phase, name, number]

    def _is_leaf(self, value: Value) -> bool:
        return value.site.name in self._leaves

    def _seen_values(self, roots: Sequence[int]) -> list[SeenValue]:
        return [self._values[root] for root in roots]

    def _params_in(self, module: str) -> Iterator[tuple[str, int]]:
        """Names and roots of the parameters of a module and of modules in it."""
        return ((name, root) for name, root in self._by_param.items() if name.startswith(f"{module}."))

    def _largest_received(self, call: SeenCall, *, explained: bool = False) -> Operand:
        """Largest gradient that a backward received."""
        return max(self._operands(call.inputs, explained=explained), key=lambda operand: operand.numel)
