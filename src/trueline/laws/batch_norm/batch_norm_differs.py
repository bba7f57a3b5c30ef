"""Batch normalisation keeps other running statistics than it declares.

What it finds
-------------
A kernel that updates the running mean or variance by another rule, such as the biased variance, or of SyncBatchNorm the
mean of the variances of the ranks; statistics that change in evaluation mode. Statistics that a batch with NaN or
infinity has left without a finite number, while training goes on. As information: passes that activation checkpointing
makes again, which count each batch twice; batches that are counted between training steps, as a validation in training
mode does; layers whose parameters are frozen and whose statistics are not.

Why it matters
--------------
Training normalises by the batch and does not look at the running statistics, so the loss shows nothing. Evaluation and
inference normalise by them: the model is worse, or NaN, only there.

How it decides
--------------
By arithmetic. At the first 16 steps, and then at every 20th, later every 100th, the sum and the sum of squares of what
goes into 4 channels of up to 8 layers (in rotation) are computed on the device in float64, and their running statistics
are copied just before and just after. They must be (1 - m) running + m batch, with the momentum m that the layer
declares (without one, the mean of all batches) and the unbiased variance of the batch, of SyncBatchNorm over the ranks
of its group together; the count of batches goes up by one. In evaluation mode they must stay the same, bit for bit.
Rounding may explain 8 units of the format of the statistics, and of sums over n values in any order n units of what
they were summed in, for the variance three times that. There are no statistics and so no false alarms.

What it may miss
----------------
Layers that are compiled, or have a `forward` of their own (it is then not known what they mean to keep); steps, layers
and channels that were not sampled; what is off by less than rounding explains, as a biased variance over more than
about 2,000 values a channel. It was not tried with the kernels of SyncBatchNorm, which need a GPU. That a validation in
training mode is meant, as to measure the statistics anew, cannot be told: so it is an information.

Example
-------
The running statistics of the layers 1 and 4 on rank 0 at steps 0-11 are not what batch normalisation declares: the
variance is off.

Wrong and right
---------------
Wrong:

```python
for x, y in loader:
    loss = criterion(model(x), y)
    if loss.isfinite():  # the update is left out, but running_mean and running_var are NaN by now
        update(loss)
```

Right:

```python
for x, y in loader:
    if x.isfinite().all():
        update(criterion(model(x), y))
```
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.batch_norm.running_statistics import Counted, NormPass, excess, sampled_passes, whole_batch
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "batch-norm-differs"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("norm_facts", "norm_values")

FEWEST = 3
"""Gaps between sampled steps in which only what is trained on was counted."""

Kind = Literal["rule", "evaluation", "nonfinite", "again", "frozen", "between"]

_ADVICE: Mapping[Kind, str] = {
    "rule": "Compare with the same layer in float64 on the CPU: if that is right, the kernel here is wrong. Look for a "
    "newer version, and for what writes into running_mean and running_var.",
    "evaluation": "Look for what writes into running_mean and running_var while the layer is in evaluation mode.",
    "nonfinite": "Go back to a checkpoint from before that step, or measure the statistics anew over some batches; "
    "look at a batch before the model sees it, since leaving out its update is too late.",
    "again": "If that is not meant, leave batch normalisation out of what is checkpointed, or use a smaller momentum.",
    "frozen": "If the layer is to stay as it is, call its eval() after each model.train().",
    "between": "If these batches are not to train, call model.eval() before and model.train() after them.",
}


def check(run: Run) -> list[Finding]:
    """A Finding for each way in which statistics are not as declared; raises ``CannotTell`` where none was seen."""
    passes, counted = sampled_passes(run)
    if not passes:
        raise CannotTell(
            "no pass of torch's BatchNorm was seen in a sampled step: the model has none, it is compiled, or its "
            "layers have a forward of their own",
            reason="by-design",
        )
    every = {(one.step, one.rank, one.name, one.number): one for one in passes}
    of_kind: defaultdict[Kind, list[tuple[NormPass, float]]] = defaultdict(list)
    for one in passes:
        whole = whole_batch(one, every)
        off = None if whole is None else excess(whole)
        if off is None or whole is None:
            continue
        if _is_poisoned(whole):
            of_kind["nonfinite"].append((one, math.inf))
        elif (worst := max(float(np.max(each)) for each in off.values())) > 1:
            of_kind["rule" if one.tracks else "evaluation"].append((one, worst))
        if one.frozen and one.tracks:
            of_kind["frozen"].append((one, 0.0))
    found = [_finding(kind, some, passes, every) for kind, some in sorted(of_kind.items())]
    return [*found, *_again(counted), *_between(run, counted)]


def _is_poisoned(one: NormPass) -> bool:
    """Whether statistics have no finite number, and the batch has."""
    old, new = np.concatenate(one.before[1:]), np.concatenate(one.after[1:])
    finite = bool(np.isfinite(one.sums).all() and np.isfinite(one.squares).all())
    return finite and not np.isfinite(old).all() and not np.isfinite(new).all()


def _finding(
    kind: Kind,
    some: Sequence[tuple[NormPass, float]],
    among: Sequence[NormPass],
    every: Mapping[tuple[int, int, str, int], NormPass],
) -> Finding:
    passes = [one for one, _ in some]
    names = _names(passes)
    layers = "layer" if len(names) == 1 else "layers"
    steps, ranks = sorted({one.step for one in passes}), tuple(sorted({one.rank for one in passes}))
    where = f"on {ranks_text(ranks)} at {steps_text(steps, among=sorted({one.step for one in among}))}"
    claims: dict[Kind, str] = {
        "rule": f"The running statistics of the {layers} {named_some(names)} {where} are not what batch "
        f"normalisation declares{_how(passes, every)}.",
        "evaluation": f"The running statistics of the {layers} {named_some(names)} change {where} in evaluation mode.",
        "nonfinite": f"The running statistics of the {layers} {named_some(names)} hold NaN or infinity {where}, while "
        "what goes in is finite: an earlier batch was not, and evaluation will be NaN.",
        "frozen": f"No parameter of the {layers} {named_some(names)} is trained, but the running statistics "
        f"change {where}.",
    }
    severity: Severity = "info" if kind == "frozen" else "error"
    return Finding(
        code=CODE,
        severity=severity,
        claim=claims[kind],
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="fwd", names=names[: MAX_SITES // 2]),
        measured=None if kind in ("nonfinite", "frozen") else max(worst for _, worst in some),
        expected=None if kind in ("nonfinite", "frozen") else 1.0,
        unit="largest difference, over what rounding may explain (at most)",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "names": names[:100]},
        next=(_ADVICE[kind],),
    )


def _how(passes: Sequence[NormPass], every: Mapping[tuple[int, int, str, int], NormPass]) -> str:
    """What is off, if it is one thing: the mean, the variance or the count."""
    off = [excess(whole) for one in passes if (whole := whole_batch(one, every)) is not None]
    wrong = {name for each in off if each is not None for name, values in each.items() if (values > 1).any()}
    named = {"mean": "the mean", "variance": "the variance", "count": "the count of batches"}
    return f": {named[wrong.pop()]} is off" if len(wrong) == 1 else ""


def _names(passes: Sequence[NormPass | Counted]) -> list[str]:
    return list(dict.fromkeys(one.name for one in passes))


def _again(counted: Sequence[Counted]) -> list[Finding]:
    """Layers that count a batch in the forward pass and once more in the backward pass."""
    twice = [one for one in counted if 0 < one.again < one.passes and one.last - one.first >= one.passes]
    if not twice:
        return []
    names, steps = _names(twice), sorted({one.step for one in twice})
    claim = (
        f"Activation checkpointing computes {named_some(names)} again in the backward pass, which counts each batch "
        "twice in the running statistics: they follow the last batches more closely than their momentum says."
    )
    return [_info("again", claim, names, steps, sorted({one.rank for one in twice}))]


def _between(run: Run, counted: Sequence[Counted]) -> list[Finding]:
    """Batches that the first layer counts between some steps, and not between others, and that no step descends."""
    rank = run.ranks[0]  # DDP gives the others the count of the first
    own = [one for one in counted if one.rank == rank]
    numbers, measured = (each[:, 0] for each in run.pivot("num_micro"))
    micro = {int(step): float(num) for step, num, known in zip(run.steps, numbers, measured, strict=True) if known}
    quiet, loud = 0, list[tuple[int, int, float]]()
    for before, after in pairwise(one for one in own if one.name == own[0].name and one.passes):
        steps = range(before.step + 1, after.step)
        if before.passes != micro.get(before.step) or any(step not in micro for step in steps):
            continue
        more = after.first - before.last - sum(micro[step] for step in steps)
        quiet += more == 0
        if more > 0:
            loud.append((before.step, after.step, more))
    if not loud or quiet < FEWEST:
        return []
    begin, end, more = loud[0]
    claim = (
        f"{own[0].name} counts {more:.0f} more batch{'' if more == 1 else 'es'} between steps {begin} and {end} on "
        f"{ranks_text((rank,))} than these train on, as an evaluation in training mode does: its running statistics "
        "hold these, too."
    )
    return [_info("between", claim, [own[0].name], [begin, loud[-1][1]], [rank])]


def _info(kind: Kind, claim: str, names: Sequence[str], steps: Sequence[int], ranks: Sequence[int]) -> Finding:
    return Finding(
        code=CODE,
        severity="info",
        claim=claim,
        ranks=tuple(ranks),
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="fwd", names=names[: MAX_SITES // 2]),
        false_alarm_rate=0.0,
        evidence={"kind": kind, "names": list(names[:100])},
        next=(_ADVICE[kind],),
    )
