"""In how many layers of a mixture engine and trainer chose other experts for a token, or the same in other slots.

L tokens of a response, M layers with experts, K slots of a layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUTING_COLUMNS: tuple[str, ...] = ("experts_differ", "slots_differ", "slots_misread")
"""Columns that are made of what ``ROUTING_ARGUMENTS`` hold, [L] each."""
ROUTING_ARGUMENTS: tuple[str, ...] = (
    *("experts_rollout", "experts_train", "expert_weights_rollout", "expert_weights_train"),
)

ROUNDING = 2.0**-8
"""What two roundings to bfloat16 leave of a weight of at most 1."""
CLEARLY = 4.0
"""A weight that moved so many times as far as any whose expert kept its slot is another expert's: a near tie that is
turned round moves both of its weights by what moved them past each other, so at most twice as far.
"""

Array = NDArray[Any]


def compare_routing(
    rollout_LMK: Array, train_LMK: Array, weights: tuple[Array, Array] | None = None
) -> dict[str, NDArray[np.float32]]:
    """The columns ``ROUTING_COLUMNS`` of a sequence, numbers of layers [L], by the experts of both sides;
    ``slots_misread``, where weights go with slots and not with experts, only with ``weights`` [L, M, K] of both.
    """
    other_LMK = rollout_LMK != train_LMK
    other_LM = other_LMK.any(-1)
    differ_LM = np.zeros_like(other_LM)
    # only what is not equal slot by slot has to be sorted, which as a rule is little
    differ_LM[other_LM] = (np.sort(rollout_LMK[other_LM]) != np.sort(train_LMK[other_LM])).any(-1)
    slots_LM = other_LM & ~differ_LM
    columns = {"experts_differ": differ_LM, "slots_differ": slots_LM}
    if weights is not None:
        columns["slots_misread"] = _misread(rollout_LMK, train_LMK, weights, slots_LM, ~other_LM)
    return {name: layers_LM.sum(-1).astype(np.float32) for name, layers_LM in columns.items()}


def _misread(
    rollout_LMK: Array, train_LMK: Array, weights: tuple[Array, Array], slots_LM: Array, alike_LM: Array
) -> Array:
    """[L, M] where weights agree slot by slot, and not expert by expert."""
    rollout_weights, train_weights = (np.asarray(side, dtype=np.float64) for side in weights)
    by_slot_LM = np.abs(rollout_weights - train_weights).max(-1)
    moved = float(by_slot_LM[alike_LM].max()) if alike_LM.any() else 0.0
    of_rollout, of_train = (
        np.take_along_axis(side[slots_LM], np.argsort(experts[slots_LM], axis=-1), axis=-1)
        for experts, side in ((rollout_LMK, rollout_weights), (train_LMK, train_weights))
    )
    misread_LM = np.zeros_like(slots_LM)
    by_expert = np.abs(of_rollout - of_train).max(-1) if len(of_rollout) else np.zeros(0)
    misread_LM[slots_LM] = by_expert > CLEARLY * np.maximum(by_slot_LM[slots_LM], moved) + ROUNDING
    return misread_LM
