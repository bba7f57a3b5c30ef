"""The reduced gradient is not the mean of the workers' gradients, or differs between workers.

What it finds
-------------
A reduction that does not return the mean: a result that is lost or wrong on one rank, a mean that is divided by the
number of workers twice, a process group that lacks ranks, a hook that scales; and optimizers of replicas that receive
different gradients. It names the step, the parameter group and, where possible, the rank and the parameter.

Why it matters
--------------
The update is no longer that of the global batch. A factor acts like another learning rate on some or all parameters;
a wrong result on one rank makes replicas diverge.

How it decides
--------------
Sketches are linear, so the sketch of the reduced gradient must be the mean of the workers' sketches, whatever the
order of the sum: `group_reduce_residual` is zero but for rounding, whose bound is `group_reduce_floor`. Likewise what
the optimizers receive must be equal on replicas (`group_used_residual`). Both floors come from the dtype, the number
of workers and the sketch length alone; rounding exceeds one with a probability of at most 2 exp(-32) = 2.5e-14, and
the false-alarm rate is that times the number of comparisons.

If some ranks exceed the floor and others do not, the finding names those; if all do, it names only the group and the
step. Where optimizers of replicas received different gradients at just those steps at which some ranks called backward
more often than others, these ranks are named. A residual that vanishes when one factor is divided out is a scaled mean,
and the factor is reported.

Under FSDP2 every optimizer receives its own shard of the gradient. What is done to it after the reduce-scatter must be
done to all: the factor between the two (`group_used_factor`, of one rank's own sketches) is compared between ranks,
where no residual remains without it (`group_used_shape_residual`) on any of them. A rank that differs in all groups is
an error, in some a warning. Of parameters that ranks hold whole while others are sharded, the norms must be equal.

What goes in is looked at, too. Where a script reduces by hand, what each rank gives into an all-reduce is compared with
what backward left it (`group_entered_factor`, `group_entered_residual`, from the rank's own sketches, equal to the bit
where nothing was done), and ranks that changed it are named where half of all ranks, or more, did not: one that clips
by a norm of its own, zeroes, or flips a bit. What all ranks do is left alone, as are factors that are the tokens of a
rank over those of the others, or any that half of all ranks have had. Elsewhere the result tells: where it is the mean
if one rank's gradient counts nothing (`group_reduce_own_factor` is 0, and `group_reduce_own_residual` below the floor,
on that rank alone), that rank is named.

Where the reduction is not the framework's own, less is certain. Of a hook that is known to be lossy, only the agreement
of replicas is judged. A hook of the user's own is an error if replicas disagree or the mean is scaled, and otherwise a
warning if the difference exceeds what sending gradients in bfloat16 explains. In a hand-written loop the
optimizer may receive clipped gradients: whatever all replicas agree on is legal, unless it is the mean times 1/N or
1/N^2 in all groups, to rounding, at three sampled steps in a row (and N is not the number of micro-batches). The same
holds for what happens between the framework's reduction and the optimizer.

Three things that all replicas agree on are found all the same. What all received is one rank's own gradient, to
rounding, and no multiple of the mean: a broadcast in place of a reduction. The mean is multiplied, in all groups and
three sampled steps in a row, by N after a framework has averaged, or by N over a divisor of N, as where a sum is
divided by the ranks of a node; this is a warning, since losses may have been divided by as much, and not said where the
weights of tokens are known (loss-scale-wrong judges these), nor of N by hand, which is a sum. And what all received by
hand is at right angles to the mean in every group and as long as it, to what sketches tell, at three sampled steps in a
row: a flat gradient that is split at other places; a warning.

What it may miss
----------------
What is given into a reduction by hand in one buffer of all gradients that are neither in the order of the parameters,
nor in reverse, nor by name, and in these latter two at the first sampled step; and a sum that the script divides by
another number than that of its ranks, or by none, if losses do not tell. Errors that are smaller than rounding allows:
in one single element it must exceed about the floor times the norm of its group (digests of parameters see those one
step later, see replica-drift). What one rank does to its shard other than by a factor for a whole group, as clipping by
value does on all; the largest or the median of the workers' gradients in place of their mean, which looks like other
changes that are meant; and a shard with all its gradients set to zero where there is one group only, which a mask of
rows may do. Steps between those that are sampled. Any step at which a gradient was not finite.

Example
-------
The gradient of blocks.1 is not the mean of the workers' gradients on rank 1 at step 7.

Wrong and right
---------------
Wrong:

```python
def hook(state, bucket):
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()  # a sum: nobody divides
    return done.then(lambda future: future.value()[0])

ddp.register_comm_hook(None, hook)
```

Right:

```python
def hook(state, bucket):
    mean = bucket.buffer().div_(dist.get_world_size())
    done = dist.all_reduce(mean, async_op=True).get_future()
    return done.then(lambda future: future.value()[0])

ddp.register_comm_hook(None, hook)
```
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from trueline.judge.compared_ranks import (
    MAX_SITES,
    Bools,
    Floats,
    any_over,
    numbers,
    sites_of,
)
from trueline.judge.follows import ByStep
from trueline.judge.series.local_updates import require_equal_replicas
from trueline.judge.series.whole_parameters import EQUAL
from trueline.laws.reduction.reduction import Reductions, reductions_of
from trueline.laws.reduction.used_gradients import clipped_apart, uses_of
from trueline.laws.token_weights.token_weighting import weighed_steps
from trueline.schema.errors import CannotTell, RunError
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import counted, looked_text, named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "reduction-mismatch"
CALLS = {"": ("backward",)}
QUESTION = "replicas"
NEEDS: tuple[str, ...] = (
    "group_reduce_residual",
    "group_reduce_floor",
    "group_reduce_factor",
    "group_reduce_shape_residual",
    "group_reduce_own_factor",
    "group_reduce_own_residual",
    "group_entered_factor",
    "group_entered_residual",
    "group_used_residual",
    "group_used_floor",
    "group_used_factor",
    "group_used_shape_residual",
    "used_param_norms",
    "tokens",
)


def _looked_at_directly(run: Run) -> bool:
    """Whether what came out of the reduction was compared with the mean at every step that has any of it. Where it was
    not, other steps say whether what the optimizer received stands for it (``_residual``).
    """
    (left, has_left), (residual, _) = (run.stack(f"group_reduce_{name}") for name in ("shape_residual", "residual"))
    return not has_left.any() or (residual.shape == left.shape and not np.any(~np.isnan(left) & np.isnan(residual)))


_IN_A_ROW = 3
"""Sampled steps in a row at which the optimizer must receive the mean over N for that to be no coincidence: a
clipping factor hits 1/N, to rounding (1e-5), at one step in some ten thousand."""

FOLLOWS = ByStep(
    reach=_IN_A_ROW - 1, columns=("group_reduce_residual", "group_used_residual"), alone=_looked_at_directly
)

_NEXT = (
    "Look at what happens between backward and the optimizer: communication hooks, hand-written all-reduces and their "
    "process group, divisions by the world size.",
    "If one rank is named and nothing in the code treats it differently, run again with every = 1 in the plan, and "
    "suspect that rank's device or link.",
)


_NO_PASS = (
    "Look for a backward() that only some ranks call, as for a plot or a probe: it adds to .grad. Use "
    "torch.autograd.grad, which returns gradients and leaves .grad alone, or put .grad back after it."
)

_MAX_RANK_SETS = 4
"""Sets of ranks that get a Finding each; more than that are reported as one."""

_NEAR = 1e-3
"""Relative distance within which a fitted factor of float32 gradients is the number that it is taken for."""

Kind = Literal[
    "scaled",
    "not-the-mean",
    "replicas-apart",
    "divided-again",
    "scaled-apart",
    "one-ranks",
    "misplaced",
    "multiplied",
    "lost-before",
    "changed-before",
    "scaled-before",
]


@dataclass(frozen=True)
class _Case:
    """Places [T, N, G] of one kind of mismatch, and what is measured [T, N, G] and expected there.

    ``what`` continues the sentence "The reduced gradient of group g on rank r ...".
    """

    kind: Kind
    severity: Severity
    what: str
    at: Bools
    measured: Floats
    expected: Floats
    unit: str


def check(run: Run) -> list[Finding]:
    """One Finding for each kind of mismatch and set of ranks; raises ``CannotTell`` where that was not measured."""
    if run.manifest.adapter != "ddp" or any(env.reduce_hook for env in run.env.values()):
        require_equal_replicas(run)  # else DDP still averages every gradient
    reductions = reductions_of(run, "group_reduce_residual", "group_used_residual")
    with np.errstate(invalid="ignore", divide="ignore"):
        before = _changed_before(reductions)
        named = any_over(np.any([case.at for case in before], axis=0), 1)[:, None, :]
        cases = [*before, *_wrong_results(reductions), _disagreement(reductions), _divided_again(reductions)]
        if not reductions.in_shards:
            cases += [_of_one_rank(reductions), _misplaced(reductions), _multiplied(reductions)]
        cases[len(before) :] = [replace(case, at=case.at & ~named) for case in cases[len(before) :]]
        if reductions.in_shards:
            cases += _scaled_apart(reductions)
        if reductions.replicated_P.any():
            cases.append(_whole_apart(reductions))
    findings = [finding for case in cases for finding in _findings(reductions, case)]
    lossy = sorted({env.reduce_hook for env in run.env.values() if env.reduce_lossy})
    if lossy and not findings:
        raise CannotTell(
            f"gradients go through '{lossy[0]}', which is lossy on purpose; replicas agreed on the result",
            reason="by-design",
        )
    return findings


def _changed_before(reductions: Reductions) -> list[_Case]:
    """Where ranks gave something else into a reduction than backward had left them, and the others, half of all or
    more, what it had: seen on its way, or told by what came out, which is the mean if one rank's gradient counts
    nothing.
    """
    floor = np.fmax(reductions.groups("group_reduce_floor"), EQUAL)
    factor, left = reductions.groups("group_entered_factor"), reductions.groups("group_entered_residual")
    usual, same = _usual(factor, left, floor)
    odd = ~np.isnan(left) & ~same & (2 * np.count_nonzero(same, axis=1, keepdims=True) >= len(reductions.ranks))
    plain = ~np.isnan(left) & (left <= floor)
    lost, scaled = odd & plain & (np.abs(factor) <= floor), odd & plain & (np.abs(factor) > floor)
    ever_N = np.any(plain & ~same, axis=(0, 2))
    few = 2 * np.count_nonzero(ever_N) <= len(reductions.ranks)  # else ranks weigh as they are meant to
    factor = factor / usual
    scaled &= few & ~_as_tokens(reductions, factor)
    own, own_left = reductions.groups("group_reduce_own_factor"), reductions.groups("group_reduce_own_residual")
    unheard = (own_left <= floor) & (np.abs(own) <= floor)
    if any(env.reduce_lossy for env in _envs(reductions)):
        unheard = np.zeros_like(unheard)
    lost |= unheard & (np.count_nonzero(unheard, axis=1, keepdims=True) == 1) & ~any_over(odd, 1)[:, None, :]
    none, times = np.zeros_like(factor), "times what backward had left"
    changed = "|given - left by backward| over the norm of the latter"
    return [
        _Case(
            "lost-before",
            "error",
            "counted nothing in the reduction, though backward had left one,",
            lost,
            none,
            np.ones_like(factor),
            times,
        ),
        _Case(
            "scaled-before",
            "warning",
            "was multiplied between backward and the reduction, and that of other ranks was not,",
            scaled,
            factor,
            np.ones_like(factor),
            times,
        ),
        _Case(
            "changed-before",
            "error",
            "was changed between backward and the reduction, and that of other ranks was not,",
            odd & ~plain,
            left,
            floor,
            changed,
        ),
    ]


def _usual(factor: Floats, left: Floats, floor: Floats) -> tuple[Floats, Bools]:
    """[T, 1, G] the factor that what half of all ranks, or more, gave into a reduction has, 1 where there is none such,
    and [T, N, G] which ranks' have it: 1, 1/N (those that divide first), or the median.
    """
    num = factor.shape[1]
    known = np.where(np.any(~np.isnan(factor), axis=1, keepdims=True), factor, 0.0)
    usual: Floats = np.ones_like(factor[:, :1])
    same: Bools = np.zeros(factor.shape, dtype=np.bool_)
    for candidate in (1.0, 1 / num, np.nanmedian(known, axis=1, keepdims=True)):
        near: Bools = (left <= floor) & (np.abs(factor - candidate) <= floor * np.abs(candidate)) & (factor != 0)
        better: Bools = ~any_over(same, 1)[:, None, :] & (2 * np.count_nonzero(near, axis=1, keepdims=True) >= num)
        usual, same = np.where(better, candidate, usual), np.where(better, near, same)
    return usual, same


def _as_tokens(reductions: Reductions, factor: Floats) -> Bools:
    """[T, N, G] whether a rank's factor is its tokens over those of the other ranks: weights, that are meant to be."""
    rows = np.searchsorted(reductions.run.steps, reductions.steps)
    tokens_TN, known_TN = (part[rows] for part in numbers(reductions.run, "tokens", reductions.ranks))
    tokens_TN = np.where(known_TN, tokens_TN, np.nan)
    most_T1 = np.nanmax(np.where(known_TN.any(axis=1, keepdims=True), tokens_TN, 1.0), axis=1, keepdims=True)
    return np.abs(factor - (tokens_TN / most_T1)[:, :, None]) <= _NEAR


