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

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, any_over, sites_of
from trueline.judge.follows import ByStep
from trueline.judge.series.local_updates import require_equal_replicas
from trueline.laws.reduction.entered_mismatches import find_entered_mismatches
from trueline.laws.reduction.mismatch import ROWS_IN_A_ROW, Mismatch
from trueline.laws.reduction.reduction import Reductions, read_reductions
from trueline.laws.reduction.result_mismatches import find_result_mismatches
from trueline.laws.reduction.used_mismatches import (
    find_divided_again,
    find_misplaced,
    find_multiplied,
    find_one_ranks_own,
    find_replicas_apart,
    find_shards_scaled_apart,
    find_whole_parameters_apart,
)
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import looked_text, named_some, ranks_text, steps_text
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


def _results_seen(run: Run) -> bool:
    """True where the result of the reduction was compared with the mean at every step that has any of it. Else other
    steps decide whether the optimizer's gradient stands for the result (``Reductions.residual``).
    """
    (shape_residual, has_shape), (residual, _) = (
        run.stack(f"group_reduce_{name}") for name in ("shape_residual", "residual")
    )
    if not has_shape.any():
        return True
    return residual.shape == shape_residual.shape and not np.any(~np.isnan(shape_residual) & np.isnan(residual))


FOLLOWS = ByStep(reach=ROWS_IN_A_ROW - 1, columns=("group_reduce_residual", "group_used_residual"), alone=_results_seen)

_NEXT = (
    "Look at what happens between backward and the optimizer: communication hooks, hand-written all-reduces and their "
    "process group, divisions by the world size.",
    "If one rank is named and nothing in the code treats it differently, run again with every = 1 in the plan, and "
    "suspect that rank's device or link.",
)


def check(run: Run) -> list[Finding]:
    """One Finding for each kind of mismatch and set of ranks; raises ``CannotTell`` where that was not measured."""
    if run.manifest.adapter != "ddp" or any(env.reduce_hook for env in run.env.values()):
        require_equal_replicas(run)  # else DDP still averages every gradient
    reductions = read_reductions(run, "group_reduce_residual", "group_used_residual")
    with np.errstate(invalid="ignore", divide="ignore"):
        mismatches = _find_mismatches(reductions)
    findings = [finding for mismatch in mismatches for finding in _findings(reductions, mismatch)]
    lossy_hooks = sorted({env.reduce_hook for env in run.env.values() if env.reduce_lossy})
    if lossy_hooks and not findings:
        raise CannotTell(
            f"gradients go through '{lossy_hooks[0]}', which is lossy on purpose; replicas agreed on the result",
            reason="by-design",
        )
    return findings


def _find_mismatches(reductions: Reductions) -> list[Mismatch]:
    """All cases, in the order of their Findings."""
    entered = find_entered_mismatches(reductions)
    later = [*find_result_mismatches(reductions), find_replicas_apart(reductions), find_divided_again(reductions)]
    if not reductions.in_shards:
        later += [find_one_ranks_own(reductions), find_misplaced(reductions), find_multiplied(reductions)]
    # a wrong result follows from what was given in wrong
    explained = any_over(np.any([mismatch.cells for mismatch in entered], axis=0), 1)[:, None, :]
    mismatches = entered + [replace(mismatch, cells=mismatch.cells & ~explained) for mismatch in later]
    if reductions.in_shards:
        mismatches += find_shards_scaled_apart(reductions)
    if reductions.replicated_P.any():
        mismatches.append(find_whole_parameters_apart(reductions))
    return mismatches


def _findings(reductions: Reductions, mismatch: Mismatch) -> list[Finding]:
    """One Finding for each set of ranks that have the mismatch at one step, or one of all."""
    workers_TN = any_over(mismatch.cells, 2)
    rows_of_workers: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in np.flatnonzero(any_over(workers_TN, 1)):
        rows_of_workers[tuple(np.flatnonzero(workers_TN[row]).tolist())].append(int(row))
    if mismatch.is_one_finding(rows_of_workers.keys(), workers_TN.shape[1]):
        workers = tuple(np.flatnonzero(any_over(workers_TN, 0)).tolist())
        return [
            _finding(reductions, mismatch, workers, sorted(row for rows in rows_of_workers.values() for row in rows))
        ]
    return [_finding(reductions, mismatch, workers, rows) for workers, rows in rows_of_workers.items()]


def _finding(reductions: Reductions, mismatch: Mismatch, workers: tuple[int, ...], rows: Sequence[int]) -> Finding:
    first, ranks = rows[0], tuple(reductions.ranks[worker] for worker in workers)
    groups = np.flatnonzero(mismatch.cells[first].any(axis=0))
    names = [name for group in groups for name in _blamed_names(reductions, first, int(group))]
    is_whole = names == [group.name for group in reductions.env.groups]
    steps = reductions.steps[rows].tolist()
    distance = np.abs(mismatch.measured[first] - mismatch.expected[first])
    distance = np.where(mismatch.cells[first], distance, -np.inf)
    worst = np.unravel_index(int(np.argmax(np.nan_to_num(distance, nan=-np.inf))), distance.shape)
    measured = float(mismatch.measured[first][worst])
    where = f" on {ranks_text(ranks)}" if len(ranks) < len(reductions.ranks) else ""
    num_looked = looked_text(len(steps), len(reductions.steps), len(reductions.run.steps))
    details = mismatch.details(reductions, rows, measured)
    blamed_ranks = details.ranks or ranks
    evidence: dict[str, Any] = {"kind": [mismatch.kind, *details.kinds]}
    if details.factors is not None:
        evidence["factors"] = {str(rank): factor for rank, factor in details.factors.items()}
    return Finding(
        code=CODE,
        severity=mismatch.severity,
        claim=f"The gradient of {'all parameters' if is_whole else named_some(names)} {mismatch.claim}{where} at "
        f"{steps_text(steps, among=reductions.steps.tolist())}{num_looked}.{details.sentence}",
        ranks=blamed_ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], blamed_ranks[:2], phase="reduce", names=names[: MAX_SITES // 2]),
        measured=measured,
        expected=float(mismatch.expected[first][worst]),
        unit=mismatch.unit,
        false_alarm_rate=reductions.false_alarm_rate,
        evidence={
            **evidence,
            "names": names[:100],
            "num_steps": len(steps),
            "hooks": sorted({env.reduce_hook for env in reductions.envs} - {""}),
        },
        next=(*details.advice, *_NEXT),
    )


def _blamed_names(reductions: Reductions, row: int, group: int) -> list[str]:
    """Parameters of the group on which optimizers disagree, or the group's own name where they agree on all or on
    none.
    """
    params = reductions.param_names(reductions.disagreeing_params[row], group)
    spec = reductions.env.groups[group]
    return params if params and len(params) < len(spec.params) else [spec.name]
