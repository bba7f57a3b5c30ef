"""Rows of an embedding begin otherwise than they should, and nothing will ever train them.

What it finds
-------------
A row for padding (`padding_idx`) that is not zero: all embeddings were drawn anew after they were made. Rows that were
added for new tokens to an embedding that is frozen.

Why it matters
--------------
The row for padding has no gradient: a random vector stays in every place that is padded, in sums and means of a row
among others. New tokens that are frozen mean something random for ever, which the rest has to live with.

How it decides
--------------
Before the first update, and for you to confirm. Of padding: the row is not zero, its norm is among those of the other
rows, and these are as alike as those of values that were just drawn: the standard deviation of norms of D independent
normal numbers is 1/sqrt(2 D) of their mean, and at most half more is allowed. So embeddings that were trained before
are left alone.

Of new tokens: the embedding is frozen, and no adapter around it is trained; the first batch reads rows of its end, but
for padding and what the attention mask leaves out; and these rows are new: a module of the model has a `vocab_size`
that they are beyond, as it was made before they were added; or they are the mean of the other rows, as `transformers`
begins with (their distance to it is less than a twentieth of the usual one); or two and more of them have norms as
alike as drawn values, all smaller or all larger than that of any of 200 other rows.

What it may miss
----------------
Embeddings that are no `nn.Embedding`, or shards. New rows like the others, of a model without `vocab_size`; new tokens
that the first batch has not, and all but the last 32 rows.

Example
-------
Row 0 of atom_encoder, its padding_idx, is not zero but drawn like the other rows, and no gradient reaches it.

Wrong and right
---------------
Wrong:

```python
model.resize_token_embeddings(len(tokenizer))
model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))
```

Right:

```python
model.resize_token_embeddings(len(tokenizer))
model = get_peft_model(model, LoraConfig(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]))
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import sites_of
from trueline.laws.initial_values.columns import NUM_ROW_FIELDS, Embedding, RowValues, embeddings_from
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

CODE = "embedding-rows"
CALLS = {"": ("resize_token_embeddings", "Embedding", "apply")}
QUESTION = "start"
NEEDS: tuple[str, ...] = ("embeddings", "embedding_values")
ACROSS_RANKS = False

FEWEST_ROWS, FEWEST_COLUMNS = 16, 8
"""Of an embedding of which it is said that it was drawn."""
ALIKE = 1.5
"""Standard deviation of norms over that of drawn ones, up to which rows look drawn: of 16 it is known to a fifth."""
NEAR_MEAN = 0.05
"""Distance of a row to the mean of the others over the usual one, of a row that was made to be the mean."""
FEWEST_OTHERS = 200
"""Other rows of which none has such a norm."""

_Floats = NDArray[np.float64]


def check(run: Run) -> list[Finding]:
    """Findings on rows of embeddings; raises ``CannotTell`` where none was looked at, or training had begun before."""
    texts, values = run.texts("embeddings"), run.lists("embedding_values")
    attempts = run.manifest.attempts
    if not texts:
        raise CannotTell("no embedding is frozen or has a row for padding", reason="by-design")
    if min(step for step, _ in texts) > 0 or (attempts and attempts[0].updates):
        raise CannotTell("training had begun before it was watched", reason="by-design")
    findings: dict[tuple[str, str], Finding] = {}
    # batches differ: new tokens may be in that of one rank alone
    for (step, rank), text in sorted(texts.items()):
        numbers = np.asarray(values.get((step, rank), ()), dtype=np.float64)
        for embedding in embeddings_from(text):
            row, numbers = np.split(numbers, [min(NUM_ROW_FIELDS + 3 * embedding.last, len(numbers))])
            if len(row) < NUM_ROW_FIELDS:
                break
            for finding in _findings(run, rank, embedding, row):
                findings.setdefault((finding.evidence["kind"], embedding.name), finding)
    return list(findings.values())


def _findings(run: Run, rank: int, embedding: Embedding, row: _Floats) -> list[Finding]:
    usual_rows, padding = RowValues(*row[: NUM_ROW_FIELDS - 1].tolist()), float(row[NUM_ROW_FIELDS - 1])
    last = row[NUM_ROW_FIELDS:].reshape(-1, 3)
    findings: list[Finding] = []
    if embedding.padding >= 0 and _is_drawn_padding(embedding, usual_rows, padding):
        findings.append(_padding_finding(run, rank, embedding, usual_rows, padding))
    rows = _new_rows(embedding, usual_rows, last) if len(last) else ()
    if rows:
        findings.append(_new_finding(run, rank, embedding, rows))
    return findings


def _is_drawn_padding(embedding: Embedding, usual_rows: RowValues, padding: float) -> bool:
    is_large = embedding.rows - embedding.last > FEWEST_ROWS and embedding.width >= FEWEST_COLUMNS
    # Within the range of others, and half of it more: they may be few.
    margin = (usual_rows.largest - usual_rows.smallest) / 2
    is_among = usual_rows.smallest - margin <= padding <= usual_rows.largest + margin
    return (
        is_large and padding > 0 and is_among and usual_rows.spread <= ALIKE * _drawn_spread(embedding, usual_rows.mean)
    )


def _drawn_spread(embedding: Embedding, mean: float) -> float:
    """The standard deviation of norms of rows of independent normal numbers; those of uniform ones are more alike."""
    return mean / math.sqrt(2 * embedding.width)


def _new_rows(embedding: Embedding, usual_rows: RowValues, last_R3: _Floats) -> Sequence[int]:
    """Rows of the end that are new, if the batch reads any of them."""
    norms_R, distances_R, reads_R = last_R3.T
    first = embedding.rows - len(last_R3)
    if embedding.declared > 0:
        num = min(embedding.rows - embedding.declared, len(last_R3))
    else:
        num = max(_at_the_end(distances_R <= NEAR_MEAN * usual_rows.distance), _unlike(embedding, usual_rows, norms_R))
    rows = range(first + len(last_R3) - num, embedding.rows)
    return rows if num and bool(reads_R[len(last_R3) - num :].any()) else ()


def _at_the_end(flags_R: NDArray[np.bool_]) -> int:
    """How many of the last are all true."""
    false = np.flatnonzero(~flags_R)
    return len(flags_R) - (int(false[-1]) + 1 if len(false) else 0)


def _unlike(embedding: Embedding, usual_rows: RowValues, norms_R: _Floats) -> int:
    """How many of the last rows look drawn, with norms that no other row has."""
    if embedding.rows - len(norms_R) < FEWEST_OTHERS or embedding.width < FEWEST_COLUMNS:
        return 0
    num = max(_at_the_end(norms_R < usual_rows.smallest), _at_the_end(norms_R > usual_rows.largest))
    new_R = norms_R[len(norms_R) - num :]
    # all that was looked at: the end of the others is not known
    if not 2 <= num < len(norms_R) or not new_R.mean() > 0:
        return 0
    return num if new_R.std() <= ALIKE * _drawn_spread(embedding, float(new_R.mean())) else 0


def _padding_finding(run: Run, rank: int, embedding: Embedding, usual_rows: RowValues, padding: float) -> Finding:
    module = embedding.name.removesuffix(".weight")
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"Row {embedding.padding} of {module}, its padding_idx, is not zero but drawn like the other rows (norm "
        f"{padding:.3g}, theirs {usual_rows.smallest:.3g} to {usual_rows.largest:.3g}), and no gradient reaches it "
        f"({ranks_text([rank], all_ranks=run.ranks)}).",
        ranks=(rank,),
        step_first=0,
        step_last=0,
        sites=sites_of(0, [rank], phase="param", names=[embedding.name]),
        measured=padding,
        expected=0.0,
        unit="norm of the row for padding",
        false_alarm_rate=None,
        evidence={"kind": "padding", "names": [embedding.name]},
        next=(
            "Set it to zero after the weights are drawn: with torch.no_grad(): embedding.weight[padding_idx].zero_().",
        ),
    )


def _new_finding(run: Run, rank: int, embedding: Embedding, rows: Sequence[int]) -> Finding:
    module = embedding.name.removesuffix(".weight")
    which = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
    were, they = ("was", "it stays") if len(rows) == 1 else ("were", "they stay")
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"The embedding {module} is frozen, and with it its {which}, which {were} added for new tokens and which "
        f"the first batch reads ({ranks_text([rank], all_ranks=run.ranks)}): {they} as drawn.",
        ranks=(rank,),
        step_first=0,
        step_last=0,
        sites=sites_of(0, [rank], phase="param", names=[embedding.name]),
        measured=float(len(rows)),
        expected=0.0,
        unit="new rows that are frozen",
        false_alarm_rate=None,
        evidence={"kind": "new-tokens", "names": [embedding.name], "rows": [rows[0], rows[-1]]},
        next=(
            "Train the embedding and the head as well: requires_grad_(True) before the optimizer is made; with PEFT "
            "modules_to_save, or trainable_token_indices for the new rows alone.",
        ),
    )
