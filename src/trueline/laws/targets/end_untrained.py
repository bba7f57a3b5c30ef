"""What texts end with is read, and is a target of no row: the model never learns to end.

What it finds
-------------
A padding token that is the end token, and a collator that leaves out of the loss whatever is that token: the end of
each text is left out with the padding. Labels that are cut one place too early. In packed rows, ends of documents that
no target is at. For confirmation: an end token that the configuration of the model names, that pads the rows, and that
no row has as its end.

Why it matters
--------------
The loss looks as it should, and the model that comes out of it writes on until it is cut off. It shows when somebody
generates, after the training.

How it decides
--------------
By counting, at the first 16 sampled steps and then now and then, where the targets of the only cross-entropy are next
tokens (see labels-misplaced), over all ranks. Rows with padding, by `attention_mask`, tell where texts end; without
any, all rows. An id *ends* texts where it stands at the last attended place of three quarters of these rows or more, 16
at least. It is a warning where no target of these passes is that id, and one of these holds:

- the padding is the same id, which is the mistake itself;
- the configuration of the model calls it the end of a text;
- there is no padding by a mask, and the id stands alone at the end of half of the rows, or ends every row of batches
  whose lengths have no common divisor: the longest row of a batch has no padding.

In packed rows: an id at 9 of 10 places, 16 at least, that have no target while both neighbours have one, which is no
target anywhere, and is the padding or what the configuration calls the end.

To confirm: rows are padded with what the configuration calls the end, which stands at no attended place and is no
target. Then the texts have no end token, or a mask made by comparing with the padding hides it.

All of this is counted and nothing is estimated: an end that is trained is a target of some row.

What it may miss
----------------
Losses that are fused, compiled or several; models that are given embeddings; an end that is several tokens, of which
the last one is a target elsewhere; inputs that are cut one place short by hand in rows without a mask.

Example
-------
Token 0 ends 1,024 of 1,024 rows and is a target in none: the padding is the same token, and is left out of the loss.

Wrong and right
---------------
Wrong:

```python
tokenizer.pad_token = tokenizer.eos_token
collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)  # labels of each pad token are -100
```

Right:

```python
tokenizer.add_special_tokens({"pad_token": "<pad>"})
model.resize_token_embeddings(len(tokenizer))
```
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from trueline.judge.compared_ranks import sites_of
from trueline.judge.series.target_places import NEXT, target_places
from trueline.schema.columns.end_tokens import NO_TOKEN, EndTokens
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "end-untrained"
CALLS = {"": ("backward",)}
QUESTION = "mask"
NEEDS: tuple[str, ...] = ("end_tokens", "target_places")
ACROSS_RANKS = False

FEWEST_ROWS = 16
"""Rows that tell how texts end."""
MOST_ROWS = 0.75
"""Share of these rows that end with one id; the others were cut at the greatest length."""
MOST_GAPS = 0.9
"""Share of single places without a target that have one id."""


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where no next tokens are predicted, or too few rows were seen."""
    offsets = target_places(run)
    passes = [
        tokens
        for (_, rank), row in run.lists("end_tokens").items()
        if offsets.get(rank) == NEXT
        for tokens in EndTokens.from_row(row.tolist())
    ]
    if not passes:
        raise CannotTell(
            "no targets of a single cross-entropy were seen that are the next of the tokens that the model was called "
            "on",
            reason="not-recorded",
        )
    if sum(tokens.rows for tokens in passes) < FEWEST_ROWS:
        raise CannotTell(f"fewer than {FEWEST_ROWS} rows of tokens were seen", reason="too-few-steps")
    # the surest first: the last is only to confirm, and may be seen beside the others
    finding = _end_of_rows(run, passes) or _end_in_rows(run, passes) or _end_as_padding(run, passes)
    return [finding] if finding else []


def _end_of_rows(run: Run, passes: Sequence[EndTokens]) -> Finding | None:
    """What most rows end with."""
    end = _most([(tokens.end, tokens.end_rows) for tokens in passes])
    ending = [tokens for tokens in passes if tokens.end == end]
    num_rows, num_ended = sum(tokens.rows for tokens in passes), sum(tokens.end_rows for tokens in ending)
    if end == NO_TOKEN or num_ended < max(FEWEST_ROWS, MOST_ROWS * num_rows) or not _untrained(ending):
        return None
    padded = [tokens for tokens in ending if tokens.pads]
    is_padding = bool(padded) and _most([(tokens.pad, tokens.pads) for tokens in padded]) == end
    is_eos = any(tokens.eos == end for tokens in ending)
    if not (is_padding or (padded and is_eos) or (not padded and _no_padding(ending, num_ended, num_rows))):
        return None
    why = ": the padding is the same token, and is left out of the loss" if is_padding else ""
    claim = f"Token {end} ends {num_ended:,} of {counted(num_rows, 'row')} and is a target in none{why}."
    return _finding(run, "warning", claim, "padding" if is_padding else "cut", end, num_ended)


