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
the model has convolutions, which have no mask, and to confirm where no mask is given to the model: padding is then what
the embedding's `padding_idx` says, or the id that fills rows of several lengths up and stands nowhere else. It is a
warning where outputs at tokens depend on padding and on no other token, as where a mask is inverted. Positions
are counted through padding, which is to confirm, where rows of several lengths are padded on the left and an embedding
reads positions that are the same in each.

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

from trueline.laws.influence.influences import StepRank, known_influences, leak_finding
from trueline.schema.columns.influence import RowInfluence
from trueline.schema.finding import Finding, Severity
from trueline.store.reader import Run

CODE = "batch-leak"
QUESTION = "batch"
NEEDS: tuple[str, ...] = ("row_influence",)
ACROSS_RANKS = False

MIN_SAMPLES = 4
"""Joined graphs of which fewer than a quarter have edges."""


def check(run: Run) -> list[Finding]:
    """Findings of other rows, or of padding; raises ``CannotTell`` where neither was looked at."""
    influences = known_influences(run, "row_influence", RowInfluence)
    mixed = {key: influence for key, influence in influences.items() if influence.others > 0}
    # Where rows are mixed, padding of other rows comes in with them.
    padded = {key: influence for key, influence in influences.items() if influence.padding > 0 and key not in mixed}
    counted = {key: influence for key, influence in influences.items() if influence.counted > 0}
    bare = {
        key: influence
        for key, influence in influences.items()
        if influence.samples >= MIN_SAMPLES and influence.with_edges <= influence.samples / 4
    }
    return [
        *([_row_finding(mixed)] if mixed else []),
        *([_padding_finding(padded)] if padded else []),
        *([_position_finding(counted)] if counted else []),
        *([_edge_finding(bare)] if bare else []),
    ]


def _row_finding(mixed: dict[StepRank, RowInfluence]) -> Finding:
    """Outputs of a row that depend on other rows."""
    (step, rank), influence, share = _largest(
        {key: (influence, influence.others, influence.own) for key, influence in mixed.items()}
    )
    claim = (
        f"What the model of rank {rank} returned at step {step} for some rows of its batch depends on "
        f"{influence.mixed:.0f} of the {influence.rows:.0f} other rows: the gradient to them is up to "
        f"{share:.3g} of the largest, and must be 0"
        + ("." if influence.sure else ", unless rows are no samples (one sequence, sequence first, a graph).")
    )
    hints = (
        "Look for `view` or `reshape` that mixes dimensions, softmax, mean or normalisation over dimension 0, "
        "attention or recurrence without `batch_first`, outputs gathered in another order.",
        "Run the model on one row alone: it must return what it returns for that row in the batch.",
        "Where samples are mixed on purpose (mixup of features, retrieval in the batch), leave `influence` out.",
    )
    severity: Severity = "warning" if influence.sure > 0 else "info"
    return _gradient_finding("rows", claim, mixed, share, severity=severity, hints=hints)


def _padding_finding(padded: dict[StepRank, RowInfluence]) -> Finding:
    """Outputs that depend on padding."""
    (step, rank), influence, share = _largest(
        {key: (influence, influence.padding, influence.kept) for key, influence in padded.items()}
    )
    padding = "hold padding" if influence.by_index else "its attention mask leaves out"
    no_mask = ", and is given no attention mask" if influence.by_index else ""
    claim = (
        f"What the model of rank {rank} returned at step {step} depends on positions that {padding}{no_mask}: the "
        f"gradient to them is up to {share:.3g} of the largest, and must be 0"
        + (", unless convolutions reach them." if influence.convolved else ".")
    )
    is_inverted = all(influence.among == 0 for influence in padded.values())
    if is_inverted:
        claim = (
            f"What the model of rank {rank} returned at step {step} for a token depends on padding and on no "
            "other token: the mask keeps what it should leave out."
        )
    hints = (
        "Look whether the mask reaches every attention and pooling, with the sign that it has there.",
        "Run the model on a row with more padding: what it returns at the other positions must stay.",
    )
    # Convolutions reach over borders by design, and an id of padding may be that of a token that counts.
    severity: Severity = "info" if influence.convolved else "confirm" if influence.by_index else "warning"
    kind = "padding-alone" if is_inverted else "padding"
    return _gradient_finding(kind, claim, padded, share, severity="warning" if is_inverted else severity, hints=hints)


def _position_finding(counted: dict[StepRank, RowInfluence]) -> Finding:
    """Positions that are counted through padding on the left."""
    (step, rank), influence = min(counted.items())
    claim = (
        f"The model of rank {rank} counts positions from the padding on: its rows are padded on the left, by up to "
        f"{influence.counted:.0f} places at step {step}, and its embedding of positions reads 0, 1, 2, … in each, so "
        "that the position of a token depends on the longest row of its batch."
    )
    hints = ("Pad on the right, or pass position_ids: attention_mask.cumsum(1).sub(1).clamp(min=0).",)
    # The claim is of the first look, the measure of the worst.
    places = max(influence.counted for influence in counted.values())
    return leak_finding(CODE, "confirm", claim, counted, places, unit="places", advice=hints, kind="positions")


def _edge_finding(bare: dict[StepRank, RowInfluence]) -> Finding:
    """Joined graphs most of which have no edges."""
    (step, rank), influence = min(bare.items())
    claim = (
        f"Of the {influence.samples:.0f} graphs that are joined at step {step} of rank {rank} "
        f"{influence.with_edges:.0f} {'has' if influence.with_edges == 1 else 'have'} edges: those of the others do "
        "not count from where their nodes begin."
    )
    hints = ("Add to the edges of each graph the number of nodes in front of it, as the loader of PyG does.",)
    share = 1 - influence.with_edges / influence.samples
    return leak_finding(CODE, "warning", claim, bare, share, unit="of the graphs", advice=hints, kind="edges")


def _largest(gradients: dict[StepRank, tuple[RowInfluence, float, float]]) -> tuple[StepRank, RowInfluence, float]:
    """The key where the gradient that must be 0, the first of two, is the largest share of both, and that share."""
    shares = {key: (influence, wrong / max(wrong, right)) for key, (influence, wrong, right) in gradients.items()}
    key, (influence, share) = max(shares.items(), key=lambda item: item[1][1])
    return key, influence, share


def _gradient_finding(
    kind: str,
    claim: str,
    leaks: dict[StepRank, RowInfluence],
    share: float,
    *,
    severity: Severity,
    hints: tuple[str, ...],
) -> Finding:
    eps = max(influence.eps for influence in leaks.values())
    return leak_finding(
        CODE,
        severity if share > eps else "info",
        claim,
        leaks,
        share,
        unit="of the largest gradient",
        advice=hints,
        kind=kind,
    )
