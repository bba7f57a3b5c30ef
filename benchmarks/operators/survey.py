"""All kernels behind operators, forward and backward, each judged with the numbers that it was given."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.operators.allowance import LIMIT, Worst, worst_of
from benchmarks.operators.cases import Case
from benchmarks.operators.kernels import KernelCall, Kernels
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Judged:
    """A call of a kernel behind an operator, in its forward or backward pass, and its worst element."""

    operator: str
    kind: str
    backward: bool
    call: KernelCall
    worst: Worst


@dataclass
class Survey:
    """What was tried, how the calls of kernels came out, and the worst call of each kernel, result and pass."""

    operators: set[str] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    kernels: set[str] = field(default_factory=set)
    num_calls: int = 0
    num_worse: int = 0
    not_judged: Counter[str] = field(default_factory=Counter)
    worst: dict[tuple[str, int], Judged] = field(default_factory=dict)
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def add(self, cases: Iterable[Case], progress: Callable[[str], None] = lambda name: None) -> None:
        """Judge the kernels behind ``cases``."""
        for case in cases:
            progress(case.name)
            for backward, call in self._calls(case):
                form = (call.form, case.kind)
                if form not in self._seen:
                    self._seen.add(form)
                    self._judge(case, call, backward=backward)

    def worse(self) -> list[Judged]:
        """The worst calls beyond the limit, the worst first."""
        return sorted((j for j in self.worst.values() if j.worst.times > LIMIT), key=lambda j: -j.worst.times)

    def _calls(self, case: Case) -> list[tuple[bool, KernelCall]]:
        args, kwargs = pytree.tree_map(_leaf, (case.args, dict(case.kwargs)))
        forward, backward = Kernels(), Kernels()
        try:
            with forward:
                out = case.function(*args, **kwargs)
            self.operators.add(case.name)
            outs = [x for x in pytree.tree_leaves(out) if isinstance(x, Tensor) and x.requires_grad]
            grads = [torch.ones_like(x) if case.kind == "repeating" else torch.randn_like(x) for x in outs]
            if case.kind == "one sign":
                grads = [x.abs() for x in grads]
            with backward:
                torch.autograd.backward(outs, grads) if outs else None
        except Exception as error:  # whatever an operator raises for such numbers
            self.refused[f"{case.name}: {type(error).__name__}"] += 1
        return [(False, call) for call in forward] + [(True, call) for call in backward]

    def _judge(self, case: Case, call: KernelCall, *, backward: bool) -> None:
        if not any(x.dtype is torch.bfloat16 for x in call.tensors):
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                elements = worst_of(call)
        except Exception as error:  # whatever a kernel raises in float64
            self.not_judged[f"{call.name}: {type(error).__name__}: {str(error).splitlines()[0][:80]}"] += 1
            return
        if not elements:
            return
        self.kernels.add(call.name)
        self.num_calls += 1
        self.num_worse += any(worst.times > LIMIT for worst in elements)
        for worst in elements:
            key = (call.name, worst.output)
            if key not in self.worst or worst.times > self.worst[key].worst.times:
                self.worst[key] = Judged(case.name, case.kind, backward, call, worst)


def _leaf(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    leaf = leaf.detach()
    with contextlib.suppress(RuntimeError):
        leaf = leaf.clone()
    return leaf.requires_grad_() if leaf.is_floating_point() else leaf