def _wrong_results(reductions: Reductions) -> list[_Case]:
    """Where what came out of the reduction is not the mean of what went in."""
    envs = _envs(reductions)
    if any(env.reduce_lossy for env in envs) or _by_hand(reductions):
        return []
    residual, floor = _residual(reductions), reductions.groups("group_reduce_floor")
    factor = reductions.groups("group_reduce_factor")
    beyond = _beyond_floor(reductions)
    known = all(env.reduce_known for env in envs)
    scaled = beyond & (reductions.groups("group_reduce_shape_residual") <= floor) & _on_all_ranks(beyond)
    certain = reductions.used_apart[:, None, :] | ~_on_all_ranks(beyond) | known
    coarse = residual > _floor_of_bfloat16(reductions)
    unit = "|reduced - mean| over the mean norm of the workers' gradients"
    return [
        _Case(
            "scaled",
            "error",
            "is the mean of the workers' gradients times another factor than 1",
            scaled,
            factor,
            np.ones_like(factor),
            "times the mean of the workers' gradients",
        ),
        _Case("not-the-mean", "error", _NOT_THE_MEAN, beyond & ~scaled & certain, residual, floor, unit),
        _Case("not-the-mean", "warning", _NOT_THE_MEAN, beyond & ~scaled & ~certain & coarse, residual, floor, unit),
    ]


