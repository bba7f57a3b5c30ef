"""Facts of the precision in which a model computes."""

from __future__ import annotations

from typing import Any

from trueline.judge.facts.fact import Subject
from trueline.laws.precision.looks import looks
from trueline.schema.text.words import counted, listed
from trueline.store.reader import Run

FULL = "float32"


def products(run: Run) -> tuple[str, Any] | None:
    """In which dtypes products were computed at the last step that was looked at, on the first rank; None where that is
    float32, and nothing declares another.
    """
    by_key = looks(run)
    key = max(by_key, key=lambda key: (key[0], -key[1]))
    look = by_key[key]
    if set(look.counts) == {FULL} and not look.autocast:
        return None
    total = sum(look.counts.values())
    if len(look.counts) == 1:
        text = f"matrix products are computed in {next(iter(look.counts))}"
    else:
        numbers = sorted(look.counts.items(), key=lambda pair: -pair[1])
        text = f"of {counted(total, 'matrix product')} {listed([f'{num} are in {dtype}' for dtype, num in numbers])}"
    text += "; compiled or checkpointed parts keep theirs to themselves" if look.hidden else ""
    return f"{text} (step {key[0]})", {"products": dict(look.counts), "hidden": look.hidden}


SUBJECTS = (Subject("products", "precision", "the precision of matrix products", products),)
