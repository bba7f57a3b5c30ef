"""Updates go on after the end that the schedule of the learning rate declares.

What it finds
-------------
A scheduler that is stepped more often than the number it was made for (`T_max`, `total_iters`, `num_training_steps`,
whatever a `LambdaLR` has bound by such a name), while training goes on. A cosine climbs back to its first rate, and
comes down, and climbs again; that is a warning. A rate that has fallen to its end above 0, and stays there, is said to
be confirmed. A rate of 0 to the last update is told by `schedule-differs`.

Why it matters
--------------
The number counts what its author had in mind: all updates, or all epochs. The scheduler is stepped once a batch and was
made for epochs, once a process (Accelerate's prepared one) and was made for updates, or once a micro-batch. The model
is then trained at rates that nobody chose.

How it decides
--------------
Exactly. The number stands in the scheduler, or in the function of a `LambdaLR`: what it was bound with
(`functools.partial`), what it closes over, its attributes and the globals that it reads. It has been passed where
`last_epoch` is beyond it by more than an error in counting explains: one update an epoch of the data and two more, of a
schedule that is stepped once an epoch one epoch. That the number is the end of the schedule is then seen in the rates:
they fell up to it, and after it they rise, or are one and the same.

What is made to come back is left alone: `CosineAnnealingWarmRestarts`, `CyclicLR`. So are warm-ups, whose end is passed
on purpose, and each scheduler of a sequence, a chain or of several is looked at by itself.

What it may miss
----------------
A length that has another name, or that a function computes. Schedulers that are not torch's. Optimizers that take turns
under several schedulers.

Example
-------
The schedule (CosineAnnealingLR, T_max 5) was at its end at step 5, and 114 more updates were made: the learning rate
climbs again, and came to its lowest 12 times.

Wrong and right
---------------
Wrong:

```python
scheduler = CosineAnnealingLR(optimizer, T_max=num_epochs)
for epoch in range(num_epochs):
    for batch in loader:
        update(batch)
        scheduler.step()
```

Right:

```python
scheduler = CosineAnnealingLR(optimizer, T_max=num_epochs * len(loader))
for epoch in range(num_epochs):
    for batch in loader:
        update(batch)
        scheduler.step()
```
"""

from __future__ import annotations

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.laws.schedule.followed import Followed, followed
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "schedule-passed"
CALLS = {"": ("scheduler",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("lr", "schedule_epochs", "schedule_facts")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """A Finding for each scheduler that has passed its end; raises ``CannotTell`` where none was seen."""
    findings = [_finding(run, schedule) for schedule in followed(run) if schedule.climbs or schedule.stays]
    return [finding for place, finding in enumerate(findings) if finding not in findings[:place]]


def _finding(run: Run, schedule: Followed) -> Finding:
    end, last = schedule.end_step, int(schedule.steps[-1])
    rate_at_end = float(schedule.rates[schedule.steps == end][0])
    after = schedule.rates[schedule.steps >= end]
    claim = (
        f"The schedule ({schedule.label}) was at its end at step {end}, and "
        f"{counted(schedule.num_after, 'more update')} {'was' if schedule.num_after == 1 else 'were'} made: the "
        "learning rate "
    )
    if schedule.climbs and schedule.num_lows > 1:
        claim += f"climbs again, and came to its lowest {counted(schedule.num_lows, 'time')}."
    elif schedule.climbs:
        claim += f"climbs again, from {rate_at_end:.3g} to {float(after.max()):.3g}."
    else:
        claim += f"stays at {rate_at_end:.3g}, where it was {float(schedule.rates.max()):.3g}."
    claim += f" The schedule goes on by {schedule.pace:g} of its steps an update." if schedule.pace > 1 else ""
    return Finding(
        code=CODE,
        severity="warning" if schedule.climbs else "confirm",
        claim=claim,
        ranks=tuple(data_parallel_ranks(run)),
        step_first=end,
        step_last=last,
        measured=float(schedule.epochs[-1]),
        expected=float(schedule.length),
        unit="steps of the schedule at the last update (made for)",
        false_alarm_rate=0.0,
        evidence={
            "kind": "climbs" if schedule.climbs else "stays",
            "class": schedule.kind,
            "name": schedule.name,
            "pace": schedule.pace,
            "updates_after": schedule.num_after,
            "lows": schedule.num_lows,
        },
        next=(_advice(run, schedule),),
    )


def _advice(run: Run, schedule: Followed) -> str:
    last = int(schedule.epochs[-1])
    if schedule.pace > 1 and schedule.pace == run.world_size:
        return (
            f"Make it for {schedule.pace:g} times as many steps, its warm-up too: a scheduler that Accelerate has "
            "prepared is stepped once for each process."
        )
    if schedule.pace > 1:
        return "Step it once after each optimizer.step(), or make it for as many steps as it is called."
    if schedule.pace and abs(schedule.length - schedule.num_epochs) <= 1:
        return f"Step it once an epoch, as {schedule.name} counts, or make it for as many updates as there are."
    return f"Make it for as many steps as it is called, {last} or more by now, or end the training where it ends."
