"""Rows of tokens have no target at all, many of those of a language model or most: nothing is learnt from them.

What it finds
-------------
Batches of texts of which many have no token that counts in the loss: answers that a greatest length cuts off behind
their prompts, a template of answers that the collator does not find in some of them, labels that a filter has masked.

Why it matters
--------------
The loss is a mean over what is left, and looks as usual. Most of the computing is for nothing, and the model learns
from the few texts that are short enough.

How it decides
--------------
By counting, at the first 16 sampled steps and then now and then, over all ranks: rows with four attended places or more
that have no target of the cross-entropy other than its ignored index, of 16 rows at least. It is said of more than half
of them, and where targets are the next tokens (see labels-misplaced) of more than one of 20: no chance draws which of
these count, as it does for masked words, of which a short row may have none. Passes whose targets do not
belong to rows, as where several texts are packed into one, are left out, and those without any target, which
`worker-silent` tells of. Nothing is estimated. It is to be confirmed, as a job may read texts for their context alone.

What it may miss
----------------
Few of the rows, and of masked words less than half; losses that are not torch's cross-entropy; answers that are cut in
the middle.

Example
-------
192 of 256 rows of tokens have no target that counts in the loss, over 16 steps that were looked at.

Wrong and right
---------------
Wrong:

```python
ids = tokenizer(prompt + answer, truncation=True, max_length=512).input_ids  # prompts alone have 600 tokens
labels = [-100] * len(prompt_ids) + ids[len(prompt_ids):]
```

Right:

```python
dataset = dataset.filter(lambda row: len(row["prompt_ids"]) < 512)
```
"""

from __future__ import annotations

from trueline.judge.compared_ranks import sites_of
from trueline.judge.series.target_places import NEXT, target_places
from trueline.schema.columns.edge_tokens import EdgeTokens
from trueline.schema.columns.end_tokens import EndTokens
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "rows-untrained"
QUESTION = "mask"
NEEDS: tuple[str, ...] = ("end_tokens", "edge_tokens", "target_places")
ACROSS_RANKS = False

FEWEST_ROWS = 16
"""Rows of which a share is said."""
HALF = 0.5
"""Share of the rows from which on most of them teach nothing."""
TWENTIETH = 0.05
"""Share of the rows of a language model below which they may be the few whose prompts are too long."""


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where too few rows with targets of their own were seen."""
    ends, edges = run.lists("end_tokens"), run.lists("edge_tokens")
    num_rows = num_trained = 0
    steps: set[int] = set()
    for (step, rank), row in ends.items():
        targets = EndTokens.from_row(row.tolist())
        texts = EdgeTokens.from_row(edges[step, rank].tolist()) if (step, rank) in edges else ()
        if len(targets) == len(texts) and all(tokens.target_rows for tokens in targets):
            num_rows += sum(tokens.rows for tokens in texts)
            num_trained += sum(tokens.target_rows for tokens in targets)
            steps.add(step)
    if not steps:
        raise CannotTell("no pass over rows of tokens was seen whose targets are of these rows", reason="by-design")
    if num_rows < FEWEST_ROWS:
        raise CannotTell(f"fewer than {FEWEST_ROWS} rows of tokens were looked at", reason="too-few-steps")
    without = num_rows - num_trained
    of_next = [offset == NEXT for rank, offset in target_places(run).items() if any(rank == owner for _, owner in ends)]
    if without <= (TWENTIETH if of_next and all(of_next) else HALF) * num_rows:
        return []
    return [
        Finding(
            code=CODE,
            severity="confirm",
            claim=f"{without:,} of {counted(num_rows, 'row')} of tokens have no target that counts in the loss, over "
            f"{counted(len(steps), 'step')} that {'was' if len(steps) == 1 else 'were'} looked at.",
            ranks=tuple(run.ranks),
            step_first=min(steps),
            step_last=max(steps),
            sites=sites_of(min(steps), list(run.ranks)[:1], phase="loss", names=("loss",)),
            measured=float(without),
            expected=None,
            unit="rows without a target",
            false_alarm_rate=0.0,
            evidence={"kind": "rows", "rows": num_rows, "without": without},
            next=(
                "Print the labels of a row whose labels are all -100: is the answer cut off by the greatest length, or "
                "its beginning not found by the collator?",
            ),
        )
    ]
