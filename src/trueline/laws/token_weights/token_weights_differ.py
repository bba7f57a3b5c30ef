"""Tokens count differently by which micro-batch they are in.

What it finds
-------------
Means of means: each micro-batch's loss is a mean over its own tokens, and these means are averaged, so that a token of
a short micro-batch counts several times as much as one of a long one. And losses that are divided by a number of tokens
that was added up over the wrong group of ranks. It is exact, needs no second run, and a single
process shows it.

Why it matters
--------------
It is another objective than the mean over tokens, and it changes with the number of accumulation steps. Widely used
trainers had this fault until October 2024 (transformers#34191).

How it decides
--------------
By arithmetic. At the first 16 steps, and then now and then, a hook on the cross-entropy of each micro-batch reads the
gradient that reaches it, which is how often a token counts in what the step descends (divided by the number of tokens
for `reduction="mean"`), with the loss scale taken out. Two weights that are meant to be equal differ by at most a few
roundings (n operations on the way and 4 for constants: 2u(n + 4), 1e-6 in float32, 5 % in bfloat16); what differs by
less than that, or by less than 1 %, is equal. There are no statistics.

Weights that differ are reported only where every micro-batch weighs the same as a whole: then they come from means; or
where, at all of three steps or more, the same groups of ranks have one weight each, and weigh as much a rank: then a
number of tokens was reduced over these groups, and not over all ranks. Others are the script's own, as advantages,
sample weights and tasks, and left alone. It is a warning if within one rank tokens count at least twice, or at most
half, of what they should at the median of the steps where weights could differ; otherwise it is an information: micro-
batches of nearly equal counts, the last one of an epoch, and ranks that average their means, of which `token-imbalance`
judges how much it matters.

What it may miss
----------------
Losses whose cross-entropy is not seen: fused with the last layer, compiled, recomputed, written by hand; losses with
further terms, several heads, class weights or label smoothing. `trueline check` says which. Steps that were not
sampled.

Example
-------
A token in micro-batch 2 of rank 0 weighs 17 times one in micro-batch 1 of rank 0 at step 3: each micro-batch's loss is
a mean over its own tokens, which are 15, 120 and 7.

Wrong and right
---------------
Wrong:

```python
for batch in micro_batches:
    loss = cross_entropy(model(batch.x), batch.y) / len(micro_batches)  # the mean of this micro-batch's tokens
    loss.backward()
```

Right:

```python
num_tokens = sum((batch.y != -100).sum() for batch in micro_batches)
for batch in micro_batches:
    loss = cross_entropy(model(batch.x), batch.y, reduction="sum") / num_tokens
    loss.backward()
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trueline.laws.token_weights.token_weighting import WeighedBatch, WeighedStep, counted_noun, weighed_steps
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.words import listed, ranks_text
from trueline.store.reader import Run

CODE = "token-weights-differ"
CALLS = {"": ("backward",)}
QUESTION = "weights"
NEEDS: tuple[str, ...] = ("token_weights",)

LARGE = 2.0
"""Factor of a token's weight from which on it is a warning, as in ``token-imbalance``."""

_MIN_STEPS = 3
"""Steps at which the same ranks must weigh alike for that to be no coincidence."""

MAX_COUNTS = 8
"""Micro-batches whose tokens a claim lists."""


