"""Why engine and trainer disagree: which experiment takes the gap away.

Causes are ``weights`` (the gap comes with updates: a sync, a lag), ``cache`` (what the engine keeps of earlier tokens),
``decoding`` (the kernel for one token at a time, positions), ``batch`` (the engine computes a sequence otherwise beside
others), ``precision``, and ``model``: the two implementations, the tokens, or the weights that they begin with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trueline.trials.frame.tree import TreeTrial

CAUSES = ("weights", "cache", "decoding", "batch", "precision", "model")
MEANS: Mapping[str, str] = {
    "weights": "the gap comes with updates, so a sync of weights leaves some out, or lags",
    "cache": "what the engine keeps of earlier tokens",
    "decoding": "how the engine computes one token at a time: its kernel, positions",
    "batch": "the engine computes a sequence otherwise beside others",
    "precision": "rounding in the engine",
    "model": "the two implementations, the tokens, or the weights that both begin with",
}
NEXT: Mapping[str, tuple[str, ...]] = {
    "weights": (
        "Record digests after each sync: trueline.rl.record_sync(step, model.named_parameters(), engine).",
        "Record versions of the weights: a lag is then told from a sync that leaves some out.",
    ),
    "cache": ("Look at the cache of keys and values: its dtype and scales, its size, prefixes that are shared.",),
    "decoding": ("Look at what decoding does otherwise than prefill: its kernel, and positions of the next token.",),
    "batch": (
        "Look at padding on the left and its position ids, and at kernels that depend on the batch (batch-invariant "
        "kernels, or one that is deterministic).",
    ),
    "precision": ("It is rounding: declare the coarser dtype in sampling={'dtype': …}, or correct by importance.",),
    "model": (
        "Compare one prompt as both sides have it, id by id, with its position ids; then the weights that both were "
        "loaded with; then both forward passes: trueline compare.",
    ),
}


@dataclass
class RolloutTrial(TreeTrial):
    """The tree of these causes."""

    causes: tuple[str, ...] = CAUSES
    means: Mapping[str, str] = field(default_factory=lambda: MEANS)
    then: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NEXT)
    to_reach: str = "--way {}=OPTION=VALUE"
