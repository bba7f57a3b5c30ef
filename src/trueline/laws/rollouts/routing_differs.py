"""Engine and trainer choose other experts for tokens of a mixture, and these tokens have the gap.

What it finds
-------------
Tokens of a mixture of experts for which the two sides chose other experts (`experts_rollout`,
`experts_train`), where the gap between the log-probabilities is on these tokens. And the same
experts in another order of the slots whose weights stayed with the slots, as where a replay
reads one list in another order than the other.

Why it matters
--------------
Another expert is another function. One near tie of a router that goes the other way moves a token's
log-probability by more than rounding does anywhere else, and importance weights with it.

How it decides
--------------
Tokens are those with the same experts in all layers, and the others. The gap (mean |d| over mean 1 - p) of all tokens
and that of the others have to be beyond what rounding leaves in the declared dtype, and that of the same within it.
In each sequence with both kinds the others have to rank above the same more often than not, by Hoeffding's inequality
with a probability of at most 0.001. Where the same experts have a gap beyond rounding too, what moved them may have
moved the routers, and nothing is decided. Slots: at half of the places with another order or more, weights agree slot
by slot, and expert by expert are apart by more than four times what moved any weight whose expert kept its slot.

What it may miss
----------------
Experts of one side alone, as where the trainer replays the engine's. Models with so many layers that hardly any token
has the same experts in all. Fewer than 14 sequences with both kinds of token.

Example
-------
Engine and trainer chose other experts at 312 of 5,120 tokens of steps 0-3, in 1.4 of 24 layers on average. There
their log-probabilities are 0.41 apart a token, 0.002 elsewhere.

Wrong and right
---------------
Wrong:

```python
logits = router(hidden.bfloat16())  # the engine's are in float32: near ties go the other way
```

Right:

```python
logits = router(hidden.float())  # as in the engine; or replay the experts that it chose
```
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.laws.rollouts.evidence import finding, span
from trueline.laws.rollouts.tokens import Tokens, per_token, tokens_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run
from trueline.store.records.arrays import floats

CODE = "routing-differs"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

CHANCE = 1e-3
"""Probability at most that tokens rank so by chance; it is asked once of a Run."""
ENOUGH = math.ceil(math.log(1 / CHANCE) / (2 * 0.5**2))
"""Sequences with both kinds of token below which not even all of them show it: exp(-2 n / 4) is above ``CHANCE``."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class _Part:
    """Tokens of a part of the table of which the experts of both sides are known, [N] each, and steps [R]."""

    step: NDArray[np.int64]
    sequence: NDArray[np.int64]
    differ: Floats
    slots: Floats
    misread: Floats
    beyond: Floats
    distance: Floats
    room: Floats
    rounding: float
    layers: int


def check(run: Run) -> list[Finding]:
    """Findings of experts that differ; raises ``CannotTell`` where they were not recorded, or nothing follows."""
    if not run.kept("rollouts"):
        raise CannotTell("no rollouts were recorded: call trueline.rl.record", reason="not-recorded")
    routed = np.isfinite(floats(cast(Any, run.kept("rollouts")).table(["routed_layers"])["routed_layers"]))
    if not routed.any():
        raise CannotTell(
            "the experts of a mixture were not recorded: pass experts_rollout and experts_train to rl.record",
            reason="not-recorded",
        )
    parts = [part for table in cast(Any, run.kept("rollouts")).pieces() if (part := _part(table)) is not None]
    if not parts:
        raise CannotTell(
            "experts were recorded of one side only, or of no token that both sides have: where the trainer replays "
            "the engine's there are no others",
            reason="not-recorded",
        )
    return [*_of_slots(parts), *_of_experts(parts)]


def _part(table: Any) -> _Part | None:
    tokens: Tokens = tokens_of(table)
    differ = per_token(table, "experts_differ", tokens)
    fresh = ~(floats(table["version_train"]) > floats(table["version_rollout"]))
    use = tokens.counts & np.isfinite(differ) & fresh[tokens.sequence]
    if not use.any():
        return None
    room = 1 - np.exp(np.minimum(np.where(use, tokens.columns["logp_train"], 0.0), 0.0))
    layers = floats(table["routed_layers"])
    return _Part(
        step=floats(table["step"]).astype(np.int64)[tokens.sequence[use]],
        sequence=tokens.sequence[use],
        differ=differ[use],
        slots=np.nan_to_num(per_token(table, "slots_differ", tokens)[use]),
        misread=np.nan_to_num(per_token(table, "slots_misread", tokens)[use]),
        beyond=tokens.beyond()[use],
        distance=np.abs(tokens.diff())[use],
        room=room[use],
        rounding=float(tokens.rounding.max()),
        layers=int(np.nanmax(layers)),
    )


