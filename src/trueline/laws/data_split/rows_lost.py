"""The model is called on fewer samples than the batches have that the loader makes.

What it finds
-------------
A processor or a collator that takes a list of images for those of one sample, and drops the other texts; a loop that
takes `batch[0]` where the batch itself is meant, or the first of it again for each device; a stack that keeps one row.

Why it matters
--------------
Most of the data is read, decoded and thrown away: the training sees a fraction of it, and updates are of a smaller
batch than the settings say.

How it decides
--------------
By counting. At sampled steps it is known how many batches the pass over the loader has yielded. Between two of them of
one epoch there is a batch for each forward pass that is trained on (a tenth more or less, for what is fetched ahead),
and the samples of these passes are at most half of what the batches have, which is told by the loader's `batch_size`,
shared among the ranks, as one may read for all. That must be so between all such steps, 8 of them at least.

Left alone are inputs whose second dimension is the batch, lists of tensors, of which each is a sample, and packed rows,
as positions and lengths beside them tell. It is to be confirmed, as a loop may choose samples on purpose.

What it may miss
----------------
Fewer than half of the samples lost; loaders that are not of torch; packed rows without positions look like it.

Example
-------
The loader makes batches of 8 samples, and the model is called on 1 row of each.

Wrong and right
---------------
Wrong:

```python
inputs = processor(texts, images=[sample["image"] for sample in batch])  # the images of one sample
```

Right:

```python
inputs = processor(texts, images=[[sample["image"]] for sample in batch])
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trueline.judge.compared_ranks import MOST_RANKS, data_parallel_ranks, sites_of
from trueline.schema.columns.input_values import InputFact, input_values
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "rows-lost"
CALLS = {"": ("DataLoader",)}
QUESTION = "repeats"
NEEDS: tuple[str, ...] = ("loader_batches", "sample_digests", "num_micro", "epoch")
ACROSS_RANKS = False

MIN_STRETCHES = 8
"""Stretches between sampled steps that must agree."""
OFF = 0.1
"""Share of the batches that may be fetched ahead or left over."""
PACKED = (
    "position_ids",
    "cu_seq",
    "seqlens",
    "seq_len",
    "lengths",
    "segment_ids",
    "seq_idx",
    "document",
    "ptr",
    "batch",
)
"""Names, or parts of them, of what tells samples of one row apart."""


class _Lost(NamedTuple):
    made: int
    """Samples of a batch of the loader."""
    read: int
    """Rows that the model is called on, of each."""
    first: int
    last: int


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where batches of a loader were not counted."""
    ranks = data_parallel_ranks(run)
    looked_at = {rank: run.env[rank].data.get("batch_rows") for rank in ranks[:MOST_RANKS] if rank in run.env}
    sizes = {rank: size for rank, size in looked_at.items() if isinstance(size, int) and size > 1}
    if not sizes or not run.measured("loader_batches").any():
        raise CannotTell("no DataLoader of torch was seen whose batches have several samples", reason="by-design")
    lost_by_rank = {rank: _lost(run, rank, size, len(ranks)) for rank, size in sizes.items()}
    lost = {rank: of_rank for rank, of_rank in lost_by_rank.items() if of_rank is not None}
    return [_finding(run, lost)] if lost else []


def _lost(run: Run, rank: int, size: int, num_ranks: int) -> _Lost | None:
    if not _has_rows(run, rank, size):
        return None
    column = run.ranks.index(rank)
    batches_TN, seen_TN = run.pivot("loader_batches")
    epochs_TN, epoch_TN = run.pivot("epoch")
    micros_TN, micro_TN = run.pivot("num_micro")
    steps_R, _, lengths_R, _ = run.flat("sample_digests", ranks=[rank])
    rows_T = np.bincount(np.searchsorted(run.steps, steps_R), weights=lengths_R, minlength=len(run.steps))
    counted_T = seen_TN[:, column] & epoch_TN[:, column]
    micros_T = np.where(micro_TN[:, column], micros_TN[:, column], 0)
    at = np.flatnonzero(counted_T)
    stretches = 0
    made_all, read_all, passes_all = 0.0, 0.0, 0.0
    for begin, end in zip(at[:-1].tolist(), at[1:].tolist(), strict=True):
        batches = batches_TN[end, column] - batches_TN[begin, column]
        stretch = slice(begin + 1, end + 1)
        if epochs_TN[begin, column] != epochs_TN[end, column] or batches <= 0 or not rows_T[stretch].all():
            continue
        read = rows_T[stretch].sum()
        if read * num_ranks * 2 > batches * size:
            return None
        stretches += 1
        made_all, read_all, passes_all = made_all + batches, read_all + read, passes_all + micros_T[stretch].sum()
    if stretches < MIN_STRETCHES or abs(passes_all - made_all) > OFF * made_all:
        return None
    return _Lost(size, round(read_all / made_all), int(run.steps[at[0]]), int(run.steps[at[-1]]))


def _has_rows(run: Run, rank: int, size: int) -> bool:
    """True if the first dimension of what the model is called on is that of samples, as far as can be known."""
    facts = _inputs(run, rank)
    if any(fact.name.partition("[")[2] for fact in facts) or any(_is_packed(fact) for fact in facts):
        return False
    wide = [fact for fact in facts if len(fact.shape) > 1]
    return bool(facts) and not (wide and all(fact.shape[1] == size for fact in wide))


def _is_packed(fact: InputFact) -> bool:
    return any(word in fact.name.lower() for word in PACKED)


def _inputs(run: Run, rank: int) -> Sequence[InputFact]:
    """Of the first step at which inputs were looked at."""
    facts = run.texts("input_facts")
    for (step, _), row in sorted(run.lists("input_values", ranks=[rank]).items()):
        values = input_values(facts.get((step, rank), "[]"), row.tolist())
        if values:
            return [value.fact for value in values if not value.fact.is_target]
    return []


def _finding(run: Run, lost: dict[int, _Lost]) -> Finding:
    ranks = tuple(sorted(lost))
    of_rank = lost[ranks[0]]
    location = "" if len(run.ranks) == 1 else f" on {ranks_text(ranks, all_ranks=run.ranks)}"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"The loader makes batches of {of_rank.made} samples, and the model is called on "
        f"{counted(of_rank.read, 'row')} of each{location}.",
        ranks=ranks,
        step_first=of_rank.first,
        step_last=of_rank.last,
        sites=sites_of(of_rank.first, ranks[:2], phase="batch", names=("samples",), slot="in0"),
        measured=float(of_rank.read),
        expected=float(of_rank.made),
        unit="samples of a batch",
        false_alarm_rate=None,
        evidence={"kind": "batch", "made": of_rank.made, "read": of_rank.read},
        next=(
            "Print the shapes of what the collator returns and of what the model is called on: look for a list of "
            "one sample where one of several is meant, and for batch[0].",
        ),
    )
