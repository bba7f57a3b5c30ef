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

Hugging Face's Trainer hands the number of targets of all micro-batches, `num_items_in_batch`, to each model whose
forward takes `**kwargs`, multiplies the loss by the ranks, and then leaves every division to the model. A model that
is given that number and whose targets weigh the micro-batches, or the micro-batches times the ranks, together, does
not divide by it: many classifiers of transformers return the plain mean.

Left alone are sums that are meant: a token that weighs 1, or 1 over the number of samples (the sum over a sample's
tokens); as many as there are ranks (multiplied since the reduction averages), unless that is also the number of
micro-batches and nothing is multiplied or divided at all; one over the ranks, other than under DDP (a reduction that
was told to add); powers of two from 16 on, which are a loss scale that was not seen; and steps with fewer micro-batches
than others. Where targets are next tokens, and the loss is divided by the number of labels, of which each sample's
first one is no target, that is told as information.

Nothing is said of a sum below 1 beside a term of the loss that has no gradient, as a distillation that is computed of
the teacher alone: the weights of the terms may add up to 1.

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
from trueline.laws.token_weights.loss_scaler import LEAST_SCALE, Fault, find_faults
from trueline.laws.token_weights.token_weighting import (
    LEAST_DIFFERENCE,
    WeighedStep,
    counted_noun,
    weighed_steps,
)
from trueline.schema.columns.input_values import input_facts
from trueline.schema.columns.loss_values import ConstantTerm
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
    "input_facts",
)

NEAR = 0.02
"""Relative difference within which factors that were measured at gradients are equal: those of bfloat16 are."""

MIN_STEPS = 3
"""Steps at which a factor is the loss scale for that to be no coincidence."""

EQUAL = 1e-3
"""Relative difference within which a sum is a quotient of two counts: it is exact but for rounding, and with a thousand
targets a sample one more is within ``LEAST_DIFFERENCE``."""

TARGET_COUNT = "num_items_in_batch"
"""Argument by which Hugging Face's Trainer gives a model the number of targets of all micro-batches and ranks."""

LOSS_SCALE = 16.0
"""Powers of two from here on may be a loss scale."""


@dataclass(frozen=True)
class _WeightSum:
    """Sum ``value`` of the weights of all tokens of a step, and whether it is wrong: None where gradients were changed
    after backward so that it cannot be told.
    """

    step: WeighedStep
    value: float
    is_wrong: bool | None


def check(run: Run) -> list[Finding]:
    """Findings of loss scales that are left in gradients, taken out twice or of no use, and of sums that are not 1;
    raises ``CannotTell`` where no step tells, or the sum may be meant.
    """
    findings = [finding for kind, power in _POWERS.items() for finding in _scale_findings(run, kind, power)]
    findings += _scaler_findings(find_faults(run))
    try:
        if finding := _odd_ranks_finding(run):
            return [*findings, finding]
        return [*findings, *_sum_findings(run)]
    except CannotTell:
        if not findings:
            raise
        return findings


