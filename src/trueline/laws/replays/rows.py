"""The rows of this law's column that say anything."""

from __future__ import annotations

from collections import Counter

from trueline.laws.replays.columns import Replayed
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


def looked_at(run: Run) -> dict[tuple[int, int], Replayed]:
    """By (step, rank), what was done again. Raises ``CannotTell`` where nothing was."""
    rows = {key: Replayed.from_json(text) for key, text in run.texts("replayed").items()}
    if not rows:
        raise CannotTell(
            "no work was done again: `trueline run --plan audit` does that every 100 steps", reason="by-design"
        )
    done = {key: row for key, row in rows.items() if not row.doubt}
    if not done:
        ((doubt, _),) = Counter(row.doubt for row in rows.values()).most_common(1)
        raise CannotTell(f"no work could be done again: {doubt}", reason="by-design")
    return done
