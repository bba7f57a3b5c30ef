"""The token that rows of several lengths are filled up with, where nothing declares padding.

Letters: B rows, T places.
"""

from __future__ import annotations

import torch
from torch import Tensor

NO_FILLING = -1


def filling_of(ids_BT: Tensor) -> Tensor:
    """The id, int64 [], that ends rows, or begins them, in runs of two or more, of several lengths, and stands nowhere
    else among ``ids_BT``, int64; ``NO_FILLING`` where none does. Computed on the device: nothing waits.
    """
    num_rows, num_places = ids_BT.shape
    filling = ids_BT.new_full((), NO_FILLING)
    if num_rows < 2 or num_places < 3:
        return filling
    # numbers of their own for rows that end in no run: the mode is the id that most of the others end in
    no_run_B = -2 - torch.arange(num_rows, device=ids_BT.device, dtype=ids_BT.dtype)
    for from_edge_BT in (ids_BT, ids_BT.flip(1)):
        edge_B, next_B = from_edge_BT[:, 0], from_edge_BT[:, 1]
        candidate = torch.where(edge_B == next_B, edge_B, no_run_B).mode().values
        is_candidate_BT = from_edge_BT == candidate
        run_B = is_candidate_BT.long().cumprod(1).sum(1)
        is_padded_B = (run_B > 1) & (run_B < num_places)
        longest, shortest = (run_B * is_padded_B).max(), torch.where(is_padded_B, run_B, num_places).min()
        fills = (candidate >= 0) & (shortest < longest) & (run_B.sum() == is_candidate_BT.sum())
        filling = torch.where(fills, candidate, filling)
    return filling
