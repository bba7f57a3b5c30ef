"""Random numbers that a rank draws from generators of the program's own: which begin again, and which all ranks share.

A place is a line of the script, with the operation, the shape that it fills, and how often the step had drawn so
before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.schema.columns.own_draws import OwnDraw, own_draws
from trueline.store.reader import Run

MIN_TIMES = 5
"""Steps that must draw from one state."""
EVERY = 0.75
"""Share of the steps that were looked at that must: an evaluation may begin again each time."""


@dataclass(frozen=True)
class Repeated:
    """The draws of a place that come from one state at ``steps``, by rank; ``draw`` is one of them."""

    draw: OwnDraw
    steps: Mapping[int, list[int]]


def begins_again(run: Run) -> list[Repeated]:
    """Places whose draws come from one state at (nearly) every step, those that fill the rows of a batch first; of
    those of one line the first alone, and none where the line draws other numbers, too: then the same ones are those of
    an evaluation, say.
    """
    found: dict[tuple[str, bool], tuple[OwnDraw, dict[int, list[int]]]] = {}
    for rank, by_step in _draws(run).items():
        places = _places(by_step)
        most = {draw: Counter(states.values()).most_common(1)[0] for draw, states in places.items()}
        alike = {draw: count >= max(MIN_TIMES, EVERY * len(by_step)) for draw, (_, count) in most.items()}
        varied = {draw.called_at for draw in places if not alike[draw]}
        for draw, states in places.items():
            state, _ = most[draw]
            if alike[draw] and draw.called_at not in varied:
                steps = sorted(step for step, each in states.items() if each == state)
                found.setdefault((draw.called_at, draw.of_rows), (draw, {}))[1].setdefault(rank, steps)
    return [Repeated(draw, steps) for (_, _), (draw, steps) in sorted(found.items(), key=lambda each: not each[0][1])]


def shared_draws(run: Run) -> list[Repeated]:
    """Draws that fill the rows of a batch from states that all data-parallel ranks have alike, at every step that was
    looked at, and that go on from step to step.
    """
    ranks = data_parallel_ranks(run)
    draws = _draws(run)
    if len(ranks) < 2 or any(rank not in draws for rank in ranks):
        return []
    places = [_places(draws[rank]) for rank in ranks]
    found: list[Repeated] = []
    for draw, states in places[0].items():
        goes_on = len(set(states.values())) == len(states) >= MIN_TIMES
        if draw.of_rows and goes_on and all(each.get(draw) == states for each in places[1:]):
            found.append(Repeated(draw, {rank: sorted(states) for rank in ranks}))
    return found


def any_draws(run: Run) -> bool:
    """Whether anything was drawn from a generator of the program's own."""
    return any(text != "[]" for text in run.texts("own_draws").values())


def _draws(run: Run) -> Mapping[int, Mapping[int, tuple[OwnDraw, ...]]]:
    """By rank and step, of those that were looked at."""
    found: defaultdict[int, dict[int, tuple[OwnDraw, ...]]] = defaultdict(dict)
    for (step, rank), text in run.texts("own_draws").items():
        found[rank][step] = own_draws(text)
    return found


def _places(by_step: Mapping[int, tuple[OwnDraw, ...]]) -> Mapping[OwnDraw, Mapping[int, int]]:
    """The state before each draw of a place, by step; a place is a draw whose state is how often there was one."""
    found: defaultdict[OwnDraw, dict[int, int]] = defaultdict(dict)
    for step, draws in by_step.items():
        for place, state in _numbered(draws):
            found[place][step] = state
    return found


def _numbered(draws: tuple[OwnDraw, ...]) -> Iterator[tuple[OwnDraw, int]]:
    before = Counter[OwnDraw]()
    for draw in draws:
        alike = OwnDraw(draw.operation, draw.shape, draw.called_at, 0, draw.of_rows)
        yield OwnDraw(draw.operation, draw.shape, draw.called_at, before[alike], draw.of_rows), draw.state
        before[alike] += 1
