"""What a row of the column ``target_features`` holds, for who writes it and who reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

_KINDS = 3


@dataclass(frozen=True, slots=True)
class Telling:
    """So many numbers of a sample tell its target; of the one at place ``at`` chance makes that least: ``nats`` is the
    negative logarithm of that chance.
    """

    num: int
    at: int
    nats: float


@dataclass(frozen=True, slots=True)
class TargetFeatures:
    """Of all looks so far: numbers of a sample that the model reads and that tell the one target of the sample.

    ``inputs`` are the names of the inputs and how many ``numbers`` of a sample of each were looked at; a batch had up
    to so many different ``targets``. ``affine`` are the numbers that are the target in all samples but for a factor and
    an offset, ``grouped`` those that are one for all samples of one target, and ``renamed`` those that are another one
    for each target, too.
    """

    function: str
    inputs: tuple[tuple[str, int], ...]
    samples: int
    targets: int
    affine: Telling
    grouped: Telling
    renamed: Telling

    @property
    def numbers(self) -> int:
        """All that were looked at."""
        return sum(num for _, num in self.inputs)

    def place(self, at: int) -> tuple[str, int, int]:
        """The name of an input, the place of a number in its samples, and how many these have."""
        for name, num in self.inputs:
            if at < num:
                return name, at, num
            at -= num
        raise IndexError(at)


def names_text(function: str, inputs: Sequence[tuple[str, int]]) -> str:
    """The string of the column ``target_feature_names``."""
    return json.dumps([function, [list(pair) for pair in inputs]])


def target_features(text: str, numbers: Sequence[float]) -> TargetFeatures | None:
    """Of one row of both columns; None where they are not of this version."""
    if len(numbers) != 2 + 3 * _KINDS:
        return None
    function, inputs = json.loads(text)
    pairs = tuple((str(name), int(num)) for name, num in inputs)
    kinds = [Telling(int(num), int(at), nats) for num, at, nats in zip(*(iter(numbers[2:]),) * 3, strict=True)]
    return TargetFeatures(str(function), pairs, int(numbers[0]), int(numbers[1]), *kinds)
