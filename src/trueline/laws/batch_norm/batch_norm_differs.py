"""Batch normalisation keeps other running statistics than it declares.

What it finds
-------------
A kernel that updates the running mean or variance by another rule, such as the biased variance, or of SyncBatchNorm the
mean of the variances of the ranks; statistics that change in evaluation mode. Statistics that a batch with NaN or
infinity has left without a finite number, while training goes on. As information: passes that activation checkpointing
makes again, which count each batch twice; batches that are counted between training steps, as a validation in training
mode does; layers whose parameters are frozen and whose statistics are not. These are to be confirmed where all of the
part that they are in is frozen: it returns something else at the end of the training than at its start.

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
from trueline.laws.batch_norm.running_statistics import (
    BatchCount,
    NormPass,
    PassKey,
    excess,
    sampled_passes,
    whole_batch,
)
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "batch-norm-differs"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("norm_facts", "norm_values")

FEWEST = 3
"""Gaps between sampled steps in which only what is trained on was counted."""

BatchNormFault = Literal["rule", "evaluation", "nonfinite", "again", "frozen", "between"]

_ADVICE: Mapping[BatchNormFault, str] = {
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
    passes, counts = sampled_passes(run)
    if not passes:
        raise CannotTell(
            "no pass of torch's BatchNorm was seen in a sampled step: the model has none, it is compiled, or its "
            "layers have a forward of their own",
            reason="by-design",
        )
    by_key = {norm_pass.key: norm_pass for norm_pass in passes}
    faulty: defaultdict[BatchNormFault, list[tuple[NormPass, float]]] = defaultdict(list)
    for norm_pass in passes:
        whole = whole_batch(norm_pass, by_key)
        excesses = None if whole is None else excess(whole)
        if excesses is None or whole is None:
            continue
        if _is_poisoned(whole):
            faulty["nonfinite"].append((norm_pass, math.inf))
        elif (worst := max(float(np.max(values)) for values in excesses.values())) > 1:
            faulty["rule" if norm_pass.tracks else "evaluation"].append((norm_pass, worst))
        if norm_pass.frozen and norm_pass.tracks:
            faulty["frozen"].append((norm_pass, 0.0))
    in_frozen_part = _in_frozen_parts(run, [norm_pass for norm_pass, _ in faulty["frozen"]])
    if in_frozen_part:
        faulty["frozen"] = [entry for entry in faulty["frozen"] if entry[0].name in in_frozen_part]
    findings = [
        _pass_finding(fault, affected, by_key, is_part=bool(in_frozen_part))
        for fault, affected in sorted(faulty.items())
        if affected
    ]
    return [*findings, *_recomputation_findings(counts), *_evaluation_findings(run, counts)]


def _in_frozen_parts(run: Run, passes: Sequence[NormPass]) -> set[str]:
    """Names of layers beside which other parameters of the module that holds them are frozen, and none is trained."""
    names = set[str]()
    for norm_pass in passes:
        part, env = norm_pass.name.rpartition(".")[0], run.env.get(norm_pass.rank)
        if env is not None and part:
            others = [name for name in env.frozen if name.startswith(f"{part}.") and norm_pass.name not in name]
            if others and not any(name.startswith(f"{part}.") for name in env.params):
                names.add(norm_pass.name)
    return names


def _is_poisoned(norm_pass: NormPass) -> bool:
    """True if statistics have no finite number, and the batch has."""
    # NaN and infinity stay in a running average: batches that are finite do not mend it.
    old, new = np.concatenate(norm_pass.before[1:]), np.concatenate(norm_pass.after[1:])
    finite = bool(np.isfinite(norm_pass.sums).all() and np.isfinite(norm_pass.squares).all())
    return finite and not np.isfinite(old).all() and not np.isfinite(new).all()


def _pass_finding(
    fault: BatchNormFault,
    affected: Sequence[tuple[NormPass, float]],
    by_key: Mapping[PassKey, NormPass],
    *,
    is_part: bool,
) -> Finding:
    """The Finding of passes, each with its largest excess, among all that were sampled. ``is_part`` says of frozen
    layers that all of what they are in is frozen.
    """
    passes = [norm_pass for norm_pass, _ in affected]
    names = _names(passes)
    layers = f"the {'layer' if len(names) == 1 else 'layers'} {named_some(names)}"
    is_are, it_them = ("is", "it") if len(names) == 1 else ("are", "them")
    steps = sorted({norm_pass.step for norm_pass in passes})
    ranks = tuple(sorted({norm_pass.rank for norm_pass in passes}))
    sampled_steps = sorted({step for step, *_ in by_key})
    location = f"on {ranks_text(ranks)} at {steps_text(steps, among=sampled_steps)}"
    claims: dict[BatchNormFault, str] = {
        "rule": f"The running statistics of {layers} {location} are not what batch normalisation "
        f"declares{_wrong_statistic(passes, by_key)}.",
        "evaluation": f"The running statistics of {layers} change {location} in evaluation mode.",
        "nonfinite": f"The running statistics of {layers} hold NaN or infinity {location}, while what goes in is "
        "finite: an earlier batch was not, and evaluation will be NaN.",
        "frozen": f"{layers[0].upper()}{layers[1:]} {is_are} frozen with the part of the model around {it_them}, and "
        f"the running statistics change {location}, as in training mode: what is frozen does not stay as it was loaded."
        if is_part
        else f"No parameter of {layers} is trained, but the running statistics change {location}.",
    }
    severity: Severity = "error" if fault != "frozen" else "confirm" if is_part else "info"
    has_number = fault not in ("nonfinite", "frozen")
    return Finding(
        code=CODE,
        severity=severity,
        claim=claims[fault],
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="fwd", names=names[: MAX_SITES // 2]),
        measured=max(worst for _, worst in affected) if has_number else None,
        expected=1.0 if has_number else None,
        unit="largest difference, over what rounding may explain (at most)",
        false_alarm_rate=0.0,
        evidence={"kind": fault, "names": names[:100]},
        next=(_ADVICE[fault],),
    )


def _wrong_statistic(passes: Sequence[NormPass], by_key: Mapping[PassKey, NormPass]) -> str:
    """``: the mean is off``, or the variance, or the count; '' if several are."""
    wholes = [whole for norm_pass in passes if (whole := whole_batch(norm_pass, by_key)) is not None]
    excesses = [values_by_name for whole in wholes if (values_by_name := excess(whole)) is not None]
    wrong = {name for by_name in excesses for name, values in by_name.items() if (values > 1).any()}
    phrases = {"mean": "the mean", "variance": "the variance", "count": "the count of batches"}
    return f": {phrases[wrong.pop()]} is off" if len(wrong) == 1 else ""


def _names(samples: Sequence[NormPass | BatchCount]) -> list[str]:
    return list(dict.fromkeys(sample.name for sample in samples))


def _recomputation_findings(counts: Sequence[BatchCount]) -> list[Finding]:
    """Layers that count a batch in the forward pass and once more in the backward pass."""
    twice = [
        count for count in counts if 0 < count.in_backward < count.passes and count.last - count.first >= count.passes
    ]
    if not twice:
        return []
    names, steps = _names(twice), sorted({count.step for count in twice})
    claim = (
        f"Activation checkpointing computes {named_some(names)} again in the backward pass, which counts each batch "
        "twice in the running statistics: they follow the last batches more closely than their momentum says."
    )
    return [_info("again", claim, names, steps, sorted({count.rank for count in twice}))]


def _evaluation_findings(run: Run, counts: Sequence[BatchCount]) -> list[Finding]:
    """Batches that the first layer counts between some steps, and not between others, and that no step descends."""
    rank = run.ranks[0]  # DDP gives the others the count of the first
    counts_of_rank = [count for count in counts if count.rank == rank]
    numbers, measured = (cells_TN[:, 0] for cells_TN in run.pivot("num_micro"))
    cells = zip(run.steps, numbers, measured, strict=True)
    num_micro = {int(step): float(num) for step, num, is_measured in cells if is_measured}
    num_quiet, excesses = 0, list[tuple[int, int, float]]()
    layer = counts_of_rank[0].name if counts_of_rank else ""
    for before, after in pairwise(count for count in counts_of_rank if count.name == layer and count.passes):
        steps = range(before.step + 1, after.step)
        if before.passes != num_micro.get(before.step) or any(step not in num_micro for step in steps):
            continue
        num_extra = after.first - before.last - sum(num_micro[step] for step in steps)
        num_quiet += num_extra == 0
        if num_extra > 0:
            excesses.append((before.step, after.step, num_extra))
    # Batches that are counted in every gap may be those of a training that updates less often.
    if not excesses or num_quiet < FEWEST:
        return []
    begin, end, num_extra = excesses[0]
    claim = (
        f"{layer} counts {num_extra:.0f} more batch{'' if num_extra == 1 else 'es'} between steps {begin} and "
        f"{end} on {ranks_text((rank,))} than these train on, as an evaluation in training mode does: its running "
        "statistics hold these, too."
    )
    return [_info("between", claim, [layer], [begin, excesses[-1][1]], [rank])]


def _info(
    fault: BatchNormFault, claim: str, names: Sequence[str], steps: Sequence[int], ranks: Sequence[int]
) -> Finding:
    return Finding(
        code=CODE,
        severity="info",
        claim=claim,
        ranks=tuple(ranks),
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="fwd", names=names[: MAX_SITES // 2]),
        false_alarm_rate=0.0,
        evidence={"kind": fault, "names": list(names[:100])},
        next=(_ADVICE[fault],),
    )
