"""Measure how far logits depend on embeddings of tokens that they are to predict, and rows of a batch on each other, by
more backward passes at one step.

Letters: B rows, T positions, D model width, V classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.model.graph import can_be_asked, gradients_of
from trueline.capture.model.layout import compiled_inside
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.untraced import Hook, compiled_in_place, in_backward
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.losses import cross_entropy, descent
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.influence.probe.order import OrderReader
from trueline.laws.influence.probe.rows import RowReader
from trueline.schema.columns.influence import (
    COMPILED,
    NO_LOGITS,
    NO_TARGETS,
    NOT_FINITE,
    NOT_NEXT,
    NUM_FIELDS,
    OWN_BACKWARD,
    SHARDED,
)


class InfluenceProbe:
    """At the step that the plan names keeps embeddings and logits from the forward to the backward pass, and there
    asks autograd for the gradient of some logits with respect to the embeddings, of whatever the model returns for some
    rows with respect to what its first modules made of the others (``rows``), and of the first layer that mixes
    positions with respect to equal tokens (``order``).

    The operations of the graph are called one by one (``graph``): no ``.grad`` is touched, and no hook of anybody's is
    called. Where the graph has parts that could notice (code of its own, recomputation, gathering), nothing is done. It
    waits for the device, once.
    """

    name = "influence"
    moments = ("forward", "output", "gradients")
    between = moments

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._hooks: list[Any] = []
        self._switch = patches.Switch()
        patches.backward.add(self._at_backward, switch=self._switch)
        self._forget(due=False)

    def begin(self, step: Step) -> bool:
        """At the step of the plan alone; backward is listened to from then on, and not before."""
        due = step.watched and step.plan.looks_at(step.number, age=step.age)
        if due or self._due:
            self._forget(due=due)
        return due

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``influence``, ``row_influence`` and ``order_influence``, of the first backward pass."""
        if moment == "gradients":
            columns = {"influence": self._row, "row_influence": self._of_rows, "order_influence": self._of_order}
            columns = {} if self._row is None else columns
            self._forget(due=False)
            return columns
        if self._row is None and not in_backward():
            if moment == "forward":
                self._at_forward(step)
            else:
                self._at_output(step)
        return {}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def detach(self) -> None:
        patches.backward.remove(self._at_backward)
        self._forget(due=False)

    def _forget(self, *, due: bool) -> None:
        self._due = due
        self._switch.set(due)
        self._row: list[float] | None = None
        self._of_rows: list[float] = []
        self._of_order: list[float] = []
        self._let_go()

    def _let_go(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._embedded: list[tuple[Tensor, Tensor]] = []
        self._logits: list[Tensor] = []
        self._reader: RowReader | None = None
        self._order: OrderReader | None = None
        self._positions: Any = None

    def _at_forward(self, step: Step) -> None:
        self._let_go()
        module = step.module
        if module is None:
            return
        doubt = _doubt_of(module)
        if doubt:
            self._row, self._of_rows, self._of_order = _row(doubt), [float(doubt)], [float(doubt)]
            return
        self._reader = RowReader(module, step.facts.get("data", {}).get("batch_rows"))
        self._order = OrderReader(module)
        for part in module.modules():
            if next(part.children(), None) is None:
                self._hooks.append(part.register_forward_hook(Hook(self._at_module, num_args=4), with_kwargs=True))

    def _at_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._reader is None or self._order is None or in_backward():
            return
        with self._guard(self.name):
            self._reader.at_module(module, args, kwargs, output)
            self._order.at_module(output)
            ids = (args[0] if args else kwargs.get("input")) if isinstance(module, nn.Embedding) else None
            if isinstance(ids, Tensor) and ids.dim() == 2 and isinstance(output, Tensor) and output.requires_grad:
                self._embedded.append((ids, output))

    def _at_output(self, step: Step) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._logits = [output for output in differentiable(step.output) if output.dim() == 3]
        self._positions = step.kwargs.get("position_ids")
        if self._reader is not None:
            self._reader.at_output(step.args, step.kwargs, step.output)

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if not self._due or self._row is not None or in_backward():
            return
        with self._guard(self.name):
            roots = descent.roots_of(tensors)
            try:
                if roots and self._reader is not None and self._order is not None:
                    usable = can_be_asked(self._reader.outputs)
                    self._of_order = self._order.judged(
                        self._embedded, usable=can_be_asked(self._order.outputs), placed=self._positions is not None
                    )
                    row = self._measure_logits(roots)
                    self._of_rows = self._reader.judged(in_order=row[0] == 0, usable=usable)
                    self._row = row
            finally:
                self._let_go()

    def _measure_logits(self, roots: list[Tensor]) -> list[float]:
        if not self._logits:
            return _row(NO_LOGITS)
        targets = cross_entropy.targets(roots)
        if not targets:
            return _row(NO_TARGETS)
        for logits in self._logits:
            for ids, embedded in self._embedded:
                if ids.shape == logits.shape[:2]:
                    for target, ignored, _ in targets:
                        counts_BT = _next_tokens(ids, target, ignored)
                        if counts_BT is not None:
                            return _measured(logits, embedded, counts_BT, self._positions)
        return _row(NOT_NEXT)


def _row(doubt: int) -> list[float]:
    return [float(doubt), *[math.nan] * (NUM_FIELDS - 1)]


def _doubt_of(module: nn.Module) -> int:
    parts = list(module.modules())
    if any(compiled_inside(part) is not None or compiled_in_place(part) for part in parts):
        return COMPILED
    wrapped = any(kind.__name__ == "FullyShardedDataParallel" for part in parts for kind in type(part).__mro__)
    # of DTensors (FSDP2, tensor parallelism) and of DeepSpeed's ZeRO 3
    sharded = any(hasattr(param, "to_local") or hasattr(param, "ds_id") for param in module.parameters())
    return SHARDED if wrapped or sharded else 0


def _next_tokens(ids_BT: Tensor, target: Tensor, ignored: int) -> Tensor | None:
    """Bool [B, T]: positions whose target counts, if every such target is the token after it; None where it is not,
    or could as well be the token itself.
    """
    rows, length = ids_BT.shape
    if length < 2 or target.device != ids_BT.device or target.numel() not in (rows * length, rows * (length - 1)):
        return None
    target_BT = target.reshape(rows, -1)[:, : length - 1]
    counts_BT = target_BT != ignored
    is_next = bool(((target_BT == ids_BT[:, 1:]) | ~counts_BT).all())
    is_same = bool(((target_BT == ids_BT[:, :-1]) | ~counts_BT).all())
    return nn.functional.pad(counts_BT, (0, 1)) if is_next and not is_same else None


def _measured(logits: Tensor, embedded: Tensor, counts_BT: Tensor, positions: Any) -> list[float]:
    """The row of a pass whose target counts at these positions."""
    if not can_be_asked([logits]):
        return _row(OWN_BACKWARD)
    position_T = torch.arange(counts_BT.shape[1], device=counts_BT.device)
    nth_BT = counts_BT.cumsum(1)
    early_BT = counts_BT & (nth_BT <= (nth_BT[:, -1:] + 1) // 2)
    # half of the targets that count, so that embeddings on both sides of the cut have logits
    cut_B1 = torch.where(early_BT, position_T + 1, 0).amax(1, keepdim=True)
    behind_BT = (position_T >= cut_B1) & (cut_B1 > 0)
    gradient_BT = _gradient(logits, embedded, early_BT)
    # the embedding of a position may influence the logits there, which predict the token behind it
    later = gradient_BT[behind_BT]
    allowed = float(gradient_BT[~behind_BT].amax())
    if not (math.isfinite(allowed) and allowed > 0 and bool(later.isfinite().all())):
        return _row(NOT_FINITE)
    num_reached_B = ((gradient_BT > 0) & behind_BT).sum(1)
    row = int(num_reached_B.argmax())
    eps = max(torch.finfo(tensor.dtype).eps for tensor in (logits, embedded))
    values = [0.0, allowed, float(later.amax()), float(num_reached_B[row]), float(behind_BT[row].sum())]
    return [*values, *_over_documents(logits, embedded, counts_BT, positions), eps]


def _over_documents(logits: Tensor, embedded: Tensor, counts_BT: Tensor, positions: Any) -> tuple[float, float]:
    """Largest gradient of the logits behind a border near the middle to embeddings behind it, and before it."""
    unknown = (math.nan, math.nan)
    if not isinstance(positions, Tensor) or positions.dim() != 2 or positions.shape[1] != counts_BT.shape[1]:
        return unknown
    at_BT = positions.to(counts_BT.device).expand(counts_BT.shape)
    starts_BT = nn.functional.pad((at_BT[:, 1:] == 0) & (at_BT[:, :-1] > 0), (1, 0))
    nth_BT = starts_BT.cumsum(1)
    middle_B1 = (nth_BT[:, -1:] + 1) // 2
    behind_BT = (nth_BT >= middle_B1) & (middle_B1 > 0)
    if not bool((behind_BT & counts_BT).any()):
        return unknown
    gradient_BT = _gradient(logits, embedded, behind_BT & counts_BT)
    return float(gradient_BT[behind_BT].amax()), float(gradient_BT[~behind_BT].amax())


def _gradient(logits_BTV: Tensor, embedded_BTD: Tensor, of_BT: Tensor) -> Tensor:
    """[B, T]: the largest magnitude over D of the gradient of a fixed weighted sum over these logits."""
    weights_V = torch.arange(logits_BTV.shape[-1], device=logits_BTV.device).cos().to(logits_BTV.dtype)
    (gradient,) = gradients_of([logits_BTV], [embedded_BTD], [of_BT[..., None] * weights_V])
    return of_BT * 0.0 if gradient is None else gradient.detach().abs().amax(-1).double()


def make_probe(parts: ProbeParts) -> InfluenceProbe:
    """The probe of this law for one watched model."""
    return InfluenceProbe(parts.guard)
