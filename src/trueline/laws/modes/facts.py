"""Facts of dropout: what is declared, and what is in force."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from trueline.judge.facts.fact import Mark, Subject
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run

HALF = 0.5
"""Probability from which on more is dropped than is left, and rescaled values vary by more than their size."""

MAX_LEVELS = 4
"""How deep options inside of others are looked at."""


def dropout(run: Run) -> tuple[str, Any] | None:
    """Parts that drop values at the last step that was looked at, those that are in evaluation mode, and the
    probabilities that options declare.
    """
    rows = run.texts("dropouts")
    if not rows:
        raise CannotTell("no modes of parts were looked at")
    counts: list[tuple[float, int, int]] = json.loads(rows[max(rows, key=lambda key: (key[0], -key[1]))])
    declared = _declared(run)
    if not counts and not declared:
        return None
    active = {f"{p:.3g}": num for p, num, _ in counts if num}
    off = {f"{p:.3g}": num for p, _, num in counts if num}
    parts = sum(active.values()) + sum(off.values())
    words: list[str] = []
    if active:
        num = sum(active.values())
        words.append(f"{counted(num, 'part')} {'drops' if num == 1 else 'drop'} values (p {named_some(list(active))})")
    if off:
        num = sum(off.values())
        subject = f"{num} of {counted(parts, 'part')}" if active else f"{counted(parts, 'part')} that may drop values"
        words.append(f"{subject} {'is' if num == 1 else 'are'} in evaluation mode (p {named_some(list(off))})")
    if not counts:
        words.append("no module drops values")
    if declared:
        words.append(f"options declare {named_some([f'{name} {p:.3g}' for name, p in declared.items()])}")
    return f"dropout: {'; '.join(words)}", {"active": active, "off": off, "declared": declared}


def _declared(run: Run) -> dict[str, float]:
    """Probabilities above 0 by the names of options of the model and the job."""
    facts = next((env.facts for _, env in sorted(run.env.items()) if env.facts is not None), None)
    declared: dict[str, float] = {}
    for options in (facts.configs if facts is not None else {}).values():
        for name, value in _numbers(options, MAX_LEVELS):
            if "drop" in name.lower() and 0 < value < 1:
                declared.setdefault(name, value)
    return declared


def _numbers(options: Mapping[str, Any], levels: int) -> Iterator[tuple[str, float]]:
    for name, value in options.items():
        if isinstance(value, float):
            yield name, value
        elif isinstance(value, Mapping) and levels > 1:
            yield from _numbers(cast(Mapping[str, Any], value), levels - 1)


def _most_dropping(value: Mapping[str, Any]) -> dict[float, int]:
    """Parts by probability, where that is above a half."""
    return {float(p): num for p, num in value["active"].items() if float(p) > HALF}


def _most_dropped(value: Mapping[str, Any]) -> str:
    """``2 parts drop values with p 0.95``."""
    parts = _most_dropping(value)
    num = sum(parts.values())
    return (
        f"{counted(num, 'part')} {'drops' if num == 1 else 'drop'} most values, with p {named_some([*map(str, parts)])}"
    )


SUBJECTS = (
    Subject(
        "dropout",
        "model",
        "dropout",
        dropout,
        (
            Mark(
                "drops-most",
                lambda value: bool(_most_dropping(value)),
                _most_dropped,
                advice="Dropout takes the probability to drop, not that to keep: nn.Dropout(1 - keep).",
            ),
        ),
    ),
)
