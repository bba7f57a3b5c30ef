"""A parameter does not move although its optimizer declares that it does.

What it finds
-------------
Parameters, or blocks of their elements, that an update leaves as they are bit for bit: a kernel that skips them, an
update that goes to a copy, memory that is written back. As information: parameters with a gradient that no optimizer
holds.

Why it matters
--------------
The model trains with a part of it at its start values. The loss falls all the same, to a worse value, on all ranks
alike.

How it decides
--------------
By arithmetic, as in `update-magnitude`: none of the sampled elements changed, and for one of them at least the declared
move is larger than rounding allows to be lost. What rounding alone explains is `update-lost`.

A parameter that has a gradient, that the optimizer does not hold, and whose digest is the same at three updates or more
and at the last, is an information: many fine-tune a part of a model like that on purpose. Where something shows that
it was to train, that is `optimizer-detached`.

What it may miss
----------------
Elements and steps that were not sampled; optimizers with a rule of their own.

Example
-------
SGD did not move elements of fc.weight on rank 0 at step 0 by a bit, although its settings declare moves of up to 0.01.

Wrong and right
---------------
Wrong:

```python
optimizer = torch.optim.SGD(model.bfloat16().parameters(), lr=0.1, fused=True)  # on the CPU, torch 2.13.0
```

Right:

```python
optimizer = torch.optim.SGD(model.bfloat16().parameters(), lr=0.1)
```
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trueline.analyze.updates.evidence import finding_on, optimizer_of, place_text, sampled_steps
from trueline.analyze.updates.judgement import Judged, judged_updates
from trueline.analyze.updates.outside import Left, left_alone
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, named_some, ranks_text
from trueline.store.reader import Run

CODE = "param-frozen"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "update_values", "param_digests")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings of parameters that stay; raises ``CannotTell`` where no update could be predicted."""
    left = [each for each in left_alone(run) if not each.why]
    findings = [_outside(left)] if left else []
    try:
        every = judged_updates(run)
    except CannotTell:
        if not findings:
            raise
        return findings
    still = [each for each in every if each.of.has_gradient and each.still]
    return [*([_still(still, sampled_steps(every))] if still else []), *findings]


def _still(still: Sequence[Judged], steps: Sequence[int]) -> Finding:
    slices = [each.of for each in still]
    first = min(each.step for each in slices)
    largest = max(float(np.nanmax(np.abs(each.move))) for each in still if each.of.step == first)
    return finding_on(
        slices,
        code=CODE,
        severity="error",
        claim=f"{optimizer_of(slices)} did not move elements {place_text(slices, among=steps)} by a bit, although its "
        f"settings declare moves of up to {largest:.3g}.",
        measured=0.0,
        expected=largest,
        unit="largest move of an element",
        next=(
            "Compare with the plain form of the optimizer: foreach=False, fused=False. If that moves them, the kernel "
            "of the form that you use is wrong: look for a newer version of torch.",
            "Look for what writes parameters back after an update: a wrapper, a swap to the host, a hook.",
        ),
    )


def _outside(left: Sequence[Left]) -> Finding:
    names = list(dict.fromkeys(name for each in left for name in each.names))
    ranks = [each.rank for each in left]
    return Finding(
        code=CODE,
        severity="info",
        claim=f"{capitalized(named_some(names))} {'has a gradient' if len(names) == 1 else 'have gradients'} on "
        f"{ranks_text(ranks)} and did not change: no optimizer that was seen holds "
        f"{'it' if len(names) == 1 else 'them'}.",
        ranks=tuple(sorted(ranks)),
        step_first=min(each.step_first for each in left),
        step_last=max(each.step_last for each in left),
        measured=float(len(names)),
        expected=0.0,
        unit="parameters with a gradient that no optimizer holds",
        false_alarm_rate=0.0,
        evidence={"names": names[:100]},
        next=("If they are to train, make the optimizer after all parts of the model are there; if not, freeze them.",),
    )
