"""The engine's log-probabilities differ from the trainer's by more than rounding leaves.

What it finds
-------------
Sequences whose two log-probabilities a token are further apart than two implementations in the declared precision are.
And two passes of the trainer itself over the same tokens at the same weights that differ: the pass for the old
log-probabilities and the update (dropout that is on in one, another micro-batching with a kernel that depends on it).

Why it matters
--------------
The trainer then optimizes something else than what acts. What is off by a little at each token is off by a factor over
a sequence: 0.012 a token is 3.3 over 100 tokens.

How it decides
--------------
The gap of a sequence is the mean of |d|, d = logp_rollout - logp_train, over the mean of 1 - p: the size of an error
of the logits that explains it, which does not shrink when the policy sharpens, as |d| and the correlation of
probabilities do. Rounding may leave 0.001 where float32 was declared on both sides (`sampling={"dtype": "float32"}`),
0.3 with 8 bits (int8, fp8) and 0.1 otherwise: `laws/rollouts/gaps.py` says what was measured. Reported is that more
than one sequence in ten is beyond, by an e-process under the budget of the checks of rollouts, where the gap of all of
these steps is beyond as well, or that of the sequences beyond is twice as large and they are more than a few short
ones. Only sequences of the trainer's own weights count, as far as versions are known. Two passes of the trainer may
differ by as much.
Where -log p of the trainer is more than 4 nats above its entropy (and 8 standard deviations of it), the claim says
that the text is nonsense to the trainer, with the share of runs of four tokens that stand in a response once: an
engine with other weights, or another prompt.

What else is known of a gap tells its causes apart: since which weights it is there, whether sequences of one prompt
have it together, whether it fades along a response, and whether next to each token has it (`gap_shape.py`).

What it may miss
----------------
A gap below what rounding may leave: that one tensor is stale moves d less than bfloat16 does. `logprob-gap-grows` sees
it begin, `weights-not-synced` sees it exactly. Why the gap is there is what `trueline diagnose` weighs.

Example
-------
The log-probabilities of engine and trainer are 0.31 apart a token at steps 0-19, 6.4 times what rounding explains in
float32.

Wrong and right
---------------
Wrong:

```python
old_logp = logp_of(policy.train(), batch)  # dropout is on
```

Right:

```python
old_logp = logp_of(policy.eval(), batch)
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from trueline.laws.rollouts.e_values import more_often
from trueline.laws.rollouts.evidence import (
    Crossing,
    find_crossing,
    find_excess,
    finding,
    ratio_of_sums,
    share_of_unique_runs,
    times_text,
)
from trueline.laws.rollouts.gap_shape import shape_kinds
from trueline.laws.rollouts.gaps import CEILING_OTHERWISE, ceiling_of, dtype_text, on_policy
from trueline.laws.rollouts.rows import Means, Rows, means_of, rows_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "logprob-gap"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

CHANCE = 0.1
"""Share of healthy sequences that may be beyond what rounding leaves."""
CLEARLY = 2.0
"""Times what rounding leaves that a part of the sequences has to be beyond, where all together are not."""
NONSENSE = 4.0
"""Nats above the entropy from which on tokens are called nonsense. Gaussian logits of deviation 2.5 over 256 and 32,768
words: sampled at temperature 2 they are 2.5 and 3.0 above, from other logits of the kind 5.1 and 6.2.
"""
SURELY = 8.0
"""Standard deviations of what is sampled from the trainer that it has to be above, too."""
_MEAN_ROOM = 0.5
"""Mean of 1 - p that is assumed of a log without tokens, at which mean |d| is compared."""
_STEPS: Mapping[str, str] = {
    "prompts-equal": "token ids of the prompts on both sides (train_prompt_ids)",
    "weights-equal": "digests of the weights (rl.record_sync)",
    "same-weights": "the gap at learning rate 0",
    "": "the gap with max_new_tokens = 1, and with both sides in float32",
}
"""What tells causes apart, the cheapest first, by the kind of evidence that has answered it already."""
_SHAPES: Mapping[str, str] = {
    "after-a-sync": "The first weights that sampled had none, the next had one.",
    "after-a-step": "The first step had none, the next had one.",
    "later": "The first weights that sampled had none.",
    "same-weights": "It came while the weights stayed as they were.",
    "seen-prompts": "Only prompts that older weights had answered have it.",
    "by-row": "Of one prompt some sequences have it, and others have not, as where one of several engines is off.",
    "weights-equal": "All weights were equal after each sync.",
    "engine-above": "Nearly every token is likelier to the engine.",
    "engine-below": "Nearly every token is less likely to the engine.",
}
_CACHED = (
    "Empty the cache of prompts after each sync (vLLM: reset_prefix_cache(), SGLang: flush_cache()), or switch it off "
    "for two steps (enable_prefix_caching=False, --disable-radix-cache): the gap is gone."
)


def check(run: Run) -> list[Finding]:
    """Findings of gaps; raises ``CannotTell`` where there is nothing to judge."""
    try:
        rows = rows_of(run)
    except CannotTell:
        means = means_of(run)
        if not np.isfinite(means.abs).any():
            raise
        return _of_means(run, means)
    passes = _passes(run, rows)
    try:
        fresh = on_policy(rows)
    except CannotTell:
        if passes:
            return passes
        raise
    return [*passes, *_gap(run, fresh)]


def _gap(run: Run, rows: Rows) -> list[Finding]:
    ceiling = ceiling_of(rows)
    crossing = find_excess(run, "gap", rows, rows.gap > ceiling, chance=CHANCE)
    if crossing is None:
        return []
    blamed, among = _carrying(crossing.select(rows), ceiling)
    if not len(blamed):
        return []
    mean, gap = (
        ratio_of_sums(blamed.sums["abs"], blamed.sums["tokens"]),
        ratio_of_sums(blamed.sums["beyond"], blamed.sums["room"]),
    )
    measured_T = bool(np.isfinite(blamed.lag).all())
    shape = shape_kinds(run, rows, ceiling)
    kinds = ["gap", "versions-equal" if measured_T else "versions-unknown", *shape]
    nonsense = _nonsense(run, crossing, blamed)
    return [
        finding(
            CODE,
            f"The log-probabilities of engine and trainer are {mean:.2g} apart a token{among} at steps "
            f"{crossing.first}-{crossing.last}, {times_text(gap / ceiling)} times what rounding explains "
            f"{dtype_text(rows)}.{_shape_text(shape)}{nonsense}",
            crossing,
            measured=gap,
            expected=ceiling,
            unit="mean |d| over mean 1 - p",
            evidence={"kind": [*kinds, *(["nonsense"] if nonsense else [])], "mean_abs_diff": mean},
            next=_next(shape),
        )
    ]


def _shape_text(shape: Sequence[str]) -> str:
    """Sentences on what is known of the gap beside its size."""
    return "".join(f" {sentence}" for kind, sentence in _SHAPES.items() if kind in shape)


def _next(shape: Sequence[str]) -> tuple[str, ...]:
    """What is to be done next, without what was looked at already."""
    compared = ", then ".join(step for kind, step in _STEPS.items() if kind not in shape)
    return (*([_CACHED] if "seen-prompts" in shape else []), f"Compare, in this order: {compared}.")


def _carrying(rows: Rows, ceiling: float) -> tuple[Rows, str]:
    """The sequences whose gap is to be said, and a phrase that names them: all where these together are beyond what
    rounding leaves; else those beyond, where they are clearly so and no more than a few short ones. None otherwise.
    """
    if ratio_of_sums(rows.sums["beyond"], rows.sums["room"]) > ceiling:
        return rows, ""
    beyond = rows.subset(rows.gap > ceiling)
    heavy = float(beyond.sums["room"].sum()) > CHANCE * float(rows.sums["room"].sum())
    if not heavy or not ratio_of_sums(beyond.sums["beyond"], beyond.sums["room"]) > CLEARLY * ceiling:
        return rows.subset(np.zeros(len(rows), np.bool_)), ""
    return beyond, f" in {len(beyond):,} of {counted(len(rows), 'sequence')}"


def _nonsense(run: Run, crossing: Crossing, rows: Rows) -> str:
    """What to say where tokens are far less likely under the trainer than what is sampled from it; '' where not."""
    excess = ratio_of_sums(rows.sums["excess"], rows.sums["judged"])
    spread = math.sqrt(float(rows.sums["varentropy"].sum())) / max(float(rows.sums["judged"].sum()), 1.0)
    if not excess > max(NONSENSE, SURELY * spread):
        return ""
    unique = share_of_unique_runs(run, crossing)
    runs = "" if math.isnan(unique) else f" {100 * unique:.0f} % of the runs of four tokens stand in a response once."
    return f" To the trainer they are nonsense: -log p is {excess:.2g} nats a token above its entropy.{runs}"


def _passes(run: Run, rows: Rows) -> list[Finding]:
    passing = rows.subset(rows.sums["updates"] > 0)
    if not len(passing):
        return []
    ceiling = ceiling_of(rows)
    room = np.maximum(passing.sums["room"] * passing.sums["updates"] / np.maximum(passing.sums["tokens"], 1), 1e-9)
    crossing = find_excess(run, "update", passing, passing.sums["update_abs"] / room > ceiling, chance=CHANCE)
    if crossing is None:
        return []
    blamed = crossing.select(passing)
    mean, gap = (
        ratio_of_sums(blamed.sums["update_abs"], blamed.sums["updates"]),
        ratio_of_sums(blamed.sums["update_abs"], room[crossing.in_steps(passing)]),
    )
    if not gap > ceiling:
        return []
    return [
        finding(
            CODE,
            f"Two passes of the trainer over the same tokens at the same weights are {mean:.2g} apart a token at steps "
            f"{crossing.first}-{crossing.last}, more than rounding explains {dtype_text(rows)}.",
            crossing,
            measured=mean,
            expected=0.0,
            unit="mean |difference| of log-probabilities",
            evidence={"kind": "passes-differ"},
            next=(
                "Call model.eval() (or set every dropout to 0) in the pass that computes old log-probabilities and in "
                "the update.",
                "Use the same micro-batches, padding and packing in both passes.",
            ),
        )
    ]


def _of_means(run: Run, means: Means) -> list[Finding]:
    measured_T = np.isfinite(means.abs)
    limit = CEILING_OTHERWISE * _MEAN_ROOM
    bets = tuple(bet / CHANCE for bet in (0.3, 0.6, 0.9))
    crossing = find_crossing(
        run, "gap", means.step[measured_T], more_often(means.abs[measured_T] > limit, CHANCE, bets)
    )
    if crossing is None:
        return []
    inside = measured_T & (means.step >= crossing.first) & (means.step <= crossing.last)
    beyond = means.abs[inside & (means.abs > limit)]
    mean, among = float(means.abs[inside].mean()), f"steps {crossing.first}-{crossing.last}"
    if not mean > limit:  # a part of the steps is beyond: is it clearly?
        mean, among = float(beyond.mean()), f"{len(beyond)} of the {among}"
        if not mean > CLEARLY * limit:
            return []
    return [
        finding(
            CODE,
            f"The logged log-probabilities of engine and trainer are {mean:.2g} apart a token at {among}; rounding "
            f"explains {limit:g}.",
            crossing,
            measured=mean,
            expected=limit,
            unit="mean |d|",
            evidence={"kind": ["gap", "versions-unknown"], "mean_abs_diff": mean},
            next=("Record tokens with trueline.rl.record: a mean does not say why.", *_next(())),
        )
    ]
