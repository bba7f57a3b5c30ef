"""The learning rate does not follow its schedule.

What it finds
-------------
A schedule that has come to its end, a learning rate of 0, while training goes on: it was stepped once a rank, once a
micro-batch, or made for fewer updates. A schedule that begins anew where a job was started again, or under way. A
scheduler that is stepped before the optimizer in each step, so that the first rate is never used. A rate that stays the
same, as code writes it over what the scheduler sets. As information: a scheduler that is made and never stepped, over
several epochs, or where no DataLoader shows the epochs.

Why it matters
--------------
With a rate of 0 the rest of the training changes nothing. A schedule that begins anew warms a trained model up again,
at rates that it is past.

How it decides
--------------
By what is declared, exactly. The rates of all updates are in the Run, and of schedulers of torch their `last_epoch`. An
optimizer that a scheduler drives, and whose rates were not 0, has come to the end of its schedule where they are 0 at
all further updates, if these are more than an error in counting explains (one an epoch, and two). Starting again is a
finding where `last_epoch` is smaller than before and at least three updates have bit for bit the rates of the first
ones, other than the last before. The order is one where a scheduler is stepped between the last forward pass and the
update in at least three updates, and in all.

Within a job, a schedule has begun anew where another scheduler has come to the same optimizer, or one has gone back, at
least three updates have the rates of the first ones, bit for bit, and it had been under way: the last two rates before
were as far apart as half of the largest such distance, and another such step would not have brought them to 0. A second
stage after the end of the first is left alone. A rate is written over where it is one and the same at all updates,
while the only scheduler of the optimizer had set others before three of them or more.

Schedules that are stepped once an epoch, rates that the script sets by itself and constant ones are left alone, and so
is what ReduceLROnPlateau does with the rate, and when; so are several calls an update, which some schedules are made
for (Accelerate's), while they last. Ranks with different rates are told by `rank-config-differs`.

What it may miss
----------------
Classes with a `step` of their own that are not torch's: of these only rates of 0 are seen. ReduceLROnPlateau until it
is first stepped. A schedule that is too fast or too slow and does not end: one of updates that is stepped once an epoch
looks as one of epochs does.

Example
-------
The learning rate is 0 since step 50, to the last at step 199: its schedule goes on by 4 an update.

Wrong and right
---------------
Wrong:

```python
scheduler = LinearLR(optimizer, 1.0, 0.0, total_iters=num_updates)
for batch in loader:
    model(batch).backward()
    scheduler.step()  # before the optimizer, and once a micro-batch
    if last_of_the_update(batch):
        optimizer.step()
        optimizer.zero_grad()
```

Right:

```python
for batch in loader:
    model(batch).backward()
    if last_of_the_update(batch):
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
```
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np

from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "schedule-differs"
CALLS = {"": ("scheduler",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("lr", "schedule_calls", "schedule_epochs", "schedule_rates")
ACROSS_RANKS = False

_ROUNDING = 1e-9
"""Of the first rate, what differences of rates in float64 may leave in place of 0."""

FEWEST = 3
"""Updates in a row from which something is no coincidence."""

Kind = Literal[
    "ended", "never-positive", "started-again", "began-again", "written-over", "stepped-first", "never-stepped"
]
Lists = Mapping[int, np.ndarray]


@dataclass(frozen=True)
class _Schedule:
    """Of one rank, by step: the ``rates`` of all groups, the ``epochs`` of its schedulers, how often these were stepped
    between forward pass and update (``early``), and the rates that the only one has ``set``. ``waiting`` are the steps
    at which one had been made and none stepped. ``declared`` is the largest rate that a schedule begins with,
    ``num_epochs`` how often the data was gone through, at least; 0 where nothing shows that.
    """

    rates: Lists
    epochs: Lists
    early: Lists
    set: Lists
    waiting: Sequence[int]
    declared: float
    num_epochs: int

    @property
    def is_seen(self) -> bool:
        """Whether there is a schedule."""
        return bool(self.declared or self.epochs or self.waiting)

    @property
    def never_stepped(self) -> Sequence[int]:
        """The steps of all updates, where there was a scheduler at each and none was stepped in between; else none."""
        at = list(self.epochs.values())
        stays = self.waiting if not at else at if all(np.array_equal(each, at[0]) for each in at) else []
        return list(self.rates) if len(stays) == len(self.rates) else []


def check(run: Run) -> list[Finding]:
    """A Finding for each way in which rates do not follow; raises ``CannotTell`` where no schedule was seen."""
    schedules = {rank: schedule for rank, schedule in _schedules(run).items() if schedule.is_seen}
    if not schedules:
        raise CannotTell(
            "no scheduler of torch.optim.lr_scheduler was seen (ReduceLROnPlateau is, once it is stepped)",
            reason="by-design",
        )
    found: defaultdict[tuple[Kind, int, int], list[int]] = defaultdict(list)
    for rank, schedule in schedules.items():
        for kind, first, last in _wrong(schedule, [attempt.step for attempt in run.manifest.attempts[1:]]):
            found[kind, first, last].append(rank)
    return [
        _finding(kind, first, last, ranks, schedules[ranks[0]]) for (kind, first, last), ranks in sorted(found.items())
    ]


def _schedules(run: Run) -> dict[int, _Schedule]:
    epochs = _by_rank(run.lists("schedule_epochs"))
    declared: defaultdict[int, float] = defaultdict(float)
    for (_, rank), text in run.texts("update_facts").items():
        groups: Mapping[str, Any] = json.loads(text)["groups"]
        begins = [cast(Mapping[str, Any], group).get("initial_lr") for group in groups.values()]
        declared[rank] = max([declared[rank], *(each for each in begins if isinstance(each, (int, float)))])
    seen = [rank for rank in run.ranks if rank in epochs or declared[rank]]
    if not seen:
        return {}
    rates, early, given = (_by_rank(run.lists(name, ranks=seen)) for name in ("lr", "schedule_calls", "schedule_rates"))
    passes, measured = run.pivot("epoch")
    num_epochs = int(np.max(passes[measured], initial=-1)) + 1
    return {
        rank: _Schedule(
            by_step,
            {step: at for step, at in epochs.get(rank, {}).items() if len(at)},
            early.get(rank, {}),
            given.get(rank, {}),
            [step for step, at in epochs.get(rank, {}).items() if not len(at)],
            declared[rank],
            num_epochs,
        )
        for rank, by_step in rates.items()
    }


def _by_rank(lists: Mapping[tuple[int, int], np.ndarray]) -> dict[int, dict[int, np.ndarray]]:
    found: defaultdict[int, dict[int, np.ndarray]] = defaultdict(dict)
    for step, rank in sorted(lists):
        found[rank][step] = lists[step, rank]
    return dict(found)


def _wrong(of: _Schedule, starts: Sequence[int]) -> list[tuple[Kind, int, int]]:
    """What is wrong, with the first and last step that show it."""
    steps = list(of.rates)
    found: list[tuple[Kind, int, int]] = []
    positive = [step for step in steps if not np.all(of.rates[step] == 0)]
    zero = [step for step in steps if not positive or step > positive[-1]]
    if len(zero) >= FEWEST and not positive and of.declared > 0:
        found.append(("never-positive", zero[0], zero[-1]))
    elif positive and len(zero) > max(of.num_epochs, 1) + 2:
        found.append(("ended", zero[0], zero[-1]))
    for start in starts:
        last = _again(of, start)
        if last is not None:
            found.append(("started-again", start, last))
    for at, last in _under_way(of, starts):
        found.append(("began-again", at, last))
    if others := _written_over(of):
        found.append(("written-over", others[0], others[-1]))
    early = [step for step, calls in of.early.items() if np.any(calls > 0)]
    if len(early) >= FEWEST and len(early) == len(of.early):
        found.append(("stepped-first", early[0], early[-1]))
    unstepped = of.never_stepped
    if len(unstepped) >= FEWEST and of.num_epochs not in (1, 2):
        found.append(("never-stepped", unstepped[0], unstepped[-1]))
    return found


def _again(of: _Schedule, start: int) -> int | None:
    """The last step that has the rate of the first ones again from ``start`` on, where the schedule went back; None
    where it went on.
    """
    before = [step for step in of.rates if step < start]
    after = [step for step in of.rates if step >= start]
    epochs_before = [of.epochs[step] for step in before if step in of.epochs]
    epochs_after = [of.epochs[step] for step in after if step in of.epochs]
    if not epochs_before or not epochs_after or np.max(epochs_after[0]) >= np.max(epochs_before[-1]):
        return None
    if np.array_equal(of.rates[before[0]], of.rates[before[-1]]):
        return None
    same = [np.array_equal(of.rates[old], of.rates[new]) for old, new in zip(before, after, strict=False)]
    num = same.index(False) if False in same else len(same)
    return after[num - 1] if num >= FEWEST else None


def _under_way(of: _Schedule, starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each step at which the schedule begins anew within a start of the job, and the last one with the first rates."""
    for before, at in pairwise(step for step in of.epochs if step in of.rates):
        since = max((start for start in starts if start <= before), default=0)
        old, new = of.epochs[before], of.epochs[at]
        back = new[-1] < np.max(old) if len(new) > len(old) else len(new) == len(old) and bool(np.any(new < old))
        if not back or any(before < start <= at for start in starts):
            continue
        then = [step for step in of.rates if since <= step < at]
        past = [of.rates[step] for step in then]
        if len(past) < FEWEST or len({len(each) for each in past}) > 1 or np.array_equal(past[0], past[-1]):
            continue
        moves = np.max(np.abs(np.diff(np.stack(past), axis=0)), axis=1)
        goes_on = 2 * moves[-1] >= moves.max() and bool(np.all(past[-1] - moves[-1] > _ROUNDING * past[0]))
        after = [step for step in of.rates if step >= at]
        same = [np.array_equal(of.rates[one], of.rates[other]) for one, other in zip(then, after, strict=False)]
        num = same.index(False) if False in same else len(same)
        if goes_on and num >= FEWEST:
            yield at, after[num - 1]


