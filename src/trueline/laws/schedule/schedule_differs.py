"""The learning rate does not follow its schedule.

What it finds
-------------
A schedule that has come to its end, a learning rate of 0, while training goes on: it was stepped once a rank, once a
micro-batch, or made for fewer updates. A schedule that begins anew where a job was started again, or under way. A
scheduler that is stepped before the optimizer in each step, so that the first rate is never used. A rate that stays the
same, as code writes it over what the scheduler sets, or as the scheduler is of another optimizer, which makes no
update: the one that does was made later. As information: a scheduler that is made and never stepped, over
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
while the only scheduler of the optimizer had set others before three of them or more. A schedule is of another
optimizer where it is stepped, three updates or more have one and the same rate and no schedule, and torch has never
seen the optimizer of that schedule make an update.

Schedules that are stepped once an epoch, rates that the script sets by itself and constant ones are left alone, and so
is what ReduceLROnPlateau does with the rate, and when; so are several calls an update, which some schedules are made
for (Accelerate's), while they last. Ranks with different rates are told by `rank-config-differs`.

What it may miss
----------------
Classes with a `step` of their own that are not torch's: of these only rates of 0 are seen. ReduceLROnPlateau until it
is first stepped. A schedule that is too slow: one of updates that is stepped once an epoch looks as one of epochs does.
One that is too fast and does not end at 0 is told by `schedule-passed`, where it declares its length.

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
NEEDS: tuple[str, ...] = ("lr", "schedule_calls", "schedule_epochs", "schedule_rates", "schedule_idle")
ACROSS_RANKS = False

_ROUNDING = 1e-9
"""Share of the first rate that differences of rates in float64 may leave in place of 0."""

FEWEST = 3
"""Updates in a row from which on a pattern is no coincidence."""

ScheduleFault = Literal[
    "ended",
    "never-positive",
    "started-again",
    "began-again",
    "written-over",
    "stepped-first",
    "never-stepped",
    "other-optimizer",
]
RowsByStep = Mapping[int, np.ndarray]


@dataclass(frozen=True)
class _Schedule:
    """Learning rates of one rank and the schedulers behind them.

    By step: the ``rates`` of all groups, the ``epochs`` of its schedulers, how often these were stepped between forward
    pass and update (``early_calls``), and the rates that the only one has ``set``. ``waiting`` are the steps at which
    one had been made and none stepped, ``idle`` the scheduler of an optimizer without updates. ``declared`` is the
    largest rate that a schedule begins with, ``num_epochs`` how often the data was gone through, at least; 0 where
    nothing shows that.
    """

    rates: RowsByStep
    epochs: RowsByStep
    early_calls: RowsByStep
    set: RowsByStep
    waiting: Sequence[int]
    idle: Mapping[int, str]
    declared: float
    num_epochs: int

    @property
    def exists(self) -> bool:
        """True if there is a schedule."""
        return bool(self.declared or self.epochs or self.waiting or self.idle)

    @property
    def unstepped(self) -> Sequence[int]:
        """The steps of all updates, where there was a scheduler at each and none was stepped in between; else none."""
        rows = list(self.epochs.values())
        is_still = all(np.array_equal(row, rows[0]) for row in rows)
        num_still = len(rows or self.waiting) if is_still else 0
        return list(self.rates) if num_still == len(self.rates) else []

    def faults(self, starts: Sequence[int]) -> Iterator[tuple[ScheduleFault, int, int]]:
        """Faults, with the first and last step that show them; ``starts`` are the later ones of the job."""
        steps = list(self.rates)
        positive = [step for step in steps if not np.all(self.rates[step] == 0)]
        zero = [step for step in steps if not positive or step > positive[-1]]
        if len(zero) >= FEWEST and not positive and self.declared > 0:
            yield "never-positive", zero[0], zero[-1]
        # An error in counting explains one update an epoch, and two more.
        elif positive and len(zero) > max(self.num_epochs, 1) + 2:
            yield "ended", zero[0], zero[-1]
        for start in starts:
            last = self._last_repeated(start)
            if last is not None:
                yield "started-again", start, last
        for begin, last in self._new_beginnings(starts):
            yield "began-again", begin, last
        if overwritten := self._overwritten():
            yield "written-over", overwritten[0], overwritten[-1]
        early = [step for step, calls in self.early_calls.items() if np.any(calls > 0)]
        if len(early) >= FEWEST and len(early) == len(self.early_calls):
            yield "stepped-first", early[0], early[-1]
        # In one or two epochs a scheduler that is stepped once in each has hardly been.
        if len(self.unstepped) >= FEWEST and self.num_epochs not in (1, 2):
            yield "never-stepped", self.unstepped[0], self.unstepped[-1]

        if len(idle := self._idle_since()) >= FEWEST:
            yield "other-optimizer", idle[0], idle[-1]

    def _idle_since(self) -> list[int]:
        """The steps from which on an idle scheduler is all that there is, up to the last, at one rate."""
        since = [step for step in self.rates if self.idle and step >= min(self.idle)]
        is_constant = all(np.array_equal(self.rates[step], self.rates[since[0]]) for step in since)
        return since if is_constant and all(step in self.idle for step in since) else []

    def _last_repeated(self, start: int) -> int | None:
        """The last step that has the rate of the first ones again from ``start`` on, where the schedule went back; None
        where it went on.
        """
        before = [step for step in self.rates if step < start]
        after = [step for step in self.rates if step >= start]
        epochs_before = [self.epochs[step] for step in before if step in self.epochs]
        epochs_after = [self.epochs[step] for step in after if step in self.epochs]
        if not epochs_before or not epochs_after or np.max(epochs_after[0]) >= np.max(epochs_before[-1]):
            return None
        if np.array_equal(self.rates[before[0]], self.rates[before[-1]]):
            return None
        num = self._num_repeated(before, after)
        return after[num - 1] if num >= FEWEST else None

    def _num_repeated(self, before: Sequence[int], after: Sequence[int]) -> int:
        """Number of steps that ``after`` begins with and that have the rates of the first ones of ``before``."""
        equal = [np.array_equal(self.rates[old], self.rates[new]) for old, new in zip(before, after, strict=False)]
        return equal.index(False) if False in equal else len(equal)

    def _new_beginnings(self, starts: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Steps at which the schedule begins anew within a start of the job, each with the last that has the first
        rates.
        """
        for previous, begin in pairwise(step for step in self.epochs if step in self.rates):
            if not self._goes_back(previous, begin) or any(previous < start <= begin for start in starts):
                continue
            job_start = max((start for start in starts if start <= previous), default=0)
            before = [step for step in self.rates if job_start <= step < begin]
            rows = [self.rates[step] for step in before]
            if len(rows) < FEWEST or len({len(row) for row in rows}) > 1 or np.array_equal(rows[0], rows[-1]):
                continue
            moves = np.max(np.abs(np.diff(np.stack(rows), axis=0)), axis=1)
            # A second stage begins after the end of the first, which moves little or whose next step leads to 0.
            was_under_way = 2 * moves[-1] >= moves.max() and bool(np.all(rows[-1] - moves[-1] > _ROUNDING * rows[0]))
            after = [step for step in self.rates if step >= begin]
            num = self._num_repeated(before, after)
            if was_under_way and num >= FEWEST:
                yield begin, after[num - 1]

    def _goes_back(self, previous: int, step: int) -> bool:
        """True if a scheduler is at an earlier epoch than at the step before, or another one was made that is."""
        old, new = self.epochs[previous], self.epochs[step]
        if len(new) > len(old):
            return bool(new[-1] < np.max(old))
        return len(new) == len(old) and bool(np.any(new < old))

    def _overwritten(self) -> list[int]:
        """The steps at which the one rate of all updates is not what the scheduler had set; none where rates change."""
        first = next(iter(self.rates.values()), np.zeros(0))
        if not all(np.array_equal(first, rates) for rates in self.rates.values()):
            return []
        overwritten = [
            step
            for step, rates in self.set.items()
            if step in self.rates and rates.shape == first.shape and not np.any(rates == self.rates[step])
        ]
        # From the first on it must hold at every step: the scheduler's own rate in between shows that both agree.
        following = [step for step in self.set if overwritten and step >= overwritten[0]]
        return overwritten if len(overwritten) >= FEWEST and len(overwritten) == len(following) else []


