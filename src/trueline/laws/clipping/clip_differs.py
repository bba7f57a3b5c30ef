"""Clipping does not multiply all gradients by one factor, on all ranks, or is given none.

What it finds
-------------
Ranks that multiply the same gradient, or their shards of it, by different factors: another threshold on one of them, or
each its own norm. A call of `clip_grad_norm_` that finds no gradient, and so clips nothing: its list of parameters is a
generator that something else has used up, or it comes before the backward pass, or gradients are kept elsewhere. And
elements of gradients that are not multiplied by min(1, max_norm / norm): a kernel that skips some, a patched function.
Calls at another place than between all of the backward passes and the update: after an update, when nothing uses these
gradients any more, or between two backward passes, of which the second adds to what was clipped. Gradients that are
multiplied by a number above 1 once they are clipped.

Why it matters
--------------
Replicas that clip differently drift apart; shards that are clipped differently turn the update, and no two ranks show
it. Without a gradient the training runs without the clipping that its settings declare, until the first spike. Where
some elements are left out, the direction of the update changes, too.

How it decides
--------------
By arithmetic. At the first 16 steps, and then at every 20th, later every 100th, 16 neighbouring elements of up to 32
gradients are copied before and after each call. Each may differ by 8 u times its magnitude from what the one factor
makes of it, where u is the unit roundoff of the coarsest format among gradient, norm and factor. A call finds nothing
where none of its parameters has a gradient, it has all of the model's parameters or none, no other call of that step
finds any, and the step has a gradient.

Of ranks that have made as many calls at a step, those are compared that found the same elements in a gradient, bit for
bit, or hold shards of gradients that are clipped together. What they multiply by may differ by 8 (u + u' √n), as in
`norm-misreported`, which names a norm that is wrong. Whatever else makes gradients differ after the reduction, clipping
by hand included, `reduction-mismatch` finds, which also names a rank that does not clip at all.

The same elements are copied once more when the next backward pass or the update begins. A call is too early where they
are then as it had left them, it had made them smaller, and the pass writes to them (gradients that are cleared before
are left alone); gradients were multiplied where all elements are one number above 1 times as large at the update as a
call that made them smaller, the last one of the step, had left them, at three such steps or more, or all. A call is too
late where it makes gradients smaller that an update has just used, no backward pass has begun since, and none came
before that update. These are warnings, as nothing keeps code from meaning that.

What it may miss
----------------
Elements and steps that were not sampled; clipping that frameworks or scripts do without these functions of torch: a
factor of its own for each tensor may then be meant (clipping by layer). Parameters that no call is given: some models
clip a part on purpose.

Example
-------
clip_grad_norm_ was given no parameters on rank 0 at steps 1-11, and clipped nothing.

Wrong and right
---------------
Wrong:

```python
parameters = model.parameters()
for batch in loader:
    optimizer.zero_grad()
    model(batch).backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)  # used up by the first step
    optimizer.step()
```

Right:

```python
parameters = list(model.parameters())
```
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, data_parallel_ranks, sites_of
from trueline.judge.series.clip_calls import ClipCall, clip_calls, late_calls
from trueline.judge.series.update_rules import TOLERANCE
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.formats import FORMATS
from trueline.schema.text.words import named_some, ranks_text, steps_text
from trueline.store.reader import Run

_NEAR = 1e-3
"""Distance from 1 at which a factor of gradients is no rounding, in bfloat16 either way of all elements alike."""

_FEWEST_STEPS = 3
"""Steps at which gradients are multiplied after clipping for that to be no coincidence."""

_CLAIMS = {
    "late": "clipped gradients that the update had used already",
    "early": "clipped gradients that a later backward pass of the step then added to",
    "multiplied": "was followed by code that multiplied the gradients again",
}
"""Effect of a call at a wrong place, by kind."""

CODE = "clip-differs"
CALLS = {"": ("clip_grad_norm_",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("clip_facts", "clip_values", "grad_norm")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """Findings of calls that clip nothing, and of elements that are clipped otherwise; raises ``CannotTell`` where no
    call was seen.
    """
    late = [call for call in late_calls(run) if call.clips]
    try:
        calls = clip_calls(run)
    except CannotTell:
        if not late:
            raise
        calls = ()
    in_time = {(call.step, call.rank) for call in calls}
    late = [call for call in late if (call.step, call.rank) not in in_time]
    steps = sorted({call.step for call in (*calls, *late)})
    without_gradient = list(_calls_without_gradient(run, calls))
    elements = [(call, names) for call in calls if (names := _wrong_gradients(call))]
    disagreements = list(_disagreements(run, calls))
    misplaced = {"late": late, "early": _early_calls(calls), "multiplied": _multiplied_calls(calls)}
    return [
        *([_rank_finding(disagreements, steps)] if disagreements else []),
        *([_empty_finding(_AffectedCalls(without_gradient, steps))] if without_gradient else []),
        *([_element_finding(elements, steps)] if elements else []),
        *(_misplaced_finding(kind, _AffectedCalls(wrong, steps)) for kind, wrong in misplaced.items() if wrong),
    ]


@dataclass(frozen=True)
class _AffectedCalls:
    """Calls that a Finding is about, at least one, of those at ``sampled_steps``."""

    calls: Sequence[ClipCall]
    sampled_steps: Sequence[int]

    @property
    def steps(self) -> list[int]:
        """Their steps, ascending."""
        return sorted({call.step for call in self.calls})

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their ranks, ascending."""
        return tuple(sorted({call.rank for call in self.calls}))

    @property
    def first(self) -> ClipCall:
        """The first call of the first step."""
        return next(call for call in self.calls if call.step == self.steps[0])

    @property
    def steps_text(self) -> str:
        """``step 3``, ``steps 0-7``."""
        return steps_text(self.steps, among=self.sampled_steps)

    @property
    def location(self) -> str:
        """``on rank 0 at steps 0-7``."""
        return f"on {ranks_text(self.ranks)} at {self.steps_text}"


