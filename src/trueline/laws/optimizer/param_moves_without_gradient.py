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
from trueline.laws.optimizer.evidence import finding_on, optimizer_of, place_text
from trueline.laws.optimizer.judgement import judge
from trueline.laws.optimizer.outside import Decayed, decayed
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
    steps = sorted({each.step for each in slices})
    frozen = [each for each in slices if each.is_own and not each.trains and _moves(each) and _is_without(each)]
    bare = [each for each in slices if each.trains and not each.has_gradient and _is_changed(each)]
    return [
        *([_finding(frozen, steps, "warning", "is frozen and has no gradient but zeros")] if frozen else []),
        *([_finding(bare, steps, "error", "has no gradient")] if bare else []),
        *([_of_decayed(decay, steps)] if (decay := decayed(run)) else []),
    ]


def _of_decayed(every: Sequence[Decayed], steps: Sequence[int]) -> Finding:
    names = list(dict.fromkeys(each.name for each in every))
    ranks = tuple(sorted({each.rank for each in every}))
    first, last = min(each.step for each in every), max(each.until for each in every)
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{capitalized(named_some(names))} {'is' if len(names) == 1 else 'are'} frozen and in no optimizer on "
        f"{ranks_text(ranks)}, and {'is' if len(names) == 1 else 'are'} multiplied by {every[0].factor:.6g} from one "
        f"update to the next at {steps_text((each.step for each in every), among=steps)}.",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="opt", names=names[: MAX_SITES // 2]),
        measured=every[0].factor,
        expected=1.0,
        unit="factor of all elements",
        false_alarm_rate=0.0,
        evidence={"kind": "decayed", "names": names[:100]},
        next=("Look for decay by hand, and leave out what does not require a gradient.",),
    )


def _moves(of: Slice) -> bool:
    after = of.after.get(PARAM)
    return after is not None and bool(np.any(after != of.before[PARAM])) and bool(np.isfinite(after).all())


def _is_without(of: Slice) -> bool:
    return not of.has_gradient or (GRAD in of.before and not np.any(of.before[GRAD]))


def _is_changed(of: Slice) -> bool:
    """Whether an update that was to pass it by changed it."""
    judged = judge(of)
    return judged is not None and any((excess > 1).any() for excess in judged.excess.values())


def _finding(slices: Sequence[Slice], steps: Sequence[int], severity: Severity, what: str) -> Finding:
    largest = max(float(np.nanmax(np.abs(each.after[PARAM] - each.before[PARAM]))) for each in slices)
    return finding_on(
        slices,
        code=CODE,
        severity=severity,
        claim=f"{optimizer_of(slices)} moves elements {place_text(slices, among=steps)}; what it moves {what}.",
        measured=largest,
        expected=0.0,
        unit="largest move of an element",
        next=(
            "Set .grad to None where a parameter is frozen (zero_grad() does by default), or leave frozen parameters "
            "out of the optimizer.",
        ),
    )
