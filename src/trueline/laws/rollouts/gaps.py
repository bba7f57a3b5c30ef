"""How large a gap rounding leaves between the log-probabilities of two engines.

An error of size s of the logits moves d = logp_rollout - logp_train of a token by about s (1 - p), so ``Rows.gap`` =
mean |d| / mean (1 - p) is comparable between peaked and flat distributions and over the length of a training.

R sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueline.schema.errors import CannotTell

if TYPE_CHECKING:
    from trueline.laws.rollouts.rows import Rows

CEILING = {"float32": 1e-3, "float64": 1e-3} | dict.fromkeys(("int8", "fp8", "float8_e4m3fn", "float8_e5m2"), 0.3)
"""Largest ``gap`` that rounding leaves where both sides compute in such a dtype. Two engines in float32 are 1e-6 apart
(CTranslate2 and transformers, benchmarks/rl); the thousandfold leaves room for depth and TF32. With 8 bits CTranslate2
leaves 0.015 at an entropy of 5.3 nats and 0.10 at 1.8, as the error is a share of the logits; published: k3 of 0.0024
with FP8 (NeMo-RL 7ea279a, docs/guides/grpo.md), which is a mean |d| of 0.055 if d is Gaussian, so 0.18 at p = 0.7.
"""
CEILING_OTHERWISE = 0.1
"""The same of bfloat16, float16 and what was not declared. Measured: 0.01 of bfloat16 (benchmarks/rl); published: mean
|d| of 0.011 to 0.012 a token in bfloat16 (vime#64, trl#4772), so 0.04 where tokens have p = 0.7 on average.
"""


FLOAT32_SHARE, FLOAT32_TOKENS = 0.8, 6
"""Share of its tokens, and fewest of them, by which a sequence shows that both sides compute in float32: nearly all are
so close there. Where both round logits of deviation 12 to bfloat16, up to 0.55 are, as the likeliest round alike.
"""
FLOAT32_ROWS = 8
"""Sequences that show it."""


def ceiling_of(rows: Rows) -> float:
    """What rounding may explain at most, by the declared dtype, else by what sequences show."""
    return ceiling(_dtype(rows))


def _dtype(rows: Rows) -> Any:
    declared = rows.declared("dtype")
    if declared is not None:
        return declared
    fine_R = rows.sums["fine"] > FLOAT32_SHARE * np.maximum(rows.sums["roomy"], FLOAT32_TOKENS)
    return "float32" if int(fine_R.sum()) >= FLOAT32_ROWS else None


def ceiling(dtype: Any) -> float:
    """The same by a declared dtype, None for none."""
    return CEILING.get(str(dtype), CEILING_OTHERWISE)


def dtype_text(rows: Rows) -> str:
    """The dtype in words."""
    dtype = _dtype(rows)
    if dtype is None:
        return "in a dtype that was not declared"
    return f"in {dtype}" if rows.declared("dtype") is not None else f"in {dtype}, which some sequences show"


def on_policy(rows: Rows) -> Rows:
    """The sequences that were sampled by the very weights that they are judged by, as far as that is known. Raises
    ``CannotTell`` where all are older.
    """
    fresh = rows.subset(~(rows.lag > 0) & (rows.sums["tokens"] > 0))
    if not len(fresh):
        raise CannotTell(
            "all rollouts are of older weights than the trainer's, so that a gap is not only of the engines: record "
            "logp_train at the weights that sampled (their version), or some steps without lag",
            reason="undecidable",
        )
    return fresh
