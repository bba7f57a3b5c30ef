"""The weights at a restart are not those that the start before had left.

What it finds
-------------
Parameters that are other bits at the first update of a start than when the start before it ended. Where they are those
that the job first began with, they were never loaded: a warning. Others are said to be confirmed, as a job may go on
from another checkpoint than its last.

Why it matters
--------------
A checkpoint of a compiled or wrapped model has a prefix in front of its names, and `load_state_dict(…, strict=False)`
lets all of them go by. Or the weights are loaded into another copy, or drawn again after that. Training goes on from
the beginning, with the step number, the learning rate and the optimizer states of its end.

How it decides
--------------
Exactly, by digests of all parameters before the first update of a start. Where the start before ended at the step
before, they are compared with those when watching ended; where steps are repeated, as the checkpoint was older, with
those that the start before had at the same step. Where it was killed at the step before, what it left is not known:
then it is told only that all parameters are as the job first began with, and had been others.

Weights of an earlier step are said to be: they are of another checkpoint than what gave the number of the step, which
is `step` of `trueline.watch`, or the count of updates in the states of the optimizer. Without both the step goes on
after the last one, and such a start after a kill is as it should be.

What it may miss
----------------
A start whose first step, or that of the start before, nobody looked at: where watching is told to begin later, or
digests are taken now and then only.

Example
-------
The job was started again at step 60, and all 4 parameters on rank 0 are those that it first began with, and not those
that were left at step 59.

Wrong and right
---------------
Wrong:

```python
model.load_state_dict(checkpoint["model"], strict=False)  # its names begin with "_orig_mod."
```

Right:

```python
model.load_state_dict({name.removeprefix("_orig_mod."): tensor for name, tensor in checkpoint["model"].items()})
```
"""

from __future__ import annotations

from collections.abc import Sequence

from trueline.laws.restarts.taken_over import TakenOver, ranks_at, taken_over
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "restart-weights"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("closing_digests", "param_digests")
ACROSS_RANKS = False

FEWEST = 3
"""Steps after which a job that was killed is expected to have saved something."""


def check(run: Run) -> list[Finding]:
    """A Finding for each start with other weights; raises ``CannotTell`` where none can be compared."""
    changed = [start for start in taken_over(run) if _is_told(start)]
    return [_finding(starts) for starts in ranks_at(changed).values()]


def _is_told(start: TakenOver) -> bool:
    """Whether its weights are other than they should be: a checkpoint of the very beginning is no fault by itself."""
    return start.is_of_other_weights and not (start.is_killed and start.step < FEWEST)


def _finding(starts: Sequence[TakenOver]) -> Finding:
    first = starts[0]
    names, num = first.other_weights, len(first.weights)
    ranks = tuple(start.rank for start in starts)
    subject = f"all {counted(num, 'parameter')}" if len(names) == num else f"of {counted(num, 'parameter')} "
    subject += "" if len(names) == num else named_some(names)
    anew = all(start.begins_anew for start in starts)
    verb = "is" if len(names) == 1 else "are"
    state = "as the job first began with, and not as" if anew else "not as"
    contrast = f"the start before had left {'it' if len(names) == 1 else 'them'} at step {first.step - 1}"
    if first.repeats or first.is_killed:
        # steps that are repeated are of the same number; a job that was killed went on for a while
        contrast = f"the start before had {'it' if len(names) == 1 else 'them'}"
        contrast += f" at step {first.at}" if first.repeats else " when it was killed"
    if not anew and first.like_step is not None:
        state = f"as before step {first.like_step}, and not as"
    return Finding(
        code=CODE,
        severity="warning" if anew else "confirm",
        claim=f"The job was started again at step {first.step}, and {subject} on {ranks_text(ranks)} {verb} {state} "
        f"{contrast}.",
        ranks=ranks,
        step_first=first.step,
        step_last=first.step,
        measured=float(len(names)),
        expected=0.0,
        unit="parameters that are other bits than they were left",
        false_alarm_rate=0.0,
        evidence={
            "kind": "begun-anew" if anew else "other",
            "names": names[:100],
            "like_step": first.like_step,
        },
        next=(
            "Print what load_state_dict(…, strict=False) returns (its missing and unexpected keys), and a checksum of "
            "the weights before they are saved and after they are loaded.",
        )
        if anew
        else (
            "Compare a checksum of the weights after they are loaded with one before they were saved. If the job is "
            "meant to go on from another checkpoint, or other weights, nothing is wrong.",
        ),
    )
