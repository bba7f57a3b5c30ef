"""An update moves a parameter that has no gradient.

What it finds
-------------
A parameter that is frozen (`requires_grad` is False) and that the optimizer still moves, by momentum or weight decay,
as its gradient is a tensor of zeros; a parameter without a gradient whose value an optimizer of torch changes.

Why it matters
--------------
What was to stay does not: a frozen backbone decays towards zero, a layer that was switched off drifts by old momentum.

How it decides
--------------
Exactly, at sampled elements: the parameter is the model's and does not require a gradient, its gradient is missing or
zero, and the value after the update is not the value before. Or there is no gradient at all, and an optimizer of
`torch.optim`, which leaves such a parameter alone, changes it or its states. Or it is frozen, no optimizer holds it,
and between three pairs of updates or more all of its sampled elements are multiplied by one factor below 1: decay by
hand. An average of weights (a teacher, a target network) is not such a factor, and is left alone.

What it may miss
----------------
Parameters that require a gradient and receive zeros: that these move by momentum and decay is how optimizers are
declared. What else is changed outside of the update.

Example
-------
AdamW moves elements of encoder.weight on rank 0 at steps 8-15, which is frozen and has no gradient but zeros.

Wrong and right
---------------
Wrong:

```python
model.encoder.requires_grad_(False)  # its gradients stay, as zeros
optimizer.zero_grad(set_to_none=False)
```

Right:

```python
model.encoder.requires_grad_(False)
optimizer.zero_grad()  # gradients are gone, so that the optimizer passes these parameters by
```
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.judge.series.sampled_updates import Slice, sampled_updates
from trueline.judge.series.update_rules import GRAD, PARAM
from trueline.laws.optimizer.evidence import AffectedSlices
from trueline.laws.optimizer.judgement import JudgedUpdate, judge_updates
from trueline.laws.optimizer.unheld_params import DecayedParam, decayed_params
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import capitalized, named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "param-moves-without-gradient"
CALLS = {"": ("step",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "update_values")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings of what moves without a gradient; raises ``CannotTell`` where no update was sampled."""
    slices = sampled_updates(run).slices
    steps = sorted({sample.step for sample in slices})
    frozen = [sample for sample in slices if sample.is_own and not sample.trains and _moves_by_zeros(sample)]
    passed_by = [sample for sample in slices if sample.trains and not sample.has_gradient]
    without_gradient = [update.sample for update in judge_updates(passed_by) if update and _breaks_law(update)]
    decayed = decayed_params(run)
    frozen_text, other_text = "is frozen and has no gradient but zeros", "has no gradient"
    return [
        *([_moves_finding(AffectedSlices(frozen, steps), "warning", frozen_text)] if frozen else []),
        *([_moves_finding(AffectedSlices(without_gradient, steps), "error", other_text)] if without_gradient else []),
        *([_decay_finding(decayed, steps)] if decayed else []),
    ]


def _moves_by_zeros(sample: Slice) -> bool:
    """True if the parameter moves, to finite values, without a gradient or with one of zeros."""
    after = sample.after.get(PARAM)
    if after is None or not np.any(after != sample.before[PARAM]) or not np.isfinite(after).all():
        return False
    return not sample.has_gradient or (GRAD in sample.before and not np.any(sample.before[GRAD]))


def _breaks_law(update: JudgedUpdate) -> bool:
    """True if an update that was to pass the parameter by changed it or a state of it."""
    return any((excess > 1).any() for excess in update.excess.values())


def _moves_finding(affected: AffectedSlices, severity: Severity, description: str) -> Finding:
    largest = max(float(np.nanmax(np.abs(sample.after[PARAM] - sample.before[PARAM]))) for sample in affected.slices)
    return affected.finding(
        code=CODE,
        severity=severity,
        claim=f"{affected.optimizer} moves elements {affected.location}; what it moves {description}.",
        measured=largest,
        expected=0.0,
        unit="largest move of an element",
        next=(
            "Set .grad to None where a parameter is frozen (zero_grad() does by default), or leave frozen parameters "
            "out of the optimizer.",
        ),
    )


def _decay_finding(decayed: Sequence[DecayedParam], steps: Sequence[int]) -> Finding:
    names = list(dict.fromkeys(param.name for param in decayed))
    ranks = tuple(sorted({param.rank for param in decayed}))
    first, last = min(param.step for param in decayed), max(param.next_step for param in decayed)
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{capitalized(named_some(names))} {'is' if len(names) == 1 else 'are'} frozen and in no optimizer on "
        f"{ranks_text(ranks)}, and {'is' if len(names) == 1 else 'are'} multiplied by {decayed[0].factor:.6g} from one "
        f"update to the next at {steps_text((param.step for param in decayed), among=steps)}.",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="opt", names=names[: MAX_SITES // 2]),
        measured=decayed[0].factor,
        expected=1.0,
        unit="factor of all elements",
        false_alarm_rate=0.0,
        evidence={"kind": "decayed", "names": names[:100]},
        next=("Look for decay by hand, and leave out what does not require a gradient.",),
    )
