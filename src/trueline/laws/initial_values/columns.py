"""The columns of the workers table that this law measures or alone reads, and what ``initial_values`` holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from trueline.schema.column import Column

COLUMNS: tuple[Column, ...] = (
    Column(
        "initial_values",
        "list<float64>",
        "",
        "Of the first step that is watched, for each parameter `InitialValues` before the update: elements looked at, "
        "those not finite, those below 2^-126 and not zero, mean, standard deviation, kurtosis, largest magnitude.",
        after="buffer_digests",
    ),
    Column(
        "frozen_params",
        "string",
        "",
        "Of that step, JSON of `FrozenParam`: the last `MAX_FROZEN` frozen parameters of the model, in its order.",
    ),
    Column("frozen_values", "list<float64>", "", "`InitialValues` of each of these."),
    Column(
        "frozen_loaded",
        "int64",
        "params",
        "Of that step, where loads were looked at, how many frozen parameters one had filled.",
    ),
    Column(
        "declared_ties",
        "string",
        "",
        "Of that step, JSON of a pair of names for each parameter that a model of transformers declares to be another, "
        "and that is one of its own.",
    ),
    Column(
        "loads",
        "string",
        "",
        "Of that step, where loads were looked at, JSON of `Load`: each load into a module of this process that left "
        "something out, on both sides, which no later load brought.",
    ),
    Column(
        "loaded_params",
        "string",
        "",
        "Of that step, where loads were looked at, JSON of `LoadedParam`: parameters of the model that a load had "
        "filled, in its order.",
    ),
    Column(
        "loaded_compared",
        "list<float64>",
        "",
        "Of each of these `Comparison`: what the load left, of up to 64 elements, and what is there before the update.",
    ),
    Column(
        "self_loads",
        "string",
        "",
        "Of the first sampled step, and of those before which there were more, where loads were looked at, JSON of "
        "`OwnLoad`: modules, no parts of the model, whose `load_state_dict` was given their own state so far.",
    ),
    Column(
        "self_loads_changed",
        "list<float64>",
        "",
        "Of each of these 1 where elements that were looked at changed between two such loads; else 0.",
    ),
    Column(
        "embeddings",
        "string",
        "",
        "Of that step, JSON of `Embedding`: those with a row for padding, and frozen ones.",
    ),
    Column(
        "embedding_values",
        "list<float64>",
        "",
        "Of each of these, before the update: `RowValues` of its rows but the last `MAX_ROWS`, the norm of the row for "
        "padding, and of each of its last rows the norm, the distance to the mean of the others, and 1 where the batch "
        "reads it.",
    ),
)

MAX_FROZEN = 256
"""Frozen parameters that are looked at, the last ones, as a head is at the end."""

MAX_EMBEDDINGS, MAX_ROWS = 8, 32
"""Embeddings that are looked at, and last rows of each, where tokens are added: at most half of them."""
MAX_OTHERS = 1024
"""Rows before these that they are compared with, at equal distances."""

MAX_LOOKED = 16384
"""Elements of a parameter that are looked at: the spread of as many independent normal ones is known to 0.6 %."""

SMALLEST_NORMAL = 2.0**-126
"""Of float32 and bfloat16. What is smaller has fewer digits; float16 has nothing as small."""


@dataclass(frozen=True, slots=True)
class InitialValues:
    """One parameter, as this rank holds it, just before the first update. All numbers are float64, as they stand in the
    column, of ``looked`` elements at equal distances: those that are NaN or infinite (``nonfinite``), those that are
    not zero and below ``SMALLEST_NORMAL``; and of the finite ones the mean, the standard deviation, the kurtosis (the
    fourth central moment over the square of the second: 3 of a normal, 1.8 of a uniform distribution) and the largest
    magnitude.
    """

    looked: float
    nonfinite: float
    subnormal: float
    mean: float
    spread: float
    kurtosis: float
    largest: float


@dataclass(frozen=True, slots=True)
class FrozenParam:
    """A frozen parameter; ``is_behind``: no parameter that is trained comes after it in the model."""

    name: str
    shape: tuple[int, ...]
    is_behind: bool


def frozen_text(params: Sequence[FrozenParam]) -> str:
    """The string of the column."""
    return json.dumps([astuple(param) for param in params])


def frozen_params(text: str) -> tuple[FrozenParam, ...]:
    """Of one row of the column."""
    return tuple(FrozenParam(name, tuple(shape), is_behind) for name, shape, is_behind in json.loads(text))


NUM_FIELDS = len(fields(InitialValues))


@dataclass(frozen=True, slots=True)
class Embedding:
    """An embedding [``rows``, ``width``] by the name of its weight. ``padding`` is its ``padding_idx``, -1 without;
    ``declared`` the ``vocab_size`` of a module of the model, where that is smaller than ``rows`` (rows were added since
    it was made), -1 otherwise; ``trains``: its weight or an adapter around it needs a gradient; ``last`` is how many
    last rows have values.
    """

    name: str
    rows: int
    width: int
    padding: int
    declared: int
    trains: bool
    last: int


@dataclass(frozen=True, slots=True)
class RowValues:
    """Of the rows before the last: the mean, standard deviation, smallest and largest of their norms, and the mean
    distance to their mean.
    """

    mean: float
    spread: float
    smallest: float
    largest: float
    distance: float


def embeddings_text(embeddings: Sequence[Embedding]) -> str:
    """The string of the column."""
    return json.dumps([astuple(embedding) for embedding in embeddings])


def embeddings_from(text: str) -> tuple[Embedding, ...]:
    """Of one row of the column."""
    return tuple(Embedding(*row) for row in json.loads(text))


NUM_ROW_FIELDS = len(fields(RowValues)) + 1
"""Numbers of an embedding in front of those of its last rows, with the norm of the row for padding."""


Named = tuple[str, tuple[int, ...] | None]
"""The name of a tensor, and its shape where that is known."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load ``into`` a module of this class, by the ``call`` at a ``line`` of the script; ``name`` is that of the
    module in the model, None where it is no part of that. Of ``num`` tensors of the checkpoint, those without a place
    are ``unexpected``; ``nested`` is the key below which all stand in a mapping of their own. Of the ``num_tensors`` of
    the module, ``missing`` were not filled, neither then nor later, and ``num_own`` were given to themselves: then
    ``unexpected`` are those of the ``file`` that was read last.
    """

    into: str
    name: str | None
    call: str
    line: str
    num: int
    num_own: int
    num_tensors: int
    unexpected: tuple[Named, ...]
    missing: tuple[Named, ...]
    nested: str
    file: str


@dataclass(frozen=True, slots=True)
class OwnLoad:
    """``num`` loads at a ``line`` of the script of the state of a module of class ``into`` into itself, by the time of
    the row; ``key`` stays the same from row to row.
    """

    key: int
    into: str
    line: str
    num: int


@dataclass(frozen=True, slots=True)
class LoadedParam:
    """A parameter of this local ``shape`` that was filled ``into`` a module of that class by ``call`` at a ``line`` of
    the script. ``way`` is ``same`` where the module that it was in then has it, ``other`` where another stands in its
    place, ``gone`` where the whole module is gone and the model has another one of its class. ``rows_added`` are rows
    of an embedding that it has more.
    """

    name: str
    way: str
    shape: tuple[int, ...]
    rows_added: int
    into: str
    call: str
    line: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of ``looked`` elements of a parameter those that are ``close`` to what was loaded, the ``correlation`` of the
    two, NaN where one is constant, and whether what ``was`` loaded, and what ``is`` there now, is one value only.
    """

    looked: float
    close: float
    correlation: float
    was_constant: float
    is_constant: float


