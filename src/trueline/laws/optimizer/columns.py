"""The columns that this law measures, and what ``holdings`` holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "kept_gradients",
        "list<int64>",
        "",
        "Positions in `RankEnv.params` of those whose gradient was still as the update before had left it when the "
        "backward passes of this step began, and was added to; None where no gradients were looked at.",
        after="unreduced_params",
    ),
    Column(
        "update_facts",
        "string",
        "",
        "On steps whose update is sampled, JSON of what the optimizer declares, and of which elements `update_values` "
        "are.",
        after="clip_values",
    ),
    Column(
        "update_values",
        "list<float64>",
        "",
        "Sampled elements of parameters, gradients and optimizer states before, then of parameters and states after "
        "the update.",
    ),
    Column(
        "holdings",
        "string",
        "",
        "Of a few steps, JSON of `Holdings`: the optimizers that made an update since the last sampled step, the decay "
        "of each of their groups, parameters that several of them updated by one gradient, and those whose gradient "
        "was not cleared before the next update.",
    ),
    Column(
        "masked_facts",
        "string",
        "",
        "At a few early steps, JSON of `MaskedRows` without their numbers: embeddings that are decayed.",
    ),
    Column(
        "masked_rows",
        "list<float64>",
        "",
        "Of each of these: rows that were read so far, those of them whose gradient was always 0, by what the update "
        "multiplied some of these, and how far they are from that, beside their length.",
    ),
    Column(
        "row_facts",
        "string",
        "",
        "At a few early steps, JSON of names and numbers of rows of weights that `unused_rows` is of.",
    ),
    Column(
        "unused_rows",
        "list<float64>",
        "",
        "Of each of these: rows with a gradient at this step, rows that had none at any step that was looked at so "
        "far, how many runs these make, and the sum of the rows at which these begin.",
    ),
)

MAX_NAMES = 64
"""Parameters that are named of one kind."""


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """An embedding of ``num`` rows in a group of this weight ``decay`` and rate. Of the rows that were ``read`` so far
    the ``masked`` ones have had a gradient of exactly 0 each time; the update multiplied some of them by ``factor``, to
    a distance of ``residual`` times their length.
    """

    name: str
    num: int
    decay: float
    rate: float
    read: int
    masked: int
    factor: float
    residual: float


def masked_text(embeddings: Sequence[MaskedRows]) -> str:
    """The string of the column ``masked_facts``."""
    return json.dumps([[seen.name, seen.num, seen.decay, seen.rate] for seen in embeddings])


def masked_rows(text: str, numbers: Sequence[float]) -> tuple[MaskedRows, ...]:
    """Of one row of both columns."""
    return tuple(
        MaskedRows(str(name), int(num), float(decay), float(rate), int(read), int(masked), factor, residual)
        for (name, num, decay, rate), (read, masked, factor, residual) in zip(
            json.loads(text), zip(*(iter(numbers),) * 4, strict=True), strict=False
        )
    )


MIN_ROWS = 8
"""Rows of a part of a layer: of fewer, units that are dead by chance may look like a part."""


@dataclass(frozen=True, slots=True)
class UnusedRows:
    """A weight of ``num`` rows, of which ``reached`` have a gradient now. ``never`` had none so far; they make ``runs``
    runs, the first at row ``begin`` where that is one.
    """

    name: str
    num: int
    reached: int
    never: int
    runs: int
    begin: int


def rows_text(weights: Sequence[tuple[str, int]]) -> str:
    """The string of the column ``row_facts``, from names and numbers of rows."""
    return json.dumps(weights)


def unused_rows(text: str, numbers: Sequence[float]) -> tuple[UnusedRows, ...]:
    """Of one row of both columns."""
    return tuple(
        UnusedRows(str(name), int(num), *map(int, four))
        for (name, num), four in zip(json.loads(text), zip(*(iter(numbers),) * 4, strict=True), strict=True)
    )


@dataclass(frozen=True, slots=True)
class DecayGroup:
    """A group of an optimizer: its weight ``decay``, how many parameters it has, of the model and any, which of them
    are weights of norms (the first ``MAX_NAMES``), and how many other vectors, such as biases.
    """

    decay: float
    num: int
    norms: tuple[str, ...]
    num_vectors: int


@dataclass(frozen=True, slots=True)
class StepOf:
    """An update of one optimizer, by the name of its class. ``default`` is the decay that groups have which name none;
    None for an optimizer without.
    """

    optimizer: str
    default: float | None
    groups: tuple[DecayGroup, ...]


@dataclass(frozen=True, slots=True)
class Holdings:
    """The updates from ``step`` up to the next, in their order, each optimizer once; ``shared`` are the first
    ``MAX_NAMES`` of ``num_shared`` parameters that two of them (``by``) updated by one and the same gradient: no
    backward pass came between, and nobody wrote to it. ``kept`` are those, of the first ``MAX_NAMES``, whose gradient
    one of several optimizers had used and used again in the next step, with more added and nothing cleared.
    ``crossed`` are those whose update used what a backward pass had left that was for the update of another optimizer
    and went through them, with more added and nothing cleared.
    """

    step: int
    updates: tuple[StepOf, ...]
    shared: tuple[str, ...]
    num_shared: int
    by: tuple[str, ...]
    kept: tuple[str, ...] = ()
    crossed: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Holdings:
        """The same from what ``to_json`` gave."""
        document: dict[str, Any] = json.loads(text)
        return cls(
            step=document["step"],
            updates=tuple(_update_from(update) for update in document["updates"]),
            shared=tuple(document["shared"]),
            num_shared=document["num_shared"],
            by=tuple(document["by"]),
            kept=tuple(document.get("kept", ())),
            crossed=tuple(document.get("crossed", ())),
        )


def _update_from(document: dict[str, Any]) -> StepOf:
    groups: list[dict[str, Any]] = document["groups"]
    return StepOf(
        document["optimizer"],
        document["default"],
        tuple(
            DecayGroup(group["decay"], group["num"], tuple(group["norms"]), group["num_vectors"]) for group in groups
        ),
    )
