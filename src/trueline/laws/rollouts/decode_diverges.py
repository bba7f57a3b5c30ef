"""Engine and trainer agree at the first token of a response, and less and less after.

What it finds
-------------
Responses whose first token has the same log-probability on both sides, and whose second half has not.

Why it matters
--------------
The first token follows from the prompt alone, the others from what the engine keeps while
it decodes: its cache of keys and values, rotary positions, kernels for one token at a time. What is wrong there grows
with the length of the response.

How it decides
--------------
The gap (see `logprob-gap`) of the second half is more than three times that of token 0,
and beyond what rounding may leave or more than twice that of tokens 1 to 5, and above what float32 leaves (1e-4), in
more than half of the responses of 13 tokens or more: an e-process under the budget of the checks of rollouts. Rounding
leaves about as much at each token, but for the first, which both sides may compute alike.

What it may miss
----------------
Responses of less than 13 tokens. With `max_new_tokens = 1` a gap of this kind vanishes: that settles it.

Example
-------
Token 0 of responses is 3e-07 apart on the two sides at steps 0-19, their second half 0.004.

Wrong and right
---------------
Wrong:

```python
cache.key[:, :, position] = k.to(torch.float8_e4m3fn)  # without a scale
```

Right:

```python
cache.key[:, :, position] = (k / scale).to(torch.float8_e4m3fn)
```
"""

from __future__ import annotations

import numpy as np

from trueline.laws.rollouts.evidence import find_excess, finding, ratio_of_sums
from trueline.laws.rollouts.gaps import ceiling_of, on_policy
from trueline.laws.rollouts.rows import Rows, rows_of
from trueline.schema.finding import Finding
from trueline.store.reader import Run

CODE = "decode-diverges"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

CHANCE = 0.5
"""Share of healthy responses that may look so."""
FACTOR = 3.0
GROWS = 2.0
LEAST = 1e-4


def check(run: Run) -> list[Finding]:
    """The finding of gaps that grow along a response; raises ``CannotTell`` where there is nothing to judge."""
    rows = on_policy(rows_of(run))
    rows = rows.subset((rows.profile_room[:, 3] > 0) & (rows.profile_room[:, 0] > 0))
    hit_R = _grows(rows, ceiling_of(rows))
    crossing = find_excess(run, "decode", rows, hit_R, chance=CHANCE)
    if crossing is None:
        return []
    blamed = crossing.select(rows)
    first, early, last = (ratio_of_sums(blamed.profile[:, k], blamed.profile_room[:, k]) for k in (0, 1, 3))
    if not last > FACTOR * first:
        return []
    return [
        finding(
            CODE,
            f"Token 0 of responses is {first:.2g} apart on the two sides at steps {crossing.first}-{crossing.last}, "
            f"their second half {last:.2g}.",
            crossing,
            measured=last,
            expected=first,
            unit="mean |d| over mean 1 - p",
            evidence={"kind": ["grows-along" if last > GROWS * early else "flat-along"], "tokens_1_to_5": early},
            next=(
                "Sample with max_new_tokens = 1: if the gap is gone, it comes from decoding. Then without a cache, "
                "with another "
                "attention kernel, and one prompt alone against a batch.",
            ),
        )
    ]


def _grows(rows: Rows, ceiling: float) -> np.ndarray:
    first, early, late = (rows.profile[:, k] / np.maximum(rows.profile_room[:, k], 1e-9) for k in (0, 1, 3))
    return (late > FACTOR * first) & ((late > ceiling) | (late > GROWS * early)) & (late > LEAST)