def _early_calls(calls: Sequence[ClipCall]) -> list[ClipCall]:
    """Calls after which another backward pass adds to the gradients that were clipped."""
    return [call for call in calls if call.clips and call.then == "backward" and call.added and _gradients_stay(call)]


def _multiplied_calls(calls: Sequence[ClipCall]) -> list[ClipCall]:
    """Calls before an update after which gradients were made larger; none where that is no habit of the job."""
    # Gradients with the loss scale are divided by it after the call, as they should be.
    last_calls = [call for call in calls if call.clips and call.then == "update" and not call.scaled]
    multiplied = [call for call in last_calls if call.factor_since > 1 + _NEAR]
    return multiplied if len(multiplied) >= min(_FEWEST_STEPS, len(last_calls)) else []


def _gradients_stay(call: ClipCall) -> bool:
    """True if gradients, not all of them zero, are still as the call had left them."""
    stay = all(np.array_equal(after, at_next) for after, at_next in zip(call.after, call.next_values, strict=True))
    return stay and any(np.any(values) for values in call.after)


def _calls_without_gradient(run: Run, calls: Sequence[ClipCall]) -> Iterator[ClipCall]:
    """Calls that found no gradient in steps that have one, of which no call found any."""
    norms_TN, _ = run.pivot("grad_norm")
    norm_at = {(step, rank): norms_TN[t, n] for t, step in enumerate(run.steps) for n, rank in enumerate(run.ranks)}
    for (step, rank), group in groupby(calls, key=lambda call: (call.step, call.rank)):
        step_calls = list(group)
        num_params = len(run.env[rank].params) if rank in run.env else 0
        # A call on some of the parameters may rightly find none that has a gradient.
        on_all = [call for call in step_calls if not call.num_params or call.num_params >= num_params]
        found_any = any(call.num_grads for call in step_calls)
        if on_all and not found_any and norm_at.get((step, rank), math.nan) > 0:
            yield on_all[-1]


def _wrong_gradients(call: ClipCall) -> list[str]:
    """The names of gradients of which elements were not multiplied by the one factor."""
    factor = call.factor if math.isfinite(call.factor) else call.ratio
    if not math.isfinite(factor):
        return []
    wrong: list[str] = []
    for name, dtype, before, after in zip(call.names, call.dtypes, call.before, call.after, strict=True):
        if dtype not in FORMATS or before.shape != after.shape:
            continue
        with np.errstate(invalid="ignore"):
            expected = factor * before
        slack = TOLERANCE * call.unit * np.abs(expected) + 2 * FORMATS[dtype].smallest
        finite = np.isfinite(before) & np.isfinite(expected)
        # Negated, so that a NaN which the call made of a number is wrong, too.
        if np.any(finite & ~(np.abs(after - expected) <= slack)):
            wrong.append(name)
    return wrong


def _disagreements(run: Run, calls: Sequence[ClipCall]) -> Iterator[list[ClipCall]]:
    """Calls of several ranks on the same gradient, or on shards of one, that multiplied it by different factors."""
    ranks = data_parallel_ranks(run)
    by_step: defaultdict[int, defaultdict[int, list[ClipCall]]] = defaultdict(lambda: defaultdict(list))
    for call in calls:
        if call.rank in ranks:
            by_step[call.step][call.rank].append(call)
    for by_rank in by_step.values():
        # Calls are matched by their order, which needs as many on each rank.
        if len({len(rank_calls) for rank_calls in by_rank.values()}) > 1:
            continue
        for peers in zip(*by_rank.values(), strict=True):
            multiplying = [call for call in peers if math.isfinite(call.ratio)]
            if len(multiplying) < 2 or not _on_one_gradient(multiplying):
                continue
            if any(not _have_one_ratio(multiplying[0], call) for call in multiplying):
                yield multiplying


def _on_one_gradient(calls: Sequence[ClipCall]) -> bool:
    """True if these calls of several ranks were given the same gradient, or shards of one."""
    first = calls[0]
    if any((call.names, call.num_grads) != (first.names, first.num_grads) for call in calls):
        return False
    if all(call.in_shards and call.is_complete for call in calls):
        return True
    return all(
        np.array_equal(expected, values)
        for call in calls
        for expected, values in zip(first.before, call.before, strict=True)
    )


