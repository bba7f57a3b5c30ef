"""The loss of this worker before any averaging: given by hand, else the model's ``.loss``, else what ``backward``
starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trueline.capture import seams
from trueline.capture.probes.batch import Batch


class LossProbe:
    """Collects the losses of one step's micro-batches, as tensors: nothing is read until the step's host copy.

    Losses given by hand or by the model's output are averaged over the micro-batches, weighted by tokens where given.
    Losses seen at ``backward`` are added up: with gradient accumulation their sum is what the step descends.
    """

    def __init__(self) -> None:
        self.source = ""
        self._given: list[tuple[Tensor, float | Tensor | None]] = []
        self._output: list[Tensor] = []
        self._backward: list[Tensor] = []
        self._unscaled: Tensor | None = None
        seams.backward.add(self._at_backward)
        seams.scale.add(self._at_scale)

    def begin(self) -> None:
        """Forget the step before."""
        self._given, self._output, self._backward = [], [], []

    def give(self, loss: Tensor | float, tokens: float | Tensor | None) -> None:
        """Take a loss by hand, with the number of tokens that it averages over."""
        value = loss.detach().clone() if isinstance(loss, Tensor) else torch.tensor(float(loss))
        self._given.append((value.double().mean(), tokens))

    def from_output(self, output: Any) -> None:
        """Take ``.loss`` or ``["loss"]`` of a model output, if it is one number."""
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._output.append(loss.detach().double().reshape(()))

    def detach(self) -> None:
        """Stop listening."""
        seams.backward.remove(self._at_backward)
        seams.scale.remove(self._at_scale)

    def result(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """``loss`` and ``tokens`` of the step as float64 scalars; absent where not found."""
        out: dict[str, Tensor] = {}
        tokens = [batch.tokens for batch in batches if batch.tokens is not None]
        if tokens:
            out["tokens"] = torch.stack([count.reshape(()) for count in tokens]).sum()
        if self._given:
            self.source = "given"
            out |= _weighted(self._given)
        elif self._output:
            self.source = "output"
            out["loss"] = torch.stack(self._output).mean()
        elif self._backward:
            self.source = "backward"
            out["loss"] = torch.stack(self._backward).sum()
        return out

    def _at_scale(self, scaler: torch.amp.GradScaler, outputs: Any) -> None:
        self._unscaled = outputs if isinstance(outputs, Tensor) else None

    def _at_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss = self._unscaled if self._unscaled is not None else loss
        self._unscaled = None
        if loss.numel() == 1 and loss.is_floating_point():
            self._backward.append(loss.detach().double().reshape(()))


def _on(device: torch.device, count: float | Tensor | None) -> Tensor:
    """The count as float64 [] on ``device``; a number is filled in there, since copying it from the host would wait."""
    if isinstance(count, Tensor):
        return count.detach().to(device=device, dtype=torch.float64).reshape(())
    return torch.full((), float(count or 0), dtype=torch.float64, device=device)


def _weighted(given: list[tuple[Tensor, float | Tensor | None]]) -> dict[str, Tensor]:
    losses = torch.stack([loss for loss, _ in given])
    if any(count is None for _, count in given):
        return {"loss": losses.mean()}
    counts = torch.stack([_on(losses.device, count) for _, count in given])
    total = counts.sum()
    # Without a token the loss is still the number that was given, such as the 0.0 of a clamped count.
    mean = torch.where(total > 0, (losses * counts).sum() / total, losses.mean())
    return {"loss": mean, "tokens": total}
