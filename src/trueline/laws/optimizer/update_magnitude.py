"""A parameter moves by other than what its optimizer declares.

What it finds
-------------
Updates that are not those of the optimizer's own rule: another learning rate inside of the kernel than in its groups,
weight decay left out or made twice, a wrong bias correction, a gradient that changes between the hook and the kernel, a
fused or custom kernel that is wrong, or that updates although a gradient scaler has called that off, a parameter that
is updated twice as it stands in two groups.

Why it matters
--------------
The optimizer is the one part of training that every gradient goes through, and a wrong update looks like a bad
hyper-parameter: the loss still falls, only slower. All ranks share it, so that comparing them shows nothing.

How it decides
--------------
By arithmetic. At the first 16 steps, and then at every 20th, later every 100th (and at the next three after an update
that looks like none), 16 neighbouring elements at a random place of each of 32 parameters (in rotation, other ones on
each rank) are copied just before and just after the update, with their gradients and optimizer states. The update is
predicted in float64 from the hyper-parameters that the group of the parameter declares, from the parameter before, and
from the states *after* the update, so that a wrong state is not counted here (`optimizer-state-stale`). A difference of
more than 8 u times the sum of the magnitudes of the terms that the new value is made of cannot be rounding, where u is
the unit roundoff of the coarsest number involved: the worst of 83 healthy settings is 4.2 (`studies/laws`). There
are no statistics and so no false alarms.

Adam, AdamW, AMSGrad, SGD, Adagrad, RMSprop, Adamax and NAdam of `torch.optim` are predicted, in all of their forms. A
subclass is, too, as long as its `step` is torch's. Of others there are bounds: Lion (lion-pytorch) moves by its rate or
not at all; Muon (torch), Adafactor (torch, transformers) and LAMB (torch-optimizer) move at most as far as rate, shape
and norm of the parameter allow, which shows large faults only.

What it may miss
----------------
Elements and steps that were not sampled; in bfloat16 an update that is wrong by less than the rounding of the
parameter; optimizers with a rule of their own, of which `trueline check` says that it cannot tell; updates that are
compiled, or that call a closure several times.

Example
-------
AdamW moves elements of blocks.0.mlp.weight on rank 0 at steps 0-15 by 1.25 times what its settings declare.

Wrong and right
---------------
Wrong:

```python
optimizer = torch.optim.AdamW([*model.parameters(), *model.head.parameters()])  # the head is updated twice
```

Right:

```python
optimizer = torch.optim.AdamW(model.parameters())
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trueline.judge.series.update_rules import PARAM, TOLERANCE
from trueline.laws.optimizer.evidence import AffectedSlices, least_squares_factor, sampled_steps
from trueline.laws.optimizer.judgement import JudgedUpdate, judged_updates
from trueline.laws.optimizer.magnitudes import bounded_updates
from trueline.schema.finding import Finding
from trueline.store.reader import Run

CODE = "update-magnitude"
CALLS = {"": ("step",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "update_values")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings of moves that are not those declared; raises ``CannotTell`` where no update could be predicted and none
    has a bound.
    """
    bounded = bounded_updates(run)
    if not bounded:
        return _rule_findings(judged_updates(run))
    beyond = [(sample, float(excess.max())) for sample, excess in bounded if (excess > 1).any()]
    steps = sorted({sample.step for sample, _ in bounded})
    if not beyond:
        return []
    return [_bound_finding(AffectedSlices([sample for sample, _ in beyond], steps), max(e for _, e in beyond))]


def _bound_finding(affected: AffectedSlices, excess: float) -> Finding:
    return affected.finding(
        code=CODE,
        severity="error",
        claim=f"{affected.optimizer} moves elements {affected.location} as its settings do not allow.",
        measured=excess,
        expected=1.0,
        unit="move over what the settings allow (at most)",
        next=("Look for what changes parameters, gradients or settings while the optimizer steps.",),
    )


def _rule_findings(updates: Sequence[JudgedUpdate]) -> list[Finding]:
    """The Finding of moves that are not the predicted ones, unless the parameter stood still: see ``param-frozen``."""
    with_gradient = [update for update in updates if update.sample.has_gradient]
    wrong = [update for update in with_gradient if (update.excess[PARAM] > 1).any() and not update.is_still]
    if not wrong:
        return []
    affected = AffectedSlices(
        [update.sample for update in wrong], sampled_steps(updates), [update.sample for update in with_gradient]
    )
    factor = least_squares_factor(wrong)
    # Beyond these a fit of one factor says nothing: the moves have little to do with the declared ones.
    is_plausible = math.isfinite(factor) and 0.001 < abs(factor) < 1000
    called_off = all(sample.skipped for sample in affected.slices)
    amount = f"{factor:.4g} times what" if is_plausible and abs(factor - 1) > 1e-3 else "other than"
    how = "though the gradient scaler had called the update off" if called_off else f"by {amount} its settings declare"
    return [
        affected.finding(
            code=CODE,
            severity="error",
            claim=f"{affected.optimizer} moves elements {affected.location} {how}.",
            measured=max(update.worst_error(PARAM) for update in wrong),
            expected=TOLERANCE,
            unit="largest error of an element, in roundings of its terms (at most)",
            evidence={"factor": factor if math.isfinite(factor) else None, "called_off": called_off},
            next=(
                "Compare with the plain form of the optimizer: foreach=False, fused=False. If that is right, the "
                "kernel of the form that you use is wrong: look for a newer version of torch, or report it.",
                "Look for what changes parameters, gradients or settings while the optimizer steps: a parameter in two "
                "groups, a patched step, a hook.",
            ),
        )
    ]
