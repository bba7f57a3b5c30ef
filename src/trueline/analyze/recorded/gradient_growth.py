"""How gradients grow from layer to layer on their way back, in one recorded step.

Layers are told by their names: those that differ in one number (``blocks.3.mlp`` and ``blocks.4.mlp``), or the calls
of one name, are one chain, in the order in which backward came to them. So like is compared with like: the gradient of
the output of one kind of layer, of one slot and dtype.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trueline.analyze.recorded.steps import StepRows

Key = tuple[Any, ...]

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Growth:
    """A chain that ended at the end of its dtype's range; ``key`` is equal on ranks that show the same.

    ``rows`` are the layers in which the largest magnitude grew without a break, first the one nearest to the loss, and
    ``largest`` their values. ``beyond`` is the row of the next layer, which is not finite; None where the last of
    ``rows`` is within a factor of two of the largest number of its dtype.
    """

    key: Key
    rows: tuple[int, ...]
    largest: tuple[float, ...]
    beyond: int | None

    @property
    def num_layers(self) -> int:
        """Layers by which it grew."""
        return len(self.rows) - 1

    @property
    def ratio(self) -> float:
        """The last value over the first."""
        return self.largest[-1] / self.largest[0]

    @property
    def weight(self) -> tuple[bool, float]:
        """Which of several chains to tell of: one that overflowed, the one that grew most."""
        return self.beyond is not None, self.ratio


def growths(rows: StepRows, largest_number: dict[str, float]) -> Iterator[Growth]:
    """Every chain of a step that ends beyond, or within a factor of two of, the largest number of its dtype."""
    for key, chain in _chains(rows).items():
        values = [0.0 if rows.bad[row] else rows.largest(row) or 0.0 for row in chain]
        end = next((i for i, row in enumerate(chain) if rows.bad[row]), len(chain))
        limit = largest_number.get(rows.dtype[chain[0]])
        if limit is None or end == 0 or (end == len(chain) and values[end - 1] <= limit / 2):
            continue
        begin = end - 1
        while begin > 0 and 0 < values[begin - 1] < values[begin]:
            begin -= 1
        beyond = chain[end] if end < len(chain) else None
        yield Growth(key, tuple(chain[begin:end]), tuple(values[begin:end]), beyond)


def _chains(rows: StepRows) -> dict[Key, list[int]]:
    """The rows of gradients by chain, in the order of backward."""
    chains: defaultdict[Key, list[int]] = defaultdict(list)
    for row in range(len(rows)):
        is_gradient = rows.kind[row] == "param" or (rows.kind[row] in ("module", "op") and rows.is_out(row))
        if rows.phase[row] == "bwd" and is_gradient and rows.numel[row]:
            for place in _places(rows, row):
                key = (rows.micro[row], rows.kind[row], rows.api[row], rows.slot[row], rows.dtype[row], *place)
                chains[key].append(row)
    return {key: chain for key, chain in chains.items() if len(chain) > 2}


def _places(rows: StepRows, row: int) -> Iterator[tuple[str, int]]:
    """The chains that a row is in: one for each number in its name, and one for the calls of that name."""
    name, call = rows.name[row], rows.call[row]
    for found in _NUMBER.finditer(name):
        yield f"{name[: found.start()]}*{name[found.end() :]}", call
    yield name, -1