def _scale_findings(run: Run, kind: str, power: int) -> Iterator[Finding]:
    """Finding on gradients that are the loss scale to ``power`` times too large at the update, on all ranks."""
    ranks = data_parallel_ranks(run)
    columns = [run.ranks.index(rank) for rank in ranks]
    (scales, has_scale), (factors, has_factor) = (run.pivot(name) for name in ("loss_scale", "grads_factor"))
    measured_T = has_scale[:, columns].all(axis=1) & has_factor[:, columns].all(axis=1)
    scale_TN, factor_TN = scales[measured_T][:, columns], factors[measured_T][:, columns]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        near_TN = np.abs(factor_TN / scale_TN**power - 1) <= NEAR
    wrong_T = np.all(near_TN & ((scale_TN >= 2) | (scale_TN <= 0.5)), axis=1)
    # a factor that is the loss scale once or twice, or not to the end, is a coincidence
    steps, first = run.steps[measured_T], int(np.argmax(wrong_T)) if wrong_T.any() else 0
    if int(wrong_T.sum()) < MIN_STEPS or not wrong_T[first:].all():
        return
    factor, scale = float(factor_TN[first, 0]), float(scale_TN[first, 0])
    yield Finding(
        code=CODE,
        severity="warning",
        claim=f"Gradients are {factor:.6g} times what the loss says at "
        f"{steps_text(steps[first:].tolist(), among=steps.tolist())}: "
        f"{_SCALE_CLAUSES[kind].format(scale=f'{scale:g}')}.",
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


_POWERS = {"never-unscaled": 1, "unscaled-twice": -1}
_SCALE_CLAUSES = {
    "never-unscaled": "they still have the loss scale {scale}",
    "unscaled-twice": "they are divided by the loss scale {scale} twice",
}


def _scaler_findings(faults: Sequence[Fault]) -> Iterator[Finding]:
    """One Finding for each kind of fault, with the ranks that had it at the same steps."""
    for kind, first in dict.fromkeys((fault.kind, fault.first) for fault in faults):
        alike = [fault for fault in faults if (fault.kind, fault.first) == (kind, first)]
        fault, ranks = alike[0], tuple(sorted(fault.rank for fault in alike))
        where = ranks_text(ranks)
        change = f"{'fell' if fault.now < fault.before else 'went'} from {fault.before:g} to {fault.now:g}"
        claims = {
            "left-out": f"The gradient scaler left out all {fault.num_left_out} updates after step {first} on {where}, "
            "as gradients were not finite, and its scale "
            f"{change if fault.now != fault.before else f'stays {fault.now:g}'}.",
            "collapsed": f"The loss scale fell to {fault.now:g} on {where}: it is below 1 since step {first}, and "
            "makes small gradients smaller.",
            "began-anew": f"The job was started again at step {first}, and the loss scale on {where} {change}, as at "
            "the very first update: the scaler's state was not restored.",
        }
        yield Finding(
            code=CODE,
            severity="error" if kind == "left-out" else "warning",
            claim=claims[kind],
            ranks=ranks,
            step_first=first,
            step_last=max(fault.last for fault in alike),
            sites=tuple(str(Site(first, 0, rank, "loss", "all")) for rank in ranks[:2]),
            measured=float(fault.num_left_out) if kind == "left-out" else fault.now,
            expected={"left-out": 0.0, "collapsed": LEAST_SCALE, "began-anew": fault.before}[kind],
            unit="updates left out to the end" if kind == "left-out" else "loss scale",
            false_alarm_rate=0.0,
            evidence={"kind": kind},
            next=_SCALER_ADVICE["began-anew" if kind == "began-anew" else "no scale"],
        )


_SCALER_ADVICE = {
    "began-anew": ("Save scaler.state_dict() with the checkpoint, and load it where the job is started again.",),
    "no scale": (
        "Print loss.item() and which gradients are not finite at one of these steps: where a loss or an activation "
        "overflows in the forward pass, no scale helps. Compute that part in float32 or bfloat16.",
        "If the scale stays: keep one scaler for the whole training, and call scaler.update() after every "
        "scaler.step(optimizer).",
    ),
}


def _sum_findings(run: Run) -> list[Finding]:
    """Finding on sums of weights that are not 1; raises ``CannotTell`` where they may be meant."""
    weighed = weighed_steps(run)
    # a step of fewer micro-batches is the incomplete one at the end of an epoch
    most_micro = max(step.num_micro or 0 for step in weighed)
    whole = [step for step in weighed if step.num_micro == most_micro and (not step.differs or step.is_means)]
    judged = [total for total in _weight_sums(run, whole) if total.is_wrong is not None]
    if not judged:
        raise CannotTell(
            "what happens to gradients between backward and update is not known, or not only a division"
            if whole
            else "micro-batches have weights of their own, which are not those of means",
            reason="undecidable",
        )
    wrong = [total for total in judged if total.is_wrong]
    since_first = [total for total in judged if wrong and total.step.step >= wrong[0].step.step]
    if 2 * len(wrong) < len(since_first) or not wrong:
        return []
    value = float(np.median([total.value for total in wrong]))
    num_ranks = len(data_parallel_ranks(run))
    steps, noun = [total.step.step for total in judged], counted_noun(run)
    if _first_is_counted(run, wrong):
        because = ": the loss is divided by one more token of each sample than is a target"
        return [_finding(wrong, value, "first-counted", because, among=steps, noun=noun)]
    if any(abs(total.value / value - 1) > total.step.tolerance for total in wrong):
        raise CannotTell(
            f"all tokens together weigh {min(total.value for total in wrong):.3g} to "
            f"{max(total.value for total in wrong):.3g}, as a loss that is a sum on purpose",
            reason="undecidable",
        )
    if because := _count_unused(run, wrong[0].step, value, num_ranks):
        return [_finding(wrong, value, "count-unused", because, among=steps, noun=noun)]
    if purpose := _possible_purpose(run, wrong[0].step, value, num_ranks):
        raise CannotTell(f"all tokens together weigh {value:.4g}, {purpose}", reason="undecidable")
    if num_passes := _num_cleared_passes(run, wrong):
        cleared = _finding(wrong, value, "cleared-early", "", among=steps, noun=noun)
        return [replace(cleared, claim=_cleared_claim(wrong, num_passes, among=steps, num_steps=len(run.steps)))]
    kind, because = _explain(value, wrong[0].step, num_ranks)
    if kind == "scaled" and value < 1 and _has_constant_term(run):
        raise CannotTell(
            f"all {noun}s together weigh {value:.4g} beside a term of the loss without a gradient, as a part of a "
            "weighted mean does",
            reason="undecidable",
        )
    return [_finding(wrong, value, kind, because, among=steps, noun=noun)]


def _cleared_claim(wrong: Sequence[_WeightSum], num_passes: int, *, among: Sequence[int], num_steps: int) -> str:
    subject = f"{num_passes - 1} of every {num_passes} micro-batches {'is' if num_passes == 2 else 'are'}"
    at, tested = steps_text([total.step.step for total in wrong], among=among), steps_text(among, among=among)
    where = f"{at} tested" if at == tested else f"at {at}; {tested} tested"
    return f"{subject} thrown away: zero_grad() runs before each of them ({where}, of {num_steps:,})."


def _odd_ranks_finding(run: Run) -> Finding | None:
    """Finding on ranks whose tokens weigh another number than 1 together, the same at all steps since the first one,
    while those of most ranks weigh 1.
    """
    weighed = weighed_steps(run)
    odd = [
        {rank: total for rank, total in step.totals.items() if not _is(total, 1.0, step.tolerance)} for step in weighed
    ]
    first = next((index for index, totals in enumerate(odd) if totals), len(odd))
    steps, odd = weighed[first:], odd[first:]
    if len(steps) < MIN_STEPS or 2 * len(odd[0]) > len(steps[0].totals):
        return None
    for step, totals in zip(steps, odd, strict=True):
        if totals.keys() != odd[0].keys() or any(not _is(totals[r], odd[0][r], step.tolerance) for r in totals):
            return None
    # groups that are meant to differ may: within one some must be odd, and some not
    groups = run.manifest.plan.get("worker_groups") or [steps[0].totals]
    if not any(0 < len(odd[0].keys() & group) < len(group) for group in map(set, groups)):
        return None
    ranks, noun = tuple(sorted(odd[0])), counted_noun(run)
    values = " and ".join(f"{odd[0][rank]:.4g}" for rank in ranks[:MAX_SITES])
    among = [step.step for step in weighed]
    return Finding(
        code=CODE,
        severity="error",
        claim=f"All {noun}s of {ranks_text(ranks)} together weigh {values} at "
        f"{steps_text([step.step for step in steps], among=among)}, those of each other rank 1.",
        ranks=ranks,
        step_first=steps[0].step,
        step_last=steps[-1].step,
        sites=tuple(str(Site(steps[0].step, 0, rank, "loss", "all")) for rank in ranks[:2]),
        measured=odd[0][ranks[0]],
        expected=1.0,
        unit=f"sum of the weights of all {noun}s of a rank",
        false_alarm_rate=0.0,
        evidence={"kind": "some-ranks", "steps": [step.step for step in steps][:100]},
        next=(
            f"Print on {ranks_text(ranks)} and on another rank what the loss of each micro-batch is multiplied and "
            "divided by, and how many micro-batches a step has.",
        ),
    )


def _num_cleared_passes(run: Run, wrong: Sequence[_WeightSum]) -> int:
    """Number of backward passes that each step began on each rank, where gradients were cleared in front of each, so
    that the last one alone counts, with the weight of its share; else 0.
    """
    passes_TN, measured = run.pivot("passes_begun")
    steps = np.isin(run.steps, [total.step.step for total in wrong])
    columns = [run.ranks.index(rank) for rank in data_parallel_ranks(run)]
    counts = np.unique(passes_TN[steps][:, columns]) if measured[steps][:, columns].all() else np.zeros(0)
    num = int(counts[0]) if len(counts) == 1 else 0
    last_alone = num > 1 and all(total.step.num_micro == 1 and _is(total.value * num, 1.0, NEAR) for total in wrong)
    return num if last_alone else 0


def _weight_sums(run: Run, steps: Sequence[WeighedStep]) -> list[_WeightSum]:
    ranks = data_parallel_ranks(run)
    factors, measured = run.pivot("grads_factor")
    row_of = {int(step): row for row, step in enumerate(run.steps)}
    columns = [run.ranks.index(rank) for rank in ranks]
    reduced = run.lists("group_reduce_factor", steps=[step.step for step in steps]) if len(ranks) > 1 else {}
    sums: list[_WeightSum] = []
    for step in steps:
        factor = _reduction_factor(step.step, ranks, reduced)
        row = row_of[step.step]
        value = step.total * (factor or 1.0)
        is_known = factor is not None and bool(measured[row, columns].all())
        is_wrong = _is_wrong(value, factors[row, columns], step.tolerance) if is_known else None
        sums.append(_WeightSum(step, value, is_wrong))
    return sums


def _is_wrong(value: float, factors: np.ndarray, tolerance: float) -> bool | None:
    """True where tokens that weigh ``value`` together do not come to 1 with ``factors`` of gradients after backward,
    None where these cannot tell. Clipping makes gradients smaller, nothing makes them larger.
    """
    if abs(value - 1) <= tolerance:
        return False
    factor = float(np.median(factors))
    if np.ptp(factors) > NEAR * abs(factor) or factor > 1 + NEAR or factor <= 0:
        return None
    if abs(value * factor - 1) <= NEAR:
        return False
    return None if value > 1 > value * factor else True


def _reduction_factor(step: int, ranks: Sequence[int], reduced: Mapping[tuple[int, int], np.ndarray]) -> float | None:
    """Factor of the reduction against the mean over ranks: 1, or their number where it adds; None if unclear."""
    if len(ranks) == 1:
        return 1.0
    values = [np.asarray(reduced[step, rank], dtype=np.float64) for rank in ranks if (step, rank) in reduced]
    finite = [value for groups in values for value in groups[np.isfinite(groups)]]
    if not finite:
        return None
    factor = float(np.median(finite))
    near = [candidate for candidate in (1.0, float(len(ranks))) if abs(factor / candidate - 1) <= NEAR]
    return near[0] if near else None


def _possible_purpose(run: Run, step: WeighedStep, value: float, num_ranks: int) -> str:
    """Reason for which this sum may be on purpose, in words; '' where nothing suggests so."""
    micros = step.num_micro or 1
    near = LEAST_DIFFERENCE + step.rounding
    if micros > 1 and _is(value, micros, near) and not (_is(value, num_ranks, near) and step.scalings):
        return ""
    if num_ranks > 1 and _is(value, num_ranks, near):
        return "as many as there are ranks: the loss may be multiplied since the reduction averages"
    if num_ranks > 1 and _is(value * num_ranks, 1.0, near) and run.manifest.adapter != "ddp":
        return "one over the ranks: the reduction may have been told to add"
    if value >= LOSS_SCALE * (1 - near) and _is(value, 2.0 ** round(math.log2(value)), near):
        return "a power of two, as a loss scale that was not seen"
    if step.reduction != 1 and value > 1 and _per_sample(run, step, near):
        return "as a loss that is a sum over the tokens of a sample, or of all"
    return ""


def _count_unused(run: Run, step: WeighedStep, value: float, num_ranks: int) -> str:
    """Clause on a model that is given the number of targets of all micro-batches and ranks, and returns a mean over its
    own; '' where it is not given, or the sum is another one.
    """
    micros, near = step.num_micro or 1, LEAST_DIFFERENCE + step.rounding
    factors = [(micros, 1)] if num_ranks == 1 else [(micros, num_ranks), (micros, 1)]
    match = next(((m, ranks) for m, ranks in factors if m * ranks > 1 and _is(value, m * ranks, near)), None)
    given = (fact.name for text in run.texts("input_facts").values() for fact in input_facts(text))
    if match is None or TARGET_COUNT not in given:
        return ""
    times = [f"{match[0]} micro-batches of a step"] if match[0] > 1 else []
    times += [f"{match[1]} ranks"] if match[1] > 1 else []
    return (
        f": the loss is not divided by the {' on '.join(times)}: the model is given {TARGET_COUNT} to do that, and "
        "returns a plain mean"
    )


def _first_is_counted(run: Run, wrong: Sequence[_WeightSum]) -> bool:
    """True where at each step the loss is divided by one more token a sample than it has targets, which are known to be
    next tokens: of targets of samples, a loss that is divided by 2 has the same sum.
    """
    ranks = data_parallel_ranks(run)
    positions = target_places(run)
    if any(positions.get(rank) != NEXT for rank in ranks):
        return False
    digests = run.lists("sample_digests", steps=[total.step.step for total in wrong], ranks=ranks)
    for total in wrong:
        step = total.step
        num_samples = sum(len(digests.get((step.step, rank), ())) for rank in ranks)
        num_targets = sum(part.tokens for part in step.parts)
        if not num_samples or not _is(total.value * (1 + num_samples / num_targets), 1.0, EQUAL + step.rounding):
            return False
    return True


def _per_sample(run: Run, step: WeighedStep, near: float) -> bool:
    """True where a token weighs 1, or 1 over a number of samples: of a micro-batch, a rank's step, or all ranks'."""
    part = step.parts[0]
    digests = run.lists("sample_digests", steps=[step.step], ranks=[part.rank]).get((step.step, part.rank), ())
    micros, num = step.num_micro or 1, len(digests)
    counts = (1.0, float(num), num / micros, float(micros))
    return any(count and _is(part.weight * count, 1.0, near) for count in counts)


def _is(value: float, number: float, near: float) -> bool:
    return abs(value / number - 1) <= near


def _finding(
    wrong: Sequence[_WeightSum], value: float, kind: str, because: str, *, among: Sequence[int], noun: str
) -> Finding:
    steps = [total.step.step for total in wrong]
    first = wrong[0].step
    ranks = tuple(sorted(first.by_rank))
    return Finding(
        code=CODE,
        severity="info" if kind == "first-counted" else "warning",
        claim=f"All {noun}s together weigh {value:.4g} at {steps_text(steps, among=among)}{because}.",
        ranks=ranks,
        step_first=min(steps),
        step_last=max(steps),
        sites=tuple(str(Site(first.step, 0, rank, "loss", "all")) for rank in ranks[:2]),
        measured=value,
        expected=1.0,
        unit=f"sum of the weights of all {noun}s",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "steps": steps[:100], "num_micro": first.num_micro},
        next=tuple(advice.format(noun=noun) for advice in _ADVICE[kind]),
    )


