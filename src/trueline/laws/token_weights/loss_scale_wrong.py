"""All tokens together weigh another number than 1.

What it finds
-------------
A loss that is not divided by the accumulation steps, is divided twice, or is multiplied by a constant: the learning
rate and the clipping norm are in effect that many times as large. Gradients that still have the scale of a `GradScaler`
when the optimizer updates, or are divided by it twice. Gradients that are cleared in front of each micro-batch, so that
only the last one counts. A rank whose loss is divided by another number than the others'.

Why it matters
--------------
All ranks share it, the loss that is logged often is right, and the run looks like one with a bad learning rate.

How it decides
--------------
By arithmetic, at the steps and micro-batches at which `token-weights-differ` looks: the number of tokens times what
each weighs, added up over micro-batches, in the mean over ranks, times what the reduction was measured to multiply
with (a sum of losses that were divided before is right). The sum is to be 1, to 1 % or the roundings on the way (2u(n +
4)).

What the script does to gradients after backward is seen, too, at a few elements: where they are divided such that the
sum comes to 1, nothing is wrong, and where they are so much smaller that it comes to less (clipped, perhaps), nothing
is said. It is reported where it was the same wrong sum in at least half of the steps that tell since the first one, and
it is a warning: a constant factor can be meant.

Where the tokens of half of the ranks or more weigh 1 together, a rank each, and those of the others the same other
number at all steps since the first one, three or more, the others are named, and it is an error: their loss is divided
by another number. Ranks whose tokens weigh alike, and of which they have different numbers, are no such case, nor are
groups of ranks that `worker_groups` in the plan says are meant to differ.

What a `GradScaler` of torch multiplied the loss by is to be divided out of gradients before the update, once: at the
same few elements, gradients that are as many times too large as the scale, or too small, at three steps or more and all
that tell since, have it in them or were divided twice. That needs no cross-entropy. Optimizers that divide by
themselves (`fused`) or hold copies of the model's parameters are left alone.

Before each update it is counted how many a `GradScaler` of torch has left out (it did not step the optimizer), and its
scale is noted; after the last one, too. All updates from one on were left out where that is three or more, and the
scale is below 1 or has not fallen by its backoff factor each time; else it may still come to one at which gradients are
finite. A scale below 1
makes small gradients smaller, which it is there to prevent ("something is likely wrong", says torch's page): a finding
where it was 1 or more before, at three updates or more. It began anew where the first update after a start of the job
has the numbers of the very first one, and they do not follow from the update before by its growth and backoff factors.

Left alone are sums that are meant: a token that weighs 1, or 1 over the number of samples (the sum over a sample's
tokens); as many as there are ranks (multiplied since the reduction averages), unless that is also the number of
micro-batches and nothing is multiplied or divided at all; one over the ranks, other than under DDP (a reduction that
was told to add); powers of two from 16 on, which are a loss scale that was not seen; and steps with fewer micro-batches
than others. Where targets are next tokens, and the loss is divided by the number of labels, of which each sample's
first one is no target, that is told as information.

What it may miss
----------------
What `token-weights-differ` may miss; sums that change from step to step; gradients that are reduced by hand. Updates
that fused optimizers leave out by themselves are not counted, and those left out to the end are told once watching has
ended.

Example
-------
All tokens together weigh 4 at steps 0-15: the loss is not divided by the 4 micro-batches of a step.

Wrong and right
---------------
Wrong:

```python
for batch in micro_batches:
    cross_entropy(model(batch.x), batch.y).backward()  # gradients add up to 4 means
optimizer.step()
```

Right:

```python
for batch in micro_batches:
    (cross_entropy(model(batch.x), batch.y) / len(micro_batches)).backward()
optimizer.step()
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, data_parallel_ranks
from trueline.judge.series.target_places import NEXT, target_places
from trueline.laws.token_weights.loss_scaler import LEAST as LEAST_SCALE
from trueline.laws.token_weights.loss_scaler import Fault, faults_of
from trueline.laws.token_weights.token_weighting import LEAST, Weighed, noun_of, weighed_steps
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.words import ranks_text, steps_text
from trueline.store.reader import Run

CODE = "loss-scale-wrong"
CALLS = {"": ("backward",), "cleared-early": ("zero_grad",)}
QUESTION = "weights"
NEEDS: tuple[str, ...] = (
    "token_weights",
    "target_places",
    "grads_factor",
    "loss_scale",
    "passes_begun",
    "loss_scaler",
    "closing_loss_scaler",
)

NEAR = 0.02
"""Relative difference within which factors that were measured at gradients are equal: those of bfloat16 are."""

FEWEST = 3
"""Steps at which a factor is the loss scale for that to be no coincidence."""

EQUAL = 1e-3
"""Relative difference within which a sum is a quotient of two counts: it is exact but for rounding, and with a thousand
targets a sample one more is within ``LEAST``."""

LOSS_SCALE = 16.0
"""Powers of two from here on may be a loss scale."""


@dataclass(frozen=True)
class _Sum:
    """What all tokens of ``of`` weigh together, and whether that is wrong: None where gradients were changed after
    backward so that it cannot be told.
    """

    of: Weighed
    value: float
    wrong: bool | None


def check(run: Run) -> list[Finding]:
    """Findings of loss scales that are left in gradients, taken out twice or of no use, and of sums that are not 1;
    raises ``CannotTell`` where no step tells, or the sum may be meant.
    """
    scaled = [finding for kind, power in _OF_SCALE.items() for finding in _of_scale(run, kind, power)]
    scaled += _of_scalers(faults_of(run))
    try:
        if odd := _of_ranks(run):
            return [*scaled, odd]
        return [*scaled, *_of_sums(run)]
    except CannotTell:
        if not scaled:
            raise
        return scaled


def _of_scale(run: Run, kind: str, power: int) -> Iterator[Finding]:
    """Where gradients at the update are the loss scale to ``power`` times too large, on all ranks."""
    ranks = data_parallel_ranks(run)
    columns = [run.ranks.index(rank) for rank in ranks]
    (scales, has_scale), (factors, has_factor) = (run.pivot(name) for name in ("loss_scale", "grads_factor"))
    told_T = has_scale[:, columns].all(axis=1) & has_factor[:, columns].all(axis=1)
    scale_TN, factor_TN = scales[told_T][:, columns], factors[told_T][:, columns]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        near_TN = np.abs(factor_TN / scale_TN**power - 1) <= NEAR
    wrong_T = np.all(near_TN & ((scale_TN >= 2) | (scale_TN <= 0.5)), axis=1)
    steps, first = run.steps[told_T], int(np.argmax(wrong_T)) if wrong_T.any() else 0
    if int(wrong_T.sum()) < FEWEST or not wrong_T[first:].all():
        return
    factor, scale = float(factor_TN[first, 0]), float(scale_TN[first, 0])
    yield Finding(
        code=CODE,
        severity="warning",
        claim=f"Gradients are {factor:.6g} times what the loss says at "
        f"{steps_text(steps[first:].tolist(), among=steps.tolist())}: {_SAID[kind].format(scale=f'{scale:g}')}.",
        ranks=tuple(ranks),
        step_first=int(steps[first]),
        step_last=int(steps[-1]),
        sites=tuple(str(Site(int(steps[first]), 0, rank, "bwd", "all")) for rank in ranks[:2]),
        measured=factor,
        expected=1.0,
        unit="times the gradient of the loss, at the update",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "steps": steps[first:][:100].tolist()},
        next=(
            "Step the optimizer by scaler.step(optimizer), which divides gradients by the scale unless "
            "scaler.unscale_(optimizer) has; divide nowhere else.",
        ),
    )


_OF_SCALE = {"never-unscaled": 1, "unscaled-twice": -1}
_SAID = {
    "never-unscaled": "they still have the loss scale {scale}",
    "unscaled-twice": "they are divided by the loss scale {scale} twice",
}


def _of_scalers(every: Sequence[Fault]) -> Iterator[Finding]:
    """One Finding for each kind of fault, with the ranks that had it at the same steps."""
    for kind, first in dict.fromkeys((each.kind, each.first) for each in every):
        alike = [each for each in every if (each.kind, each.first) == (kind, first)]
        one, ranks = alike[0], tuple(sorted(each.rank for each in alike))
        where = ranks_text(ranks)
        came = f"{'fell' if one.now < one.before else 'went'} from {one.before:g} to {one.now:g}"
        claims = {
            "left-out": f"The gradient scaler left out all {one.num_left_out} updates after step {first} on {where}, "
            f"as gradients were not finite, and its scale {came if one.now != one.before else f'stays {one.now:g}'}.",
            "collapsed": f"The loss scale fell to {one.now:g} on {where}: it is below 1 since step {first}, and makes "
            "small gradients smaller.",
            "began-anew": f"The job was started again at step {first}, and the loss scale on {where} {came}, as at "
            "the very first update: the scaler's state was not restored.",
        }
        yield Finding(
            code=CODE,
            severity="error" if kind == "left-out" else "warning",
            claim=claims[kind],
            ranks=ranks,
            step_first=first,
            step_last=max(each.last for each in alike),
            sites=tuple(str(Site(first, 0, rank, "loss", "all")) for rank in ranks[:2]),
            measured=float(one.num_left_out) if kind == "left-out" else one.now,
            expected={"left-out": 0.0, "collapsed": LEAST_SCALE, "began-anew": one.before}[kind],
            unit="updates left out to the end" if kind == "left-out" else "loss scale",
            false_alarm_rate=0.0,
            evidence={"kind": kind},
            next=_OF_SCALER["began-anew" if kind == "began-anew" else "no scale"],
        )


_OF_SCALER = {
    "began-anew": ("Save scaler.state_dict() with the checkpoint, and load it where the job is started again.",),
    "no scale": (
        "Print loss.item() and which gradients are not finite at one of these steps: where a loss or an activation "
        "overflows in the forward pass, no scale helps. Compute that part in float32 or bfloat16.",
        "If the scale stays: keep one scaler for the whole training, and call scaler.update() after every "
        "scaler.step(optimizer).",
    ),
}


def _of_sums(run: Run) -> list[Finding]:
    every = weighed_steps(run)
    most = max(each.num_micro or 0 for each in every)
    whole = [each for each in every if each.num_micro == most and (not each.differs or each.is_means)]
    sums = list(_sums(run, whole))
    known = [each for each in sums if each.wrong is not None]
    if not known:
        raise CannotTell(
            "what happens to gradients between backward and update is not known, or not only a division"
            if whole
            else "micro-batches have weights of their own, which are not those of means",
            reason="undecidable",
        )
    wrong = [each for each in known if each.wrong]
    since = [each for each in known if wrong and each.of.step >= wrong[0].of.step]
    if 2 * len(wrong) < len(since) or not wrong:
        return []
    value = float(np.median([each.value for each in wrong]))
    num_ranks = len(data_parallel_ranks(run))
    steps, noun = [each.of.step for each in known], noun_of(run)
    if _first_is_counted(run, wrong):
        because = ": the loss is divided by one more token of each sample than is a target"
        return [_finding(wrong, value, "first-counted", because, among=steps, noun=noun)]
    if any(abs(each.value / value - 1) > each.of.tolerance for each in wrong):
        raise CannotTell(
            f"all tokens together weigh {min(each.value for each in wrong):.3g} to "
            f"{max(each.value for each in wrong):.3g}, as a loss that is a sum on purpose",
            reason="undecidable",
        )
    if meant := _meant(run, [each.of for each in wrong], value, num_ranks):
        raise CannotTell(f"all tokens together weigh {value:.4g}, {meant}", reason="undecidable")
    if begun := _num_begun(run, wrong):
        cleared = _finding(wrong, value, "cleared-early", "", among=steps, noun=noun)
        return [replace(cleared, claim=_thrown_away(wrong, begun, among=steps, num_steps=len(run.steps)))]
    kind, because = _kind(value, wrong[0].of, num_ranks)
    return [_finding(wrong, value, kind, because, among=steps, noun=noun)]


def _thrown_away(wrong: Sequence[_Sum], begun: int, *, among: Sequence[int], num_steps: int) -> str:
    lost = "1 of every 2 micro-batches is" if begun == 2 else f"{begun - 1} of every {begun} micro-batches are"
    at, tested = steps_text([each.of.step for each in wrong], among=among), steps_text(among, among=among)
    seen = f"{at} tested" if at == tested else f"at {at}; {tested} tested"
    return f"{lost} thrown away: zero_grad() runs before each of them ({seen}, of {num_steps:,})."


def _of_ranks(run: Run) -> Finding | None:
    """Where tokens of most ranks weigh 1 together, and those of others the same other number at all steps since."""
    every = weighed_steps(run)
    odd = [
        {rank: total for rank, total in each.totals.items() if not _is(total, 1.0, each.tolerance)} for each in every
    ]
    since = next((place for place, totals in enumerate(odd) if totals), len(odd))
    steps, odd = every[since:], odd[since:]
    if len(steps) < FEWEST or 2 * len(odd[0]) > len(steps[0].totals):
        return None
    for each, totals in zip(steps, odd, strict=True):
        if totals.keys() != odd[0].keys() or any(not _is(totals[r], odd[0][r], each.tolerance) for r in totals):
            return None
    groups = run.manifest.plan.get("worker_groups") or [steps[0].totals]
    if not any(0 < len(odd[0].keys() & group) < len(group) for group in map(set, groups)):
        return None
    ranks, noun = tuple(sorted(odd[0])), noun_of(run)
    values = " and ".join(f"{odd[0][rank]:.4g}" for rank in ranks[:MAX_SITES])
    among = [each.step for each in every]
    return Finding(
        code=CODE,
        severity="error",
        claim=f"All {noun}s of {ranks_text(ranks)} together weigh {values} at "
        f"{steps_text([each.step for each in steps], among=among)}, those of each other rank 1.",
        ranks=ranks,
        step_first=steps[0].step,
        step_last=steps[-1].step,
        sites=tuple(str(Site(steps[0].step, 0, rank, "loss", "all")) for rank in ranks[:2]),
        measured=odd[0][ranks[0]],
        expected=1.0,
        unit=f"sum of the weights of all {noun}s of a rank",
        false_alarm_rate=0.0,
        evidence={"kind": "some-ranks", "steps": [each.step for each in steps][:100]},
        next=(
            f"Print on {ranks_text(ranks)} and on another rank what the loss of each micro-batch is multiplied and "
            "divided by, and how many micro-batches a step has.",
        ),
    )


def _num_begun(run: Run, wrong: Sequence[_Sum]) -> int:
    """How many backward passes each step began on each rank, where gradients were cleared in front of each, so that the
    last one alone counts, with the weight of its share; else 0.
    """
    begun, measured = run.pivot("passes_begun")
    steps = np.isin(run.steps, [each.of.step for each in wrong])
    columns = [run.ranks.index(rank) for rank in data_parallel_ranks(run)]
    counts = np.unique(begun[steps][:, columns]) if measured[steps][:, columns].all() else np.zeros(0)
    num = int(counts[0]) if len(counts) == 1 else 0
    alone = num > 1 and all(each.of.num_micro == 1 and _is(each.value * num, 1.0, NEAR) for each in wrong)
    return num if alone else 0


def _sums(run: Run, steps: Sequence[Weighed]) -> list[_Sum]:
    ranks = data_parallel_ranks(run)
    factors, measured = run.pivot("grads_factor")
    row_of = {int(step): row for row, step in enumerate(run.steps)}
    columns = [run.ranks.index(rank) for rank in ranks]
    reduced = run.lists("group_reduce_factor", steps=[each.step for each in steps]) if len(ranks) > 1 else {}
    sums: list[_Sum] = []
    for each in steps:
        by = _reduction_of(run, each.step, ranks, reduced)
        row = row_of[each.step]
        told = by is not None and bool(measured[row, columns].all())
        value = each.total * (by or 1.0)
        sums.append(_Sum(each, value, _is_wrong(value, factors[row, columns], each.tolerance) if told else None))
    return sums


def _is_wrong(value: float, factors: np.ndarray, tolerance: float) -> bool | None:
    """Whether tokens that weigh ``value`` together do not come to 1, with what gradients were multiplied by after
    backward. Clipping makes them smaller, nothing makes them larger.
    """
    if abs(value - 1) <= tolerance:
        return False
    factor = float(np.median(factors))
    if np.ptp(factors) > NEAR * abs(factor) or factor > 1 + NEAR or factor <= 0:
        return None
    if abs(value * factor - 1) <= NEAR:
        return False
    return None if value > 1 > value * factor else True


def _reduction_of(
    run: Run, step: int, ranks: Sequence[int], reduced: Mapping[tuple[int, int], np.ndarray]
) -> float | None:
    """By what the reduction multiplies the mean over ranks: 1, or their number where it adds; None if unclear."""
    if len(ranks) == 1:
        return 1.0
    values = [np.asarray(reduced[step, rank], dtype=np.float64) for rank in ranks if (step, rank) in reduced]
    finite = [value for each in values for value in each[np.isfinite(each)]]
    if not finite:
        return None
    factor = float(np.median(finite))
    near = [known for known in (1.0, float(len(ranks))) if abs(factor / known - 1) <= NEAR]
    return near[0] if near else None


def _meant(run: Run, steps: Sequence[Weighed], value: float, num_ranks: int) -> str:
    """Why this sum may be on purpose, in words; '' where nothing suggests so."""
    told = steps[0]
    micros = told.num_micro or 1
    near = LEAST + told.rounding
    if micros > 1 and _is(value, micros, near) and not (_is(value, num_ranks, near) and told.scalings):
        return ""
    if num_ranks > 1 and _is(value, num_ranks, near):
        return "as many as there are ranks: the loss may be multiplied since the reduction averages"
    if num_ranks > 1 and _is(value * num_ranks, 1.0, near) and run.manifest.adapter != "ddp":
        return "one over the ranks: the reduction may have been told to add"
    if value >= LOSS_SCALE * (1 - near) and _is(value, 2.0 ** round(math.log2(value)), near):
        return "a power of two, as a loss scale that was not seen"
    if told.reduction != 1 and value > 1 and _per_sample(run, told, near):
        return "as a loss that is a sum over the tokens of a sample, or of all"
    return ""


def _first_is_counted(run: Run, wrong: Sequence[_Sum]) -> bool:
    """Whether at each step the loss is divided by one more token a sample than it has targets, which are known to be
    next tokens: of targets of samples, a loss that is divided by 2 has the same sum.
    """
    ranks = data_parallel_ranks(run)
    places = target_places(run)
    if any(places.get(rank) != NEXT for rank in ranks):
        return False
    read = run.lists("sample_digests", steps=[each.of.step for each in wrong], ranks=ranks)
    for each in wrong:
        told = each.of
        num_samples = sum(len(read.get((told.step, rank), ())) for rank in ranks)
        num_targets = sum(part.tokens for part in told.parts)
        if not num_samples or not _is(each.value * (1 + num_samples / num_targets), 1.0, EQUAL + told.rounding):
            return False
    return True


def _per_sample(run: Run, told: Weighed, near: float) -> bool:
    """Whether a token weighs 1, or 1 over a number of samples: of a micro-batch, a rank's step, or all ranks'."""
    part = told.parts[0]
    read = run.lists("sample_digests", steps=[told.step], ranks=[part.rank]).get((told.step, part.rank), ())
    micros, num = told.num_micro or 1, len(read)
    counts = (1.0, float(num), num / micros, float(micros))
    return any(count and _is(part.weight * count, 1.0, near) for count in counts)


def _is(value: float, number: float, near: float) -> bool:
    return abs(value / number - 1) <= near


def _finding(
    wrong: Sequence[_Sum], value: float, kind: str, because: str, *, among: Sequence[int], noun: str
) -> Finding:
    steps = [each.of.step for each in wrong]
    told = wrong[0].of
    ranks = tuple(sorted(told.by_rank))
    return Finding(
        code=CODE,
        severity="info" if kind == "first-counted" else "warning",
        claim=f"All {noun}s together weigh {value:.4g} at {steps_text(steps, among=among)}{because}.",
        ranks=ranks,
        step_first=min(steps),
        step_last=max(steps),
        sites=tuple(str(Site(told.step, 0, rank, "loss", "all")) for rank in ranks[:2]),
        measured=value,
        expected=1.0,
        unit=f"sum of the weights of all {noun}s",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "steps": steps[:100], "num_micro": told.num_micro},
        next=tuple(advice.format(noun=noun) for advice in _ADVICE[kind]),
    )


_ADVICE = {
    "cleared-early": ("Call optimizer.zero_grad() once an update, not in front of each micro-batch.",),
    "first-counted": (
        "Nothing is wrong with the run: its learning rate is in effect that many times as large. Count "
        "labels[..., 1:] where labels are counted (Hugging Face's Trainer counts all of them where the model's class "
        "is not named …ForCausalLM, as GPT2LMHeadModel).",
    ),
    **dict.fromkeys(
        ("sum", "divided-again", "scaled"),
        (
            "Print what the loss of each micro-batch is multiplied and divided by: the mean over all {noun}s of a step "
            "is what an optimizer's usual learning rates are for.",
            "If the factor is meant, it belongs into the learning rate; Trueline can't tell that from a mistake.",
        ),
    ),
}


def _kind(value: float, told: Weighed, num_ranks: int) -> tuple[str, str]:
    """What is wrong with a loss whose tokens weigh ``value`` together, and that in words."""
    micros, near = told.num_micro or 1, LEAST + told.rounding
    if micros > 1 and _is(value, micros, near):
        return "sum", f": the loss is not divided by the {micros} micro-batches of a step"
    if micros > 1 and _is(value * micros, 1.0, near):
        return "divided-again", f": the loss is divided once more by the {micros} micro-batches of a step"
    if num_ranks > 1 and _is(value * num_ranks, 1.0, near):
        return "divided-again", f": the loss is divided by the {num_ranks} ranks, over which the reduction averages"
    return "scaled", ", and should weigh 1"
