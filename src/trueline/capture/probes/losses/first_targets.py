"""Count behind how many tokens of a row its targets begin, and behind which.

Letters: B rows, T positions of the input, L of the targets. All is computed on the device; nothing waits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trueline.capture.probes.losses.end_tokens import most_of


def row_of(
    ids_BT: Tensor, mask_BT: Tensor | None, target: Tensor, counts: Tensor, first_position: int | None
) -> Tensor | None:
    """int64 [numbers of ``FirstTargets``]; ``target`` and which of them ``counts`` in any shape, ``first_position`` as
    for the ends of rows. None where nobody knows that one, or targets are not of these rows.
    """
    num_rows, length = ids_BT.shape
    if first_position is None or not num_rows or target.numel() % num_rows or not target.numel():
        return None
    counts_BL = counts.view(num_rows, -1)
    if counts_BL.shape[1] > length:
        return None
    attended_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    if mask_BT is not None and mask_BT.shape == ids_BT.shape and mask_BT.device == ids_BT.device:
        attended_BT = mask_BT != 0
    at_T, at_L = (torch.arange(num, device=ids_BT.device) for num in (length, counts_BL.shape[1]))
    begin_B, end_B = attended_BT.long().argmax(1), torch.where(attended_BT, at_T, -1).amax(1)
    # the target of a position is the token behind it
    first_B = counts_BL.long().argmax(1) + first_position + 1
    last_B = torch.where(counts_BL, at_L, -1).amax(1) + first_position + 1
    num_before_B = first_B - begin_B
    rows_B = counts_BL.any(1) & (num_before_B > 0)
    before_B, second_B = (ids_BT.gather(1, (first_B - n).clamp(0, length - 1)[:, None])[:, 0] for n in (1, 2))
    (before, before_rows), (second, second_rows) = (
        most_of(before_B, rows_B),
        most_of(second_B, rows_B & (num_before_B > 1)),
    )
    trained_B = torch.isin(before_B, torch.where(counts, target.flatten(), -1))
    numbers = [
        rows_B.sum(),
        torch.where(rows_B, num_before_B, length).amin(),
        torch.where(rows_B, num_before_B, 0).amax(),
        before,
        before_rows,
        second,
        second_rows,
        (trained_B & rows_B).sum(),
        (rows_B & (last_B == end_B)).sum(),
        (rows_B & (last_B > end_B)).sum(),
    ]
    return torch.stack([number.to(torch.int64) for number in numbers])
