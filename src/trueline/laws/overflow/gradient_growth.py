"""Growth of gradients from layer to layer on their way back, in one recorded step.

Layers are known by their names: those that differ in one number (``blocks.3.mlp`` and ``blocks.4.mlp``), or the calls
of one name, are one chain, in the order in which backward came to them. So like is compared with like: the gradient of
the output of one kind of layer, of one slot and dtype.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trueline.judge.recorded.step_values import StepValues, Value

Key = tuple[Any, ...]

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Growth:
    """A chain that ended at the end of its dtype's range; ``key`` is equal on ranks that show the same.

    ``gradients`` are those of the layers in which the largest magnitude grew without a break, first the one nearest to
    the loss, and ``largest`` their largest magnitudes. ``beyond`` is that of the next layer, which is not finite; None
    where the last of ``gradients`` is within a factor of two of the largest number of its dtype.
    """

    key: Key
    gradients: tuple[Value, ...]
    largest: tuple[float, ...]
    beyond: Value | None

    @property
    def num_layers(self) -> int:
        """Layers by which it grew."""
        return len(self.gradients) - 1

    @property
    def ratio(self) -> float:
        """The last value over the first."""
        return self.largest[-1] / self.largest[0]

    @property
    def weight(self) -> tuple[bool, float]:
        """A sort key by which one of several chains is reported: one that overflowed, then the one that grew most."""
        return self.beyond is not None, self.ratio


def growths(step: StepValues, largest_number: dict[str, float]) -> Iterator[Growth]:
    """Every chain of a step that ends beyond, or within a factor of two of, the largest number of its dtype."""
    for key, chain in _chains(step).items():
        kinds_by_layer = [step.nonfinite[value.index] for value in chain]
        values = [0.0 if kinds else value.largest or 0.0 for value, kinds in zip(chain, kinds_by_layer, strict=True)]
        end = next((i for i, kinds in enumerate(kinds_by_layer) if kinds), len(chain))
        limit = largest_number.get(chain[0].dtype)
        # A chain whose first gradient is not finite got that from elsewhere.
        if limit is None or end == 0 or (end == len(chain) and values[end - 1] <= limit / 2):
            continue
        begin = end - 1
        while begin > 0 and 0 < values[begin - 1] < values[begin]:
            begin -= 1
        beyond = chain[end] if end < len(chain) else None
        yield Growth(key, tuple(chain[begin:end]), tuple(values[begin:end]), beyond)


def _chains(step: StepValues) -> dict[Key, list[Value]]:
    """Gradients by chain, in the order of backward."""
    chains: defaultdict[Key, list[Value]] = defaultdict(list)
    for value in step.values:
        is_gradient = value.kind == "param" or (value.kind in ("module", "op") and value.returned)
        if value.site.phase == "bwd" and is_gradient and value.numel:
            for name_and_call in _chains_of(value.site.name, value.site.call):
                chains[value.site.micro, value.kind, value.api, value.site.slot, value.dtype, *name_and_call].append(
                    value
                )
    return {key: chain for key, chain in chains.items() if len(chain) > 2}


def _chains_of(name: str, call: int) -> Iterator[tuple[str, int]]:
    """The chains that a gradient is in: one for each number in its name, and one for the calls of that name."""
    for match in _NUMBER.finditer(name):
        yield f"{name[: match.start()]}*{name[match.end() :]}", call
    yield name, -1
