"""Whether no sample was consumed twice so far, in which case there is nothing to say of repeats, overlap or duplicates.

All digests so far are carried, sorted, in as few arrays as a binary number of blocks of ``_BLOCK_STEPS`` has ones, so
that adding some rewrites little: array ``seen b-e`` has those of the blocks from b to before e. A sample that comes
again, as in a second epoch, takes the whole Run to tell what it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import columns_of, data_parallel_ranks
from trueline.judge.follows import Stretch
from trueline.judge.series.declared_sampling import declared_sampling
from trueline.schema.finding import Finding
from trueline.store.reader import Run

Arrays = Mapping[str, NDArray[Any]]

_BLOCK_STEPS = 10
"""Steps whose digests are added together, whatever the stretch."""

MOST = 1 << 26
"""Digests that are carried at most: 512 MiB."""

_NO_EPOCH = -1


@dataclass(frozen=True)
class FreshSamples:
    """Of all samples of data-parallel workers; what is carried is arrays by name."""

    name: str = "fresh samples"

    def further(self, stretch: Stretch, carried: Arrays) -> Arrays | None:
        """What is carried past the steps of ``stretch``; None where a sample came again, or there are epochs."""
        run, part = stretch.run, stretch.part
        ranks = data_parallel_ranks(run)
        steps_R, ranks_R, lengths_R, digests = part.flat("sample_digests", ranks=ranks)
        ordered = np.sort(digests)
        num_steps, total, epoch = carried.get("counts", np.array([0, 0, _NO_EPOCH])).tolist()
        epochs = _epochs(part, ranks)
        first = not num_steps
        if total + len(digests) > MOST or len(epochs) > 1 or not (first or epochs == {epoch}):
            return None
        seen = {_blocks_of(name): each for name, each in carried.items() if name.startswith("seen ")}
        if np.any(ordered[1:] == ordered[:-1]) or any(_meet(each, ordered) for each in seen.values()):
            return None
        left_N = np.isin(ranks, ranks_R[lengths_R > 0])
        counts = np.array([num_steps + len(part.steps), total + len(digests), epochs.pop()])
        read = np.array(len(np.unique(steps_R[lengths_R > 0])) + int(carried.get("read", np.array(0))))
        out = {"counts": counts, "left": left_N | carried.get("left", np.zeros_like(left_N)), "read": read}
        if part.steps[-1] == run.steps[-1]:
            return {**carried, **out}  # nothing is added to these
        blocks_n = np.repeat(np.searchsorted(part.steps, steps_R) + num_steps, lengths_R) // _BLOCK_STEPS
        for begin, end in _ranges(-(-int(counts[0]) // _BLOCK_STEPS)):
            inside = [each for (low, high), each in seen.items() if begin <= low and high <= end]
            new = digests[(blocks_n >= begin) & (blocks_n < end)]
            out[f"seen {begin}-{end}"] = inside[0] if len(inside) == 1 and not len(new) else _merged(*inside, new)
        return out

    def said(self, run: Run, carried: Arrays) -> list[Finding] | None:
        """Nothing, where two workers left digests of some steps, and their samplers declare nothing that is wrong."""
        declared = declared_sampling(run.env, data_parallel_ranks(run))
        one_block = carried["counts"][2] == _NO_EPOCH or not run.restarts
        enough = np.count_nonzero(carried["left"]) > 1 and carried["read"] > 1
        healthy = not declared.odd_seeds() and declared.uncovered_parts() is None
        return [] if one_block and enough and healthy else None


def _epochs(part: Run, ranks: list[int]) -> set[int]:
    """Epochs that are told of, several where it is not the same of all rows."""
    values_TN, measured_TN = part.pivot("epoch")
    columns = columns_of(part, ranks)
    values_TN, told_TN = values_TN[:, columns], measured_TN[:, columns]
    return {*np.unique(values_TN[told_TN]).astype(int).tolist(), *([] if told_TN.all() else [_NO_EPOCH])}


def _ranges(num: int) -> Iterator[tuple[int, int]]:
    begin = 0
    for bit in reversed(range(num.bit_length())):
        if num >> bit & 1:
            yield begin, begin + (1 << bit)
            begin += 1 << bit


def _blocks_of(name: str) -> tuple[int, int]:
    low, high = name.removeprefix("seen ").split("-")
    return int(low), int(high)


def _meet(seen: NDArray[Any], ordered: NDArray[Any]) -> bool:
    """Whether two sorted arrays have a value in common."""
    if not len(seen):
        return False
    return bool(np.any(seen[np.minimum(np.searchsorted(seen, ordered), len(seen) - 1)] == ordered))


def _merged(*arrays: NDArray[Any]) -> NDArray[Any]:
    return np.sort(np.concatenate(arrays), kind="stable")  # which is fast where there are few sorted stretches