def _of_slots(parts: list[_Part]) -> list[Finding]:
    slots, misread, step = (_joined(parts, name) for name in ("slots", "misread", "step"))
    if not misread.any() or misread.sum() < slots.sum() / 2:
        return []
    number = int((misread > 0).sum())
    wrong = step[misread > 0].astype(np.int64)
    return [
        finding(
            CODE,
            f"At {number:,} of {counted(len(misread), 'token')} of {span(wrong)} engine and trainer chose the same "
            "experts in another order, and their weights did not move with them.",
            None,
            steps=(int(wrong.min()), int(wrong.max())),
            severity="error",
            measured=float(misread.sum() / slots.sum()),
            expected=0.0,
            unit="share of the layers with another order",
            evidence={"kind": "slots", "tokens": number},
            next=("Permute weights with the experts that they belong to: gather both by one index.",),
        )
    ]


def _of_experts(parts: list[_Part]) -> list[Finding]:
    differ, beyond, distance, room, step = (
        _joined(parts, name) for name in ("differ", "beyond", "distance", "room", "step")
    )
    other = differ > 0
    rounding = max(part.rounding for part in parts)
    # a near tie here and there moves its token by much, and the training by no more than rounding does
    if not other.any() or min(_gap(beyond, room, other), _gap(beyond, room, other | True)) <= rounding:
        return []
    share, count = _ranks_above(parts)
    if count < ENOUGH:
        raise CannotTell(
            f"experts differ at {int(other.sum()):,} of {counted(len(other), 'token')}, and {count} of the sequences "
            f"have tokens with the same experts beside them; {ENOUGH} are needed to compare these",
            reason="undecidable",
        )
    if share <= 0.5 or math.exp(-2 * count * (share - 0.5) ** 2) > CHANCE:
        return []
    if _gap(beyond, room, ~other) > rounding:
        raise CannotTell(
            "tokens whose experts are the same have a gap beyond rounding too: what moved their log-probabilities "
            "may have moved the routers",
            reason="undecidable",
        )
    wrong = step[other].astype(np.int64)
    layers = max(part.layers for part in parts)
    return [
        finding(
            CODE,
            f"Engine and trainer chose other experts at {int(other.sum()):,} of {counted(len(other), 'token')} of "
            f"{span(wrong)}, in {differ[other].mean():.2g} of {counted(layers, 'layer')} on average. There their "
            f"log-probabilities are {distance[other].mean():.2g} apart a token, {distance[~other].mean():.2g} "
            "elsewhere.",
            None,
            steps=(int(wrong.min()), int(wrong.max())),
            measured=_gap(beyond, room, other),
            expected=rounding,
            unit="mean |d| over mean 1 - p",
            evidence={"kind": "carries-gap", "tokens": int(other.sum()), "sequences": count, "share_above": share},
            next=(
                "Replay the engine's experts in the trainer (verl: actor.router_replay.mode=R3; slime: "
                "--use-rollout-routing-replay), or compute the router in float32 on both sides.",
            ),
        )
    ]


def _joined(parts: list[_Part], name: str) -> Floats:
    return np.concatenate([getattr(part, name) for part in parts])


def _gap(beyond: Floats, room: Floats, at: Bools) -> float:
    """Mean |d| over mean 1 - p of some tokens, as ``Rows.gap``; 0 for none."""
    return float(beyond[at].sum() / max(room[at].sum(), 1e-9)) if at.any() else 0.0


def _ranks_above(parts: list[_Part]) -> tuple[float, int]:
    """The share of sequences with both kinds of token in which those with other experts rank above the others by
    |d| / (1 - p), half for a tie; and how many there are. A rank has no tail, so that few tokens weigh as many do.
    """
    signs: list[Floats] = []
    for part in parts:
        size = int(part.sequence.max()) + 1
        order = np.lexsort((part.distance / np.maximum(part.room, 1e-9), part.sequence))
        sequence, other = part.sequence[order], part.differ[order] > 0
        number = np.bincount(sequence, minlength=size)
        rank = np.arange(len(sequence)) - (np.cumsum(number) - number)[sequence]
        num_other = np.bincount(sequence, weights=other, minlength=size)
        both = (num_other > 0) & (num_other < number)
        mean = np.bincount(sequence, weights=rank * other, minlength=size)[both] / num_other[both]
        signs.append(np.sign(mean - (number[both] - 1) / 2))
    joined = np.concatenate(signs)
    return (float((joined.mean() + 1) / 2) if len(joined) else 0.5), len(joined)