def check(run: Run) -> list[Finding]:
    """Findings of means that are averaged; raises ``CannotTell`` where weights are not known, or are the script's."""
    steps = weighed_steps(run)
    differing = [step for step in steps if step.differs]
    means = [step for step in differing if step.is_means]
    if (groups := _lasting_groups(differing)) is not None:
        return [_groups_finding(sorted(differing, key=_factor), groups, counted_noun(run))]
    if differing and not means:
        raise CannotTell("micro-batches have weights of their own, which are not those of means", reason="undecidable")
    if not means:
        return []
    differing_within = [step for step in means if step.differs_within]
    # the median is over all steps that could differ so, also those that happen not to
    accumulating = [step for step in steps if any(len(parts) > 1 for parts in step.by_rank.values())]
    factors = sorted(step.factor if step in differing_within else 1.0 for step in accumulating)
    large = bool(differing_within) and factors[len(factors) // 2] >= LARGE
    return [_means_finding(sorted(differing_within or means, key=_factor), large=large, noun=counted_noun(run))]


def _factor(step: WeighedStep) -> float:
    return step.factor


def _lasting_groups(steps: Sequence[WeighedStep]) -> tuple[tuple[int, ...], ...] | None:
    """Groups of ranks within which tokens weigh the same, if they are one partition at all of ``steps``. None where
    there are no such, fewer than two, or each rank is one.
    """
    partitions = {_groups(step) for step in steps}
    return partitions.pop() if len(partitions) == 1 and len(steps) >= _MIN_STEPS else None


def _groups(step: WeighedStep) -> tuple[tuple[int, ...], ...] | None:
    """Groups of ranks, not all of one rank, whose tokens weigh the same, and together as much a rank as the others'."""
    if step.differs_within or not step.differs:
        return None
    groups: list[list[int]] = []
    last = -math.inf
    for rank, weight in sorted(((rank, parts[0].weight) for rank, parts in step.by_rank.items()), key=lambda r: r[1]):
        if weight > last * (1 + step.tolerance):
            groups.append([])
        groups[-1].append(rank)
        last = weight
    shares = [sum(step.totals[rank] for rank in group) / len(group) for group in groups]
    if len(groups) == len(step.by_rank) or max(shares) > min(shares) * (1 + step.tolerance):
        return None
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _groups_finding(steps: Sequence[WeighedStep], groups: Sequence[tuple[int, ...]], noun: str) -> Finding:
    """Finding on losses divided by the tokens of groups of ranks; ``steps`` are sorted by factor, for the median."""
    median = steps[len(steps) // 2]
    heavy, light = (pick(median.parts, key=lambda part: part.weight) for pick in (max, min))
    owners = {rank: group for group in groups for rank in group}
    counts = ", of ".join(ranks_text(group) for group in groups)
    return Finding(
        code=CODE,
        severity="warning" if median.factor >= LARGE else "confirm",
        claim=f"A {noun} on {ranks_text(owners[heavy.rank])} weighs {heavy.weight / light.weight:.3g} times one on "
        f"{ranks_text(owners[light.rank])} at step {median.step}: losses are divided by the {noun}s of {counts}, "
        "each by themselves, and not by those of all ranks.",
        ranks=tuple(sorted(median.by_rank)),
        step_first=min(step.step for step in steps),
        step_last=max(step.step for step in steps),
        sites=tuple(str(Site(median.step, part.micro, part.rank, "loss", "all")) for part in (heavy, light)),
        measured=median.factor,
        expected=1.0,
        unit=f"times what a {noun} should count, or less (at the median)",
        false_alarm_rate=0.0,
        evidence={"groups": [list(group) for group in groups], "steps": [step.step for step in steps][:100]},
        next=(
            f"Look at the group over which the number of {noun}s is reduced: it must have all ranks whose gradients "
            "are averaged.",
        ),
    )


def _means_finding(steps: Sequence[WeighedStep], *, large: bool, noun: str) -> Finding:
    """Finding on means that are averaged; ``steps`` are sorted by factor, for the median."""
    median = steps[len(steps) // 2]
    parts = max(median.by_rank.values(), key=_ratio) if median.differs_within else median.parts
    heavy, light = max(parts, key=lambda part: part.weight), min(parts, key=lambda part: part.weight)
    return Finding(
        code=CODE,
        severity="warning" if large else "confirm",
        claim=f"A {noun} in {_place_text(heavy)} weighs {heavy.weight / light.weight:.3g} times one in "
        f"{_place_text(light)} at step {median.step}: {_means_clause(median, parts, noun)}.",
        ranks=tuple(sorted(median.by_rank)),
        step_first=min(step.step for step in steps),
        step_last=max(step.step for step in steps),
        sites=tuple(str(Site(median.step, part.micro, part.rank, "loss", "all")) for part in (heavy, light)),
        measured=median.factor,
        expected=1.0,
        unit=f"times what a {noun} should count, or less (at the median)",
        false_alarm_rate=0.0,
        evidence={"steps": [step.step for step in steps][:100], "factors": [step.factor for step in steps][:100]},
        next=(
            f"Divide the sum of the losses of each micro-batch by the number of {noun}s of the whole step, not by the "
            "micro-batch's own (HF Trainer: transformers from 4.46 on does so).",
            f"Or give micro-batches equal numbers of {noun}s: pack, or bucket by length.",
        ),
    )


def _means_clause(step: WeighedStep, parts: Sequence[WeighedBatch], noun: str) -> str:
    counts = [f"{part.tokens:.0f}" for part in parts]
    text = listed(counts) if len(counts) <= MAX_COUNTS else f"{', '.join(counts[:MAX_COUNTS])} …"
    owner = "micro-batch" if step.differs_within else "rank"
    if not step.differs_within:
        counts = [f"{sum(part.tokens for part in rank_parts):.0f}" for _, rank_parts in sorted(step.by_rank.items())]
        text = listed(counts) if len(counts) <= MAX_COUNTS else f"{', '.join(counts[:MAX_COUNTS])} …"
    return f"each {owner}'s loss is a mean over its own {noun}s, which are {text}"


def _ratio(parts: Sequence[WeighedBatch]) -> float:
    weights = [part.weight for part in parts]
    return max(weights) / min(weights)


def _place_text(part: WeighedBatch) -> str:
    return f"micro-batch {part.micro} of rank {part.rank}"
