"""What all checks say alike: which workers, who is the odd one, since which step, in words and as sites.

T steps, N workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.schema.errors import CannotTell
from trueline.schema.run_manifest import RankEnv
from trueline.schema.site import Site
from trueline.store.reader import Run

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_SITES = 8
"""Sites that a Finding lists; the ranks and steps say the rest."""

_MAX_PIECES = 4
"""Single steps or ranges that a sentence lists before it only counts them."""


def data_parallel_ranks(run: Run) -> list[int]:
    """Ranks that left something and whose gradients are averaged together, ascending.

    A manifest that no adapter has filled in (the job ended while it started) names none: then all ranks.
    """
    if not run.manifest.adapter:
        return list(run.ranks)
    return [rank for rank in run.ranks if rank in set(run.manifest.data_parallel_ranks)]


def several_workers(run: Run) -> list[int]:
    """``data_parallel_ranks`` where there are two or more; raises ``CannotTell`` otherwise."""
    ranks = data_parallel_ranks(run)
    if len(ranks) > 1:
        return ranks
    if not ranks:
        raise CannotTell("it compares ranks, and no rank of the data-parallel group left data")
    if run.world_size == 1:
        raise CannotTell("it compares ranks, and there is only one worker", reason="one-worker")
    raise CannotTell(
        f"it compares ranks whose gradients are averaged, and of the {run.world_size} ranks of this job only one "
        f"worker of such a group, rank {ranks[0]}, is known and left data",
        reason="one-worker",
    )


def require_equal_replicas(run: Run) -> None:
    """Raise ``CannotTell`` where replicas update by themselves between averagings, on purpose."""
    why = next((env.local_updates for env in run.env.values() if env.local_updates), "")
    if why:
        raise CannotTell(
            f"replicas update by themselves and are averaged now and then, on purpose ({why})", reason="by-design"
        )


def columns_of(run: Run, ranks: Sequence[int]) -> Ints:
    """[N] positions of ``ranks`` in ``run.ranks``, to pick the columns of ``pivot`` and ``stack``."""
    position = {rank: index for index, rank in enumerate(run.ranks)}
    return np.array([position[rank] for rank in ranks], dtype=np.int64)


def numbers(run: Run, column: str, ranks: Sequence[int]) -> tuple[Floats, Bools]:
    """Values [T, N] of a scalar column for ``ranks`` and where they were measured [T, N]."""
    values, measured = run.pivot(column)
    chosen = columns_of(run, ranks)
    return values[:, chosen], measured[:, chosen]


def envs_of(run: Run, ranks: Sequence[int]) -> dict[int, RankEnv]:
    """The environments of those of ``ranks`` that left one."""
    return {rank: run.env[rank] for rank in ranks if rank in run.env}


def differs(values_TN: NDArray[Any], measured_TN: Bools) -> Bools:
    """[T] whether any two measured values of a step differ; NaN equals NaN."""
    first_T = np.argmax(measured_TN, axis=1)
    reference_T1 = np.take_along_axis(values_TN, first_T[:, None], axis=1)
    same_TN = values_TN == reference_T1
    if values_TN.dtype.kind == "f":
        same_TN |= np.isnan(values_TN) & np.isnan(reference_T1)
    return np.any(measured_TN & ~same_TN, axis=1)


def odd_ranks(value_of: Mapping[int, Hashable]) -> tuple[int, ...]:
    """The ranks that do not hold the most common value, ascending; all of them where no value is more common than
    each other one.
    """
    counts = Counter(value_of.values()).most_common()
    if len(counts) < 2:
        return ()
    if counts[0][1] == counts[1][1]:
        return tuple(sorted(value_of))
    return tuple(sorted(rank for rank, value in value_of.items() if value != counts[0][0]))


def any_over(mask: Bools, axis: int | tuple[int, ...]) -> Bools:
    """The mask with ``axis`` reduced to whether any element is set."""
    return np.asarray(np.any(mask, axis=axis), dtype=np.bool_)


def ranks_where(ranks: Sequence[int], chosen_N: NDArray[Any]) -> tuple[int, ...]:
    """Those of ``ranks`` [N] that the mask chooses."""
    return tuple(ranks[int(n)] for n in np.flatnonzero(chosen_N))


@dataclass(frozen=True)
class Marked:
    """Where a mask over steps and workers is set: ``first`` is the index of the first such step in ``run.steps``,
    ``steps`` are all of them, ``first_ranks`` are the ranks at the first and ``ranks`` those at any.
    """

    first: int
    steps: list[int]
    first_ranks: tuple[int, ...]
    ranks: tuple[int, ...]


def marked(run: Run, ranks: Sequence[int], mask_TN: Bools) -> Marked:
    """Where ``mask_TN``, which is set somewhere, is set."""
    at_T = any_over(mask_TN, 1)
    first = int(np.argmax(at_T))
    return Marked(
        first=first,
        steps=run.steps[at_T].tolist(),
        first_ranks=ranks_where(ranks, mask_TN[first]),
        ranks=ranks_where(ranks, any_over(mask_TN, 0)),
    )


def longest_run(hits: Iterable[bool]) -> int:
    """The most hits in a row."""
    longest = current = 0
    for hit in hits:
        current = current + 1 if hit else 0
        longest = max(longest, current)
    return longest


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0 and 1``, ``ranks 0-5, 7 and 9``."""
    ordered = sorted(set(ranks))
    pieces = _ranges(ordered, ordered_among=None)
    return f"rank{'s' if len(ordered) != 1 else ''} {and_text(pieces)}"


