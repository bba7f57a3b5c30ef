"""Facts of what a start of the job took over from the one before."""

from __future__ import annotations

from typing import Any

from trueline.judge.facts.fact import Subject
from trueline.laws.restarts.rates import rates_at
from trueline.laws.restarts.taken_over import TakenOver, ranks_at, taken_over
from trueline.schema.text.words import counted, listed
from trueline.store.reader import Run


def takeovers(run: Run) -> tuple[str, Any] | None:
    """At each later start: whether weights, states of the optimizer and learning rates are as they were left."""
    if not run.restarts:
        return None
    sentences: list[str] = []
    numbers: list[dict[str, Any]] = []
    for step, starts in ranks_at(taken_over(run)).items():
        # One rank says it, and the one with the most that is not as it was left.
        start = max(starts, key=lambda start: (len(start.other_weights), len(start.moved_states), -start.rank))
        rates = rates_at(run, start)
        as_left = {
            "weights": _weights_as_left(start),
            "optimizer states": _states_as_left(start),
            "learning rates": None if rates is None else rates.as_left,
        }
        same = [name for name, is_same in as_left.items() if is_same]
        changed = [name for name, is_same in as_left.items() if is_same is False]
        left = f"as they were before step {start.at}" if start.repeats else "as they were left"
        clauses = [f"{listed(same)} {left}"] if same else []
        clauses += [f"other {listed(changed)}"] if changed else []
        clauses += [_after_kill(start)] if start.is_killed else []
        sentences.append(f"at step {step} {', '.join(clauses)}")
        numbers.append({"step": step, **{name.replace(" ", "_"): is_same for name, is_same in as_left.items()}})
    head = f"{counted(len(sentences), 'start')} that went on"
    return f"{head}: {'; '.join(sentences)}", numbers


def _weights_as_left(start: TakenOver) -> bool | None:
    """None after a kill, of which nobody knows what it left."""
    return None if start.is_killed else not start.other_weights


def _after_kill(start: TakenOver) -> str:
    """Where the weights of a start are from whose predecessor was killed."""
    if start.begins_anew:
        return "weights as the job first began with, after a start that was killed"
    return "weights that nobody had looked at, after a start that was killed"


def _states_as_left(start: TakenOver) -> bool | None:
    """None where nobody looked at them as the start before ended, or after a kill at some that are still there."""
    if start.states_left is None and start.sampled is None:
        return None
    if start.is_killed and not start.missing_states:
        return None
    return not (start.moved_states or start.missing_states or start.other_states)


SUBJECTS = (Subject("takeovers", "starts", "what later starts took over", takeovers),)