def _disagreement(reductions: Reductions) -> _Case:
    """Where replicas' optimizers received different gradients though they were reduced, and rightly so."""
    residual, floor = reductions.groups("group_used_residual"), reductions.groups("group_used_floor")
    apart = reductions.used_apart & ~reductions.not_reduced
    if not _by_hand(reductions):
        apart &= ~_beyond_floor(reductions).any(axis=1)
    without_TN1 = (np.isnan(residual).all(axis=2) & reductions.backward_TN & ~reductions.used_TN)[:, :, None]
    at = apart[:, None, :] & (~np.isnan(residual) | without_TN1)
    own_way = at & ~_as_reduced(reductions)
    some = own_way.any(axis=1, keepdims=True) & (at & ~own_way).any(axis=1, keepdims=True)
    return _Case(
        "replicas-apart",
        "error",
        "reached the optimizers of the replicas in different versions",
        np.where(some, own_way, at),
        np.where(without_TN1, 1.0, residual),
        np.where(without_TN1, 0.0, floor),
        "difference between replicas over the norm of the gradient",
    )


def _divided_again(reductions: Reductions) -> _Case:
    """Where every optimizer received the mean, in all groups, divided by the number of workers once or twice more."""
    factor, shape, floor = _what_was_used(reductions)
    rows = np.searchsorted(reductions.run.steps, reductions.steps)
    num_micro_TN = np.nan_to_num(numbers(reductions.run, "num_micro", reductions.ranks)[0][rows], nan=1.0)
    hit = np.zeros(factor.shape, dtype=bool)
    for divisor in (len(reductions.ranks), len(reductions.ranks) ** 2):
        equal = (np.abs(factor * divisor - 1) <= _slack(reductions, divisor)) & (shape <= floor)
        other = ~equal & ~np.isnan(factor) & (factor != 0)
        everywhere_T = equal.any(axis=(1, 2)) & ~other.any(axis=(1, 2)) & ~np.any(num_micro_TN == divisor, axis=1)
        hit |= equal & _in_a_row(everywhere_T)[:, None, None]
    hit &= not any(env.in_float16 for env in _envs(reductions))
    return _Case(
        "divided-again",
        "error",
        "reached the optimizer divided by the number of workers again",
        hit,
        factor,
        np.ones_like(factor),
        "times the mean of the workers' gradients",
    )


