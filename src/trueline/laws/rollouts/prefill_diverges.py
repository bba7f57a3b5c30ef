"""Engine and trainer differ most at the first tokens of a response, and less and less after.

What it finds
-------------
Responses whose first six tokens are further apart on the two sides than those of their second half.

Why it matters
--------------
The first tokens depend on the prompt most. What differs there differs in the prompt, as
each side has it: a BOS token, the chat template, position ids under left padding, a prompt that is cut, or in how the
prompt is computed (prefill).

How it decides
--------------
The gap (see `logprob-gap`) of tokens 0 to 5 is larger than that of the second half, and above what rounding leaves in
the declared dtype, in more than 60 % of the responses of 13 tokens or more: an e-process under the budget of the
checks of rollouts. And over all of these it is 1.3 times as large or more. Rounding leaves about as much everywhere
where weights are random (larger at the first tokens in 43 to 54 % of responses, as measured with bfloat16 and int8),
but not in a policy that has learned. A gap that is there in more than twice as many responses is not of the prompt,
nor is one that the first token has not, which follows from the prompt alone.

What it may miss
----------------
Responses of less than 13 tokens. A gap within what rounding leaves, as bfloat16 may hide one. A prompt
that matters as much to the last token as to the first.

Example
-------
The first tokens of responses are 4.8 times as far apart on the two sides as the last ones at steps 0-19.

Wrong and right
---------------
Wrong:

```python
logits = policy(input_ids).logits  # padded on the left, and no position_ids
```

Right:

```python
position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
logits = policy(input_ids, attention_mask, position_ids=position_ids).logits
```
"""

from __future__ import annotations

import numpy as np

from trueline.laws.rollouts.evidence import find_excess, finding, ratio_of_sums, times_text
from trueline.laws.rollouts.gap_begins import is_first_equal
from trueline.laws.rollouts.gap_shape import shape_kinds
from trueline.laws.rollouts.gaps import ceiling_of, on_policy
from trueline.laws.rollouts.rows import Rows, rows_of
from trueline.schema.finding import Finding
from trueline.store.reader import Run

CODE = "prefill-diverges"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

CHANCE = 0.6
"""Share of healthy responses that may look so."""
FACTOR = 1.3


def check(run: Run) -> list[Finding]:
    """The finding of prompts that differ; raises ``CannotTell`` where there is nothing to judge."""
    rows = on_policy(rows_of(run))
    rows = rows.subset(rows.profile_room[:, 3] > 0)
    early, late = _gaps(rows)
    ceiling = ceiling_of(rows)
    crossing = find_excess(run, "prefill", rows, (early > late) & (early > ceiling), chance=CHANCE)
    if crossing is None:
        return []
    differs = rows.gap > ceiling
    if 2 * int((differs & crossing.in_steps(rows)).sum()) < int(differs.sum()):  # most of the gap is without it
        return []
    if is_first_equal(rows, ceiling):  # it begins with decoding
        return []
    blamed = crossing.select(rows)
    first = ratio_of_sums(blamed.profile[:, :2], blamed.profile_room[:, :2])
    last = ratio_of_sums(blamed.profile[:, 3], blamed.profile_room[:, 3])
    if not first > FACTOR * last:
        return []
    return [
        finding(
            CODE,
            f"The first tokens of responses are {times_text(first / max(last, 1e-9))} times as far apart on the two "
            f"sides as the last ones at steps {crossing.first}-{crossing.last}.",
            crossing,
            measured=first,
            expected=last,
            unit="mean |d| over mean 1 - p",
            evidence={"kind": ["decays", *shape_kinds(run, rows, ceiling)]},
            next=(
                "Compare one prompt as both sides have it, id by id (BOS, template, truncation), and its position ids "
                "under "
                "padding.",
                "Record train_prompt_ids with rl.record: then tokens-differ is exact.",
            ),
        )
    ]


def _gaps(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    early = rows.profile[:, :2].sum(axis=1) / np.maximum(rows.profile_room[:, :2].sum(axis=1), 1e-9)
    return early, rows.profile[:, 3] / np.maximum(rows.profile_room[:, 3], 1e-9)