NUM_COMPARED = len(fields(Comparison))


def loaded_text(params: Sequence[LoadedParam]) -> str:
    """The string of the column: what many parameters share stands once."""
    loads = list(dict.fromkeys((param.into, param.call, param.line) for param in params))
    rows = [
        [param.name, param.way, param.shape, param.rows_added, loads.index((param.into, param.call, param.line))]
        for param in params
    ]
    return json.dumps([loads, rows])


def loaded_params(text: str) -> tuple[LoadedParam, ...]:
    """Of one row of the column."""
    loads, rows = json.loads(text)
    return tuple(LoadedParam(name, way, tuple(shape), added, *loads[load]) for name, way, shape, added, load in rows)


def self_loads_from(text: str) -> tuple[OwnLoad, ...]:
    """Of one row of the column."""
    return tuple(OwnLoad(**load) for load in json.loads(text))


def loads_from(text: str) -> tuple[Load, ...]:
    """Of one row of the column."""
    return tuple(
        Load(**load | {side: _named(load[side]) for side in ("unexpected", "missing")}) for load in json.loads(text)
    )


def _named(pairs: Sequence[tuple[str, Sequence[int] | None]]) -> tuple[Named, ...]:
    return tuple((name, None if shape is None else tuple(shape)) for name, shape in pairs)
