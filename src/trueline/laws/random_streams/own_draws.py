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
MIN_SHARE = 0.75
"""Share of the steps that were looked at that must: an evaluation may begin again each time."""


@dataclass(frozen=True)
class RepeatedDraw:
    """Draws of a place that come from one state at ``steps``, by rank; ``draw`` is one of them."""

    draw: OwnDraw
    steps: Mapping[int, list[int]]


def repeated_draws(run: Run) -> list[RepeatedDraw]:
    """Places whose draws come from one state at (nearly) every step, those that fill the rows of a batch first. Of one
    line there is the first alone, and none where the line draws other numbers, too.
    """
    repeated: dict[tuple[str, bool], tuple[OwnDraw, dict[int, list[int]]]] = {}
    for rank, by_step in _draws(run).items():
        states_by_draw = _states_by_draw(by_step)
        most_common = {draw: Counter(states.values()).most_common(1)[0] for draw, states in states_by_draw.items()}
        is_alike = {draw: count >= max(MIN_TIMES, MIN_SHARE * len(by_step)) for draw, (_, count) in most_common.items()}
        # A line that draws other numbers, too, does so in training: those that repeat are an evaluation's, say.
        varied_lines = {draw.called_at for draw in states_by_draw if not is_alike[draw]}
        for draw, states in states_by_draw.items():
            state, _ = most_common[draw]
            if is_alike[draw] and draw.called_at not in varied_lines:
                steps = sorted(step for step, step_state in states.items() if step_state == state)
                repeated.setdefault((draw.called_at, draw.of_rows), (draw, {}))[1].setdefault(rank, steps)
    return [
        RepeatedDraw(draw, steps) for (_, _), (draw, steps) in sorted(repeated.items(), key=lambda item: not item[0][1])
    ]


def shared_draws(run: Run) -> list[RepeatedDraw]:
    """Draws that fill the rows of a batch from states that all data-parallel ranks have alike, at every step that was
    looked at, and that go on from step to step.
    """
    ranks = data_parallel_ranks(run)
    draws = _draws(run)
    if len(ranks) < 2 or any(rank not in draws for rank in ranks):
        return []
    states_by_rank = [_states_by_draw(draws[rank]) for rank in ranks]
    shared: list[RepeatedDraw] = []
    for draw, states in states_by_rank[0].items():
        goes_on = len(set(states.values())) == len(states) >= MIN_TIMES
        if draw.of_rows and goes_on and all(rank_states.get(draw) == states for rank_states in states_by_rank[1:]):
            shared.append(RepeatedDraw(draw, {rank: sorted(states) for rank in ranks}))
    return shared


def any_draws(run: Run) -> bool:
    """True where anything was drawn from a generator of the program's own."""
    return any(text != "[]" for text in run.texts("own_draws").values())


def _draws(run: Run) -> Mapping[int, Mapping[int, tuple[OwnDraw, ...]]]:
    """Draws by rank and step, of the steps that were looked at."""
    draws_by_rank: defaultdict[int, dict[int, tuple[OwnDraw, ...]]] = defaultdict(dict)
    for (step, rank), text in run.texts("own_draws").items():
        draws_by_rank[rank][step] = own_draws(text)
    return draws_by_rank


def _states_by_draw(by_step: Mapping[int, tuple[OwnDraw, ...]]) -> Mapping[OwnDraw, Mapping[int, int]]:
    """The state before each draw of a place, by step; a place is a draw whose state is how often there was one."""
    states_by_draw: defaultdict[OwnDraw, dict[int, int]] = defaultdict(dict)
    for step, draws in by_step.items():
        for draw_site, state in _numbered(draws):
            states_by_draw[draw_site][step] = state
    return states_by_draw


def _numbered(draws: tuple[OwnDraw, ...]) -> Iterator[tuple[OwnDraw, int]]:
    """Draws with the number of equal ones before in place of their state, and that state."""
    num_before = Counter[OwnDraw]()
    for draw in draws:
        unnumbered = OwnDraw(draw.operation, draw.shape, draw.called_at, 0, draw.of_rows)
        yield OwnDraw(draw.operation, draw.shape, draw.called_at, num_before[unnumbered], draw.of_rows), draw.state
        num_before[unnumbered] += 1