def steps_text(steps: Iterable[int], *, among: Iterable[int] | None = None) -> str:
    """``step 5``, ``steps 0-49``, ``steps 3, 7 and 9``, or ``37 steps between 3 and 400`` where those are too many
    pieces.

    ``among`` are the steps that were looked at: those that follow each other there make a range.
    """
    ordered = sorted(set(steps))
    if len(ordered) == 1:
        return f"step {ordered[0]}"
    pieces = _ranges(ordered, ordered_among=None if among is None else sorted(set(among)))
    if len(pieces) > _MAX_PIECES:
        return f"{len(ordered)} steps between {ordered[0]} and {ordered[-1]}"
    return f"steps {and_text(pieces)}"


def since_text(step: int, interval: tuple[int, int]) -> str:
    """``since step 25 (between 23 and 26)``; without the brackets where only one step is left."""
    low, high = interval
    return f"since step {step}" + (f" (between {low} and {high})" if low < high else "")


def and_text(pieces: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return pieces[0] if len(pieces) == 1 else ", ".join(pieces[:-1]) + " and " + pieces[-1] if pieces else ""


def counted(number: int, noun: str) -> str:
    """``1 sample``, ``1,200 samples``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def of_ranks(
    nouns: Sequence[str], ranks: Iterable[int], *, verbs: tuple[str, str] = ("is", "are"), where: str = ""
) -> str:
    """``the loss of rank 3 is``, ``the losses of ranks 0 and 1 are``, ``the loss and the gradient of rank 3 are``;
    ``where`` stands before the verb.
    """
    whose = sorted(set(ranks))
    plural = ("es" if nouns[0].endswith("s") else "s") if len(whose) > 1 and len(nouns) == 1 else ""
    told = and_text([f"the {noun}{plural}" for noun in nouns])
    return f"{told} of {ranks_text(whose)}{where} {verbs[len(whose) > 1 or len(nouns) > 1]}"


def capitalized(sentence: str) -> str:
    """The sentence with its first letter, and nothing else, in upper case."""
    return sentence[:1].upper() + sentence[1:]


def named_some(names: Sequence[str], *, limit: int = 3) -> str:
    """``a, b, c and 12 more``."""
    shown = list(names[:limit])
    return and_text(shown) if len(names) <= limit else ", ".join(shown) + f" and {len(names) - limit} more"


def sites_of(
    step: int, ranks: Iterable[int], *, phase: str, names: Sequence[str], slot: str = "out0"
) -> tuple[str, ...]:
    """Sites of each name on each rank at ``step``, ``MAX_SITES`` at most."""
    return tuple(str(Site(step, 0, rank, phase, name, slot=slot)) for rank in ranks for name in names)[:MAX_SITES]


def _ranges(ordered: Sequence[int], *, ordered_among: Sequence[int] | None) -> list[str]:
    place = None if ordered_among is None else {value: index for index, value in enumerate(ordered_among)}
    runs: list[list[int]] = []
    for value in ordered:
        follows = bool(runs) and (
            value == runs[-1][-1] + 1 if place is None else place[value] == place[runs[-1][-1]] + 1
        )
        if follows:
            runs[-1].append(value)
        else:
            runs.append([value])
    return [
        piece
        for group in runs
        for piece in ([f"{group[0]}-{group[-1]}"] if len(group) > 2 else [str(value) for value in group])
    ]
