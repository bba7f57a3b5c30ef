"""The optimizer holds other parameters than those of the model.

What it finds
-------------
An optimizer that updates nothing of the model: it was made before the model was wrapped, cast, moved or loaded in a way
that replaced its parameters, or for another copy of the model.

Why it matters
--------------
Gradients are computed, averaged and clipped, the learning rate follows its schedule, and no weight ever changes.

How it decides
--------------
Exactly. At a sampled update the optimizer holds none of the model's parameters, these have gradients, and their digests
stay the same bit for bit at three updates or more and at the last. An optimizer of copies in float32 that are written
back to the model changes digests, and is no finding.

What it may miss
----------------
An optimizer that holds a part of the model: whether the rest is left out on purpose is not known (`param-frozen` tells
of it as information). Gradients that a framework keeps elsewhere than in `.grad`.

Example
-------
AdamW holds none of the parameters of the model, which have gradients and stay as they were at steps 0-39.

Wrong and right
---------------
Wrong:

```python
optimizer = torch.optim.AdamW(model.parameters())
model = copy.deepcopy(model).to(device)
```

Right:

```python
model = copy.deepcopy(model).to(device)
optimizer = torch.optim.AdamW(model.parameters())
```
"""

from __future__ import annotations

from trueline.analyze.compared_ranks import MAX_SITES, sites_of
from trueline.analyze.updates.outside import left_alone
from trueline.schema.finding import Finding
from trueline.schema.text.words import listed, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "optimizer-detached"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "param_digests")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """The Finding of an optimizer without the model's parameters; raises ``CannotTell`` where no update was sampled."""
    left = [each for each in left_alone(run) if not each.num_held]
    if not left:
        return []
    first, last = min(each.step_first for each in left), max(each.step_last for each in left)
    ranks = tuple(each.rank for each in left)
    names = [name.rpartition(".")[2] for name in left[0].optimizers]
    return [
        Finding(
            code=CODE,
            severity="error",
            claim=f"{listed(names)} {'hold' if len(names) > 1 else 'holds'} none of the parameters of the model on "
            f"{ranks_text(ranks)}, which have gradients and stay as they were at "
            f"{steps_text((int(step) for step in run.steps if first <= step <= last), among=run.steps.tolist())}.",
            ranks=ranks,
            step_first=first,
            step_last=last,
            sites=sites_of(first, ranks[:2], phase="opt", names=left[0].names[: MAX_SITES // 2]),
            measured=0.0,
            expected=float(len(left[0].names)),
            unit="parameters of the model that the optimizer holds",
            false_alarm_rate=0.0,
            evidence={"names": list(left[0].names[:100])},
            next=(
                "Make the optimizer after the model is wrapped, cast, moved and loaded, from the parameters of the "
                "model that is called.",
            ),
        )
    ]
