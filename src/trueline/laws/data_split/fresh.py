"""Proof that no sample was consumed twice so far: then there are no repeats, no overlap and no duplicates.

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

MAX_DIGESTS = 1 << 26
"""Digests that are carried at most: 512 MiB."""

_NO_EPOCH = -1


@dataclass(frozen=True)
class FreshSamples:
    """Follower of all samples of data-parallel workers; it carries arrays by name."""

    name: str = "fresh samples"

    def advance(self, stretch: Stretch, carried: Arrays) -> Arrays | None:
        """Arrays to carry past the steps of ``stretch``; None where a sample came again, or there are epochs."""
        run, part = stretch.run, stretch.part
        ranks = data_parallel_ranks(run)
        steps_R, ranks_R, lengths_R, digests = part.flat("sample_digests", ranks=ranks)
        ordered = np.sort(digests)
        num_steps, total, epoch = carried.get("counts", np.array([0, 0, _NO_EPOCH])).tolist()
        epochs = _epochs(part, ranks)
        first = not num_steps
        if total + len(digests) > MAX_DIGESTS or len(epochs) > 1 or not (first or epochs == {epoch}):
            return None
        earlier = {_block_range(name): array for name, array in carried.items() if name.startswith("seen ")}
        if np.any(ordered[1:] == ordered[:-1]) or any(_intersect(array, ordered) for array in earlier.values()):
            return None
        left_N = np.isin(ranks, ranks_R[lengths_R > 0])
        counts = np.array([num_steps + len(part.steps), total + len(digests), epochs.pop()])
        left_N |= carried.get("left", np.zeros_like(left_N))
        num_steps_read = np.array(len(np.unique(steps_R[lengths_R > 0])) + int(carried.get("read", np.array(0))))
        updated = {"counts": counts, "left": left_N, "read": num_steps_read}
        if part.steps[-1] == run.steps[-1]:
            return {**carried, **updated}  # no further step will be compared with digests of these
        blocks_n = np.repeat(np.searchsorted(part.steps, steps_R) + num_steps, lengths_R) // _BLOCK_STEPS
        for begin, end in _ranges(-(-int(counts[0]) // _BLOCK_STEPS)):
            inside = [array for (low, high), array in earlier.items() if begin <= low and high <= end]
            new = digests[(blocks_n >= begin) & (blocks_n < end)]
            updated[f"seen {begin}-{end}"] = inside[0] if len(inside) == 1 and not len(new) else _merged(*inside, new)
        return updated

    def conclude(self, run: Run, carried: Arrays) -> list[Finding] | None:
        """No Findings, where two workers left digests of some steps, and their samplers declare nothing wrong."""
        declared = declared_sampling(run.env, data_parallel_ranks(run))
        one_block = carried["counts"][2] == _NO_EPOCH or not run.restarts
        enough = np.count_nonzero(carried["left"]) > 1 and carried["read"] > 1
        healthy = not declared.odd_seeds() and declared.uncovered_parts() is None
        return [] if one_block and enough and healthy else None


def _epochs(part: Run, ranks: list[int]) -> set[int]:
    """Epochs of the rows, ``_NO_EPOCH`` among them where some row has none."""
    values_TN, measured_TN = part.pivot("epoch")
    columns = columns_of(part, ranks)
    values_TN, has_epoch_TN = values_TN[:, columns], measured_TN[:, columns]
    return {*np.unique(values_TN[has_epoch_TN]).astype(int).tolist(), *([] if has_epoch_TN.all() else [_NO_EPOCH])}


def _ranges(num_blocks: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks, one for each set bit of their number, largest first: adding blocks rewrites few."""
    begin = 0
    for bit in reversed(range(num_blocks.bit_length())):
        if num_blocks >> bit & 1:
            yield begin, begin + (1 << bit)
            begin += 1 << bit


def _block_range(name: str) -> tuple[int, int]:
    low, high = name.removeprefix("seen ").split("-")
    return int(low), int(high)


def _intersect(carried: NDArray[Any], ordered: NDArray[Any]) -> bool:
    """True where two sorted arrays have a value in common."""
    if not len(carried):
        return False
    return bool(np.any(carried[np.minimum(np.searchsorted(carried, ordered), len(carried) - 1)] == ordered))


def _merged(*arrays: NDArray[Any]) -> NDArray[Any]:
    return np.sort(np.concatenate(arrays), kind="stable")  # which is fast where there are few sorted stretches
