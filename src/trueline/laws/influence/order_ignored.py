"""The order of tokens does not reach the model: equal tokens at two places of a row count alike.

What it finds
-------------
Rotary positions over another dimension than that of positions, position embeddings that are computed and not added,
`position_ids` that are all one number. All ranks share such a fault, so that comparing them shows nothing.

Why it matters
--------------
The model sees a bag of words. The loss falls all the same, as far as words alone predict the next one; a causal mask
lets later layers tell places apart somewhat.

How it decides
--------------
By equality, at one step: that of `--plan laws`, or which the plan names, `influence = 100`. Of the outputs of modules
without parts, in the order in which they return, the first is taken whose last position depends on earlier tokens: the
first attention, or what follows it. Its gradient is taken with respect to the embeddings of tokens that stand twice in
one row in front of the last place. Where nothing tells the two places apart, both gradients are the same but for
rounding; a position that is added, rotated by or biased with makes them differ, as do convolutions and recurrence. A
finding says that no pair, of 64 at most, is further apart than 8 units of rounding (eps) in float32, or a 32nd of one
in coarser dtypes, where nearly all elements must be equal.

It is a warning where the model has positions: it is given `position_ids`, or has modules, parameters or buffers that
are called after them (pos, rotary, rope, alibi, wpe, relative, inv_freq). Else it is an information: models without
positions (NoPE), bags of words and sets are meant so. It costs some backward passes through the first layers, at that
step, and nothing at others. No `.grad`, no random number, no buffer and no communication is touched.

What it may miss
----------------
Order that reaches the first attention and not the later ones; positions that are all alike in some heads only; models
that are trained with dropout, which makes equal tokens differ, and rows without a token that stands twice; those for
which a second backward pass is not made (`influence-leak` says which). `trueline check` says so. Attention whose
scores, or whose bias by distance, are still exactly zero at that step has no order yet, and is reported: the preset
`laws` looks ten steps after the first, when such a temperature has moved (measured on ZAYA).

Example
-------
The order of tokens does not reach the first attention of rank 0 at step 3: of 64 pairs of equal tokens in one row each
counts alike at both places, although the model has positions.

Wrong and right
---------------
Wrong:

```python
q, k = rotary(q), rotary(k)  # [B, T, H, D], where rotary takes [B, H, T, D]: by head, not by place
```

Right:

```python
q, k = rotary(q.transpose(1, 2)), rotary(k.transpose(1, 2))
```
"""

from __future__ import annotations

from trueline.laws.influence.influences import known_influences, leak_finding
from trueline.schema.columns.influence import OrderInfluence
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "order-ignored"
QUESTION = "order"
NEEDS: tuple[str, ...] = ("order_influence",)
ACROSS_RANKS = False

FINE_EPS = 1e-6
"""Below it a dtype is as fine as float32."""
FINE_LINE, COARSE_LINE = 8.0, 1 / 32
"""In units of eps: of 184 healthy models of transformers one is below, whose attention begins with a temperature of 0;
the least of the others is 650 eps in float32 and 1/17 eps in bfloat16 (studies/laws/order.md)."""


def check(run: Run) -> list[Finding]:
    """A Finding where no pair of equal tokens is told apart; raises ``CannotTell`` where none was compared."""
    influences = known_influences(run, "order_influence", OrderInfluence)
    unordered = {key: influence for key, influence in influences.items() if influence.apart <= line(influence.eps)}
    if not unordered:
        return []
    (step, rank), first = min(unordered.items())
    has_positions = any(influence.placed or influence.tells_places for influence in unordered.values())
    claim = (
        f"The order of tokens does not reach the first attention of rank {rank} at step {step}: of "
        f"{counted(int(first.pairs), 'pair')} of equal tokens in one row each counts alike at both places"
        + (", although the model has positions." if has_positions else "; the model has no positions.")
    )
    return [
        leak_finding(
            CODE,
            "warning" if has_positions else "info",
            claim,
            unordered,
            first.apart,
            unit="of the larger gradient, between equal tokens at two places",
            advice=_ADVICE if has_positions else _ADVICE[1:],
            kind="positions-lost" if has_positions else "no-positions",
        )
    ]


def line(eps: float) -> float:
    """Largest difference of gradients to equal tokens that is rounding, as a share of the larger."""
    return eps * (FINE_LINE if eps < FINE_EPS else COARSE_LINE)


_ADVICE = (
    "Look at which dimension positions go along (rotary over heads in place of places), whether their embedding is "
    "added, and whether position_ids differ from token to token.",
    "Exchange two early tokens of a row: what the model returns for the last one must change.",
)
