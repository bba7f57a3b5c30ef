"""The loss of every sample of a batch, computed again from the logits and labels that the model's own loss came from.

Letters: B samples, T positions, V classes (words).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.capture.model.contents import stored
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.losses.loss import LossProbe
from trueline.capture.step.passes import Contributions, CountedPasses, Pass
from trueline.capture.step.shared_columns import LAMBDA

STEPS_AT_START = 4
"""First steps at which samples are looked at, besides those whose sketches are kept: most faults show at the start."""

CHUNK = 2**24
"""Logits looked at at a time. With a float32 copy of them and its logarithms of softmax that is 128 MiB at most."""

READINGS = ("next", "same")
"""The label that a position is to predict: that of the next position (causal language models), or its own."""

_U32 = 2.0**-24


@dataclass(frozen=True)
class _PassLosses:
    """One forward pass: float64 [B] losses, and by how much their mean is further from the model's loss than rounding
    explains, float64 [], positive where it is.
    """

    losses: Tensor
    excess: Tensor


class SampleLossProbe:
    """Looks at the outputs of one step's forward passes. What it computes is kept only where its mean is the loss that
    the model reported; a model whose loss is something else is left alone for good, and ``notes`` says so.

    Nothing is read before the step's host copy: whether the losses agree is computed on the device, too.
    """

    name = "losses of samples"
    moments = ("output", "gradients")
    between = moments

    def __init__(self, notes: list[str], loss: LossProbe | None = None, passes: Contributions | None = None) -> None:
        self._notes = notes
        self._loss = loss
        self._contributions = passes or Contributions()
        self._readings = list(READINGS)
        self._active = False
        self._passes: list[tuple[Pass, _PassLosses | None]] = []

    def begin(self, step: Step) -> bool:
        """Forget the step before; look at this one if it is one of the first, or its sketch is kept."""
        self._active = (step.keeps_sketch or 0 <= step.age < STEPS_AT_START) and bool(self._readings)
        self._passes = []
        return step.watched and self._active

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        if moment == "gradients":
            return self.result(step.counted)
        if not self._contributions.is_over:
            self.see(step.output, step.args, step.kwargs)
        return {}

    def see(self, output: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Take the output of a training forward pass that was called with these arguments."""
        if not self._active or torch.compiler.is_compiling():
            return
        forward_pass = self._contributions.now()
        # kept without losses until they are computed: a pass that could not be read must not go unnoticed
        self._passes.append((forward_pass, None))
        labelled = kwargs if "labels" in kwargs else next((x for x in args if stored(x, "labels") is not None), kwargs)
        logits, loss, labels = stored(output, "logits"), stored(output, "loss"), stored(labelled, "labels")
        if not _are_readable(logits, labels, loss):
            return
        # a label for each sample has no next position
        if labels.dim() == 1 and "next" in self._readings:
            self._drop("next")
        if not self._readings:
            return
        try:
            losses = _look(
                logits, labels, loss, next_=self._readings[0] == "next", items=stored(labelled, "num_items_in_batch")
            )
            self._passes[-1] = (forward_pass, losses)
        except Exception:
            self._readings = []
            raise

    def result(self, counted: CountedPasses) -> dict[str, Tensor]:
        """``sample_losses`` float64 [B over all passes that count] and what ``columns`` needs to judge them; empty
        unless each of those could be looked at.
        """
        passes = [(at, losses) for at, losses in self._passes if counted.counts(at)]
        readable = [(at, losses) for at, losses in passes if losses is not None]
        if not passes or len(readable) < len(passes):
            return {}
        return {
            **counted.take("sample_losses", [(at, losses.losses) for at, losses in readable]),
            **counted.take("sample_excess", [(at, losses.excess.reshape(1)) for at, losses in readable]),
            "sample_reading": torch.tensor(READINGS.index(self._readings[0])),
        }

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, list[float]]:
        """The column ``part_losses``: the losses of single samples, where these are sure, more than are in the ``row``,
        and what is trained is the loss that the model reported.
        """
        parts = row.get("part_losses", [])
        models_loss = self._loss is None or self._loss.is_models
        if "sample_losses" in host:
            excess = float(host["sample_excess"].max())  # not finite where the loss is not: that decides nothing
            if math.isfinite(excess) and excess > 0:
                self._refute(READINGS[int(host["sample_reading"])])
            elif models_loss and math.isfinite(excess) and len(host["sample_losses"]) > len(parts):
                parts = host["sample_losses"].tolist()
        return {"part_losses": parts} if parts else {}

    def _refute(self, reading: str) -> None:
        if reading not in self._readings:
            return
        self._drop(reading)
        if not self._readings:
            self._notes.append(
                "losses of single samples are not recorded from the model's output: its loss is not the mean cross "
                "entropy of its logits and labels; pass watch.loss() one loss per sample to have them."
            )

    def _drop(self, reading: str) -> None:
        self._readings.remove(reading)
        if self._loss is not None:
            self._loss.shifted = self._readings[:1] != ["same"]


