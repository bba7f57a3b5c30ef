"""By what renaming names of a checkpoint become names of the model: a prefix that is there or not, or one name inside.

U unexpected names, M missing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trueline.laws.initial_values.columns import Named

SAMPLES, CANDIDATES = 8, 64
"""Unexpected names that are compared with all missing ones, and renamings that are tried on all."""
FEWEST_MATRICES = 2
"""Matrices from which on a prefix in the place of another is no new head that happens to have the shapes of the old."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """``words`` say under which condition ``pairs`` of an unexpected and a missing name are one, ``num_matrices`` of
    which are no vectors.
    """

    words: str
    pairs: tuple[tuple[str, str], ...]
    num_matrices: int


def renaming_of(unexpected: Sequence[Named], missing: Sequence[Named]) -> Renaming | None:
    """The renaming by which most of ``unexpected`` have the names and shapes of ``missing`` ones, None without any."""
    shapes = dict(missing)
    sampled = unexpected[:: max(len(unexpected) // SAMPLES, 1)]
    rules = list(dict.fromkeys(rule for name, _ in sampled for rule in _rules(name, shapes)))[:CANDIDATES]
    renamings = [_applied(rule, unexpected, shapes) for rule in rules]
    return max((renaming for renaming in renamings if renaming), key=lambda renaming: len(renaming.pairs), default=None)


@dataclass(frozen=True, slots=True)
class _Rule:
    """``old`` at the beginning of an unexpected name stands for ``new``; or, where ``inside``, ``old`` is a part of
    names that have no such part in the model, or ``new`` one that they have there alone.
    """

    old: str
    new: str
    inside: bool = False


def _rules(name: str, shapes: Mapping[str, tuple[int, ...] | None]) -> Iterator[_Rule]:
    parts = name.split(".")
    for other in shapes:
        others = other.split(".")
        if parts[-1] != others[-1] or parts == others:
            continue
        num = 0
        while num < min(len(parts), len(others)) and parts[-1 - num] == others[-1 - num]:
            num += 1
        yield _Rule("".join(f"{part}." for part in parts[:-num]), "".join(f"{part}." for part in others[:-num]))
        longer, shorter = (parts, others) if len(parts) > len(others) else (others, parts)
        for part in dict.fromkeys(longer):
            if [kept for kept in longer if kept != part] == shorter:
                yield _Rule(part, "", inside=True) if longer is parts else _Rule("", part, inside=True)


def _applied(rule: _Rule, unexpected: Sequence[Named], shapes: Mapping[str, tuple[int, ...] | None]) -> Renaming | None:
    renamed = _function(rule, shapes)
    pairs: list[tuple[str, str]] = []
    num_matrices = num_under = 0
    for name, shape in unexpected:
        num_under += bool(rule.old) and not rule.inside and name.startswith(rule.old)
        other = renamed(name)
        if other is not None and other in shapes and (shape is None or shape == shapes[other]):
            pairs.append((name, other))
            num_matrices += len(shapes[other] or ()) > 1
    if not pairs:
        return None
    # One prefix for another: parts of two models may be alike by chance, as pooler.dense and transform.dense of BERT.
    if rule.old and rule.new:
        num_of_model = sum(other.startswith(rule.new) for other in shapes)
        if num_matrices < FEWEST_MATRICES or not len(pairs) == num_under == num_of_model:
            return None
    return Renaming(_words(rule), tuple(pairs), num_matrices)


def _function(rule: _Rule, shapes: Mapping[str, tuple[int, ...] | None]) -> Callable[[str], str | None]:
    if not rule.inside:
        return lambda name: rule.new + name[len(rule.old) :] if name.startswith(rule.old) else None
    if rule.old:
        return lambda name: _without(name, rule.old)
    by_short = {_without(other, rule.new): other for other in shapes}
    return by_short.get


def _without(name: str, part: str) -> str:
    return ".".join(kept for kept in name.split(".") if kept != part)


def _words(rule: _Rule) -> str:
    if rule.inside:
        return f"without '{rule.old}' in their names" if rule.old else f"with '{rule.new}' in their names"
    if rule.old and rule.new:
        return f"with '{rule.new}' in the place of '{rule.old}'"
    return f"without the prefix '{rule.old}'" if rule.old else f"with the prefix '{rule.new}'"