def _of_one_rank(reductions: Reductions) -> _Case:
    """Where all optimizers received what one rank alone had computed, which is no multiple of the mean."""
    _, shape, floor = _what_was_used(reductions)
    local = reductions.groups("group_used_local")
    own = np.count_nonzero(local <= floor, axis=1, keepdims=True) == 1
    others = np.count_nonzero(local > floor, axis=1, keepdims=True) == len(reductions.ranks) - 1
    at = own & others & _agreed(reductions) & np.all(shape > floor, axis=1, keepdims=True)
    return _Case(
        "one-ranks",
        "error",
        "is one rank's own, and those of the other ranks count nothing,",
        np.broadcast_to(at, shape.shape),
        reductions.groups("group_reduce_residual"),
        floor,
        "|used - mean| over the mean norm of the workers' gradients",
    )


def _misplaced(reductions: Reductions) -> _Case:
    """Where what all optimizers received by hand is at right angles to the mean in every group, and as long as it is in
    all: the elements of the mean, at other places. Angles and lengths as far as a sketch of k numbers tells them: eight
    times 1 / sqrt(k), and eight times sqrt(4 / k).
    """
    factor, shape, floor = _what_was_used(reductions)
    sine, residual = reductions.groups("group_used_shape_residual"), reductions.groups("group_reduce_residual")
    k = max(reductions.env.sketch_length, 1)
    scale2 = np.mean(reductions.groups("group_grad_norms"), axis=1, keepdims=True) ** 2
    used2 = np.sum(scale2 * (shape / sine) ** 2, axis=2, keepdims=True)
    mean2 = np.sum(scale2 * np.maximum(residual**2 - shape**2, 0) / (factor - 1) ** 2, axis=2, keepdims=True)
    alike = np.abs(np.log(used2 / mean2)) <= 8 * math.sqrt(4 / k)
    apart = np.all(sine**2 >= 1 - 64 / k, axis=2, keepdims=True) & np.all(shape > floor, axis=2, keepdims=True)
    usable = _by_hand(reductions) and len(reductions.env.groups) > 1 and k > 64
    everywhere_T = np.all(apart & alike, axis=(1, 2)) & np.all(_agreed(reductions), axis=(1, 2))
    at = np.broadcast_to((usable & _lasting(everywhere_T))[:, None, None], shape.shape)
    what = "has the length of the mean of the workers' gradients and nothing of its direction"
    return _Case("misplaced", "warning", what, at, sine, np.zeros_like(sine), "sine of the angle to the mean")