_ADVICE = {
    "cleared-early": ("Call optimizer.zero_grad() once an update, not in front of each micro-batch.",),
    "first-counted": (
        "Nothing is wrong with the run: its learning rate is in effect that many times as large. Count "
        "labels[..., 1:] where labels are counted (Hugging Face's Trainer counts all of them where the model's class "
        "is not named …ForCausalLM, as GPT2LMHeadModel).",
    ),
    "count-unused": (
        "Hugging Face's Trainer leaves the division to each model whose forward takes **kwargs. Before the Trainer is "
        "made, set model.accepts_loss_kwargs = False: it then divides by the micro-batches itself.",
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


def _has_constant_term(run: Run) -> bool:
    """True where the loss is a sum of which some part has no gradient: the weights of its terms may add up to 1."""
    rows = run.lists("constant_terms") if run.has("constant_terms") else {}
    return any(term.number for row in rows.values() for term in ConstantTerm.from_row(row.tolist()))


def _explain(value: float, step: WeighedStep, num_ranks: int) -> tuple[str, str]:
    """Kind of the fault of a loss whose tokens weigh ``value`` together, and the clause that says it."""
    micros, near = step.num_micro or 1, LEAST_DIFFERENCE + step.rounding
    if micros > 1 and _is(value, micros, near):
        return "sum", f": the loss is not divided by the {micros} micro-batches of a step"
    if micros > 1 and _is(value * micros, 1.0, near):
        return "divided-again", f": the loss is divided once more by the {micros} micro-batches of a step"
    if num_ranks > 1 and _is(value * num_ranks, 1.0, near):
        return "divided-again", f": the loss is divided by the {num_ranks} ranks, over which the reduction averages"
    return "scaled", ", and should weigh 1"
