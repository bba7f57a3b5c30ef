"""A parameter was trained until some step, and nothing trains it any more.

What it finds
-------------
Parameters that have gradients, and an optimizer that holds them, and that no update has changed since a step: an
update that is captured, compiled or cached for the parameters that had gradients before, a list of work that is not
built anew. Parameters whose gradient is exactly zero from a step on: both factors of an adapter were set to zeros, a
mask or a scale became 0, all units of a layer are beyond what a ReLU lets by.

Why it matters
--------------
The loss goes on falling a little, by what is still trained, or stays. A part of the model is as it was at that step.

How it decides
--------------
Exactly. Of what no update changes: its 64-bit digests changed at three looks or more and are then the same to the end,
while at every one of these looks something else has changed, and no parameter of its module does; it has gradients at
16 steps or more of that time, and at eight the learning rate times the norm of the gradient is as large as at the
quarter of steps that moved it least, so that rounding does not explain it; and at three sampled updates or more the
optimizer holds it. Of a gradient of zero: it is there and zero on all ranks at each of the last 16 measured steps or
more, and was not before. That is a warning where the values of the parameter are 0, too, as a product of such factors
has no gradient, or where it is so of all that is trained; otherwise it is for you to confirm. Steps with a loss of 0
have no gradient and are left alone.

What it may miss
----------------
What stops in the last 16 steps, weights in 16 bits that an update changes no more, parameters that are replaced while
the training goes on, jobs with several optimizers and those that update copies of weights. What is frozen on purpose by
`requires_grad_(False)` or a rate of 0 has no gradient or no rate, and is no finding.

Example
-------
body.0.weight and body.0.bias have gradients, AdamW holds them, and no update has changed them since step 50.

Wrong and right
---------------
Wrong:

```python
if captured is None:
    captured = [p for p in params if p.grad is not None]  # for ever
```

Right:

```python
captured = [p for p in params if p.grad is not None]
```
"""

from __future__ import annotations

from trueline.judge.compared_ranks import sites_of
from trueline.laws.optimizer.stopped import StoppedParams, ZeroSince, stopped_params, zero_since
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "param-stops"
CALLS = {"": ("step",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "param_digests", "param_grad_norms")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings of parameters that stay from a step on; raises ``CannotTell`` where no update was sampled."""
    return [*map(_stopped_finding, stopped_params(run)), *map(_zero_finding, zero_since(run))]


def _stopped_finding(stopped: StoppedParams) -> Finding:
    num, names = len(stopped.names), named_some(stopped.names)
    subject = f"The parameter {names} has a gradient" if num == 1 else f"{capitalized(names)} have gradients"
    it = "it" if num == 1 else "them"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{subject}, {stopped.optimizer} holds {it}, and no update has changed {it} since step "
        f"{stopped.step_first} ({ranks_text([stopped.rank])}): {counted(stopped.num_steps, 'step')} with a gradient.",
        ranks=(stopped.rank,),
        step_first=stopped.step_first,
        step_last=stopped.step_last,
        sites=sites_of(stopped.step_first, [stopped.rank], phase="param", names=stopped.names),
        measured=float(num),
        expected=0.0,
        unit="parameters that no update changes any more",
        false_alarm_rate=0.0,  # digests of 64 bits are the same, and rounding is allowed for
        evidence={"kind": "unmoved", "names": list(stopped.names[:100])},
        next=(
            "Look for what the optimizer keeps from earlier steps: a captured graph, a list of the parameters that had "
            "gradients, a compiled step whose guards do not ask for new ones. Make it anew when others have gradients.",
        ),
    )


def _zero_finding(zero: ZeroSince) -> Finding:
    num, names = len(zero.names), named_some(zero.names)
    subject = (
        f"The gradient of {names} is" if num == 1 else f"The gradients of {counted(num, 'parameter')} ({names}) are"
    )
    sure = zero.whole or bool(zero.all_zero)
    values = ""
    if zero.all_zero:
        which = "their" if len(zero.all_zero) == num > 1 else "its" if num == 1 else f"{named_some(zero.all_zero)}'s"
        values = f", and {which} values are all 0"
    return Finding(
        code=CODE,
        severity="warning" if sure else "confirm",
        claim=f"{subject} exactly 0 from step {zero.step_first} on{values} ({ranks_text(zero.ranks)}, "
        f"{counted(zero.num_steps, 'measured step')}): nothing trains {'it' if num == 1 else 'them'} any more.",
        ranks=tuple(zero.ranks),
        step_first=zero.step_first,
        step_last=zero.step_last,
        sites=sites_of(zero.step_first, zero.ranks[:1], phase="grad", names=zero.names),
        measured=float(num),
        expected=0.0,
        unit="parameters whose gradient became zero",
        false_alarm_rate=0.0,
        evidence={"kind": "zero-gradient", "names": list(zero.names[:100]), "zeros": list(zero.all_zero[:100])},
        next=(
            "Look at what was set to 0 before that step. Of two factors that are multiplied, as lora_A and lora_B, one "
            "alone may begin as zeros: each has the gradient that the other lets through."
            if zero.all_zero
            else "Look at what follows in the forward pass since that step: a mask, a scale or a weight of the loss "
            "that became 0, a ReLU that lets nothing by.",
        ),
    )
