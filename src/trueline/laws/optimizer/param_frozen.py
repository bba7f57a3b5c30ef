"""A parameter does not move although its optimizer holds it.

What it finds
-------------
Parameters, or blocks of their elements, that an update leaves as they are bit for bit: a kernel that skips them, an
update that goes to a copy, memory that is written back. Parameters whose gradient is exactly zero, or missing, from the
start to the end: two factors that both begin as zeros, a softmax over one number, a checkpoint that cuts gradients off.
As information: parameters with a gradient that no optimizer holds.

Why it matters
--------------
The model trains with a part of it at its start values. The loss falls all the same, to a worse value, on all ranks
alike.

How it decides
--------------
By arithmetic, as in `update-magnitude`: none of the sampled elements changed, and for one of them at least the declared
move is larger than rounding allows to be lost. What rounding alone explains is `update-lost`. Updates are sampled:
where it began between two samples, both are said ("since step 35 (between 16 and 35)").

A gradient is zero, or missing, where that was measured of the whole parameter on all ranks, at each of 16 steps or
more, and of all its sampled elements at each sampled update. It is a warning where the gradient is there, and zero: the
parameter has a part in the loss, and none that could train it. It is an information where a layer alike is trained, as
of experts of which one is never chosen; of a bias whose weight is trained, as the last of a critic whose loss goes by
differences; and where the gradient is missing, or a framework fills it with zeros, in less than half of the elements
that are to train, as of a head that this job does not use.

A parameter that has a gradient, that the optimizer does not hold, and whose digest is the same at three updates or more
and at the last, is an information: many fine-tune a part of a model like that on purpose. Where something shows that
it was to train, that is `optimizer-detached`.

What it may miss
----------------
Elements and steps that were not sampled; optimizers with a rule of their own. A gradient of zero is not looked for
where ranks hold different parameters. One that is multiplied by zero on purpose, so that every parameter has a part in
the loss, is reported.

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

from trueline.judge.compared_ranks import sites_of
from trueline.laws.optimizer.evidence import finding_on, optimizer_of, place_text, sampled_steps
from trueline.laws.optimizer.judgement import Judged, judged_updates
from trueline.laws.optimizer.outside import Left, left_alone
from trueline.laws.optimizer.untrained import Untrained, untrained
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "param-frozen"
CALLS = {"": ("step",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "update_values", "param_digests", "param_grad_norms")
ACROSS_RANKS = False

_ZEROS = "two factors that both begin as zeros, a softmax over one number, a mask or a ReLU that lets nothing by"
_CUTS = "a detach, no_grad, a checkpoint whose input asks for no gradient, a part of the model that is not used"


def check(run: Run) -> list[Finding]:
    """Findings of parameters that stay; raises ``CannotTell`` where no update could be predicted."""
    left = [each for each in left_alone(run) if not each.why]
    findings = [*map(_untrained, untrained(run)), *([_outside(left)] if left else [])]
    try:
        every = judged_updates(run)
    except CannotTell:
        if not findings:
            raise
        return findings
    still = [each for each in every if each.of.has_gradient and each.still]
    return [*([_still(still, every)] if still else []), *findings]


def _still(still: Sequence[Judged], every: Sequence[Judged]) -> Finding:
    slices, steps = [each.of for each in still], sampled_steps(every)
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
        evidence={"kind": "not-moved"},
        looked=[each.of for each in every if each.of.has_gradient],
        next=(
            "Compare with the plain form of the optimizer: foreach=False, fused=False. If that moves them, the kernel "
            "of the form that you use is wrong: look for a newer version of torch.",
            "Look for what writes parameters back after an update: a wrapper, a swap to the host, a hook.",
        ),
    )


def _untrained(of: Untrained) -> Finding:
    num, names = len(of.names), named_some(of.names)
    is_zero = of.kind == "zero-gradient"
    subject = f"The parameter {names}" if num == 1 else f"{counted(num, 'parameter')} ({names})"
    verb, them = ("has", "it") if num == 1 else ("have", "them")
    return Finding(
        code=CODE,
        severity="warning" if not of.by_design and (is_zero or of.share >= 0.5) else "info",
        claim=f"{subject}, {100 * of.share:.3g} % of the elements that are to train, {verb} "
        f"{'a gradient of exactly zero' if is_zero else 'no gradient'} on {ranks_text(of.ranks)} at all {of.num_steps} "
        f"measured steps: nothing trains {them}.",
        ranks=tuple(of.ranks),
        step_first=of.step_first,
        step_last=of.step_last,
        sites=sites_of(of.step_first, of.ranks[:1], phase="grad", names=of.names),
        measured=float(num),
        expected=0.0,
        unit="parameters that nothing trains",
        false_alarm_rate=0.0,
        evidence={"kind": of.kind, "names": list(of.names[:100])},
        next=(
            f"Look at what follows {them} in the forward pass: {_ZEROS if is_zero else _CUTS}?",
            f"If {them if num == 1 else 'they'} {'is' if num == 1 else 'are'} not to train, call requires_grad_(False) "
            f"and leave {them} out of the optimizer.",
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
