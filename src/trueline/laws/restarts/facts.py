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
            "weights": not start.other_weights,
            "optimizer states": _states_as_left(start),
            "learning rates": None if rates is None else rates.as_left,
        }
        same = [name for name, is_same in as_left.items() if is_same]
        changed = [name for name, is_same in as_left.items() if is_same is False]
        clauses = [f"{listed(same)} as they were left"] if same else []
        clauses += [f"other {listed(changed)}"] if changed else []
        sentences.append(f"at step {step} {', '.join(clauses)}")
        numbers.append({"step": step, **{name.replace(" ", "_"): is_same for name, is_same in as_left.items()}})
    head = f"{counted(len(sentences), 'start')} that went on"
    return f"{head}: {'; '.join(sentences)}", numbers


def _states_as_left(start: TakenOver) -> bool | None:
    """None where nobody looked at them as the start before ended."""
    if start.states_left is None:
        return None
    return not (start.moved_states or start.missing_states or start.other_states)


SUBJECTS = (Subject("takeovers", "starts", "what later starts took over", takeovers),)
