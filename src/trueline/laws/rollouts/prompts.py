"""The prompts of the sequences of a Run: which are the same, and how long they are.

R sequences.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from trueline.judge.stats.memoize import memoized
from trueline.laws.rollouts.rows import Rows
from trueline.store.reader import Run

_OF_A_PROMPT = 4
"""A prompt is new to the engine where not even its first quarter was there before."""


class Prompt(NamedTuple):
    """One number for the ``whole`` of it and one for its ``beginning``, and its ``length`` in tokens."""

    whole: int
    beginning: int
    length: int


def prompts_of(run: Run, rows: Rows) -> list[Prompt | None]:
    """[R] the prompt of each sequence; None where it was not recorded."""
    prompts = _prompts_in(run)
    keys = zip(rows.step.tolist(), rows.rank.tolist(), rows.row.tolist(), strict=True)
    return [prompts.get(key) for key in keys]


@memoized
def _prompts_in(run: Run) -> dict[tuple[int, int, int], Prompt]:
    """By step, rank and row: several findings ask, and prompts are long."""
    prompts: dict[tuple[int, int, int], Prompt] = {}
    for table in cast(Any, run.kept("rollouts")).pieces(["step", "rank", "row", "prompt_ids"]):
        columns = (cast(list[int], table[name].to_pylist()) for name in ("step", "rank", "row"))
        keys = zip(*columns, strict=True)
        for key, ids in zip(keys, cast(list[list[int] | None], table["prompt_ids"].to_pylist()), strict=True):
            if ids:
                beginning = hash(tuple(ids[: max(1, len(ids) // _OF_A_PROMPT)]))
                prompts[key] = Prompt(hash(tuple(ids)), beginning, len(ids))
    return prompts
