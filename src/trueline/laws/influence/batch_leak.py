"""What a model returns for a sample depends on other samples of its batch, or on padding.

What it finds
-------------
`view` or `reshape` where `transpose` was meant, so that batch and time are mixed; softmax, mean or normalisation over
the batch; attention or recurrence over the batch (`batch_first` forgotten); outputs gathered in another order; padding
that attention or pooling sees, because its mask is lost or inverted; graphs that are joined without adding to their
edges where their nodes begin. All ranks share such a fault, so that comparing
them shows nothing.

Why it matters
--------------
The model learns from what will not be there when it is used: its results depend on what else is in the batch, and on
how far that is padded. The loss falls all the same.

How it decides
--------------
By equality with zero, at one step: that of `--plan laws`, or which the plan names, `influence = 100`.
Before the first backward pass of that step
the gradient of what the model returned for some rows is taken with respect to what its first modules (an embedding, a
convolution, a linear layer) made of the other rows. It is exactly 0, in any precision, where rows do not influence each
other. Where `attention_mask` (or a boolean `key_padding_mask`) leaves positions out, the same is done with outputs at
positions that it keeps, and positions that it leaves out and that are not beside one that it keeps (models may join
neighbours on purpose).

A gradient above the rounding (2^-23 in float32, 2^-7 in bfloat16) of the largest one is a warning where the first
dimension is known to be of samples: no other is of its size, and the DataLoader puts so many samples into a batch, or
targets show that the other dimension is of tokens. Else, and where it is smaller, it is an information: in sequences
without a batch, sequence-first models and graphs, rows influence each other by design. Padding is an information where
the model has convolutions, which have no mask, and where no mask is given to the model and padding is known by the
embedding's `padding_idx` alone; but a warning where outputs at tokens depend on padding and on no other token, as where
a mask is inverted.

Where the only input is [T, B, features], as recurrent modules read sequences, and an output has B rows and none has T,
rows are those B.

Where samples are joined into one batch of N rows, as graphs are, and the job hands a vector that says whose each row is
(`batch`, `segment_ids`, `document_ids`, ... [N], or `ptr`, `cu_seqlens`, `offsets` of the borders), samples are what
that says: outputs of some, [G, ...] or [N, ...], must not depend on rows of others. With `edge_index` [2, E] beside it
it is a warning, too, where of four samples or more a quarter at most has an edge of its own: edges that were joined
without offsets all end in the first ones.

Only outputs are looked at, not the loss: contrastive losses may compare samples. A table of rows against rows is left
out, as are outputs of which rows are not seen. Batch normalisation in training lets rows influence each other: where
they do and there is any, nothing is said. It costs at most two backward passes without gradients of parameters, at that
step, and nothing at others. No `.grad`, no random number, no buffer and no communication is touched.

What it may miss
----------------
What happens before, or within, the modules that read the inputs; rows that are exchanged within the half that is asked
about; models with parts that a second backward pass could change: it is not made under FSDP, ZeRO 3 and
`torch.compile`, with activation checkpointing, with functions that have a backward of their own, or where steps are
recorded. `trueline check` says which. Inputs that are no tensors (objects of graphs), or whose first dimensions
differ without a vector that assigns them, or with as many edges as nodes; rows [1, N] of several documents; outputs
whose first dimension is not that of the inputs; masks by other names, labels that leave positions out.

What is meant is also found: attention between samples, mixup of features, the deviation over a minibatch in a
discriminator, retrieval within a batch, a loader whose batch is one sequence, an attention mask that the model is given
and has no use for.

Example
-------
What the model of rank 0 returned at step 3 for some rows of its batch depends on 3 of the 3 other rows: the gradient to
them is up to 0.85 of the largest, and must be 0.

Wrong and right
---------------
Wrong:

```python
x = x.view(length, batch, width)
```

Right:

```python
x = x.transpose(0, 1)
```
"""

from __future__ import annotations

from trueline.judge.series.influence import known_influences, leak_finding
from trueline.schema.columns.influence import RowInfluence
from trueline.schema.finding import Finding
from trueline.store.reader import Run

CODE = "batch-leak"
QUESTION = "batch"
NEEDS: tuple[str, ...] = ("row_influence",)
ACROSS_RANKS = False