def check(run: Run) -> list[Finding]:
    """A Finding for each way in which rates do not follow; raises ``CannotTell`` where no schedule was seen."""
    schedules = {rank: schedule for rank, schedule in _schedules(run).items() if schedule.exists}
    if not schedules:
        raise CannotTell(
            "no scheduler of torch.optim.lr_scheduler was seen (ReduceLROnPlateau is, once it is stepped)",
            reason="by-design",
        )
    starts = [attempt.step for attempt in run.manifest.attempts[1:]]
    ranks_by_fault: defaultdict[tuple[ScheduleFault, int, int], list[int]] = defaultdict(list)
    for rank, schedule in schedules.items():
        for fault in schedule.faults(starts):
            ranks_by_fault[fault].append(rank)
    return [_finding(*fault, ranks, schedules[ranks[0]]) for fault, ranks in sorted(ranks_by_fault.items())]


def _schedules(run: Run) -> dict[int, _Schedule]:
    """Schedules by rank; empty where no rank has one."""
    epochs = _by_rank(run.lists("schedule_epochs"))
    declared: defaultdict[int, float] = defaultdict(float)
    for (_, rank), text in run.texts("update_facts").items():
        groups: Mapping[str, Any] = json.loads(text)["groups"]
        rates = [cast(Mapping[str, Any], group).get("initial_lr") for group in groups.values()]
        declared[rank] = max([declared[rank], *(rate for rate in rates if isinstance(rate, (int, float)))])
    idle: defaultdict[int, dict[int, str]] = defaultdict(dict)
    for (step, rank), text in sorted(run.texts("schedule_idle").items()):
        idle[rank][step] = text
    scheduled = [rank for rank in run.ranks if rank in epochs or declared[rank] or rank in idle]
    if not scheduled:
        return {}
    rates, early_calls, rates_set = (
        _by_rank(run.lists(name, ranks=scheduled)) for name in ("lr", "schedule_calls", "schedule_rates")
    )
    passes, measured = run.pivot("epoch")
    num_epochs = int(np.max(passes[measured], initial=-1)) + 1
    return {
        rank: _Schedule(
            by_step,
            {step: row for step, row in epochs.get(rank, {}).items() if len(row)},
            early_calls.get(rank, {}),
            rates_set.get(rank, {}),
            [step for step, row in epochs.get(rank, {}).items() if not len(row)],
            idle.get(rank, {}),
            declared[rank],
            num_epochs,
        )
        for rank, by_step in rates.items()
    }


