"""Count what rows of tokens begin and end with, and whether that stands there twice.

Letters: B rows, T positions, S = 2: from the front, from behind. All is computed on the device; nothing waits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trueline.capture.probes.losses.end_tokens import most_of

FEWEST = 4
"""Attended places of a row from which on its two ends are looked at."""


def row_of(ids_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """int64 [numbers of ``EdgeTokens``] of ids with T of ``FEWEST`` or more; ``mask_BT`` is 0 at padding."""
    attended_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    if mask_BT is not None and mask_BT.shape == ids_BT.shape and mask_BT.device == ids_BT.device:
        attended_BT = mask_BT != 0
    counts_B = attended_BT.sum(1) >= FEWEST
    # once from the front and once from behind
    ids_SBT = torch.stack([ids_BT, ids_BT.flip(1)])
    attended_SBT = torch.stack([attended_BT, attended_BT.flip(1)])
    first_SB1 = attended_SBT.long().argmax(2, keepdim=True)
    places_SB3 = (first_SB1 + torch.arange(3, device=ids_BT.device)).clamp(max=ids_BT.shape[1] - 1)
    edge_SB3 = ids_SBT.gather(2, places_SB3)
    (first, first_rows), (last, last_rows) = most_of(edge_SB3[0, :, 0], counts_B), most_of(edge_SB3[1, :, 0], counts_B)
    token_S11 = torch.stack([first, last])[:, None, None]
    at_first_SB, at_second_SB, at_third_SB = (edge_SB3 == token_S11).unbind(2)
    is_token_SBT = (ids_SBT == token_S11) & attended_SBT & counts_B[:, None]
    counts_S4 = torch.stack(
        [
            torch.stack([first_rows, last_rows]),
            (at_first_SB & at_second_SB & ~at_third_SB & counts_B).sum(1),
            is_token_SBT.sum((1, 2)),
            (is_token_SBT[:, :, 1:] & is_token_SBT[:, :, :-1]).sum((1, 2)),
        ],
        1,
    )
    of_edges = torch.cat([token_S11[:, 0].to(torch.int64), counts_S4], 1).flatten()
    padded_S = (~attended_SBT[:, :, 0]).sum(1)
    return torch.cat([counts_B.sum()[None], of_edges, padded_S])
