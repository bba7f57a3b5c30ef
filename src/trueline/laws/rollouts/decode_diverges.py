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

Or, whether it grows or fades then, and in a part of the responses alone: nearly all that are beyond what rounding may
leave have a tenth of that of tokens 1 to 5 at token 0, or less. Of healthy responses hardly one in ten is beyond
(see `logprob-gap`), which is the chance that this e-process takes; no prompt, weight or layer leaves the first token as
it is, but for two. Positions of a response that count the padding behind its prompt do: then shorter prompts of a batch
have the gap and its longest have not, which is not reported here. Where all have it and prompts are of several lengths,
or of unknown ones, and the gap does not grow, it may be such padding up to a fixed length. And a gap that begins at one
number of tokens of prompt and response in nearly all may be of a window or a scale of all layers. Both are of severity
info: `logprob-gap` reports the gap.

What it may miss
----------------
Growth in responses of less than 13 tokens. With `max_new_tokens = 1` a gap of this kind vanishes: that settles it.

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

from trueline.laws.rollouts.e_values import more_often
from trueline.laws.rollouts.evidence import find_crossing, finding, ratio_of_sums
from trueline.laws.rollouts.gap_begins import begin_kinds, first_is_equal
from trueline.laws.rollouts.gaps import ceiling_of, on_policy
from trueline.laws.rollouts.rows import Rows, by_step, rows_of
from trueline.schema.finding import Finding
from trueline.store.reader import Run

CODE = "decode-diverges"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

CHANCE = 0.5
"""Share of healthy responses that may look as if the gap grew."""
CHANCE_BEYOND = 0.1
"""Share of healthy responses that may be beyond what rounding leaves (see `logprob-gap`)."""
FACTOR = 3.0
GROWS = 2.0
LEAST = 1e-4
_BETS = (0.3, 0.6, 0.9)
"""Shares of what a bet may be at most."""


def check(run: Run) -> list[Finding]:
    """The finding of gaps that begin with decoding; raises ``CannotTell`` where there is nothing to judge."""
    rows = on_policy(rows_of(run))
    rows = rows.subset(rows.profile_room[:, 0] > 0)
    ceiling = ceiling_of(rows)
    begins = begin_kinds(run, rows, ceiling)
    if not {"with-padding", "in-prompts-too"}.isdisjoint(begins):
        return []
    behind_R = first_is_equal(rows, ceiling) & (rows.gap > ceiling)
    grows_R, is_long_R = _grows(rows, ceiling), rows.profile_room[:, 3] > 0
    # too short to grow, or begun with decoding: either bet may win alone
    logs_RB = [np.where(is_long_R[:, None], _bets(grows_R, CHANCE), 0.0)]
    if "first-equal" in begins:
        logs_RB.append(_bets(behind_R, CHANCE_BEYOND))
    crossing = find_crossing(run, "decode", *by_step(rows, np.concatenate(logs_RB, axis=1)))
    if crossing is None:
        return []
    blamed = rows.subset(crossing.in_steps(rows) & (behind_R if len(logs_RB) > 1 else is_long_R))
    first, early, last = (ratio_of_sums(blamed.profile[:, k], blamed.profile_room[:, k]) for k in (0, 1, 3))
    if not max(early if len(logs_RB) > 1 else 0.0, last) > FACTOR * first:
        return []
    grows = last > FACTOR * first
    kind = "grows-along" if last > GROWS * early else "flat-along"
    # what is of decoding, or of something else that begins there, says nothing by itself
    unsure = {"from-a-length"} | ({"maybe-padding"} if kind == "flat-along" else set[str]())
    kinds = sorted(unsure & set(begins))
    return [
        finding(
            CODE,
            f"Token 0 of responses is {first:.2g} apart on the two sides at steps {crossing.first}-{crossing.last}, "
            f"{'their second half' if grows else 'the next five'} {last if grows else early:.2g}.",
            crossing,
            measured=last if grows else early,
            expected=first,
            unit="mean |d| over mean 1 - p",
            severity="info" if kinds else "warning",
            evidence={"kind": kinds or [kind], "tokens_1_to_5": early},
            next=(
                "Sample with max_new_tokens = 1: if the gap is gone, it comes from decoding. Then without a cache, "
                "with another "
                "attention kernel, and one prompt alone against a batch.",
            ),
        )
    ]


def _bets(hit_R: np.ndarray, chance: float) -> np.ndarray:
    """[R, B] logs of bets that more responses than ``chance`` of them are hit."""
    return more_often(hit_R, chance, tuple(bet / chance for bet in _BETS))


def _grows(rows: Rows, ceiling: float) -> np.ndarray:
    first, early, late = (rows.profile[:, k] / np.maximum(rows.profile_room[:, k], 1e-9) for k in (0, 1, 3))
    return (late > FACTOR * first) & ((late > ceiling) | (late > GROWS * early)) & (late > LEAST)
