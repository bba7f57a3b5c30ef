"""The loss of this worker before any averaging: given by hand, else the model's ``.loss``, else what ``backward``
starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.capture import seams
from trueline.capture.probes.batch import Batch


@dataclass(frozen=True)
class Given:
    """A loss given by hand: float64 [], the tokens that it averages over (float64 [], None untold), and float64 [B]
    losses of its samples, None where only their mean was given.
    """

    loss: Tensor
    tokens: Tensor | None
    parts: Tensor | None


class LossProbe:
    """Collects the losses of one step's micro-batches, as tensors: nothing is read until the step's host copy.

    Losses given by hand or by the model's output are averaged over the micro-batches, weighted by tokens where given.
    Losses seen at ``backward`` are added up: with gradient accumulation their sum is what the step descends.
    """

    def __init__(self) -> None:
        self.source = ""
        self._given: list[Given] = []
        self._output: list[Tensor] = []
        self._backward: list[Tensor] = []
        self._unscaled: Tensor | None = None
        seams.backward.add(self._at_backward)
        seams.scale.add(self._at_scale)

    def begin(self) -> None:
        """Forget the step before."""
        self._given, self._output, self._backward = [], [], []

    def give(self, loss: Tensor | float, tokens: float | Tensor | None) -> None:
        """Take a loss by hand, with the number of tokens that it averages over. A loss with several elements holds one
        per sample (row), and ``tokens`` may then count them per sample or per element.

        Raises ValueError for tokens of another shape.
        """
        x = (
            loss.detach().to(torch.float64, copy=True)
            if isinstance(loss, Tensor)
            else torch.tensor(float(loss)).double()
        )
        if x.dim() == 0 or x.numel() == 0:
            self._given.append(Given(x.mean(), _on(x.device, tokens), None))
        else:
            self._given.append(_several(x.reshape(len(x), -1), tokens))

    def from_output(self, output: Any) -> None:
        """Take ``.loss`` or ``["loss"]`` of a model output, if it is one number."""
        loss = field_of(output, "loss")
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._output.append(loss.detach().double().reshape(()))

    def detach(self) -> None:
        """Stop listening."""
        seams.backward.remove(self._at_backward)
        seams.scale.remove(self._at_scale)

    def result(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """``loss`` and ``tokens`` of the step as float64 scalars, and ``part_losses``, float64, one per sample or else
        per micro-batch, if there are two or more; absent where not found.

        What the model returned, or ``backward`` started from, counts as a micro-batch where there is one for each of
        ``batches``: two losses of one batch are terms, not parts.
        """
        out: dict[str, Tensor] = {}
        parts: list[Tensor] = []
        tokens = [batch.tokens for batch in batches if batch.tokens is not None]
        if tokens:
            out["tokens"] = torch.stack([count.reshape(()) for count in tokens]).sum()
        if self._given:
            self.source = "given"
            out |= _weighted(self._given)
            parts = _parts(self._given)
        elif self._output:
            self.source = "output"
            out["loss"] = torch.stack(self._output).mean()
            parts = self._output if len(self._output) == len(batches) else []
        elif self._backward:
            self.source = "backward"
            out["loss"] = torch.stack(self._backward).sum()
            each = len(batches)  # its loss stands in the sum as a share of it
            parts = [loss * each for loss in self._backward] if len(self._backward) == each else []
        joined = torch.cat([part.reshape(-1) for part in parts]) if parts else None
        return out if joined is None or len(joined) < 2 else out | {"part_losses": joined}

    def _at_scale(self, scaler: torch.amp.GradScaler, outputs: Any) -> None:
        self._unscaled = outputs if isinstance(outputs, Tensor) else None

    def _at_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss = self._unscaled if self._unscaled is not None else loss
        self._unscaled = None
        if loss.numel() == 1 and loss.is_floating_point():
            self._backward.append(loss.detach().double().reshape(()))


def field_of(output: Any, name: str) -> Any:
    """``output.name`` or ``output["name"]`` of what a model returned; None without."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _several(losses_BE: Tensor, tokens: float | Tensor | None) -> Given:
    """Losses of B samples, E elements each; what counts no token is left out, and has no loss (NaN) as a whole."""
    samples = len(losses_BE)
    if not isinstance(tokens, Tensor) or (tokens.numel() == 1 < losses_BE.numel()):
        return Given(losses_BE.mean(), _on(losses_BE.device, tokens), losses_BE.mean(dim=1))
    if tokens.numel() not in (samples, losses_BE.numel()):
        raise ValueError(
            f"watch.loss() was given {losses_BE.numel()} losses of {samples} samples and {tokens.numel()} counts of "
            "tokens; pass one count in all, one per sample or one per loss"
        )
    counts_BE = tokens.detach().to(losses_BE.device, torch.float64).reshape(samples, -1)
    counts_BE = counts_BE.expand_as(losses_BE) * (counts_BE.shape[1] / losses_BE.shape[1])
    sums_B = torch.where(counts_BE > 0, losses_BE * counts_BE, 0.0).sum(dim=1)
    counts_B = counts_BE.sum(dim=1)
    mean = torch.where(counts_B.sum() > 0, sums_B.sum() / counts_B.sum(), losses_BE.mean())
    return Given(mean, counts_B.sum(), torch.where(counts_B > 0, sums_B / counts_B, torch.nan))


def _parts(given: list[Given]) -> list[Tensor]:
    """The losses of all samples, or, where some came as a mean only, of each micro-batch."""
    samples = [one.parts for one in given if one.parts is not None]
    return samples if len(samples) == len(given) else [one.loss for one in given]


def _on(device: torch.device, count: float | Tensor | None) -> Tensor | None:
    """The count as float64 [] on ``device``; a number is filled in there, since copying it from the host would wait."""
    if count is None:
        return None
    if isinstance(count, Tensor):
        return count.detach().to(device=device, dtype=torch.float64).reshape(())
    return torch.full((), float(count), dtype=torch.float64, device=device)


def _weighted(given: list[Given]) -> dict[str, Tensor]:
    losses = torch.stack([one.loss for one in given])
    known = [one.tokens for one in given if one.tokens is not None]
    if len(known) < len(given):
        return {"loss": losses.mean()}
    counts = torch.stack(known)
    total = counts.sum()
    # Without a token the loss is still the number that was given, such as the 0.0 of a clamped count.
    mean = torch.where(total > 0, (losses * counts).sum() / total, losses.mean())
    return {"loss": mean, "tokens": total}
