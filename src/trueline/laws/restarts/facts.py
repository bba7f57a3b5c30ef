"""Facts of what a start of the job took over from the one before."""

from __future__ import annotations

from typing import Any

from trueline.judge.facts.fact import Subject
from trueline.laws.restarts.rates import rates_at
from trueline.laws.restarts.taken_over import TakenOver, left_before, ranks_at, taken_over
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


def streams(run: Run) -> tuple[str, Any] | None:
    """At each later start whether the first steps draw random numbers of torch from the states that the first steps of
    the job drew from, or from others; None where none are drawn.
    """
    sentences: list[str] = []
    numbers: list[dict[str, Any]] = []
    for step in run.restarts:
        before = left_before(run, step) if step <= run.steps[0] else run
        if not len(before.steps):
            continue
        first, rank = int(before.steps[0]), run.ranks[0]
        drawn, earlier = (part.lists("rng_drawn", ranks=[rank]) for part in (run, before))
        for column, name in enumerate(("torch on the host", "torch on the device")):
            pairs = [
                (drawn[step + near, rank][column], earlier[first + near, rank][column])
                for near in range(FEWEST_DRAWN)
                if (step + near, rank) in drawn and (first + near, rank) in earlier
            ]
            if len(pairs) < FEWEST_DRAWN or not all(now and then for now, then in pairs):
                continue
            again = all(now == then for now, then in pairs)
            end = FEWEST_DRAWN - 1
            sentences.append(
                f"at step {step} random numbers of {name} begin again: steps {step}-{step + end} draw from the states "
                f"of steps {first}-{first + end}"
                if again
                else f"at step {step} random numbers of {name} do not begin again"
            )
            numbers.append({"step": step, "stream": name, "again": again})
    return ("; ".join(sentences), numbers) if sentences else None


FEWEST_DRAWN = 3
"""Steps in a row that must draw from the states of the first ones; each state is that of one of 2^64 digests."""

SUBJECTS = (
    Subject("takeovers", "starts", "what later starts took over", takeovers),
    # No mark: many healthy jobs seed each start alike, and how many do was not measured.
    Subject("streams-at-starts", "starts", "random numbers at later starts", streams),
)
