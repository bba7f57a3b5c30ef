"""Measure how often each token counts in what a step descends, from the gradient that reaches the cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.model.layout import local
from trueline.capture.probes.around_update.sampling import NowAndThen
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.losses import cross_entropy, descent, loss_scaling
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.passes import Contributions, Pass
from trueline.laws.token_weights.columns import NUM_FIELDS

NOT_REACHED, UNCLEAR_SCALE = 6, 7
"""Doubts that only show in the course of a step."""

NUM_PARAMS, LENGTH = 4, 16
"""The last parameters, and elements of each, of which gradients are looked at after backward and at the update."""

CONSTANTS = 4
"""Roundings of what a script multiplies or divides by, each computed in few operations, beside those in the graph."""

PROPORTIONAL = 0.02
"""Relative distance to a multiple within which gradients are one: twice what two roundings to bfloat16 bring."""


class TokenWeightProbe:
    """Puts a hook on the cross-entropy of each backward pass of a sampled step, and looks at a few gradients as the
    last pass leaves them and as the optimizer receives them: code in between may divide them.

    Nothing dense is kept: a few numbers a pass, copied to the host with the step's row.
    """

    name = "token weights"
    moments = ("gradients",)
    between = None

    def __init__(self, guard: Guard, passes: Contributions) -> None:
        self._guard, self._passes = guard, passes
        self._times = NowAndThen()
        self._switch = patches.Switch()
        self._forget(due=False)
        patches.backward.add(self._at_backward, switch=self._switch)
        patches.backward.add(self._after_backward, after=True, switch=self._switch)
        for scale in patches.scales():
            scale.add(self._at_scale, switch=self._switch)

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then, as updates."""
        due = step.sampled and self._times.due(step)
        self._forget(due=due)
        if due:
            self._params = step.layout.params[-NUM_PARAMS:]
        return due

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``token_weights``, float64 [M, fields], ``passes_begun``, the gradients looked at, ``grads_left`` and
        ``grads_used``, and the loss scale of each pass, ``grads_scales``, float64 [M]; as ``own_scales`` too where a
        scaler of torch has it and the optimizer holds these parameters.
        """
        rows, scales, grads_left, params = self._rows, self._loss_scales, self._grads_left, self._params
        scaled_inside, by_torch = loss_scaling.inside(step.optimizer), self._by_torch
        self._forget(due=False)
        pass_columns = step.counted.take("token_weights", rows, backward=True)
        if not pass_columns:
            return {}
        columns: dict[str, Any] = {**pass_columns, "passes_begun": len(rows)}
        if grads_left is None or not step.gradients_known or scaled_inside:
            return columns
        grads_used = _few_gradients(params)
        if grads_used is None or grads_used.shape != grads_left.shape:
            return columns
        names = ("grads_scales", "own_scales")[: 2 if by_torch and _holds(step.optimizer, params) else 1]
        for name in names:
            columns |= step.counted.take(name, scales, backward=True)
        return columns | {"grads_left": grads_left, "grads_used": grads_used}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        if "token_weights" not in host:
            return {}
        rows_MF = host["token_weights"].numpy().copy()
        rows_MF[:, 2:4] /= rows_MF[:, 4:5]
        columns: dict[str, Any] = {"token_weights": rows_MF.ravel().tolist()}
        scale_M = host["grads_scales"].numpy() if "grads_left" in host else np.full(1, np.nan)
        if np.isfinite(scale_M).all() and np.ptp(scale_M) == 0:
            factor = _factor(host["grads_left"].double().numpy(), host["grads_used"].double().numpy())
            columns["grads_factor"] = None if factor is None else factor * float(scale_M[0])
            columns |= {"loss_scale": float(scale_M[0])} if "own_scales" in host else {}
        return columns

    def detach(self) -> None:
        patches.backward.remove(self._at_backward)
        patches.backward.remove(self._after_backward)
        for scale in patches.scales():
            scale.remove(self._at_scale)

    def _forget(self, *, due: bool) -> None:
        self._due = due
        self._switch.set(due)
        self._rows: list[tuple[Pass, Tensor]] = []
        self._loss_scales: list[tuple[Pass, Tensor]] = []
        self._grads_left: Tensor | None = None
        self._params: Sequence[Tensor] = ()
        self._scaler: Any = None
        self._scales = self._reading = self._by_torch = False

    def _at_scale(self, scaler: Any, outputs: Any) -> None:
        if self._due and loss_scaling.is_on(scaler):
            self._scaler, self._scales = scaler, True
            self._by_torch = isinstance(scaler, torch.amp.GradScaler)

    def _at_backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        current_pass = self._passes.backward_pass
        scaler, self._scaler = self._scaler, None
        if not self._due or current_pass is None:
            return
        with self._guard(self.name), torch.no_grad():
            roots = descent.roots_of(tensors)
            if roots:
                self._reading = True
                self._add_row(current_pass, roots, loss_scaling.scale_of(scaler))

    def _add_row(self, current_pass: Pass, roots: list[Tensor], loss_scale: Tensor | float) -> None:
        """Add the row of a pass: a doubt, unless the gradient reaches the only cross-entropy."""
        entropy = cross_entropy.find(roots)
        unclear = self._scales and isinstance(loss_scale, float) and loss_scale == 1.0
        doubt = entropy if isinstance(entropy, int) else UNCLEAR_SCALE if unclear else NOT_REACHED
        base = local(roots[0]).detach().to(torch.float64).reshape(-1)[:1]
        number, rows = len(self._rows), self._rows
        rows.append((current_pass, base.new_full((1, NUM_FIELDS), math.nan).index_fill_(1, _at(base, 0), float(doubt))))
        value = math.nan if unclear else loss_scale
        scale_tensor = value.detach().to(base, copy=True) if isinstance(value, Tensor) else base.new_full((1,), value)
        self._loss_scales.append((current_pass, scale_tensor.reshape(1)))
        if isinstance(entropy, int) or unclear:
            return
        roundings, reduction, scalings = entropy.depth + CONSTANTS, entropy.reduction, entropy.scalings
        dtypes = [root.dtype for root in roots]
        scale = scale_tensor

        def take(tokens: Tensor, least: Tensor, greatest: Tensor, dtype: torch.dtype) -> None:
            with self._guard(self.name), torch.no_grad():
                rounding = max(torch.finfo(float_dtype).eps for float_dtype in (dtype, *dtypes)) * roundings
                fixed = [tokens.new_full((), value) for value in (rounding, reduction, scalings)]
                parts = [torch.zeros_like(tokens), tokens, least, greatest, scale.reshape(()), *fixed]
                rows[number] = (current_pass, torch.stack(parts)[None])

        cross_entropy.listen(entropy, take)

    def _after_backward(self, *args: Any, **kwargs: Any) -> None:
        if not self._due or not self._reading:
            return
        self._reading = False
        with self._guard(self.name), torch.no_grad():
            self._grads_left = _few_gradients(self._params)


def _holds(optimizer: torch.optim.Optimizer | None, params: Sequence[Tensor]) -> bool:
    """True where the optimizer updates these, and not copies of them."""
    updated = {id(param) for group in optimizer.param_groups for param in group["params"]} if optimizer else set[int]()
    return all(id(param) in updated for param in params)


def _at(like: Tensor, index: int) -> Tensor:
    return torch.full((1,), index, dtype=torch.int64, device=like.device)


def _few_gradients(params: Sequence[Tensor]) -> Tensor | None:
    """A copy of the first elements of their gradients, those of one device; None without any."""
    grads = [local(param.grad) for param in params if param.grad is not None]
    grads = [grad for grad in grads if grad.layout == torch.strided and grad.is_contiguous() and grad.numel()]
    grads = [grad for grad in grads if not grad.is_complex()]  # torch warns of the part that is lost
    parts = [grad.view(-1)[:LENGTH].to(torch.float32) for grad in grads if grad.device == grads[0].device]
    return torch.cat(parts) if parts else None


def _factor(left_K: np.ndarray[Any, Any], used_K: np.ndarray[Any, Any]) -> float | None:
    """The least-squares factor c of used = c * left; None where it is no multiple."""
    total = float(left_K @ left_K)
    if not (np.isfinite(total) and np.isfinite(used_K).all()) or total == 0:
        return None
    factor = float(left_K @ used_K) / total
    far = float(np.linalg.norm(used_K - factor * left_K)) > PROPORTIONAL * float(np.linalg.norm(used_K))
    return None if far else factor


def make_probe(parts: ProbeParts) -> TokenWeightProbe:
    """The probe of this law for one watched model."""
    return TokenWeightProbe(parts.guard, parts.contributions)
