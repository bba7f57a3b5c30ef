"""The rows of this law's column that say anything, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trueline.laws.replays.columns import Replayed
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

Rows = Mapping[tuple[int, int], Replayed]
"""By (step, rank), what was done again."""


def looked_at(run: Run) -> Rows:
    """The rows without a doubt. Raises ``CannotTell`` where there are none."""
    rows = _rows(run)
    if not rows:
        raise CannotTell(
            "no work was done again: `trueline run --plan audit` does that every 100 steps", reason="by-design"
        )
    done = {key: row for key, row in rows.items() if not row.doubt}
    if not done:
        raise CannotTell(f"no work could be done again: {_doubt_of(rows)}", reason="by-design")
    return done


def left_out_notes(run: Run) -> list[str]:
    """Whose work was not done again, while that of other ranks was."""
    rows = _rows(run)
    done = {rank for (_, rank), row in rows.items() if not row.doubt}
    ranks = tuple(sorted({rank for _, rank in rows} - done))
    if not done or not ranks:
        return []
    doubt = _doubt_of({key: row for key, row in rows.items() if key[1] in ranks})
    return [f"The work of {ranks_text(ranks, all_ranks=run.ranks)} was not done again: {doubt}."]


def _rows(run: Run) -> Rows:
    return {key: Replayed.from_json(text) for key, text in run.texts("replayed").items()}


def _doubt_of(rows: Rows) -> str:
    """The most frequent one."""
    ((doubt, _),) = Counter(row.doubt for row in rows.values()).most_common(1)
    return doubt
