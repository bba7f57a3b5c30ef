"""Facts of schedules of the learning rate."""

from __future__ import annotations

from typing import Any

from trueline.judge.facts.fact import Subject
from trueline.laws.schedule.followed import Followed, followed
from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run


def schedules(run: Run) -> tuple[str, Any] | None:
    """What each schedule is and declares, how fast it goes on, and where it was at its end."""
    # The line of the learning rate says of a job without a schedule all that there is.
    seen = followed(run) if run.has("schedule_facts") else []
    if not seen:
        return None
    numbers = [
        {
            "class": schedule.kind,
            "name": schedule.name,
            "length": schedule.length or None,
            "steps_an_update": schedule.pace,
            "last": int(schedule.epochs[-1]),
            "end_step": schedule.end_step if schedule.length and schedule.epochs[-1] >= schedule.length else None,
            "after": schedule.num_after,
        }
        for schedule in seen
    ]
    return named_some(list(dict.fromkeys(map(_sentence, seen)))), numbers


def _sentence(schedule: Followed) -> str:
    """``schedule LambdaLR (num_training_steps 120), by 2 steps an update, at its end at step 60``."""
    # of a schedule that is stepped once an epoch, the update in the middle has no step
    words = f"schedule {schedule.kind}"
    words += f" ({schedule.name} {schedule.length})" if schedule.length else ""
    words += (
        f", by {counted(int(schedule.pace), 'step')} an update" if schedule.pace >= 1 else ", less than once an update"
    )
    if not schedule.length:
        return words
    if schedule.epochs[-1] >= schedule.length:
        return f"{words}, at its end at step {schedule.end_step}"
    return f"{words}, at step {schedule.epochs[-1]} of {schedule.length} in the last update"


SUBJECTS = (
    Subject(
        "schedule",
        "update",
        "the schedule of the learning rate",
        # Several steps an update are no mark: Accelerate takes one a process, and schedules are made for that.
        schedules,
    ),
)
