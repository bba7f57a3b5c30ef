"""The optimizer's states at a restart are not those that the start before had left.

What it finds
-------------
States that another parameter had: an error. Parameters whose states are gone, as where the optimizer was not loaded,
and states that are others while the weights are as they were left, are said to be confirmed.

Why it matters
--------------
`optimizer.load_state_dict` knows parameters by their place in the optimizer. Where they come in another order than when
they were saved (from a set, from another grouping, after a layer was put in), each is given the momentum and the
variance of another. Where shapes agree nothing fails: the first updates go in wrong directions, of wrong sizes, and the
loss is slightly worse for a while, or for good. Without its states Adam begins with updates of full size.

How it decides
--------------
Exactly: digests of each state that has the shape of its parameter, when watching ended, are compared with those before
the first update of the next start. A state is another parameter's where it is bit for bit what one other parameter
alone had. Where the weights are others too, only states that moved are told: such a start goes on from another
checkpoint. After a start that was killed, states are gone where the first update that is sampled makes them anew, and
the start before had held some; where steps are repeated, some elements are compared with those before the same update.

What it may miss
----------------
States that moved or are others after a kill, but for the few elements that are sampled at a step that is repeated.
States that a framework keeps in buffers of its own (DeepSpeed, Megatron), and optimizers that had no update among the
sampled ones.

Example
-------
The job was started again at step 60, and the optimizer states of 0.weight on rank 0 are those that 4.weight had, and
those of 4.weight what 0.weight had.

Wrong and right
---------------
Wrong:

```python
decayed = {p for n, p in model.named_parameters() if "weight" in n}  # a set has another order in each process
optimizer = AdamW([{"params": list(decayed)}, {"params": others, "weight_decay": 0.0}])
optimizer.load_state_dict(checkpoint["optimizer"])
```

Right:

```python
decayed = [p for n, p in model.named_parameters() if "weight" in n]
optimizer = AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])
optimizer.load_state_dict(checkpoint["optimizer"])
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trueline.laws.restarts.taken_over import TakenOver, ranks_at, taken_over
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, named_some, ranks_text
from trueline.store.reader import Run

CODE = "restart-states"
CALLS = {"": ("optimizer",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("closing_states", "opening_states", "closing_digests", "param_digests")
ACROSS_RANKS = False

MOST_NAMED = 3
"""Parameters of which a sentence says whose states they have."""

StatesFault = Literal["moved", "gone", "other"]


def check(run: Run) -> list[Finding]:
    """A Finding for each start with other states; raises ``CannotTell`` where none can be compared."""
    starts = [start for start in taken_over(run) if start.states_left is not None or start.sampled is not None]
    if not starts:
        raise CannotTell("no states of an optimizer were looked at when the start before ended")
    findings: list[Finding] = []
    for of_step in ranks_at(starts).values():
        for fault in ("moved", "gone", "other"):
            if affected := [start for start in of_step if _names(start, fault)]:
                findings.append(_finding(fault, affected))
                # the gravest alone: a wrong order explains states that are gone or changed at the same start
                break
    return findings


def _names(start: TakenOver, fault: StatesFault) -> list[str]:
    """The parameters whose states have the fault."""
    if fault == "moved":
        return list(start.moved_states)
    # from another checkpoint, whose states differ with its weights
    if start.is_of_other_weights:
        return []
    return start.missing_states if fault == "gone" else start.other_states


def _finding(fault: StatesFault, starts: Sequence[TakenOver]) -> Finding:
    first = starts[0]
    names = _names(first, fault)
    ranks = tuple(start.rank for start in starts)
    location = f"on {ranks_text(ranks)}"
    num = len({param for by_param in (first.states_left or {}).values() for param in by_param})
    # of sampled ones it is not known whether they are all
    whose = f"all {counted(num, 'parameter')}" if len(names) == num else named_some(names)
    pairs = [f"those of {name} are what {source} had" for name, source in first.moved_states.items()]
    left = f"before step {first.at}" if first.repeats else "left"
    says = {
        "moved": f"optimizer states {location} are another parameter's: {listed(pairs[:MOST_NAMED])}"
        + (f" ({counted(len(pairs), 'parameter')} in all)" if len(pairs) > MOST_NAMED else ""),
        "gone": f"the optimizer {location} holds no states of {whose} any more",
        "other": f"the optimizer states of {whose} {location} are not as they were {left}, while the weights are",
    }[fault]
    advice = {
        "moved": "Give the optimizer its parameters in the same order at each start, from a list in the order of "
        "model.named_parameters(): load_state_dict knows them by their place.",
        "gone": "Load the optimizer's state_dict as well, after its parameters are on their device. If it is meant to "
        "begin anew, nothing is wrong.",
        "other": "Save the optimizer's state_dict in the same moment as the weights, and look whether it is loaded in "
        "another dtype. If it is meant, nothing is wrong.",
    }[fault]
    return Finding(
        code=CODE,
        severity="error" if fault == "moved" else "confirm",
        claim=f"The job was started again at step {first.step}, and {says}.",
        ranks=ranks,
        step_first=first.step,
        step_last=first.step,
        measured=float(len(names)),
        expected=0.0,
        unit="parameters whose states are not as they were left",
        false_alarm_rate=0.0,
        evidence={
            "kind": fault,
            "names": names[:100],
            "moves": dict(list(first.moved_states.items())[:100]),
        },
        next=(advice,),
    )
