"""A worker contributes no gradient while the others do.

What it finds
-------------
A rank whose gradient is exactly zero, or absent, at a step at which other ranks have one: all of its labels are
masked, its loss is detached, it multiplies by zero. The same for single parameters and groups that never get a
gradient on one rank alone.

Why it matters
--------------
The mean still divides by all workers, so the update is scaled down, and the samples of that rank never count. Nothing
fails and nothing is infinite.

How it decides
--------------
Exactly, for the whole gradient: a norm of zero on some ranks and not on others at one step. It is an error if the
loss of that rank is not zero, or if it has no gradient for three sampled steps in a row or more; a warning otherwise,
since the gradient of a loss that is exactly zero for a step (all margins met) is zero. Where losses of the Run are
above and below zero, as those of policy gradients are, a loss that is exactly zero says that all advantages are (groups
whose responses have one reward each): that is an information.

A single parameter may legitimately lack a gradient, where a router or a branch decides per step. So a parameter is
reported, as a warning, only if this rank never had a gradient for it at three sampled steps or more at which others
had. If in the whole Run every parameter either always or never has a gradient on a rank, that is an exact
contradiction. Otherwise it must be beyond chance: if routing treats all workers the same way, then at a step at which a
of N workers lack the gradient, a given one is among them with probability a/N given all that came before; the product
over steps, times the number of workers and parameters, must be below 1e-6, which bounds the false-alarm rate. Where
each rank leaves some parameters to others, ranks seem to train tasks of their own, and it is an information.

What it may miss
----------------
Gradients that are tiny but not zero; a parameter that no rank trains (that is legal, and left to another check);
steps that were not sampled. Routing that differs between ranks by design, such as experts that live on one rank, is
not judged where ranks list different parameters.

Example
-------
The gradient of rank 1 is zero at steps 5-11, while other ranks have one.

Wrong and right
---------------
Wrong:

```python
weights = {"web": 1.0, "code": 0.5}
loss = loss * weights.get(source, 0.0)  # a source that is not in the table counts nothing
```

Right:

```python
weights = {"web": 1.0, "code": 0.5, "books": 1.0}
loss = loss * weights[source]  # and one that is missing is an error
```
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from trueline.judge.compared_ranks import (
    MAX_SITES,
    Bools,
    any_over,
    longest_run,
    marked,
    numbers,
    several_workers,
    sites_of,
)
from trueline.judge.follows import ByStep
from trueline.judge.stats.tails import ALARM_LEVEL
from trueline.schema.errors import CannotTell, RunError
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, counted, looked_text, named_some, of_ranks, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "worker-silent"
QUESTION = "workers"
NEEDS: tuple[str, ...] = ("grad_norm", "param_grad_norms", "loss")

_HABIT_STEPS = 3
"""Steps from which on silence is a habit and not an event."""


def _share_parameters(run: Run) -> bool:
    """True where each parameter had a gradient on all workers or on none, at each step that all of them sampled."""
    ranks = several_workers(run)
    presence = _gradient_presence(run, ranks, np.zeros((len(run.steps), len(ranks)), dtype=np.bool_))
    return presence is None or not np.any(any_over(presence[0], 1) & any_over(~presence[0], 1))


FOLLOWS = ByStep(alone=_share_parameters)


def check(run: Run) -> list[Finding]:
    """Findings of silent workers and of parameters on which one is silent; raises ``CannotTell`` without
    gradients.
    """
    ranks = several_workers(run)
    norm_TN, measured_TN = numbers(run, "grad_norm", ranks)
    if not np.any(np.count_nonzero(measured_TN, axis=1) > 1):
        raise CannotTell("no step has the gradient norms of two workers")
    silent_TN = measured_TN & (norm_TN == 0)
    # Where no worker has a gradient, as in a step that is left out, none of them is silent.
    any_gradient_T = np.any(measured_TN & ~(norm_TN == 0), axis=1)
    silent_TN &= any_gradient_T[:, None]
    findings = [_worker_finding(run, ranks, silent_TN, measured_TN)] if silent_TN.any() else []
    return [*findings, *_parameter_findings(run, ranks, silent_TN)]


def _worker_finding(run: Run, ranks: Sequence[int], silent_TN: Bools, measured_TN: Bools) -> Finding:
    silent = marked(run, ranks, silent_TN)
    steps = silent.steps
    loss_TN, has_loss_TN = numbers(run, "loss", ranks)
    zero_loss = bool(np.all(~silent_TN | (has_loss_TN & (loss_TN == 0))))
    no_loss = bool(np.all(~silent_TN | (has_loss_TN & ~np.isfinite(loss_TN))))
    losses = loss_TN[has_loss_TN & np.isfinite(loss_TN)]
    # A loss of both signs is one of advantages, as of a policy: zero where all answers to a prompt are rewarded alike.
    no_advantage = zero_loss and losses.min(initial=0.0) < 0 < losses.max(initial=0.0)
    sampled = run.steps[measured_TN.any(axis=1)].tolist()
    lasting = any(longest_run(silent_TN[measured_TN[:, n], n].tolist()) >= _HABIT_STEPS for n in range(len(ranks)))
    return Finding(
        code=CODE,
        severity="info" if no_advantage else "error" if lasting or not zero_loss else "warning",
        claim=f"{capitalized(of_ranks(['gradient'], silent.ranks))} zero at "
        f"{steps_text(steps, among=sampled)}, while other ranks have one"
        f"{looked_text(len(steps), len(sampled), len(run.steps))}.",
        ranks=silent.ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], silent.first_ranks, phase="grad", names=("all",)),
        measured=0.0,
        expected=None,
        unit="L2 norm of the worker's gradient",
        false_alarm_rate=0.0,
        evidence={
            "kind": "loss-zero" if zero_loss else "loss-not-finite" if no_loss else "loss-usual",
            "num_steps": len(steps),
            "loss_is_zero": zero_loss,
        },
        next=(
            f"Look at the labels that rank {silent.first_ranks[0]} read at step {steps[0]}: are all of them masked?",
            "Weight workers by their number of labels, or draw another batch where there is none.",
        ),
    )


def silent_params(has_TNP: Bools) -> tuple[Bools, bool]:
    """[N, P] mask of the parameters that a worker is silent on, and True where that rests on no chance: gradients are
    present on the same workers at all steps.

    ``has_TNP`` says which parameters had a gradient on each worker at each of T steps.
    """
    _, num_workers, num_params = has_TNP.shape
    differing_TP = any_over(has_TNP, 1) & any_over(~has_TNP, 1)
    never_NP = ~any_over(has_TNP, 0) & (np.count_nonzero(differing_TP, axis=0) >= _HABIT_STEPS)
    is_steady = not np.any(has_TNP != has_TNP[:1])
    # Were any worker as likely to be without a gradient, this one would be at all of these steps by the product.
    share_TP = np.where(differing_TP, np.count_nonzero(~has_TNP, axis=1) / num_workers, 1.0)
    log_chance_P = np.sum(np.log(share_TP), axis=0) + math.log(num_workers * max(num_params, 1))
    return never_NP & (is_steady | (log_chance_P < math.log(ALARM_LEVEL))), is_steady


def _parameter_findings(run: Run, ranks: Sequence[int], silent_TN: Bools) -> list[Finding]:
    """A warning for each set of parameters that a rank, not silent as a whole, never gives a gradient for."""
    presence = _gradient_presence(run, ranks, silent_TN)
    if presence is None:
        return []
    has_TNP, names, steps = presence
    silent_NP, steady = silent_params(has_TNP)
    all_leave_some = bool(any_over(silent_NP, 1).all())
    by_params: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for n in np.flatnonzero(any_over(silent_NP, 1)):
        by_params[tuple(names[int(p)] for p in np.flatnonzero(silent_NP[n]))].append(ranks[int(n)])
    return [
        _parameter_finding(params, silent_ranks, steps, steady=steady, all_leave_some=all_leave_some)
        for params, silent_ranks in by_params.items()
    ]


def _parameter_finding(
    params: tuple[str, ...], ranks: Sequence[int], steps: Sequence[int], *, steady: bool, all_leave_some: bool
) -> Finding:
    """The Finding of ``params``; ``all_leave_some`` says that each rank has such, as where ranks train own tasks."""
    groups = ("If ranks train tasks of their own on purpose, list those of each task in the plan, as worker_groups.",)
    return Finding(
        code=CODE,
        severity="info" if all_leave_some else "warning",
        claim=f"{capitalized(ranks_text(ranks))} never had a gradient of {counted(len(params), 'parameter')} that "
        f"other ranks had: {named_some(params)}.",
        ranks=tuple(ranks),
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="grad", names=params[: MAX_SITES // 2]),
        measured=0.0,
        expected=None,
        unit="L2 norm of the gradient of these parameters",
        false_alarm_rate=0.0 if steady else ALARM_LEVEL,
        evidence={"kind": "some-parameters", "params": list(params[:100]), "num_steps": len(steps)},
        next=(
            f"Look for a branch that {ranks_text(ranks)} never takes: a condition on the rank, or a detach().",
            *(groups if all_leave_some else ()),
        ),
    )


def _gradient_presence(run: Run, ranks: Sequence[int], silent_TN: Bools) -> tuple[Bools, list[str], list[int]] | None:
    """[T, N, P] mask of the parameters that had a gradient, at steps that all ranks sampled and none was silent as a
    whole, with the parameters' names and these steps.
    """
    envs = [run.env[rank].params for rank in ranks if rank in run.env]
    if len(envs) < len(ranks) or any(params != envs[0] for params in envs):
        return None
    try:
        norm_TNP, measured_TN = run.stack("param_grad_norms", ranks=ranks)
    except RunError:
        return None
    steps_T = ~silent_TN.any(axis=1) & measured_TN.all(axis=1)
    if not steps_T.any() or norm_TNP.shape[2] != len(envs[0]):
        return None
    return ~(norm_TNP[steps_T] <= 0), envs[0], run.steps[steps_T].tolist()