def _have_one_ratio(call: ClipCall, peer: ClipCall) -> bool:
    largest = max(abs(call.ratio), abs(peer.ratio))
    return abs(call.ratio - peer.ratio) <= max(call.slack, peer.slack) * largest


def _rank_finding(disagreements: Sequence[list[ClipCall]], sampled_steps: Sequence[int]) -> Finding:
    """Ranks that clipped one gradient differently; each disagreement has a call of every rank."""
    affected = _AffectedCalls([calls[0] for calls in disagreements], sampled_steps)
    first, steps = disagreements[0], affected.steps
    num_alike = [sum(_have_one_ratio(call, peer) for peer in first) for call in first]
    usual = first[num_alike.index(max(num_alike))]
    # Without a majority no rank is the one that is wrong.
    no_majority = max(num_alike) * 2 <= len(first)
    odd = [call for call, num in zip(first, num_alike, strict=True) if num < max(num_alike) or no_majority]
    named_calls = odd[:MAX_SITES] if usual in odd else [usual, *odd[: MAX_SITES - 1]]
    factors = ", ".join(f"{call.ratio:.4g} on rank {call.rank} (max_norm {call.max_norm:g})" for call in named_calls)
    ranks = tuple(sorted(call.rank for call in odd))
    return Finding(
        code=CODE,
        severity="error",
        claim=f"Ranks clipped {'their shards of one gradient' if first[0].in_shards else 'the same gradient'} "
        f"differently at {affected.steps_text}: at step {first[0].step} it was multiplied by {factors}.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="bwd", names=usual.names[:1]),
        measured=odd[-1].ratio,
        expected=usual.ratio,
        unit="factor of all elements",
        false_alarm_rate=0.0,
        evidence={"kind": "ranks", "num_steps": len(steps), "factors": {str(call.rank): call.ratio for call in first}},
        next=(
            "Print max_norm and the norm that clip_grad_norm_ returns on every rank: both must be the same.",
            "Take the norm after gradients are reduced, and of shards over all ranks.",
        ),
    )


def _empty_finding(affected: _AffectedCalls) -> Finding:
    """Calls that clipped nothing."""
    is_empty = not any(call.num_params for call in affected.calls)
    fault = "was given no parameters" if is_empty else "found none of its parameters with a gradient"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"clip_grad_norm_ {fault} {affected.location}, and clipped nothing.",
        ranks=affected.ranks,
        step_first=affected.steps[0],
        step_last=affected.steps[-1],
        measured=0.0,
        expected=None,
        unit="gradients that were clipped",
        false_alarm_rate=0.0,
        evidence={"kind": "nothing", "num_steps": len(affected.steps)},
        next=(
            "Give it a list: a generator (model.parameters()) that an optimizer or an earlier call has gone through is "
            "empty."
            if is_empty
            else "Call it after the backward pass and before zero_grad; where a framework keeps gradients elsewhere, "
            "set its own clipping.",
        ),
    )


def _misplaced_finding(kind: str, affected: _AffectedCalls) -> Finding:
    """Calls before or after the place where they clip what the update uses."""
    first, steps = affected.first, affected.steps
    amount = f", by {first.factor_since:.4g} at step {first.step}" if kind == "multiplied" else ""
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"clip_grad_norm_ {_CLAIMS[kind]} {affected.location}{amount}.",
        ranks=affected.ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], affected.ranks[:2], phase="bwd", names=first.names[: MAX_SITES // 2]),
        measured=first.factor_since if kind == "multiplied" else first.ratio,
        expected=1.0,
        unit="factor since the call" if kind == "multiplied" else "factor of all elements",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "num_steps": len(steps)},
        next=(
            "Clip once an update: after all of its backward passes, and after gradients are unscaled, averaged and "
            "divided, just before optimizer.step().",
        ),
    )


def _element_finding(wrong: Sequence[tuple[ClipCall, list[str]]], sampled_steps: Sequence[int]) -> Finding:
    """Calls, with the names of gradients of which elements were not multiplied by the one factor."""
    affected = _AffectedCalls([call for call, _ in wrong], sampled_steps)
    steps, factor = affected.steps, affected.first.factor
    names = list(dict.fromkeys(name for _, call_names in wrong for name in call_names))
    return Finding(
        code=CODE,
        severity="error",
        claim=f"Clipping did not multiply elements of {named_some(names)} {affected.location} by the factor that it "
        "declares.",
        ranks=affected.ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], affected.ranks[:2], phase="bwd", names=names[: MAX_SITES // 2]),
        measured=None,
        expected=factor if math.isfinite(factor) else None,
        unit="factor of all elements",
        false_alarm_rate=0.0,
        evidence={"kind": "elements", "names": names[:100], "num_steps": len(steps)},
        next=(
            "Compare with the plain form of clipping: clip_grad_norm_(…, foreach=False). If that is right, the kernel "
            "is wrong; else look for what replaces gradients or these functions.",
        ),
    )