def loss_rounding(total: Tensor, count: Tensor, *, classes: int, unit: float) -> Tensor:
    """Largest distance by which two sums of ``count`` cross entropies over ``classes``, float64 [] near
    ``total``, may differ by rounding alone.

    With u of float32: logarithms of softmax lie within u·(4ℓ + 2·ln V + λ√V + 4) of the exact loss ℓ (the difference
    to the maximum, rounded, moves the sum of exponentials by at most its mean, ln V, and summing V of them by λ√V; the
    other roundings are single), and a sum of n of them within λ√n·u·Σℓ (Higham & Mary, SISC 41(5), 2019, theorem 2.4);
    both sides lose that. ``unit`` is u of the model's loss: it may have rounded each term, and the result.
    """
    per_term = 4 + 2 * math.log(classes) + LAMBDA * math.sqrt(classes)
    return 2 * _U32 * (total * (4 + LAMBDA * count.sqrt()) + count * per_term) + 2 * unit * total


def _are_readable(logits: Any, labels: Any, loss: Any) -> bool:
    """True where these can be the logits [B, V] or [B, T, V], integer labels [B] or [B, T], and loss [] of at least two
    samples, all of them whole tensors in one place.
    """
    tensors = (logits, labels, loss)
    if not all(isinstance(x, Tensor) and x.layout == torch.strided and not hasattr(x, "to_local") for x in tensors):
        return False
    shapes_match = logits.shape[:-1] == labels.shape and logits.device == labels.device == loss.device
    countable = not labels.is_floating_point() and labels.dtype != torch.bool
    return (
        shapes_match
        and countable
        and labels.dim() in (1, 2)
        and labels.shape[0] >= 2
        and logits.numel() > 0
        and logits.is_floating_point()
        and loss.is_floating_point()
        and loss.numel() == 1
    )


def _look(logits: Tensor, labels: Tensor, loss: Tensor, *, next_: bool, items: Any) -> _PassLosses:
    """``items`` is the number of tokens that the model divides its sum by, None for those of this batch."""
    with torch.no_grad(), torch.autocast(logits.device.type, enabled=False):
        if labels.dim() == 1:
            logits, labels = logits[:, None], labels[:, None]
        if next_:
            # the last position has no next label; -1 is no class, so that it is left out
            labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-1)
        sums_B, counts_B = _sums(logits, labels)
        total, count = sums_B.sum(), counts_B.sum()
        rounding = loss_rounding(total, count, classes=logits.shape[-1], unit=torch.finfo(loss.dtype).eps / 2)
        divisor = count if items is None else items
        excess = (total - loss.double().reshape(()) * divisor).abs() - rounding
        return _PassLosses(torch.where(counts_B > 0, sums_B / counts_B, torch.nan), excess)


def _sums(logits_BTV: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the cross entropies of each sample and how many positions have a label, both float64 [B].

    A label that is no class is left out, whatever it is: indexing with it would end the process on some devices.
    """
    classes = logits_BTV.shape[-1]
    valid_BT = (labels_BT >= 0) & (labels_BT < classes)
    index_BT1 = labels_BT.clamp(0, classes - 1).long().unsqueeze(-1)
    losses_BT = torch.empty(labels_BT.shape, dtype=torch.float32, device=logits_BTV.device)
    for rows, positions in _pieces(*logits_BTV.shape):
        log_p = torch.log_softmax(logits_BTV[rows, positions], dim=-1, dtype=torch.float32)
        losses_BT[rows, positions] = -log_p.gather(-1, index_BT1[rows, positions]).squeeze(-1)
    losses_BT = torch.where(valid_BT, losses_BT, 0.0).double()
    return losses_BT.sum(dim=1), valid_BT.sum(dim=1).double()


def _pieces(samples: int, positions: int, classes: int) -> Iterator[tuple[slice, slice]]:
    """Slices that cover [B, T] with at most ``CHUNK`` logits each (or one position)."""
    wide = max(1, min(positions, CHUNK // classes))
    high = max(1, CHUNK // (positions * classes))
    for row in range(0, samples, high):
        for position in range(0, positions, wide):
            yield slice(row, row + high), slice(position, position + wide)
