"""Functions that all checks share: workers to compare, those unlike the majority, and the steps and sites of a mask.

T steps, N workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.series.parts_alike import groups_share_one_model
from trueline.judge.series.whole_parameters import parts_of_one_model
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.site import Site
from trueline.schema.text.words import counted
from trueline.store.reader import Run

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_RANKS = 32
"""Ranks, the first, that stand for all in what one program does on each: its loaders, samplers, inputs."""
MAX_SITES = 8
"""Sites that a Finding lists; the ranks and steps say the rest."""


def data_parallel_ranks(run: Run) -> list[int]:
    """Ranks that left something and whose gradients are averaged together, ascending; of ranks that hold parts of one
    model the first.

    A manifest that no adapter has filled in (the job ended while it started) names none: then all ranks.
    """
    if not run.manifest.adapter:
        return list(run.ranks)
    parts = {rank for ranks in parts_of_one_model(run) for rank in ranks[1:]}
    members = set(run.manifest.data_parallel_ranks) - parts
    return [rank for rank in run.ranks if rank in members]


def written_by_all(run: Run) -> int:
    """The last step that every compared rank has written: -1 where one has written none. A rank that is late would look
    like one that differs.
    """
    return min((run.last_steps.get(rank, -1) for rank in data_parallel_ranks(run)), default=-1)


def several_workers(run: Run) -> list[int]:
    """``data_parallel_ranks`` where there are two or more; raises ``CannotTell`` otherwise."""
    ranks = data_parallel_ranks(run)
    if len(ranks) > 1:
        return ranks
    if not ranks:
        raise CannotTell("it compares ranks, and no rank of the data-parallel group left data")
    if run.world_size == 1:
        raise CannotTell("it compares ranks, and there is only one worker", reason="one-worker")
    if parts_of_one_model(run):
        raise CannotTell(
            "it compares ranks that each compute the whole model, and these have equal losses, each with parameters of "
            "its own: tensor parallelism, or equal batches under a sharding that no adapter knows",
            reason="by-design",
        )
    if groups_share_one_model(run):
        raise CannotTell(
            "it compares ranks that average their gradients with each other, and no two of this job do: each group has "
            f"one rank, and its {counted(len(run.beside) + 1, 'rank')} hold one model together",
            reason="one-worker",
        )
    raise CannotTell(
        f"it compares ranks whose gradients are averaged, and of the {run.world_size} ranks of this job only one "
        f"worker of such a group, rank {ranks[0]}, is known and left data",
        reason="one-worker" if len(run.ranks) == run.world_size else "no-data",
    )


def columns_of(run: Run, ranks: Sequence[int]) -> Ints:
    """[N] positions of ``ranks`` in ``run.ranks``, to pick the columns of ``pivot`` and ``stack``."""
    position = {rank: index for index, rank in enumerate(run.ranks)}
    return np.array([position[rank] for rank in ranks], dtype=np.int64)


def numbers(run: Run, column: str, ranks: Sequence[int]) -> tuple[Floats, Bools]:
    """Values [T, N] of a scalar column for ``ranks`` and where they were measured [T, N]."""
    values, measured = run.pivot(column)
    columns = columns_of(run, ranks)
    return values[:, columns], measured[:, columns]


def envs_of(run: Run, ranks: Sequence[int]) -> dict[int, RankEnv]:
    """The environments of those of ``ranks`` that left one."""
    return {rank: run.env[rank] for rank in ranks if rank in run.env}


def differs(values_TN: NDArray[Any], measured_TN: Bools) -> Bools:
    """[T] whether any two measured values of a step differ; NaN equals NaN."""
    first_T = np.argmax(measured_TN, axis=1)  # 0 where none was measured: the mask below leaves that step out
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
    """Ranks of ``ranks`` [N] that the mask chooses."""
    return tuple(ranks[int(n)] for n in np.flatnonzero(chosen_N))


@dataclass(frozen=True)
class Marked:
    """Steps and ranks at which a mask is set: ``first`` is the index of the first such step in ``run.steps``,
    ``steps`` are all of them, ``first_ranks`` are the ranks at the first and ``ranks`` those at any.
    """

    first: int
    steps: list[int]
    first_ranks: tuple[int, ...]
    ranks: tuple[int, ...]


def marked(run: Run, ranks: Sequence[int], mask_TN: Bools) -> Marked:
    """Steps and ranks at which ``mask_TN`` is set; it is set somewhere."""
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


def sites_of(
    step: int, ranks: Iterable[int], *, phase: str, names: Sequence[str], slot: str = "out0"
) -> tuple[str, ...]:
    """Sites of each name on each rank at ``step``, ``MAX_SITES`` at most."""
    return tuple(str(Site(step, 0, rank, phase, name, slot=slot)) for rank in ranks for name in names)[:MAX_SITES]
