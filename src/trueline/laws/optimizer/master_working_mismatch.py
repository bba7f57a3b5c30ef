"""The forward pass uses other parameters than those that the optimizer updates.

What it finds
-------------
Parameters in bfloat16 or float16 that are not the copies in float32 that the optimizer holds: an update that is not
written back, a bucket that is gathered before it is updated, a checkpoint that is loaded into one of both only.

Why it matters
--------------
Gradients are those of parameters that the optimizer does not have. With copies that are written back late training
goes on, with stale weights; where they are never written back nothing trains.

How it decides
--------------
Exactly, just before a sampled update, at neighbouring elements of 8 parameters: rounding a copy to the format of the
parameter moves it by less than one spacing, whichever way it rounds (stochastic rounding too). A parameter that is
further from its copy was not made of it. Copies are found where DeepSpeed (ZeRO 1 and 2) and Megatron-core name them,
and where a script updates as many float32 parameters of the same shapes, in the model's order: of these, a parameter
counts where it was equal to its copy at some step, with values that are not all alike.

Where they differ at the first update alone, that is said: weights were loaded after the copies were made.

What it may miss
----------------
Copies that are elsewhere: ZeRO 3, Megatron's where they are cut, those inside of fused optimizers. Parameters that
are behind by less than a spacing.

Example
-------
The forward pass of rank 0 used other values of head.weight at steps 6-15 than those that the optimizer holds.

Wrong and right
---------------
Wrong:

```python
optimizer.step()  # of float32 copies
for param, copy in zip(model.head.parameters(), copies):
    param.data.copy_(copy)  # the rest of the model stays
```

Right:

```python
optimizer.step()
for param, copy in zip(model.parameters(), copies):
    param.data.copy_(copy)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES
from trueline.judge.series.sampled_updates import CopyPair, sampled_updates
from trueline.judge.series.update_rules import Array
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.formats import FORMATS
from trueline.schema.site import Site
from trueline.schema.text.words import named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "master-working-mismatch"
CALLS = {"": ("step",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "update_values")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """The Finding of parameters that are not their copies; raises ``CannotTell`` where there are no copies."""
    pairs = sampled_updates(run).copies
    if not pairs:
        raise CannotTell("no copies of parameters in higher precision were seen", reason="by-design")
    wrong = list(_mismatched(pairs))
    if not wrong:
        return []
    first = min(pair.step for pair in wrong)
    ranks = tuple(sorted({pair.rank for pair in wrong}))
    names = list(dict.fromkeys(pair.name for pair in wrong))
    at = sorted({pair.step for pair in wrong})
    steps = steps_text(at, among=(pair.step for pair in pairs))
    # equal from its first update on: what was put into the model before that is gone
    opening = {int(run.steps[0]), *run.restarts}
    undone = set(at) <= opening and any(pair.step not in opening for pair in pairs)
    sites = [str(Site(first, 0, pair.rank, "param", pair.name)) for pair in wrong if pair.step == first]
    return [
        Finding(
            code=CODE,
            severity="error",
            claim=f"The first update, at {steps}, undoes what was put into {named_some(names)} of {ranks_text(ranks)}: "
            "the copies in higher precision that the optimizer holds, and writes back, are not of the weights that the "
            "forward pass used."
            if undone
            else f"The forward pass of {ranks_text(ranks)} used other values of {named_some(names)} at {steps} than "
            "those that the optimizer holds.",
            ranks=ranks,
            step_first=first,
            step_last=max(pair.step for pair in wrong),
            sites=tuple(sites[:MAX_SITES]),
            measured=max(float(spacings(pair).max()) for pair in wrong),
            expected=1.0,
            unit="largest distance of an element from its copy, in spacings of its format (at most)",
            false_alarm_rate=0.0,
            evidence={"names": names[:100], "kind": "undone" if undone else "apart"},
            next=("Load weights before the optimizer or engine is made, or load into its copies as well.",)
            if undone
            else (
                "Write every copy back after each update and after loading a checkpoint, before the next forward pass.",
                "Where parameters are gathered beforehand (overlapped gathers), let the gather wait for the update.",
            ),
        )
    ]


def _mismatched(pairs: Sequence[CopyPair]) -> Iterator[CopyPair]:
    """Pairs that differ and belong together."""
    # Elements that are all alike, as of norms at the start, match a copy of any other parameter too.
    confirmed = {(pair.rank, pair.name) for pair in pairs if not _differs(pair) and np.ptp(pair.working) > 0}
    for pair in pairs:
        if _differs(pair) and (pair.certain or (pair.rank, pair.name) in confirmed):
            yield pair


def _differs(pair: CopyPair) -> bool:
    return bool((spacings(pair) > 1).any())


def spacings(pair: CopyPair) -> Array:
    """[K] distance over the largest spacing of the format at the copy; 0 where one of both is not finite."""
    dtype = FORMATS[pair.dtype]
    finite = np.isfinite(pair.working) & np.isfinite(pair.master) & (np.abs(pair.master) <= dtype.largest)
    with np.errstate(invalid="ignore"):
        distance = np.abs(pair.working - pair.master) / (2 * dtype.unit * np.abs(pair.master) + 2 * dtype.smallest)
    return np.where(finite, distance, 0.0)