def _multiplied(reductions: Reductions) -> _Case:
    """Where every optimizer received the mean, in all groups, times a number that the number of ranks makes: of a
    framework that averages N, or N over a divisor of it, as a node has. By hand N is a sum, and may be meant.
    """
    factor, shape, floor = _what_was_used(reductions)
    num, by_hand = len(reductions.ranks), _by_hand(reductions)
    rows = np.searchsorted(reductions.run.steps, reductions.steps)
    micro_TN = np.nan_to_num(numbers(reductions.run, "num_micro", reductions.ranks)[0][rows], nan=1.0)
    hit = np.zeros(factor.shape, dtype=bool)
    for times in [num // part for part in range(1, num) if num % part == 0 and (part > 1 or not by_hand)]:
        equal = (np.abs(factor / times - 1) <= np.minimum(_slack(reductions, 1), _NEAR)) & (shape <= floor)
        summed = np.any(micro_TN == times, axis=1) | (by_hand & np.any(micro_TN * times == num, axis=1))
        everywhere_T = np.all(equal | np.isnan(factor), axis=(1, 2)) & np.any(equal, axis=(1, 2)) & ~summed
        hit |= equal & _lasting(everywhere_T)[:, None, None]
    hit &= not any(env.in_float16 for env in _envs(reductions)) and not (hit.any() and _weights_known(reductions.run))
    return _Case(
        "multiplied",
        "warning",
        "reached the optimizer as a multiple of the mean",
        hit,
        factor,
        np.ones_like(factor),
        "times the mean of the workers' gradients",
    )


def _agreed(reductions: Reductions) -> Bools:
    """[T, 1, G] where replicas received the same, and what was reduced before is the mean or was not seen."""
    agreed = ~reductions.used_apart & ~reductions.not_reduced
    if not _by_hand(reductions):
        agreed &= ~any_over(_beyond_floor(reductions), 1)
    return agreed[:, None, :]


def _lasting(hit_T: Bools) -> Bools:
    """[T] hits in a row, where there are enough steps for that to be no coincidence."""
    return _in_a_row(hit_T) if len(hit_T) >= _IN_A_ROW else np.zeros_like(hit_T)


def _weights_known(run: Run) -> bool:
    """Whether what tokens weigh in the losses is known: `loss-scale-wrong` then judges what they come to."""
    try:
        return bool(weighed_steps(run))
    except (CannotTell, RunError):
        return False


def _scaled_apart(reductions: Reductions) -> list[_Case]:
    """Where shards of one gradient were multiplied by different factors before the optimizers received them.

    What is not the shard times a factor says nothing: clipping by value changes each shard in its own way. One group of
    several is less certain than all of a rank's: a mask of rows may be all that its shard holds of it.
    """
    factor, shape, floor = _what_was_used(reductions)
    known = ~np.isnan(factor)
    plain = (shape <= floor) | ((factor == 0) & np.isnan(shape))
    judged = known & np.all(plain | ~known, axis=1, keepdims=True)
    usual, odd = _odd(np.where(judged, factor, np.nan), floor)
    everywhere = ~any_over(judged & ~odd, 2)[:, :, None]
    several: Bools = np.sum(judged, axis=2, keepdims=True) > 1
    certain: Bools = everywhere & ((factor != 0) | several)
    what, unit = "was multiplied after the reduction by another factor than on the other ranks", "times the mean"
    return [
        _Case("scaled-apart", "error", what, odd & certain, factor, usual, unit),
        _Case("scaled-apart", "warning", what, odd & ~everywhere & (factor != 0), factor, usual, unit),
    ]


def _whole_apart(reductions: Reductions) -> _Case:
    """Where optimizers received different gradients of a parameter that all ranks hold whole, others being sharded."""
    apart_TP = reductions.disagreeing_params & reductions.replicated_P & ~reductions.not_reduced_params
    norms = np.where(apart_TP[:, None, :], reductions.params("used_param_norms"), np.nan)
    usual, odd = _odd(norms, np.full(norms.shape, EQUAL))
    at = np.stack([reductions.in_groups(odd[:, n]) for n in range(odd.shape[1])], axis=1)
    spread = np.nanmax(np.where(odd, np.abs(norms / usual - 1), 0.0), axis=2, initial=0.0)
    return _Case(
        "replicas-apart",
        "error",
        "reached the optimizers of the replicas in different versions",
        at,
        np.repeat(spread[:, :, None], at.shape[2], axis=2),
        np.zeros(at.shape),
        "difference from the other replicas' norm, over it",
    )


def _odd(values_TNX: Floats, slack_TNX: Floats) -> tuple[Floats, Bools]:
    """[T, N, X] what most ranks have, and the ranks that have something else, beyond ``slack`` of it. Where no value
    has more than half of the ranks it is 1, if some have that, else the median, and all others are odd.
    """
    known = ~np.isnan(values_TNX)
    some = np.where(np.any(known, axis=1, keepdims=True), values_TNX, 0.0)
    median = np.broadcast_to(np.nanmedian(some, axis=1, keepdims=True), values_TNX.shape)
    one = np.abs(values_TNX - 1) <= slack_TNX
    near = np.abs(values_TNX - median) <= slack_TNX * (np.abs(values_TNX) + np.abs(median))
    most = 2 * np.count_nonzero(near, axis=1, keepdims=True) > np.count_nonzero(known, axis=1, keepdims=True)
    usual = np.where(~most & np.any(one, axis=1, keepdims=True), 1.0, median)
    same = np.where(most, near, one)
    return usual, known & ~same


_NOT_THE_MEAN = "is not the mean of the workers' gradients"


def _findings(reductions: Reductions, case: _Case) -> list[Finding]:
    at_TN = any_over(case.at, 2)
    by_ranks: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for t in np.flatnonzero(any_over(at_TN, 1)):
        by_ranks[tuple(np.flatnonzero(at_TN[t]).tolist())].append(int(t))
    every = tuple(range(at_TN.shape[1]))
    if len(by_ranks) > _MAX_RANK_SETS or (case.kind == "scaled-apart" and every in by_ranks):
        workers = tuple(np.flatnonzero(any_over(at_TN, 0)).tolist())
        by_ranks = defaultdict(list, {workers: sorted(t for times in by_ranks.values() for t in times)})
    return [_finding(reductions, case, workers, times) for workers, times in by_ranks.items()]


def _finding(reductions: Reductions, case: _Case, workers: tuple[int, ...], times: list[int]) -> Finding:
    first, ranks = times[0], tuple(reductions.ranks[worker] for worker in workers)
    groups = np.flatnonzero(case.at[first].any(axis=0))
    names = [name for group in groups for name in _names(reductions, first, int(group))]
    everything = names == [group.name for group in reductions.env.groups]
    steps = reductions.steps[times].tolist()
    inside = np.where(case.at[first], np.abs(case.measured[first] - case.expected[first]), -np.inf)
    worst = np.unravel_index(int(np.argmax(np.nan_to_num(inside, nan=-np.inf))), inside.shape)
    where = f" on {ranks_text(ranks)}" if len(ranks) < len(reductions.ranks) else ""
    measured, more = float(case.measured[first][worst]), ""
    looked = looked_text(len(steps), len(reductions.steps), len(reductions.run.steps))
    if case.kind == "multiplied":
        more = (
            f" It is {measured:.4g} times the mean over {counted(len(reductions.ranks), 'rank')}, which is right only "
            "where each rank's loss was divided by as much."
        )
    evidence: dict[str, Any] = {"kind": [case.kind, *_factor_kinds(reductions, case, measured)]}
    if case.kind == "scaled-apart" and clipped_apart(case.measured[times]):
        more = " No factor is above 1, and they change from step to step: each rank clips by the norm of its own shard."
        evidence["kind"].append("clipped-by-own-norm")
    if case.kind == "replicas-apart":
        uses = uses_of(reductions, *_what_was_used(reductions), times)
        more = uses.clause
        kinds = [case.kind, uses.use]
        if uses.use == "other" and _reduced_rightly(reductions, times):
            kinds.append("after-the-mean")
        evidence = {"kind": kinds, "factors": {str(rank): each for rank, each in uses.factors.items()}}
        if (passes := _extra_passes(reductions, times)) is not None:
            most, fewest = counted(passes.numbers[0], "backward call"), passes.numbers[1]
            more += f" There, and at no other step, {ranks_text(passes.ranks)} made {most}, the others {fewest}."
            kinds.append("extra-pass")
            ranks = passes.ranks
    return Finding(
        code=CODE,
        severity=case.severity,
        claim=f"The gradient of {'all parameters' if everything else named_some(names)} {case.what}{where} at "
        f"{steps_text(steps, among=reductions.steps.tolist())}{looked}.{more}",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="reduce", names=names[: MAX_SITES // 2]),
        measured=measured,
        expected=float(case.expected[first][worst]),
        unit=case.unit,
        false_alarm_rate=reductions.false_alarm_rate,
        evidence={
            **evidence,
            "names": names[:100],
            "num_steps": len(steps),
            "hooks": sorted({env.reduce_hook for env in _envs(reductions)} - {""}),
        },
        next=_NEXT if "extra-pass" not in evidence["kind"] else (_NO_PASS, *_NEXT),
    )


@dataclass(frozen=True)
class _Passes:
    """The ``ranks`` that ran more backward passes than others, and the most and the fewest of any at the first step."""

    ranks: tuple[int, ...]
    numbers: tuple[int, int]


def _extra_passes(reductions: Reductions, times: list[int]) -> _Passes | None:
    """Where some ranks ran more backward passes than others at ``times`` and no other step, as far as all were counted
    (``passes_begun``); else None.
    """
    rows = np.searchsorted(reductions.run.steps, reductions.steps)
    values_TN, known_TN = numbers(reductions.run, "passes_begun", reductions.ranks)
    values_TN, known_TN = values_TN[rows], known_TN[rows]
    known_T, most_T, fewest_T = ~any_over(~known_TN, 1), values_TN.max(axis=1), values_TN.min(axis=1)
    apart = np.isin(np.arange(len(values_TN)), times)
    extra = np.flatnonzero(known_T & (most_T > fewest_T))
    if not len(extra) or not np.array_equal(extra, np.flatnonzero(known_T & apart)):
        return None
    first = extra[0]
    more = np.flatnonzero(values_TN[first] > fewest_T[first])
    return _Passes(tuple(reductions.ranks[worker] for worker in more), (int(most_T[first]), int(fewest_T[first])))


def _factor_kinds(reductions: Reductions, case: _Case, factor: float) -> tuple[str, ...]:
    """Whether the mean is scaled by the number of workers: not divided by it, or once more."""
    if case.kind not in ("scaled", "multiplied"):
        return ()
    num = len(reductions.ranks)
    if abs(factor - num) < _NEAR * num:
        return ("not-divided",)
    return ("divided-again",) if any(abs(factor * num**power - 1) < _NEAR for power in (1, 2)) else ("other-factor",)


def _names(reductions: Reductions, t: int, group: int) -> list[str]:
    """The parameters of the group on which optimizers disagree, or its own name where they agree on all or on
    none.
    """
    params = reductions.param_names(reductions.disagreeing_params[t], group)
    spec = reductions.env.groups[group]
    return params if params and len(params) < len(spec.params) else [spec.name]


def _beyond_floor(reductions: Reductions) -> Bools:
    """[T, N, G] where the reduced gradient is not the mean, and was reduced at all."""
    beyond = _residual(reductions) > reductions.groups("group_reduce_floor")
    return beyond & ~reductions.not_reduced[:, None, :]


def _reduced_rightly(reductions: Reductions, times: list[int]) -> bool:
    """Whether the framework's reduction was seen at some of ``times``, and returned the mean there."""
    residual = reductions.groups("group_reduce_residual")[times]
    seen, floor = ~np.isnan(residual), reductions.groups("group_reduce_floor")[times]
    return not _by_hand(reductions) and bool(seen.any()) and bool(np.all(residual[seen] <= floor[seen]))


def _residual(reductions: Reductions) -> Floats:
    """[T, N, G] how far the reduced gradient is from the mean of the workers' gradients.

    Where only what the optimizer received was looked at: what is left of that after a factor is taken out, provided
    that at every step that shows both it was the reduced gradient times a factor.
    """
    residual, left = reductions.groups("group_reduce_residual"), reductions.groups("group_reduce_shape_residual")
    changed = reductions.groups("group_used_shape_residual")
    shown = ~np.isnan(residual) & ~np.isnan(changed)
    floor = np.fmax(reductions.groups("group_used_floor"), reductions.groups("group_reduce_floor"))
    only_scaled = bool(shown.any()) and not np.any(shown & (changed > floor))
    return np.where(np.isnan(residual) & only_scaled, left, residual)


def _floor_of_bfloat16(reductions: Reductions) -> float:
    """How far sending gradients in bfloat16 can take a mean: gamma = n u / (1 - n u) for n = N + 2 roundings, u = 2^-8.

    Higham, Accuracy and Stability, 2nd ed., section 4.2; stretched by the sketch as the recorded floors are.
    """
    rounding = (len(reductions.ranks) + 2) * 2.0**-8
    stretch = 1 + 8 * math.sqrt(2 / max(reductions.env.sketch_length, 1))
    return rounding / (1 - rounding) * stretch if rounding < 1 else math.inf


def _on_all_ranks(at_TNG: Bools) -> Bools:
    """[T, 1, G] whether all ranks are in it."""
    return ~any_over(~at_TNG, 1)[:, None, :]


def _what_was_used(reductions: Reductions) -> tuple[Floats, Floats, Floats]:
    """Factor and shape residual of what the optimizer received against the mean, and the floor of that: [T, N, G]."""
    prefix = "group_reduce" if _by_hand(reductions) else "group_used"
    floor = np.fmax(reductions.groups("group_used_floor"), reductions.groups("group_reduce_floor"))
    return reductions.groups(f"{prefix}_factor"), reductions.groups(f"{prefix}_shape_residual"), floor


def _as_reduced(reductions: Reductions) -> Bools:
    """[T, N, G] where the optimizer received the reduced gradient (by hand: the mean) as it was."""
    factor, shape, floor = _what_was_used(reductions)
    return (np.abs(factor - 1) <= _slack(reductions, 1)) & (shape <= floor)


def _slack(reductions: Reductions, divisor: int) -> Floats:
    """[T, N, G] how far rounding can move ``divisor`` times the factor from 1.

    The floor is relative to the mean norm s of the workers' gradients, the factor to the norm of their mean m. For a
    factor c, residual^2 - shape^2 = ((c - 1) |m| / s)^2 gives |m| / s; what the optimizer received after a reduction
    of the framework's is relative to its own norm already.
    """
    factor, shape, floor = _what_was_used(reductions)
    if not _by_hand(reductions):
        return floor
    residual = reductions.groups("group_reduce_residual")
    ratio = np.sqrt(np.maximum(residual**2 - shape**2, 0)) / np.abs(factor - 1)
    return np.where(ratio > 0, divisor * floor / ratio, floor)


def _in_a_row(hit_T: Bools) -> Bools:
    """[T] hits with ``_IN_A_ROW`` of them next to each other, or all of fewer steps."""
    length = min(_IN_A_ROW, len(hit_T))
    runs = ~any_over(~np.lib.stride_tricks.sliding_window_view(hit_T, length), 1)
    in_run_T = np.zeros_like(hit_T)
    for offset in range(length):
        in_run_T[offset : offset + len(runs)] |= runs
    return in_run_T


def _by_hand(reductions: Reductions) -> bool:
    return reductions.run.manifest.adapter == "manual"


def _envs(reductions: Reductions) -> list[RankEnv]:
    return [reductions.run.env[rank] for rank in reductions.ranks if rank in reductions.run.env]
