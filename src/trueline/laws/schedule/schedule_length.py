"""The schedule of the learning rate ends at another update than the training does.

What it finds
-------------
A job that declares how many updates it will make (`max_steps`, `max_train_steps`, `train_iters`), while its schedule
comes to its end long before, or would at many more: to be confirmed, from the first updates on. Once updates go on
after the end of a schedule, `schedule-passed` tells what the rate did. And, of a job that has ended, a schedule that
was made for as many steps as there were updates and was stepped once an epoch.

Why it matters
--------------
A schedule that is stepped once a process or micro-batch comes to its end after a part of the training. One that is made
for micro-batches and stepped once an update never comes down: the model is trained at high rates to the last.

How it decides
--------------
Exactly. The schedule declares its length in steps of its own, and goes on by so many in the update in the middle; the
updates are declared by a configuration that is in sight as training begins, or by the command. They disagree where they
differ by more than an error in counting explains, one update an epoch and two more. By as much the number of updates
of a job that has ended may differ from the length of a schedule that was stepped no more often than there were epochs,
and came to half of its length at most.

What it may miss
----------------
Schedules that declare no length, several schedulers of one optimizer, and jobs that count epochs. Where configurations
declare several numbers, nothing is said.

Example
-------
The schedule (LambdaLR, num_training_steps 120) goes on by 2 of its steps an update, and is at its end at update 60 of
the 120 that max_train_steps declares.

Wrong and right
---------------
Wrong:

```python
scheduler = get_cosine_schedule_with_warmup(optimizer, 100, max_steps * accumulation)
for step in range(max_steps):
    update()
    scheduler.step()  # once an update
```

Right:

```python
scheduler = get_cosine_schedule_with_warmup(optimizer, 100, max_steps)
for step in range(max_steps):
    update()
    scheduler.step()
```

Lightning steps a scheduler once an epoch, unless it is told to after each update. Right:

```python
def configure_optimizers(self):
    optimizer = AdamW(self.parameters(), lr=1e-3)
    scheduler = OneCycleLR(optimizer, max_lr=1e-3, total_steps=self.trainer.estimated_stepping_batches)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
```

Hugging Face's Trainer makes a schedule of the right length by itself, and steps it after each update: give it
`lr_scheduler_type` and `warmup_steps`, and no scheduler of your own; or with one of your own the number of updates,
`ceil(len(loader) / gradient_accumulation_steps) * num_train_epochs` or `max_steps`.

Accelerate steps a scheduler that it has prepared once for each process, unless `split_batches` is set: make it for
`max_steps * num_processes`, or do not prepare it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.laws.schedule.followed import Followed, followed
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "schedule-length"
CALLS = {"": ("scheduler",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("lr", "schedule_epochs", "schedule_facts")
ACROSS_RANKS = False

NAMES = (
    "max_steps",
    "max_train_steps",
    "num_training_steps",
    "total_training_steps",
    "train_iters",
    "max_iters",
    "max_updates",
    "total_updates",
    "num_updates",
)
"""What the number of updates is called in options of trainers and scripts."""


def check(run: Run) -> list[Finding]:
    """A Finding where they disagree; raises ``CannotTell`` where one of both is not declared."""
    # the parts of a sequence declare lengths of their own, and none that of the whole
    schedules = [schedule for schedule in followed(run) if schedule.length and schedule.num_schedulers == 1]
    # Nobody needs to declare the updates of a job that has ended: they were counted.
    if schedules and (by_epoch := _by_epoch(run, schedules[-1])):
        return by_epoch
    declared = set(_declared(run))
    if not declared:
        raise CannotTell("no option in sight declares how many updates there will be", reason="by-design")
    if not schedules or len({number for _, number in declared}) > 1:
        raise CannotTell("the schedule declares no length, or options declare several numbers of updates")
    name, num_updates = min(declared)
    last = schedules[-1]
    # A schedule that is stepped once an epoch counts epochs, and what is passed is told by another check.
    if last.pace < 1 or last.num_after or abs(last.length / last.pace - num_updates) <= last.slack / last.pace:
        return []
    return [_finding(run, last, name, num_updates)]


def _by_epoch(run: Run, schedule: Followed) -> list[Finding]:
    """The Finding of a schedule for all updates that was stepped once an epoch."""
    num_updates, stepped = int(run.steps[-1]) + 1, int(schedule.epochs[-1])
    # an error in counting, as of a schedule that is stepped at each update; a length of few epochs is near by chance
    slack = schedule.num_epochs + 2
    is_for_updates = abs(schedule.length - num_updates) <= slack <= schedule.length / 4
    is_by_epoch = 0 < stepped <= schedule.num_epochs and 2 * stepped <= schedule.length
    if run.unclosed or run.restarts or not (is_for_updates and is_by_epoch):
        return []
    return [
        Finding(
            code=CODE,
            severity="confirm",
            claim=f"The schedule ({schedule.label}) is made for as many steps as there were updates, {num_updates:,}, "
            f"and was stepped {counted(stepped, 'time')}: once an epoch.",
            ranks=tuple(data_parallel_ranks(run)),
            step_first=int(schedule.steps[0]),
            step_last=int(schedule.steps[-1]),
            measured=float(stepped),
            expected=float(num_updates),
            unit="steps of the schedule",
            false_alarm_rate=0.0,
            evidence={"kind": "by-epoch"},
            next=(
                "Step it after each update: scheduler.step() behind optimizer.step(), or "
                '{"scheduler": scheduler, "interval": "step"} in configure_optimizers of Lightning.',
            ),
        )
    ]


def _declared(run: Run) -> Iterator[tuple[str, int]]:
    """Options that declare a number of updates, with the number."""
    for env in run.env.values():
        for options in env.facts.configs.values() if env.facts is not None else ():
            for name in NAMES:
                value = options.get(name)
                # Frameworks have -1 where epochs are counted.
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    yield name, value
    for word, following in itertools.zip_longest(run.manifest.command[1:], run.manifest.command[2:], fillvalue=""):
        option, equals, value = word.partition("=")
        name, number = option.lstrip("-+").rpartition(".")[2].replace("-", "_"), value if equals else following
        if name in NAMES and number.isdecimal() and int(number) > 0:
            yield name, int(number)


def _finding(run: Run, schedule: Followed, name: str, num_updates: int) -> Finding:
    end = schedule.length / schedule.pace
    early = end < num_updates
    goes_on = f"The schedule ({schedule.label}) goes on by {schedule.pace:g} of its steps an update, and "
    ends = (
        f"is at its end at update {end:.0f} of the {num_updates} that {name} declares."
        if early
        else f"at the last of the {counted(num_updates, 'update')} that {name} declares it is at its step "
        f"{num_updates * schedule.pace:.0f} of {schedule.length}."
    )
    return Finding(
        code=CODE,
        severity="confirm",
        claim=goes_on + ends,
        ranks=tuple(data_parallel_ranks(run)),
        step_first=int(schedule.steps[0]),
        step_last=int(schedule.steps[-1]),
        measured=end,
        expected=float(num_updates),
        unit="updates until the schedule is at its end (declared)",
        false_alarm_rate=0.0,
        evidence={"kind": "early" if early else "late", "option": name, "pace": schedule.pace},
        next=(
            "Make the schedule for as many steps as it is called: updates, times the processes where Accelerate has "
            "prepared it, times the micro-batches where it is stepped after each.",
        ),
    )
