"""The ratio of new to old probabilities is exactly 1, although weights have changed between: both are the new ones.

What it finds
-------------
Policy optimisation (PPO, GRPO and others) whose old log-probabilities are computed from the weights of now, before each
pass over a rollout, instead of being those of the rollout: the ratio is 1, its clipping never acts, and nothing holds
the policy near to the one that drew the samples. Preference optimisation (DPO and others) whose reference is the model
that is trained: the log-ratio that the sigmoid takes is 0 for ever.

Why it matters
--------------
Nothing fails. The bound on how far a policy may go in one rollout is not there, or the preferences teach nothing.

How it decides
--------------
Exactly, by the graph of the loss at the first sampled steps and then at gaps that double: the exponential of a
difference, what is clamped to a range around 1, and what a log-sigmoid takes. All elements are exactly 1, or 0 of a
logarithm, at all of these steps, four at least. Of ratios, all samples of one of these steps were trained on at an
earlier step, too, so that updates lie between. Where a rollout is used for a single update, a ratio of 1 is right, its
samples do not come again, and nothing is said.

It is for you to confirm: a ratio of a policy to itself is also a way to write a plain policy gradient.

What it may miss
----------------
Ratios of probabilities that are not clamped; compiled code; rollouts that are read again in other forms; jobs that
compute a ratio again which rounding makes not quite 1.

Example
-------
The ratio of new to old probabilities is exactly 1 for all elements at each of 9 steps (rank 0), also at steps 5
and 9, whose samples were trained on before: nothing is ever clipped.

Wrong and right
---------------
Wrong:

```python
for rows in passes:
    with torch.no_grad():
        old = model(x[rows]).log_prob(a[rows])
    ratio = (model(x[rows]).log_prob(a[rows]) - old).exp()
```

Right:

```python
old = log_probs_of_the_rollout.detach()
for rows in passes:
    ratio = (model(x[rows]).log_prob(a[rows]) - old[rows]).exp()
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES
from trueline.laws.terms.ratios import Ratios, ratios
from trueline.schema.columns.loss_values import LOG_SIGMOID
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.words import counted, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "ratio-is-one"
CALLS = {"": ("backward",)}
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("likelihood_ratios", "sample_digests")
ACROSS_RANKS = False

FEWEST = 4
"""Steps at which a ratio is looked at before anything is said of it: the first has one of 1 everywhere."""
WITHIN = 512
"""Steps before one in which its samples are looked for: passes over a rollout follow each other."""


def check(run: Run) -> list[Finding]:
    """A Finding on ratios, and one on log-ratios; raises ``CannotTell`` where no loss has one."""
    by_kind = defaultdict[bool, dict[int, Sequence[int]]](dict)
    again = dict[int, list[int]]()
    for (rank, kind), looks in _alike(ratios(run)).items():
        steps = sorted(looks)
        if len(steps) < FEWEST or not all(looks.values()):
            continue
        if kind == LOG_SIGMOID:
            by_kind[True][rank] = steps
        elif before := _steps_seen_before(run, rank, steps):
            by_kind[False][rank], again[rank] = steps, before
    return [_finding(run, is_log, by_rank, again) for is_log, by_rank in sorted(by_kind.items())]


def _alike(by_key: Mapping[tuple[int, int], Ratios]) -> dict[tuple[int, int], dict[int, bool]]:
    """By rank and kind, whether each step has one that is 1 throughout; of several, the one that is so most often."""
    looks = defaultdict[tuple[int, int, int, int], dict[int, bool]](dict)
    for (step, rank), of_step in by_key.items():
        for place, ratio in of_step:
            looks[rank, ratio.kind, *place][step] = ratio.neutral == ratio.elements
    best = dict[tuple[int, int], dict[int, bool]]()
    for (rank, kind, *_), of_place in looks.items():
        if len(of_place) >= FEWEST and all(of_place.values()):
            best[rank, kind] = of_place
    return best


def _steps_seen_before(run: Run, rank: int, steps: Sequence[int]) -> list[int]:
    """Of ``steps``, those all of whose samples were read at an earlier one."""
    again: list[int] = []
    for step in steps:
        earlier = range(max(0, step - WITHIN), step)
        *_, now = run.flat("sample_digests", ranks=[rank], steps=[step])
        *_, before = run.flat("sample_digests", ranks=[rank], steps=list(earlier))
        if len(now) and np.isin(now, before).all():
            again.append(step)
    return again


def _finding(
    run: Run, is_log: bool, by_rank: Mapping[int, Sequence[int]], again: Mapping[int, Sequence[int]]
) -> Finding:
    ranks = tuple(sorted(by_rank))
    steps = sorted({step for of_rank in by_rank.values() for step in of_rank})
    location = f"at each of {counted(len(steps), 'step')} ({ranks_text(ranks, all_ranks=run.ranks)})"
    if is_log:
        claim = f"The log-ratio that the loss takes the sigmoid of is exactly 0 for all samples {location}: the model "
        claim += f"is compared with itself from step {steps[0]} to {steps[-1]}."
        advice = "Make the reference a copy (copy.deepcopy) that no optimizer changes, before training begins."
    else:
        repeated = sorted({step for rank in ranks for step in again.get(rank, ())})
        claim = f"The ratio of new to old probabilities is exactly 1 for all elements {location}, also at "
        claim += f"{steps_text(repeated)}, whose samples were trained on before: nothing is ever clipped."
        advice = "Take the old log-probabilities from the rollout, detached; do not compute them again at each pass."
    return Finding(
        code=CODE,
        severity="confirm",
        claim=claim,
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=tuple(str(Site(step, 0, rank, "loss", "all")) for rank in ranks for step in by_rank[rank])[:MAX_SITES],
        measured=1.0,
        expected=None,
        unit="ratio",
        false_alarm_rate=0.0,
        evidence={"kind": "log-ratio" if is_log else "ratio", "steps": steps[:100]},
        next=(advice,),
    )
