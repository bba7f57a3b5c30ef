"""Tokens count differently by which rank or micro-batch they are in: means of unequal counts are averaged.

A mean over each rank's own tokens, averaged over ranks, gives the tokens of a rank with few of them more weight. The
same over micro-batches is the gradient-accumulation bug of October 2024.

What looks like it
------------------
Counts that are equal on purpose: then all weights are equal and nothing is found.

Known cases
-----------
transformers#34191, #37474, #40610.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "token-imbalance": "mostly",
        "token-weights-differ": "mostly",
    },
    needs=("token-imbalance", "token-weights-differ"),
    settles="Divide the sum of losses by the number of tokens of all ranks and micro-batches (HF Trainer: "
    "average_tokens_across_devices=True), and compare the first steps. What each loss is a mean over: "
    "`trueline trial batch --law halves -- COMMAND`",
)
