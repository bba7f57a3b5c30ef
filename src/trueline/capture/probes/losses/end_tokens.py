"""Count how rows of tokens end, and whether what they end with is a target of the cross-entropy.

Letters: B rows, T positions of the input, L of the targets. All is computed on the device; nothing waits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trueline.schema.columns.end_tokens import NO_TOKEN

_BINS = 1 << 16
"""Bins in which ids are counted: a vocabulary of more shares some."""


def row_of(
    ids_BT: Tensor, mask_BT: Tensor | None, target: Tensor, counts: Tensor, first_position: int | None, eos: int
) -> Tensor:
    """int64 [numbers of ``EndTokens``]; ``target`` and which of them ``counts`` in any shape. ``first_position`` is
    that of the first target's position in the input, None where nobody knows it. ``eos`` as in ``EndTokens``.
    """
    num_rows, length = ids_BT.shape
    attended_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    if mask_BT is not None and mask_BT.shape == ids_BT.shape and mask_BT.device == ids_BT.device:
        attended_BT = mask_BT != 0
    target, counts = target.flatten(), counts.flatten()

    def targets_with(token: Tensor | int) -> Tensor:
        return ((target == token) & counts).sum()

    at_T = torch.arange(length, device=ids_BT.device)
    last_B1 = torch.where(attended_BT, at_T, -1).amax(1, keepdim=True).clamp(min=0)
    end_B = ids_BT.gather(1, last_B1)[:, 0]
    before_B = ids_BT.gather(1, (last_B1 - 1).clamp(min=0))[:, 0]
    padded_B = ~attended_BT.all(1)
    # beside rows with padding, those without may have been cut at the greatest length, in the middle of a text
    counts_B = torch.where(padded_B.any(), padded_B, torch.ones_like(padded_B)) & attended_BT.any(1)
    end, end_rows = most_of(end_B, counts_B)
    pad, _ = most_of(ids_BT, ~attended_BT)
    numbers: list[Tensor | int] = [
        length,
        counts_B.sum(),
        end,
        end_rows,
        ((end_B == end) & (before_B != end) & counts_B).sum(),
        ((ids_BT == end) & attended_BT).sum(),
        targets_with(end),
        counts.sum(),
        (~attended_BT).sum(),
        pad,
        *_last_targets(target, counts, num_rows),
        *_gaps(ids_BT, target, counts, first_position),
        eos,
        ((ids_BT == eos) & attended_BT).sum(),
        targets_with(eos),
    ]
    return torch.stack([torch.as_tensor(number, device=ids_BT.device).to(torch.int64) for number in numbers])


def _last_targets(target: Tensor, counts: Tensor, num_rows: int) -> tuple[Tensor | int, Tensor | int, Tensor | int]:
    """Rows with a target, the id that is the last one in most of them, and in how many."""
    if not num_rows or target.numel() % num_rows or not target.numel():
        return 0, NO_TOKEN, 0
    target_BL, counts_BL = target.view(num_rows, -1), counts.view(num_rows, -1)
    at_L = torch.arange(target_BL.shape[1], device=target.device)
    last_B1 = torch.where(counts_BL, at_L, -1).amax(1, keepdim=True).clamp(min=0)
    has_target_B = counts_BL.any(1)
    last, last_rows = most_of(target_BL.gather(1, last_B1)[:, 0], has_target_B)
    return has_target_B.sum(), last, last_rows


def _gaps(
    ids_BT: Tensor, target: Tensor, counts: Tensor, first_position: int | None
) -> tuple[Tensor | int, Tensor | int, Tensor | int, Tensor | int]:
    """Places without a target between two with one, the id of the next token at most of them, at how many it is, and
    how many targets are it.
    """
    num_rows, length = ids_BT.shape
    if first_position is None or not num_rows or target.numel() % num_rows:
        return 0, NO_TOKEN, 0, 0
    counts_BL = counts.view(num_rows, -1)
    # the target of a position is the token behind it
    first = first_position + 1
    num = min(counts_BL.shape[1], length - first)
    if num < 3:
        return 0, NO_TOKEN, 0, 0
    counts_BL, next_BL = counts_BL[:, :num], ids_BT[:, first : first + num]
    gaps_BL = ~counts_BL[:, 1:-1] & counts_BL[:, :-2] & counts_BL[:, 2:]
    gap, gap_places = most_of(next_BL[:, 1:-1], gaps_BL)
    return gaps_BL.sum(), gap, gap_places, ((target == gap) & counts).sum()


def most_of(ids: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The id at most of the places that count, and at how many it is; ``NONE`` where none counts."""
    ids, counts = ids.flatten().to(torch.int64), counts.flatten()
    bins = torch.zeros(_BINS, dtype=torch.int64, device=ids.device)
    bins.scatter_add_(0, ids.remainder(_BINS), counts.to(torch.int64))
    in_bin = counts & (ids.remainder(_BINS) == bins.argmax())
    most = torch.where(in_bin, ids, NO_TOKEN).amax()
    return most, ((ids == most) & counts).sum()
