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
`torch.optim`, which leaves such a parameter alone, changes it or its states.

What it may miss
----------------
Parameters that require a gradient and receive zeros: that these move by momentum and decay is how optimizers are
declared. What is changed outside of the update.

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

from trueline.analyze.updates.evidence import finding_on, optimizer_of, place_text
from trueline.analyze.updates.judgement import judge
from trueline.analyze.updates.laws import GRAD, PARAM
from trueline.analyze.updates.samples import Slice, sampled_updates
from trueline.schema.finding import Finding, Severity
from trueline.store.reader import Run

CODE = "param-moves-without-gradient"
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
    ]


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
