"""A rank leaves out an update that the others make, or makes one more.

What it finds
-------------
The first update that not all ranks made, and which rank left it out or made it once more: a gradient scaler that sees
an overflow on one rank only, a loop that skips a step because its own loss looks wrong, a step counted twice after an
exception.

Why it matters
--------------
Replicas that do not make the same updates are different models from then on, and their gradients are averaged as if
nothing had happened. A later step of that rank is another iteration than the step of that number on other ranks:
learning rates, samples and digests look wrong where they are right. So this is judged first, and ranks are not compared
from that step on.

How it decides
--------------
Exactly. All ranks together make a backward pass in which DDP reduces gradients, and a forward pass of FSDP2, or none
does, so their number is a shared clock. Each rank records how many it had made at each of its updates. Where a script
averages gradients by hand, its collectives are that clock, and replicas must differ as well.
Where the clock differs at the same update, the faulty rank is the one whose last update took more passes (one update
was left out) or fewer (one was made twice) than that of most ranks; of two ranks, than most updates of this Run.

What it may miss
----------------
An update that a rank makes with other gradients, or to other weights: see `replica-drift`. An update that is left out
where gradients are averaged by hand, if parameters are not digested again before the job is killed.

Example
-------
Rank 1 left out the update of step 12 that rank 0 made.

Wrong and right
---------------
Wrong:

```python
loss.backward()
if torch.isfinite(loss):  # each rank looks at its own loss
    optimizer.step()
```

Right:

```python
loss.backward()
finite = torch.isfinite(loss).int()
dist.all_reduce(finite, op=dist.ReduceOp.MIN)  # all ranks update, or none
if finite:
    optimizer.step()
```
"""

from __future__ import annotations

from trueline.judge.compared_ranks import data_parallel_ranks, several_workers, sites_of
from trueline.judge.follows import ByStep
from trueline.judge.series.iterations import Parting, may_part, parting_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, ranks_text
from trueline.store.reader import Run

CODE = "updates-apart"
CALLS = {"": ("step",)}
NEEDS: tuple[str, ...] = ("passes",)
QUESTION = "configuration"
ACROSS_RANKS = False
FOLLOWS = ByStep(alone=lambda run: not may_part(run))


def check(run: Run) -> list[Finding]:
    """Finding on the first update that not all ranks made; raises ``CannotTell`` where passes were not counted."""
    several_workers(run)
    if not run.pivot("passes")[1].any():
        raise CannotTell(
            "no backward pass that the framework reduces and no collective was seen, and updates are compared by these"
        )
    parting = parting_of(run)
    return [] if parting is None else [_finding(run, parting)]


def _finding(run: Run, parting: Parting) -> Finding:
    step, odd = parting.step, parting.ranks
    peers = [rank for rank in data_parallel_ranks(run) if rank not in odd]
    odd_text, peers_text = capitalized(ranks_text(odd)), ranks_text(peers) if peers else ""
    if not peers:
        claim = (
            f"{odd_text} do not make the same updates from step {step} on, and it is undecided which of them is faulty."
        )
    elif parting.left_out:
        claim = f"{odd_text} left out the update of step {step} that {peers_text} made."
    else:
        claim = f"{odd_text} made the update of step {step - 1} once more than {peers_text}."
    return Finding(
        code=CODE,
        severity="error",
        claim=f"{claim} Ranks are not compared from there on.",
        ranks=odd,
        step_first=step if parting.left_out or not peers else step - 1,
        step_last=int(run.steps[-1]),
        sites=sites_of(step, odd, phase="opt", names=("update",)),
        measured=float(max(parting.passes.values()) - min(parting.passes.values())),
        expected=0.0,
        unit=f"{_clock(run)} by which ranks differ at the same update",
        false_alarm_rate=0.0,
        evidence={"passes": {str(rank): passes for rank, passes in parting.passes.items()}, "undecided": not peers},
        next=(
            "Let all ranks decide together whether to update: all-reduce the flag (an overflow, a limit on the loss) "
            "before the branch, or average the gradients of a step that is to be skipped to zero on all.",
            f"Go on from a checkpoint of before step {step}: the replicas hold other parameters since.",
        ),
    )


def _clock(run: Run) -> str:
    return "collectives" if run.manifest.adapter == "manual" else "reduced backward passes"