MIN_SAMPLES = 4
"""Joined graphs of which fewer than a quarter have edges."""


def check(run: Run) -> list[Finding]:
    """Findings of other rows, or of padding; raises ``CannotTell`` where neither was looked at."""
    known = known_influences(run, "row_influence", RowInfluence)
    mixed = {key: one for key, one in known.items() if one.others > 0}
    padded = {key: one for key, one in known.items() if one.padding > 0 and key not in mixed}
    found: list[Finding] = []
    if mixed:
        key, one, share = _largest({key: (one, one.others, one.own) for key, one in mixed.items()})
        claim = (
            f"What the model of rank {key[1]} returned at step {key[0]} for some rows of its batch depends on "
            f"{one.mixed:.0f} of the {one.rows:.0f} other rows: the gradient to them is up to "
            f"{share:.3g} of the largest, and must be 0"
            + ("." if one.sure else ", unless rows are no samples (one sequence, sequence first, a graph).")
        )
        hints = (
            "Look for `view` or `reshape` that mixes dimensions, softmax, mean or normalisation over dimension 0, "
            "attention or recurrence without `batch_first`, outputs gathered in another order.",
            "Run the model on one row alone: it must return what it returns for that row in the batch.",
            "Where samples are mixed on purpose (mixup of features, retrieval in the batch), leave `influence` out.",
        )
        found.append(_finding("rows", claim, mixed, share, sure=one.sure > 0, hints=hints))
    if padded:
        key, one, share = _largest({key: (one, one.padding, one.kept) for key, one in padded.items()})
        where = "hold padding" if one.by_index else "its attention mask leaves out"
        claim = (
            f"What the model of rank {key[1]} returned at step {key[0]} depends on positions that {where}: the "
            f"gradient to them is up to {share:.3g} of the largest, and must be 0"
            + (", unless convolutions reach them." if one.convolved else ".")
        )
        hints = (
            "Look whether the mask reaches every attention and pooling, with the sign that it has there.",
            "Run the model on a row with more padding: what it returns at the other positions must stay.",
        )
        alone = all(each.among == 0 for each in padded.values())
        if alone:
            claim = (
                f"What the model of rank {key[1]} returned at step {key[0]} for a token depends on padding and on no "
                "other token: the mask keeps what it should leave out."
            )
        sure = alone or not (one.convolved or one.by_index)
        kind = "padding-alone" if alone else "padding"
        found.append(_finding(kind, claim, padded, share, sure=sure, hints=hints))
    bare = {key: one for key, one in known.items() if one.samples >= MIN_SAMPLES and one.with_edges <= one.samples / 4}
    if bare:
        key, one = min(bare.items())
        claim = (
            f"Of the {one.samples:.0f} graphs that are joined at step {key[0]} of rank {key[1]} {one.with_edges:.0f} "
            f"{'has' if one.with_edges == 1 else 'have'} edges: those of the others do not count from where their "
            "nodes begin."
        )
        hints = ("Add to the edges of each graph the number of nodes in front of it, as the loader of PyG does.",)
        share = 1 - one.with_edges / one.samples
        found.append(
            leak_finding(CODE, "warning", claim, bare, share, unit="of the graphs", advice=hints, kind="edges")
        )
    return found


def _largest(
    found: dict[tuple[int, int], tuple[RowInfluence, float, float]],
) -> tuple[tuple[int, int], RowInfluence, float]:
    """Where the gradient that must be 0, the first of two, is the largest share of both, and that share."""
    shares = {key: (one, wrong / max(wrong, right)) for key, (one, wrong, right) in found.items()}
    key, (one, share) = max(shares.items(), key=lambda item: item[1][1])
    return key, one, share


def _finding(
    kind: str,
    claim: str,
    leaks: dict[tuple[int, int], RowInfluence],
    share: float,
    *,
    sure: bool,
    hints: tuple[str, ...],
) -> Finding:
    eps = max(one.eps for one in leaks.values())
    severity = "warning" if sure and share > eps else "info"
    return leak_finding(CODE, severity, claim, leaks, share, unit="of the largest gradient", advice=hints, kind=kind)
