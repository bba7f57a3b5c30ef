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
from trueline.laws.optimizer.evidence import AffectedSlices, sampled_steps
from trueline.laws.optimizer.judgement import JudgedUpdate, judged_updates
from trueline.laws.optimizer.unheld_params import UnheldParams, unheld_params
from trueline.laws.optimizer.untrained import UntrainedParams, untrained_params
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
    unheld = [params for params in unheld_params(run) if not params.sign]
    findings = [*map(_untrained_finding, untrained_params(run)), *([_unheld_finding(unheld)] if unheld else [])]
    try:
        updates = judged_updates(run)
    except CannotTell:
        # What is not in an update is told whatever the law of the optimizer is.
        if not findings:
            raise
        return findings
    still = [update for update in updates if update.sample.has_gradient and update.is_still]
    return [*([_still_finding(still, updates)] if still else []), *findings]


def _still_finding(still: Sequence[JudgedUpdate], updates: Sequence[JudgedUpdate]) -> Finding:
    affected = AffectedSlices(
        [update.sample for update in still],
        sampled_steps(updates),
        [update.sample for update in updates if update.sample.has_gradient],
    )
    at_first = [update for update in still if update.sample.step == affected.step_first]
    largest = max(float(np.nanmax(np.abs(update.move))) for update in at_first)
    return affected.finding(
        code=CODE,
        severity="error",
        claim=f"{affected.optimizer} did not move elements {affected.location} by a bit, although its settings declare "
        f"moves of up to {largest:.3g}.",
        measured=0.0,
        expected=largest,
        unit="largest move of an element",
        evidence={"kind": "not-moved"},
        next=(
            "Compare with the plain form of the optimizer: foreach=False, fused=False. If that moves them, the kernel "
            "of the form that you use is wrong: look for a newer version of torch.",
            "Look for what writes parameters back after an update: a wrapper, a swap to the host, a hook.",
        ),
    )


def _untrained_finding(params: UntrainedParams) -> Finding:
    num, names = len(params.names), named_some(params.names)
    is_zero = params.kind == "zero-gradient"
    subject = f"The parameter {names}" if num == 1 else f"{counted(num, 'parameter')} ({names})"
    verb, pronoun = ("has", "it") if num == 1 else ("have", "them")
    return Finding(
        code=CODE,
        # A gradient of zero is a fault of the model; none is often meant, but not for half of it.
        severity="warning" if not params.by_design and (is_zero or params.share >= 0.5) else "info",
        claim=f"{subject}, {100 * params.share:.3g} % of the elements that are to train, {verb} "
        f"{'a gradient of exactly zero' if is_zero else 'no gradient'} on {ranks_text(params.ranks)} at all "
        f"{params.num_steps} measured steps: nothing trains {pronoun}.",
        ranks=tuple(params.ranks),
        step_first=params.step_first,
        step_last=params.step_last,
        sites=sites_of(params.step_first, params.ranks[:1], phase="grad", names=params.names),
        measured=float(num),
        expected=0.0,
        unit="parameters that nothing trains",
        false_alarm_rate=0.0,
        evidence={"kind": params.kind, "names": list(params.names[:100])},
        next=(
            f"Look at what follows {pronoun} in the forward pass: {_ZEROS if is_zero else _CUTS}?",
            f"If {pronoun if num == 1 else 'they'} {'is' if num == 1 else 'are'} not to train, call "
            f"requires_grad_(False) and leave {pronoun} out of the optimizer.",
        ),
    )


def _unheld_finding(unheld: Sequence[UnheldParams]) -> Finding:
    names = list(dict.fromkeys(name for params in unheld for name in params.names))
    ranks = [params.rank for params in unheld]
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{capitalized(named_some(names))} {'has a gradient' if len(names) == 1 else 'have gradients'} on "
        f"{ranks_text(ranks)} and did not change: no optimizer that was seen holds "
        f"{'it' if len(names) == 1 else 'them'}.",
        ranks=tuple(sorted(ranks)),
        step_first=min(params.step_first for params in unheld),
        step_last=max(params.step_last for params in unheld),
        measured=float(len(names)),
        expected=0.0,
        unit="parameters with a gradient that no optimizer holds",
        false_alarm_rate=0.0,
        evidence={"kind": "unheld", "names": names[:100]},
        next=("If they are to train, make the optimizer after all parts of the model are there; if not, freeze them.",),
    )
