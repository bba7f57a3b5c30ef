"""Predictions depend on the tokens that they are to predict, or on other documents of a packed row.

What it finds
-------------
A causal mask that is missing, or a diagonal too wide; any other part of a model that mixes later positions into earlier
ones; in rows of several documents, attention across their borders. All ranks share such a fault, so that comparing them
shows nothing.

Why it matters
--------------
The model learns to copy what it is shown. Its training loss is far better than what it can do when it generates.

How it decides
--------------
By equality with zero, at one step: that of `--plan laws`, or which the plan names, `influence = 100`.
Before the first backward pass of that step
the gradient of logits in the first half of each row is taken with respect to the embeddings of the second half. A
causal model has exactly 0 there, in any precision. Where `position_ids` start again in a row, the same is done with the
logits behind a border and the embeddings before it. A gradient above the rounding (2^-23 in float32, 2^-7 in bfloat16)
of the largest one to embeddings that may be seen is an error, or a warning where it is across documents, which
may be meant; one that is smaller, as a mask of -20
instead of minus infinity leaves, is an information.

It is asked only where each target that counts is the next token of what an embedding read. Masked language models,
encoders, and prefixes without targets are so left alone by themselves. It costs at most two backward passes without
gradients of parameters, at that step, and nothing at others. No `.grad`, no random number, no buffer and no
communication is touched.

Largest gradient behind the cut, in units of the largest one before it, with the number of tokens seen of those behind
the cut, of LLaMA in transformers (2 layers, width 32, rows of 16 tokens, untrained):

| fault | float32 | bfloat16 | tokens seen |
| --- | --- | --- | --- |
| none (also GPT-2, Mixtral, the decoders of T5 and BART) | 0 | 0 | 0 of 8 |
| mask of -20 instead of minus infinity | 2.2e-9 | | 8 of 8 |
| mask of -10 | 4.8e-5 | | 8 of 8 |
| mask one diagonal too wide | 0.041 | 0.042 | 2 of 8, one a layer |
| four diagonals too wide | 0.24 | 0.24 | 8 of 8 |
| no mask | 0.45 | 0.46 | 8 of 8 |

What it may miss
----------------
Models with parts that a second backward pass could change: it is not made under FSDP, ZeRO 3 (it would gather their
parameters) and `torch.compile`, with activation checkpointing (it would run forward passes once more, and what a
selective checkpoint has kept can be used once only), or with functions that have a backward of their own. `trueline
check` says which; `trueline trial batch` needs none of it. A step that is recorded has nothing of it. Losses without
torch's cross-entropy; embeddings that are frozen or no `nn.Embedding`; documents whose `position_ids` do not start
again; steps and backward passes but the one; leaks that do not cross the middle of a row. A hook that the script itself
put on a tensor inside of the model is called once more at that step.

Example
-------
Logits of rank 0 at step 3 depend on tokens that they are to predict: the gradient to 8 of the 8 later embeddings of a
row is up to 0.91 of that to earlier ones, and must be 0.

Wrong and right
---------------
Wrong:

```python
y = F.scaled_dot_product_attention(q, k, v)
```

Right:

```python
y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
```
"""

from __future__ import annotations

from trueline.laws.influence.influences import StepRank, known_influences, leak_finding
from trueline.schema.columns.influence import Influence
from trueline.schema.finding import Finding, Severity
from trueline.store.reader import Run

CODE = "influence-leak"
QUESTION = "mask"
NEEDS: tuple[str, ...] = ("influence",)
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings of later tokens and of other documents; raises ``CannotTell`` where neither was looked at."""
    influences = known_influences(run, "influence", Influence)
    future = {key: influence for key, influence in influences.items() if influence.later > 0}
    packed = {key: influence for key, influence in influences.items() if influence.earlier > 0}
    findings: list[Finding] = []
    if future:
        share_of = {key: influence.later / influence.allowed for key, influence in future.items()}
        key = max(future, key=share_of.__getitem__)
        influence, share = future[key], share_of[key]
        claim = (
            f"Logits of rank {key[1]} at step {key[0]} depend on tokens that they are to predict: the gradient to "
            f"{influence.seen:.0f} of the {influence.positions:.0f} later embeddings of a row is up to {share:.3g} of "
            "that to earlier ones, and must be 0."
        )
        findings.append(_finding(claim, future, share, severity="error" if share > influence.eps else "info"))
    if packed:
        share_of = {
            key: influence.earlier / (influence.document or influence.allowed) for key, influence in packed.items()
        }
        key = max(packed, key=share_of.__getitem__)
        influence, share = packed[key], share_of[key]
        claim = (
            f"Logits of rank {key[1]} at step {key[0]} depend on earlier documents of their packed row: the gradient "
            f"to their embeddings is up to {share:.3g} of that to the document's own, and position_ids start again "
            "between them."
        )
        # Attention across documents may be meant.
        findings.append(_finding(claim, packed, share, severity="warning" if share > influence.eps else "info"))
    return findings


def _finding(claim: str, leaks: dict[StepRank, Influence], share: float, *, severity: Severity) -> Finding:
    unit = "of the largest gradient to embeddings that may be seen"
    return leak_finding(CODE, severity, claim, leaks, share, unit=unit, advice=_ADVICE)


_ADVICE = (
    "Look at the attention mask that reaches the kernel: whether it is passed on at all, its diagonal, and whether the "
    "borders of documents are in it.",
    "Look for other layers that mix positions: normalisation or pooling over them, padded convolutions.",
)
