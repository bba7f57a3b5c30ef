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
    for model_name in shapes:
        model_parts = model_name.split(".")
        if parts[-1] != model_parts[-1] or parts == model_parts:
            continue
        num = 0
        while num < min(len(parts), len(model_parts)) and parts[-1 - num] == model_parts[-1 - num]:
            num += 1
        yield _Rule("".join(f"{part}." for part in parts[:-num]), "".join(f"{part}." for part in model_parts[:-num]))
        longer, shorter = (parts, model_parts) if len(parts) > len(model_parts) else (model_parts, parts)
        for part in dict.fromkeys(longer):
            if [word for word in longer if word != part] == shorter:
                yield _Rule(part, "", inside=True) if longer is parts else _Rule("", part, inside=True)


def _applied(rule: _Rule, unexpected: Sequence[Named], shapes: Mapping[str, tuple[int, ...] | None]) -> Renaming | None:
    renamed = _function(rule, shapes)
    pairs: list[tuple[str, str]] = []
    num_matrices = num_under = 0
    for name, shape in unexpected:
        num_under += bool(rule.old) and not rule.inside and name.startswith(rule.old)
        model_name = renamed(name)
        if model_name is not None and model_name in shapes and (shape is None or shape == shapes[model_name]):
            pairs.append((name, model_name))
            num_matrices += len(shapes[model_name] or ()) > 1
    if not pairs:
        return None
    # One prefix for another: parts of two models may be alike by chance, as pooler.dense and transform.dense of BERT.
    if rule.old and rule.new:
        num_of_model = sum(model_name.startswith(rule.new) for model_name in shapes)
        if num_matrices < FEWEST_MATRICES or not len(pairs) == num_under == num_of_model:
            return None
    return Renaming(_words(rule), tuple(pairs), num_matrices)


def _function(rule: _Rule, shapes: Mapping[str, tuple[int, ...] | None]) -> Callable[[str], str | None]:
    if not rule.inside:
        return lambda name: rule.new + name[len(rule.old) :] if name.startswith(rule.old) else None
    if rule.old:
        return lambda name: _without(name, rule.old)
    by_short = {_without(model_name, rule.new): model_name for model_name in shapes}
    return by_short.get


def _without(name: str, part: str) -> str:
    return ".".join(word for word in name.split(".") if word != part)


def _words(rule: _Rule) -> str:
    if rule.inside:
        return f"without '{rule.old}' in their names" if rule.old else f"with '{rule.new}' in their names"
    if rule.old and rule.new:
        return f"with '{rule.new}' in the place of '{rule.old}'"
    return f"without the prefix '{rule.old}'" if rule.old else f"with the prefix '{rule.new}'"
