"""The loss of this worker before any averaging: given by hand, else what ``backward`` is called on, else what the model
returned.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.model.contents import attributes, stored
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import IGNORE_INDEX
from trueline.capture.probes.losses.descent import losses_in, row_of
from trueline.capture.probes.losses.loss_choice import PER_TOKEN, Doubt, choose
from trueline.capture.step.passes import Contributions, CountedPasses, Pass

NO_ROWS = np.zeros((0, 3))


@dataclass(frozen=True)
class GivenLoss:
    """A loss given by hand: float64 [], the tokens that it averages over (float64 [], None untold), and float64 [B]
    losses of its samples, None where only their mean was given.
    """

    loss: Tensor
    tokens: Tensor | None
    parts: Tensor | None


class LossProbe:
    """Collects the losses of one step's micro-batches, as tensors: nothing is read until the step's host copy, and what
    is the loss is decided there (``loss_choice``). ``workers`` are those whose gradients are averaged, ``guard`` opens
    what runs while the user's code calls ``backward``, ``passes`` say which are the step's own: their hooks of
    ``backward`` run before those of this probe.

    Losses given by hand are averaged over the micro-batches, weighted by tokens where given, and are the loss. Those
    that ``backward`` is called on are added up: with gradient accumulation their sum is what the step descends.
    """

    name = "loss"
    moments = ("output", "update", "gradients")
    between = ("output", "gradients")

    def __init__(
        self,
        notes: list[str] | None = None,
        *,
        workers: int = 1,
        guard: Guard = contextlib.nullcontext,
        passes: Contributions | None = None,
    ) -> None:
        self.source = ""
        self.is_models = True
        self.shifted = True
        """True where a label is that of the next position, as far as is known."""
        self._guard = guard
        self._contributions = passes or Contributions()
        self._notes = [] if notes is None else notes
        self._noted: set[Doubt] = set()
        self._workers = workers
        self._rel = 1e-5
        self._window = 0
        self._collects = True
        self._given_losses: list[tuple[Pass, GivenLoss]] = []
        self._output: list[tuple[Pass, Tensor]] = []
        self._backward: list[tuple[Pass, Tensor]] = []
        self._unscaled: Tensor | None = None
        patches.backward.add(self._at_backward)
        for scale in patches.scales():
            # a scaler multiplies the loss just before backward: its argument is the loss as the script has it
            scale.add(self._at_scale)

    def begin(self, step: Step) -> bool:
        """Forget the step before. What listens to ``backward`` collects nothing in a step that is not watched."""
        self._given_losses, self._output, self._backward = [], [], []
        self._collects = step.watched
        return step.watched

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """Tensors that ``columns`` needs of the step (see ``result``); the fact ``loss_source``."""
        if moment == "output":
            self.from_output(step.output, step.kwargs, shifted=self.shifted)
        elif moment == "gradients":
            return self.result(step.counted)
        elif self.source:
            step.facts["loss_source"] = self.source
        return {}

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
        is_scalar = x.dim() == 0 or x.numel() == 0
        if is_scalar:
            given_loss = GivenLoss(x.mean(), _count_on(x.device, tokens), None)
        else:
            given_loss = _sample_losses(x.reshape(len(x), -1), tokens)
        if self._collects and not self._contributions.is_over:
            self._given_losses.append((self._contributions.now(), given_loss))

    def from_output(self, output: Any, kwargs: Mapping[str, Any], *, shifted: bool) -> None:
        """Take what a model returned for ``kwargs``; ``shifted``: labels there are of the next position."""
        row = None if self._contributions.is_over else _returned(output, kwargs, shifted=shifted)
        if row is not None:
            self._output.append((self._contributions.now(), row[None]))

    def detach(self) -> None:
        patches.backward.remove(self._at_backward)
        for scale in patches.scales():
            scale.remove(self._at_scale)

    def result(self, counted: CountedPasses) -> dict[str, Tensor]:
        """Tensors that ``columns`` needs of the step, to be copied to the host: given losses as ``loss`` and
        ``tokens``, float64 [], and ``part_losses``, float64 [B], or rows of M passes that count, float64 [M, 3]
        (``loss_choice``).
        """
        if given_losses := [loss for at_pass, loss in self._given_losses if at_pass.at >= counted.first]:
            self.source = "given"
            parts = torch.cat([part.reshape(-1) for part in _parts(given_losses)])
            return _weighted(given_losses) | ({"part_losses": parts} if len(parts) > 1 else {})
        trained = counted.take("loss_trained", self._backward, backward=True)
        return trained | counted.take("loss_returned", self._output)

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns ``loss``, ``tokens`` and ``part_losses``; absent where not found. ``is_models`` then says whether
        it is the loss that the model returned.

        Two losses of one batch are terms, not parts.
        """
        self.is_models, micros = True, row.get("num_micro") or 0
        columns: dict[str, Any] = {name: float(host[name].sum()) for name in ("loss", "tokens") if name in host}
        if "loss" in host:
            return columns | ({"part_losses": host["part_losses"].tolist()} if "part_losses" in host else {})
        rows = [host[name].numpy() if name in host else NO_ROWS for name in ("loss_trained", "loss_returned")]
        choice = choose(*rows, workers=self._workers, rel=self._rel, step=step.number, window=self._window)
        self._window = max(self._window, len(rows[0]) or micros)
        if choice is None:
            return columns
        if not (self.source == PER_TOKEN and choice.tokens is not None):
            self.source = choice.source
        if choice.doubt is not None and choice.doubt not in self._noted:
            self._noted.add(choice.doubt)
            self._notes.append(choice.note)
        columns["loss"] = choice.loss
        if choice.tokens is not None:
            columns["tokens"] = choice.tokens
        self.is_models = choice.is_models
        return columns | ({"part_losses": choice.parts} if len(choice.parts) == micros and micros > 1 else {})

    def _at_scale(self, scaler: Any, outputs: Any) -> None:
        with self._guard("loss"):
            losses = losses_in(outputs, None)
            self._unscaled = self._row(losses[0]) if len(losses) == 1 else None

    def _at_backward(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        with self._guard("loss"):
            unscaled, self._unscaled = self._unscaled, None
            backward_pass = self._contributions.backward_pass
            if backward_pass is None or not self._collects:
                return
            if unscaled is not None:
                self._backward.append((backward_pass, unscaled[None]))
                return
            for loss in losses_in(tensors, grad_tensors):
                self._backward.append((backward_pass, self._row(loss)[None]))

    def _row(self, loss: Tensor) -> Tensor:
        self._rel = max(self._rel, 8 * torch.finfo(loss.dtype).eps)
        return row_of(loss)


def _returned(output: Any, kwargs: Mapping[str, Any], *, shifted: bool) -> Tensor | None:
    """float64 [3] of what a model returned: its loss, the sum over tokens that it is a share of, and how many those
    are; NaN where unknown, and None without either.

    Hugging Face's models divide by the tokens of all ranks, which they are passed, and those of TRL return the
    logarithms of their tokens' probabilities.
    """
    if type(output) is Tensor and not attributes(output):  # nearly every one, at each step
        return None
    loss = stored(output, "loss")
    is_loss = isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point()
    value = loss.detach().to(torch.float64, copy=True).reshape(()) if is_loss else None
    sums = _token_sum(output, kwargs, value, shifted=shifted)
    if value is None and sums is None:
        return None
    number = value if sums is None else sums[0]
    unknown = torch.full_like(number, math.nan)
    return torch.stack([unknown if value is None else value, *(sums or (unknown, unknown))])


def _token_sum(
    output: Any, kwargs: Mapping[str, Any], loss: Tensor | None, *, shifted: bool
) -> tuple[Tensor, Tensor] | None:
    """The sum over the tokens of a batch that its loss is made from, and their number, both float64 []."""
    log_probs, mask = stored(output, "log_probs"), stored(output, "label_mask")
    if isinstance(log_probs, Tensor) and isinstance(mask, Tensor):
        total = -log_probs.detach().sum(dtype=torch.float64)
        return total, mask.sum().to(total)
    items, labels = kwargs.get("num_items_in_batch"), kwargs.get("shift_labels", kwargs.get("labels"))
    if loss is None or items is None or not isinstance(labels, Tensor) or stored(output, "aux_loss") is not None:
        return None
    # labels that were shifted by the caller already have a target at each position, and one of a sample follows none
    follow = shifted and "shift_labels" not in kwargs and labels.dim() > 1
    return loss * items, ((labels[..., 1:] if follow else labels) != IGNORE_INDEX).sum().to(loss)


def _sample_losses(losses_BE: Tensor, tokens: float | Tensor | None) -> GivenLoss:
    """Losses of B samples, E elements each; what counts no token is left out, and has no loss (NaN) as a whole."""
    samples = len(losses_BE)
    if not isinstance(tokens, Tensor) or (tokens.numel() == 1 < losses_BE.numel()):
        return GivenLoss(losses_BE.mean(), _count_on(losses_BE.device, tokens), losses_BE.mean(dim=1))
    if tokens.numel() not in (samples, losses_BE.numel()):
        raise ValueError(
            f"watch.loss() was given {losses_BE.numel()} losses of {samples} samples and {tokens.numel()} counts of "
            "tokens; pass one count in all, one per sample or one per loss"
        )
    counts_BE = tokens.detach().to(losses_BE.device, torch.float64).reshape(samples, -1)
    # a count of a whole sample is shared out evenly among its losses
    counts_BE = counts_BE.expand_as(losses_BE) * (counts_BE.shape[1] / losses_BE.shape[1])
    sums_B = torch.where(counts_BE > 0, losses_BE * counts_BE, 0.0).sum(dim=1)
    counts_B = counts_BE.sum(dim=1)
    mean = torch.where(counts_B.sum() > 0, sums_B.sum() / counts_B.sum(), losses_BE.mean())
    return GivenLoss(mean, counts_B.sum(), torch.where(counts_B > 0, sums_B / counts_B, torch.nan))


def _parts(given_losses: list[GivenLoss]) -> list[Tensor]:
    """The losses of all samples, or, where some came as a mean only, of each micro-batch."""
    samples = [loss.parts for loss in given_losses if loss.parts is not None]
    return samples if len(samples) == len(given_losses) else [loss.loss for loss in given_losses]


def _count_on(device: torch.device, count: float | Tensor | None) -> Tensor | None:
    """The count as float64 [] on ``device``; a number is filled in there, since copying it from the host would wait."""
    if count is None:
        return None
    if isinstance(count, Tensor):
        return count.detach().to(device=device, dtype=torch.float64).reshape(())
    return torch.full((), float(count), dtype=torch.float64, device=device)


def _weighted(given_losses: list[GivenLoss]) -> dict[str, Tensor]:
    losses = torch.stack([loss.loss for loss in given_losses])
    token_counts = [loss.tokens for loss in given_losses if loss.tokens is not None]
    if len(token_counts) < len(given_losses):
        return {"loss": losses.mean()}
    counts = torch.stack(token_counts)
    total = counts.sum()
    # Without a token the loss is still the number that was given, such as the 0.0 of a clamped count.
    mean = torch.where(total > 0, (losses * counts).sum() / total, losses.mean())
    return {"loss": mean, "tokens": total}