def _by_rank(rows: Mapping[tuple[int, int], np.ndarray]) -> dict[int, dict[int, np.ndarray]]:
    """Rows by rank, then by step, ascending."""
    by_rank: defaultdict[int, dict[int, np.ndarray]] = defaultdict(dict)
    for step, rank in sorted(rows):
        by_rank[rank][step] = rows[step, rank]
    return dict(by_rank)


def _finding(fault: ScheduleFault, first: int, last: int, ranks: Sequence[int], schedule: _Schedule) -> Finding:
    epochs = list(schedule.epochs.values())
    is_one_list = len(epochs) > 1 and epochs[0].shape == epochs[-1].shape
    pace = float(np.max(epochs[-1] - epochs[0])) / (len(epochs) - 1) if is_one_list else math.nan
    # Far more than 1 is a scheduler that is stepped by every micro-batch or rank.
    pace_text = f": its schedule goes on by {pace:.3g} an update" if pace > 1.5 else ""
    location, updates = ranks_text(ranks), counted(len(schedule.unstepped), "update")
    rate_set = schedule.set[last][0] if last in schedule.set else math.nan
    severity: Severity = "info" if fault == "never-stepped" else "warning"
    claims: dict[ScheduleFault, str] = {
        "ended": f"The learning rate is 0 on {location} since step {first}, to the last at step {last}{pace_text}.",
        "never-positive": f"The learning rate is 0 on {location} at all of steps {first}-{last}, although its schedule "
        f"declares {schedule.declared:g}.",
        "started-again": f"The job was started again at step {first}, and the learning rates of steps {first}-{last} "
        f"on {location} are those of the first steps: the schedule went back.",
        "began-again": f"The schedule began anew on {location} at step {first}, while it was under way: the learning "
        f"rates of steps {first}-{last} are those of the first steps.",
        "written-over": f"The learning rate is {schedule.rates[last][0]:g} on {location} at all updates, while its "
        f"scheduler had set another at steps {first}-{last}, at last {rate_set:g}.",
        "stepped-first": f"The scheduler was stepped before the optimizer in each of steps {first}-{last} on "
        f"{location}: each update has the learning rate of the next one.",
        "never-stepped": f"A scheduler was made on {location} and not stepped in {updates}, steps "
        f"{first}-{last}" + (f", over {schedule.num_epochs} epochs of the data." if schedule.num_epochs else "."),
        "other-optimizer": f"The learning rate is {schedule.rates[last].max():g} on {location} at all updates since "
        f"step {first}, and {schedule.idle.get(last, '')}, which is stepped, is of an optimizer that makes no update.",
    }
    advice: dict[ScheduleFault, str] = {
        "ended": "Step the scheduler once after each optimizer.step(), not once a micro-batch or rank, or make it for "
        "as many steps as it is called.",
        "never-positive": "Step the scheduler after each optimizer.step().",
        "started-again": "Save scheduler.state_dict() with the checkpoint and load it after the scheduler is made.",
        "began-again": "Make the scheduler once, outside of the loop over epochs, or load its state into the new one.",
        "written-over": "Look for what writes lr into optimizer.param_groups after scheduler.step().",
        "stepped-first": "Call scheduler.step() after optimizer.step().",
        "other-optimizer": "Make the scheduler for the optimizer that makes the updates, after that is made.",
        "never-stepped": "Step the scheduler after each optimizer.step() or epoch, as it counts.",
    }
    return Finding(
        code=CODE,
        severity=severity,
        claim=claims[fault],
        ranks=tuple(ranks),
        step_first=first,
        step_last=last,
        measured=float(np.max(schedule.rates[last])),
        expected=None,
        unit="learning rate at the last of these steps",
        false_alarm_rate=0.0,
        evidence={"kind": fault},
        next=(advice[fault],),
    )
