"""Lists, counts, ranks and steps as they stand in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MAX_PIECES = 4
"""Single steps or ranges that a sentence lists before it only counts them."""
_LISTED_RANKS = 8
"""Ranks of a group that are written one by one; of more their ranges are."""


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return "".join(items) if len(items) < 2 else f"{', '.join(items[:-1])} and {items[-1]}"


def named_some(names: Sequence[str]) -> str:
    """``a, b, c and 12 more``."""
    return listed(names if len(names) <= 3 else [*names[:3], f"{len(names) - 3} more"])


def named_or_ends(names: Sequence[str]) -> str:
    """``a, b and c``, of more than eight ``a to z (12 in all)``."""
    return listed(names) if len(names) <= 8 else f"{names[0]} to {names[-1]} ({len(names)} in all)"


def numberless(name: str) -> str:
    """``h.*.mlp`` of ``h.3.mlp``: the name that repeated layers share."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def counted(number: int, noun: str) -> str:
    """``1 sample``, ``1,200 samples``."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def milliseconds(seconds: float) -> str:
    """``0.21 ms``, ``12 ms``, ``1,500 ms``."""
    ms = 1e3 * seconds
    return f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.2g} ms"


def capitalized(sentence: str) -> str:
    """The sentence with its first letter, and nothing else, in upper case; a name of code in front stays as it is."""
    is_code = any(sign in sentence.partition(" ")[0] for sign in "_=./")
    return sentence if is_code else sentence[:1].upper() + sentence[1:]


def uncapitalized(sentence: str) -> str:
    """The sentence as it stands behind a colon; a name of code (``fc.weight``, ``AdamW``, ``SGD``) stays as it is."""
    first = sentence.partition(" ")[0]
    is_code = any(sign in first for sign in "_=./") or first[1:] != first[1:].lower()
    return sentence if is_code else sentence[:1].lower() + sentence[1:]


def ranges(numbers: Iterable[int], *, among: Iterable[int] | None = None, dash: str = "-") -> list[str]:
    """Whole numbers, three or more neighbours joined: 0, 1, 2, 5, 6 → ``0-2``, ``5``, ``6``. Of ``among``, if given,
    those are neighbours that follow each other there.
    """
    position = None if among is None else {value: index for index, value in enumerate(sorted(set(among)))}
    groups: list[list[int]] = []
    for value in sorted(set(numbers)):
        before = groups[-1][-1] if groups else None
        gap = None if before is None else value - before if position is None else position[value] - position[before]
        if gap == 1:
            groups[-1].append(value)
        else:
            groups.append([value])
    return [
        text
        for group in groups
        for text in ([f"{group[0]}{dash}{group[-1]}"] if len(group) > 2 else [str(value) for value in group])
    ]


def ranks_text(ranks: Iterable[int], *, all_ranks: Iterable[int] = (), dash: str = "-") -> str:
    """``rank 3``, ``ranks 0 and 1``, ``ranks 0-5, 7 and 9``, or ``all 4 ranks`` for ``all_ranks`` of three or more; ""
    for none.
    """
    rank_set = set(ranks)
    if len(rank_set) > 2 and rank_set == set(all_ranks):
        return f"all {len(rank_set)} ranks"
    return f"rank{'s' if len(rank_set) > 1 else ''} {listed(ranges(rank_set, dash=dash))}" if rank_set else ""


def steps_text(steps: Iterable[int], *, among: Iterable[int] | None = None) -> str:
    """``step 5``, ``steps 0-49``, ``steps 3, 7 and 9``, or ``37 steps between 3 and 400`` where those are too many
    pieces.

    ``among`` are the steps that were looked at: those that follow each other there make a range.
    """
    ordered = sorted(set(steps))
    if len(ordered) == 1:
        return f"step {ordered[0]}"
    pieces = ranges(ordered, among=among)
    if len(pieces) > _MAX_PIECES:
        return f"{len(ordered)} steps between {ordered[0]} and {ordered[-1]}"
    return f"steps {listed(pieces)}"


def looked_text(num_found: int, num_looked: int, num_steps: int) -> str:
    """`` (10 of 60 steps were looked at)``, of what was found at one or two: it may have been at others, too; nothing
    where all were.
    """
    if num_found > 2 or num_looked >= num_steps:
        return ""
    return f" ({num_looked:,} of {counted(num_steps, 'step')} {'was' if num_looked == 1 else 'were'} looked at)"


_BESIDE_RANK = r" \(RANK\)|(?<=\()RANK, |, RANK(?=\))|,? (?:on|of|by) RANK(?=[\s.,:;)]|$)"
"""A rank in brackets or behind what is its own, where a sentence stands without it."""


def of_one_process(sentence: str, rank: int = 0) -> str:
    """``sentence`` without the ``rank`` that a single process has: ``the loss of rank 0 is`` → ``the loss is``; ``rank
    0 reads`` → ``the process reads``.
    """
    sentence = re.sub(_BESIDE_RANK.replace("RANK", f"rank {rank}"), "", sentence)
    return re.sub(rf"\b([Rr])ank {rank}\b", lambda match: f"{'T' if match[1] == 'R' else 't'}he process", sentence)


def since_text(step: int, interval: tuple[int, int]) -> str:
    """``since step 25 (between 23 and 26)``; without the brackets where only one step is left."""
    low, high = interval
    return f"since step {step}" + (f" (between {low} and {high})" if low < high else "")


def whose_text(
    ranks: Sequence[int],
    step: int | None,
    world_size: int,
    *,
    or_who: str = "",
    against: Sequence[int] = (),
    interval: tuple[int, int] | None = None,
    machine: str = "",
) -> str:
    """``rank 2, since step 32``; ``all 4 ranks`` where nobody of more than two is left out; no rank where there is
    one; "" where neither is known. ``or_who`` are those that it may be instead, ``against`` the ranks that it was
    compared with, ``interval`` as in ``since_text``, ``machine`` where these ranks run.
    """
    onset = "" if step is None else since_text(step, interval or (step, step))
    ranks_words = ranks_text(ranks, all_ranks=ranks if len(ranks) == world_size else ()) if world_size != 1 else ""
    ranks_words += f" {machine}" if ranks_words and machine else ""
    ranks_words += f" or {or_who}" if ranks_words and or_who else ""
    ranks_words += f" (against {ranks_text(against)})" if ranks_words and against else ""
    return ", ".join(part for part in (ranks_words, onset) if part)


def groups_text(*groups: Sequence[int]) -> str:
    """``[[0, 1, 3]]``, as ``worker_groups`` takes it; of many ranks ``["0-76,78-127"]``."""
    if max(map(len, groups)) <= _LISTED_RANKS:
        return str([list(group) for group in groups])
    return f"[{', '.join(chr(34) + _ranges(group) + chr(34) for group in groups)}]"


def _ranges(ranks: Sequence[int]) -> str:
    """``0-76,78-127`` of ascending ranks."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][-1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def of_ranks(
    nouns: Sequence[str], ranks: Iterable[int], *, verbs: tuple[str, str] = ("is", "are"), where: str = ""
) -> str:
    """``the loss of rank 3 is``, ``the losses of ranks 0 and 1 are``, ``the loss and the gradient of rank 3 are``;
    ``where`` stands before the verb.
    """
    rank_set = set(ranks)
    plural = ("es" if nouns[0].endswith("s") else "s") if len(rank_set) > 1 and len(nouns) == 1 else ""
    subjects = listed([f"the {noun}{plural}" for noun in nouns])
    return f"{subjects} of {ranks_text(rank_set)}{where} {verbs[len(rank_set) > 1 or len(nouns) > 1]}"


def clipped(text: str, length: int) -> str:
    """``text``, or its beginning and an ellipsis, ``length`` characters in all."""
    return text if len(text) <= length else text[: length - 1] + "…"


def by_reason(left_out: Iterable[tuple[str, str]]) -> list[tuple[list[str], str]]:
    """(what, why) with all that has the same reason together."""
    together: dict[str, list[str]] = {}
    for name, why in left_out:
        together.setdefault(why, []).append(name)
    return [(names, why) for why, names in together.items()]