def _end_in_rows(run: Run, passes: Sequence[EndTokens]) -> Finding | None:
    """What stands alone without a target within packed rows."""
    gap = _most([(tokens.gap, tokens.gap_places) for tokens in passes])
    with_gaps = [tokens for tokens in passes if tokens.gap == gap and tokens.gap_places]
    num_gaps, num_places = (sum(numbers) for numbers in zip(*((t.gaps, t.gap_places) for t in passes), strict=True))
    if gap == NO_TOKEN or num_places < max(FEWEST_ROWS, MOST_GAPS * num_gaps):
        return None
    is_end = any(gap in (tokens.eos, tokens.pad if tokens.pads else NO_TOKEN) for tokens in passes)
    if not is_end or any(tokens.gap_targets for tokens in with_gaps):
        return None
    claim = (
        f"Token {gap}, which ends texts, stands at {counted(num_places, 'place')} within rows and is a target at none."
    )
    return _finding(run, "warning", claim, "packed", gap, num_places)


def _end_as_padding(run: Run, passes: Sequence[EndTokens]) -> Finding | None:
    """What the configuration calls the end, where it is padding alone."""
    padded = [tokens for tokens in passes if tokens.pads and tokens.eos != NO_TOKEN and tokens.pad == tokens.eos]
    num_rows = sum(tokens.rows for tokens in padded)
    if num_rows < FEWEST_ROWS or any(tokens.eos_reads or tokens.eos_targets for tokens in passes):
        return None
    claim = (
        f"Token {padded[0].eos}, which the model's configuration calls the end of a text, pads "
        f"{counted(num_rows, 'row')}, and stands at no attended place and is no target."
    )
    return _finding(run, "confirm", claim, "no-end", padded[0].eos, num_rows)


def _untrained(passes: Sequence[EndTokens]) -> bool:
    return any(tokens.targets for tokens in passes) and not any(tokens.end_targets for tokens in passes)


def _no_padding(passes: Sequence[EndTokens], num_ended: int, num_rows: int) -> bool:
    """True where what rows end with, without a mask of padding, cannot all be padding."""
    alone = sum(tokens.single_rows for tokens in passes)
    lengths = sorted({tokens.length for tokens in passes})
    # rows that are padded to a multiple of a number have that for a common divisor
    by_longest = len(lengths) > 1 and math.gcd(*(later - first for first, later in pairwise(lengths))) == 1
    return 2 * alone >= num_rows or (by_longest and num_ended == num_rows)


def _most(weighted: Sequence[tuple[int, int]]) -> int:
    """The id of most weight; ``NONE`` where none has any."""
    weights = Counter[int]()
    for token, weight in weighted:
        weights[token] += weight if token != NO_TOKEN else 0
    return max(weights, key=weights.__getitem__, default=NO_TOKEN)


_ADVICE = {
    "padding": "Give the tokenizer a padding token of its own, or mask labels by attention_mask in place of by the id "
    "of the padding: the first end token behind a text must keep its label.",
    "cut": "Print the last three labels of a row beside its tokens: the label of the end must not be -100, and labels "
    "must not be cut before it.",
    "packed": "Print the labels around an end token within a row: it must keep its label; mask padding by "
    "attention_mask, not by its id.",
    "no-end": "Append the end token to each text in front of padding, and make the mask from lengths; if the model is "
    "never to end a text, leave it.",
}


def _finding(run: Run, severity: Severity, claim: str, kind: str, token: int, count: int) -> Finding:
    keys = sorted(key for key, row in run.lists("end_tokens").items() if len(row))
    steps, ranks = sorted({step for step, _ in keys}), tuple(sorted({rank for _, rank in keys}))
    return Finding(
        code=CODE,
        severity=severity,
        claim=claim,
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="loss", names=("all",)),
        measured=0.0,
        expected=None if severity == "confirm" else float(count),
        unit="targets that are the end",
        false_alarm_rate=None if severity == "confirm" else 0.0,
        evidence={"kind": kind, "token": token, "count": count, "steps": steps[:100]},
        next=(_ADVICE[kind],),
    )
