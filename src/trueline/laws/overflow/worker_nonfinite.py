"""A worker's loss or gradient is NaN or infinite, before any reduction.

What it finds
-------------
The first step at which a worker's own loss or gradient is not finite, the ranks on which that is so, and the
parameters whose gradients hold such values.

Why it matters
--------------
The mean with one NaN is NaN: one worker spoils the update of all, and afterwards every worker looks faulty. Only what
was measured before the reduction shows where it came from.

How it decides
--------------
Exactly: a loss that is NaN or infinite, or a gradient whose squared norm is. The finding names the ranks of the first
such step; from the next step on, spoilt weights affect all ranks. The measured value is the number of those ranks.

Mixed precision with float16 overflows on purpose: a gradient scaler starts with a large scale, and skips the step and
halves it where a gradient is infinite. Under float16 autocast a gradient that is not finite while all losses are is
therefore an info, unless it lasts for more than 16 sampled steps in a row: the scale starts at 2^16 by default, so
after 16 halvings it no longer multiplies anything. So it is, of losses too and in any format, where all these updates
were left out: a fused optimizer is stepped in any case, and looks in its kernel at what the scaler has found. (Others
are not stepped then, so that nothing of such a step is recorded.)

The advice is to look at the samples of that step, unless the weights of the named ranks were spoilt before. That shows
in a weight that is not finite in the recorded step, a gradient that the optimizer received at an
earlier step and that was not finite while the loss was, or the last digests before, by which a rank holds other
parameters than its replicas.

What it may miss
----------------
Values that overflow and are clamped before the loss; a gradient in a step that was not sampled (`plan.every`) and was
not applied; which operation produced the value.

Example
-------
The loss and the gradient of rank 1 are not finite at step 5.

Wrong and right
---------------
Wrong:

```python
loss = (losses * mask).sum() / mask.sum()  # 0/0 where the batch of a rank has nothing to learn from
```

Right:

```python
loss = (losses * mask).sum() / mask.sum().clamp(min=1)
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from trueline.judge.actions import record_step
from trueline.judge.compared_ranks import (
    MAX_SITES,
    Bools,
    any_over,
    data_parallel_ranks,
    envs_of,
    longest_run,
    marked,
    numbers,
    odd_ranks,
    sites_of,
)
from trueline.judge.follows import ByStep
from trueline.judge.series.batch_features import not_finite
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, named_some, of_ranks, ranks_text
from trueline.store.reader import Run

CODE = "worker-nonfinite"
CALLS = {"": ("backward",)}
QUESTION = "nonfinite"
NEEDS: tuple[str, ...] = ("loss", "grad_nonfinite", "param_grad_norms")
FOLLOWS = ByStep()
ACROSS_RANKS = False

_HALVINGS = 16
"""torch.amp.GradScaler starts at 2**16 and halves at each overflow."""


def check(run: Run) -> list[Finding]:
    """The Finding of the first step with a value that is not finite; raises ``CannotTell`` where none was
    measured.
    """
    ranks = data_parallel_ranks(run)
    loss_TN, has_loss_TN = numbers(run, "loss", ranks)
    flag_TN, has_flag_TN = numbers(run, "grad_nonfinite", ranks)
    if not has_loss_TN.any() and not has_flag_TN.any():
        raise CannotTell("neither a loss nor a gradient was measured")
    bad_loss_TN = has_loss_TN & ~np.isfinite(loss_TN)
    bad_grad_TN = has_flag_TN & (flag_TN != 0)
    bad_TN = bad_loss_TN | bad_grad_TN
    if not bad_TN.any():
        return []
    return [_finding(run, ranks, bad_loss_TN, bad_grad_TN)]


def _is_scaling(run: Run, ranks: Sequence[int], bad_loss_TN: Bools, bad_grad_TN: Bools, *, left_out: bool) -> bool:
    """True where a gradient scaler that looks for its scale explains everything."""
    in_float16 = any(env.in_float16 for env in envs_of(run, ranks).values())
    sampled_T = any_over(numbers(run, "grad_nonfinite", ranks)[1], 1)
    longest = longest_run(any_over(bad_grad_TN[sampled_T], 1).tolist())
    return (left_out or (in_float16 and not bad_loss_TN.any())) and longest <= _HALVINGS


def _are_updates_left_out(run: Run, ranks: Sequence[int], bad_TN: Bools) -> bool:
    """True where a fused optimizer left out every update of values that are not finite, on all ranks."""
    left_out_TN = numbers(run, "update_left_out", ranks)[0]
    return bool((left_out_TN[bad_TN.any(axis=1)] == 1).all())


def _finding(run: Run, ranks: Sequence[int], bad_loss_TN: Bools, bad_grad_TN: Bools) -> Finding:
    bad_TN = bad_loss_TN | bad_grad_TN
    bad_rows = marked(run, ranks, bad_TN)
    step, first_ranks = bad_rows.steps[0], bad_rows.first_ranks
    kinds = [
        kind
        for kind, bad_kind_TN in (("loss", bad_loss_TN), ("gradient", bad_grad_TN))
        if bad_kind_TN[bad_rows.first].any()
    ]
    params = [name for rank in first_ranks for name in _nonfinite_params(run, step, rank)]
    params = list(dict.fromkeys(params))
    sites = sites_of(step, first_ranks[:2], phase="grad", names=params[: MAX_SITES // 4]) if params else ()
    losses = sites_of(step, first_ranks, phase="loss", names=("loss",)) if "loss" in kinds else ()
    where = f" ({named_some(params)})" if params and "gradient" in kinds else ""
    broken = not_finite(run, step, first_ranks)
    names = f" ({named_some(broken_names)})" if (broken_names := [name for name in broken or () if name]) else ""
    more = f" Nor is what {ranks_text(first_ranks)} read at that step{names}." if broken else ""
    left_out = _are_updates_left_out(run, ranks, bad_TN)
    scaled = _is_scaling(run, ranks, bad_loss_TN, bad_grad_TN, left_out=left_out)
    more += " The gradient scaler had the optimizer leave out all updates of such gradients." if left_out else ""
    first_step_by_rank = [
        int(run.steps[column.argmax()]) if (column := bad_TN[:, n]).any() else None for n in range(len(ranks))
    ]
    return Finding(
        code=CODE,
        severity="info" if scaled else "error",
        claim=f"{capitalized(of_ranks(kinds, first_ranks))} not finite at step {step}{where}.{more}",
        ranks=first_ranks,
        step_first=step,
        step_last=bad_rows.steps[-1],
        sites=(*losses, *sites)[:MAX_SITES],
        measured=float(len(first_ranks)),
        expected=0.0,
        unit="workers with values that are not finite",
        false_alarm_rate=0.0,
        evidence={
            "kind": [*kinds, *(["gradient-alone"] if kinds == ["gradient"] else [])],
            "first_step_by_rank": {
                str(rank): at for rank, at in zip(ranks, first_step_by_rank, strict=True) if at is not None
            },
            "fed": {} if broken is None else {"values": "not-finite" if broken else "finite"},
            "params": params[:100],
            "num_steps": len(bad_rows.steps),
        },
        next=_advice(run, step, first_ranks, everyone=len(first_ranks) == len(ranks)),
    )


def _advice(run: Run, step: int, first_ranks: Sequence[int], *, everyone: bool) -> tuple[str, ...]:
    spoilt = [rank for rank in first_ranks if _has_spoilt_weights(run, step, rank)]
    # Where all ranks are named, what one of them holds is not what sets it apart.
    drifted = [] if everyone else [rank for rank in first_ranks if _holds_other_weights(run, step, rank)]
    if spoilt:
        return (
            f"The weights of {ranks_text(spoilt)} were not finite before step {step}: its samples are not the reason. "
            "Look at the update before it (clipping by a norm of 0, a gradient that was reduced or divided to NaN), "
            "and go on from a checkpoint that is finite.",
            *_record_advice(run, max(step - 1, 0), maker="the update that wrote them"),
        )
    if drifted:
        return (
            f"By digest {ranks_text(drifted)} held other parameters than its replicas by step {step} already, so look "
            "at what wrote to them (an update, a checkpoint, memory) before its samples.",
        )
    return (
        *_record_advice(run, step, maker="the call that made the first such value"),
        f"Look at the samples that rank {first_ranks[0]} read at step {step} (sample_digests), and at its labels: a "
        "mean over no label is 0/0. If its weights are NaN already, the samples are not the reason.",
        "If all ranks are named, look at the step before: learning rate, overflow in a low-precision dtype.",
    )


def _record_advice(run: Run, step: int, *, maker: str) -> tuple[str, ...]:
    """Advice to record the step, so that ``maker`` is named; none where it is recorded already."""
    if run.has_records and step in run.record_steps:
        return ()
    return (f"Record step {step}, so that {maker} is named: {record_step(step)}",)


def _has_spoilt_weights(run: Run, step: int, rank: int) -> bool:
    """True where a weight of the rank is known to be not finite in the forward pass of the step."""
    used_norms = run.lists("used_param_norms")
    if any(owner == rank and at < step and not np.isfinite(norms).all() for (at, owner), norms in used_norms.items()):
        return True
    if not run.has_records or step not in run.record_steps or rank not in run.record_ranks:
        return False
    names = ["nan", "pos_inf", "neg_inf"]
    table: Any = cast(Any, run).records(steps=[step], ranks=[rank], phases=["param"], columns=names)
    return any((count or 0) > 0 for name in names for count in table[name].to_pylist())


def _holds_other_weights(run: Run, step: int, rank: int) -> bool:
    """True where by the last digests up to the step the rank's parameters are not those of most of its replicas."""
    key = run.env[rank].replica_key if rank in run.env else None
    rows = run.lists("param_digests")
    last = max((at for at, other_rank in rows if other_rank == rank and at <= step), default=None)
    digests_by_rank = {
        other_rank: digests.tobytes()
        for (at, other_rank), digests in rows.items()
        if at == last and other_rank in run.env and run.env[other_rank].replica_key == key
    }
    return rank in digests_by_rank and rank in odd_ranks(digests_by_rank)


def _nonfinite_params(run: Run, step: int, rank: int) -> list[str]:
    """Parameters of the rank whose gradient norm is not finite at the step."""
    rows = run.lists("param_grad_norms")
    if (step, rank) not in rows or rank not in run.env:
        return []
    return [name for name, norm in zip(run.env[rank].params, rows[step, rank], strict=False) if not np.isfinite(norm)]
