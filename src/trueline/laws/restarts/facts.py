"""Facts of what a start of the job took over from the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trueline.judge.facts.fact import Mark, Subject
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
        rates = _rates_as_left(run, start)
        kept = {"weights": not start.other_weights, "optimizer states": _states_as_left(start), "learning rates": rates}
        same = [name for name, is_same in kept.items() if is_same]
        changed = [name for name, is_same in kept.items() if is_same is False]
        clauses = [f"{listed(same)} as they were left"] if same else []
        clauses += [f"other {listed(changed)}"] if changed else []
        sentences.append(f"at step {step} {', '.join(clauses)}")
        numbers.append({"step": step, **{name.replace(" ", "_"): is_same for name, is_same in kept.items()}})
    head = f"{counted(len(sentences), 'start')} that went on"
    return f"{head}: {'; '.join(sentences)}", numbers


def _states_as_left(start: TakenOver) -> bool | None:
    """None where nobody looked at them as the start before ended."""
    if start.states_left is None:
        return None
    return not (start.moved_states or start.missing_states or start.other_states)


def _rates_as_left(run: Run, start: TakenOver) -> bool | None:
    """Whether the learning rates of the first update differ from those of the last one before by no more than those of
    two updates elsewhere, which a schedule moves; None where one of them is unknown.
    """
    rows = {step: rates_K for (step, _), rates_K in run.lists("lr", ranks=[start.rank]).items()}
    changes = {
        step: float(np.abs(rates_K - rows[step - 1]).max(initial=0.0))
        for step, rates_K in rows.items()
        if step - 1 in rows and len(rows[step - 1]) == len(rates_K)
    }
    at_start = changes.pop(start.step, None)
    return None if at_start is None else at_start <= max(changes.values(), default=0.0)


def _begins_otherwise(starts: Sequence[Mapping[str, Any]]) -> bool:
    return any(is_same is False for start in starts for name, is_same in start.items() if name != "step")


SUBJECTS = (
    Subject(
        "takeovers",
        "starts",
        "what later starts took over",
        takeovers,
        (Mark("start-takes-other", _begins_otherwise),),
    ),
)