def _written_over(of: _Schedule) -> list[int]:
    """The steps at which the one rate of all updates is not what the scheduler had set; none where rates change."""
    first = next(iter(of.rates.values()), np.zeros(0))
    if not all(np.array_equal(first, rates) for rates in of.rates.values()):
        return []
    others = [
        step
        for step, given in of.set.items()
        if step in of.rates and given.shape == first.shape and not np.any(given == of.rates[step])
    ]
    since = [step for step in of.set if others and step >= others[0]]
    return others if len(others) >= FEWEST and len(others) == len(since) else []


def _finding(kind: Kind, first: int, last: int, ranks: Sequence[int], of: _Schedule) -> Finding:
    at = list(of.epochs.values())
    pace = float(np.max(at[-1] - at[0])) / (len(at) - 1) if len(at) > 1 and at[0].shape == at[-1].shape else math.nan
    paced = f": its schedule goes on by {pace:.3g} an update" if pace > 1.5 else ""
    where, num_idle = ranks_text(ranks), counted(len(of.never_stepped), "update")
    severity: Severity = "info" if kind == "never-stepped" else "warning"
    claims: dict[Kind, str] = {
        "ended": f"The learning rate is 0 on {where} since step {first}, to the last at step {last}{paced}.",
        "never-positive": f"The learning rate is 0 on {where} at all of steps {first}-{last}, although its schedule "
        f"declares {of.declared:g}.",
        "started-again": f"The job was started again at step {first}, and the learning rates of steps {first}-{last} "
        f"on {where} are those of the first steps: the schedule went back.",
        "began-again": f"The schedule began anew on {where} at step {first}, while it was under way: the learning "
        f"rates of steps {first}-{last} are those of the first steps.",
        "written-over": f"The learning rate is {of.rates[last][0]:g} on {where} at all updates, while its scheduler "
        f"had set another at steps {first}-{last}, at last {of.set[last][0] if last in of.set else math.nan:g}.",
        "stepped-first": f"The scheduler was stepped before the optimizer in each of steps {first}-{last} on {where}: "
        "each update has the learning rate of the next one.",
        "never-stepped": f"A scheduler was made on {where} and not stepped in {num_idle}, steps "
        f"{first}-{last}" + (f", over {of.num_epochs} epochs of the data." if of.num_epochs else "."),
    }
    advice: dict[Kind, str] = {
        "ended": "Step the scheduler once after each optimizer.step(), not once a micro-batch or rank, or make it for "
        "as many steps as it is called.",
        "never-positive": "Step the scheduler after each optimizer.step().",
        "started-again": "Save scheduler.state_dict() with the checkpoint and load it after the scheduler is made.",
        "began-again": "Make the scheduler once, outside of the loop over epochs, or load its state into the new one.",
        "written-over": "Look for what writes lr into optimizer.param_groups after scheduler.step().",
        "stepped-first": "Call scheduler.step() after optimizer.step().",
        "never-stepped": "Step the scheduler after each optimizer.step() or epoch, as it counts.",
    }
    return Finding(
        code=CODE,
        severity=severity,
        claim=claims[kind],
        ranks=tuple(ranks),
        step_first=first,
        step_last=last,
        measured=float(np.max(of.rates[last])),
        expected=None,
        unit="learning rate at the last of these steps",
        false_alarm_rate=0.0,
        evidence={"kind": kind},
        next=(advice[kind],),
    )
