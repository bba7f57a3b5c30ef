"""One recorded step of one rank, read as values."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, repeat, starmap
from typing import Any, cast

from trueline.analyze.recorded.tensors import Stored, stored
from trueline.analyze.recorded.values import Loader, StepValues, Value
from trueline.schema.errors import RunError
from trueline.schema.records import STAT_NAMES, UNCOUNTED
from trueline.schema.run_manifest import compiled_in
from trueline.schema.site import Site
from trueline.schema.stats import TensorStats
from trueline.store.log import column_lists
from trueline.store.reader import Run
from trueline.store.records.whole import Place, place_of

_COLUMNS = (
    *("row", "micro", "phase", "name", "call", "slot", "kind", "api", "module", "args", "stack", "flags", "dtype"),
    *("shape", "mesh", "same_as", "numel", "nan", "pos_inf", "neg_inf", "zero", "subnormal", "min", "max", "sum"),
    *("sum_sq", "fingerprint", "exponents", "tensor", "note"),
)


@dataclass(frozen=True)
class RankStep:
    """A step as one rank recorded it; ``places`` says of parts of DTensors where they lie, by index of the value.
    ``whole`` is False where the Plan asked for the first rows of stored values only.
    """

    values: list[Value]
    places: dict[int, Place]
    whole: bool


def read_step(run: Run, step: int, rank: int) -> StepValues:
    """The values of a step on a rank, in the order in which they were seen; none where it recorded none.

    Raises ``RunError`` where a part is gone since the Run was opened.
    """
    return StepValues(run.path, step, (rank,), read_rank_step(run, step, rank).values, compiled_in(run.manifest.notes))


def read_rank_step(run: Run, step: int, rank: int) -> RankStep:
    """As ``read_step``, with what it takes to merge the step with those of other ranks. Where the file of stored values
    is gone or damaged, ``Run.problems`` says so and statistics are left.
    """
    table = cast(Any, run).records(steps=[step], ranks=[rank], columns=_COLUMNS, resolve=False)
    columns: dict[str, list[Any]] = cast(Any, column_lists).column_lists(table)
    for name in ("phase", "name", "kind", "api", "module", "dtype", "note"):
        columns[name] = [text or "" for text in columns[name]]
    columns["shape"] = [shape or () for shape in columns["shape"]]
    roots = _roots(columns)
    micros, calls = ([number or 0 for number in columns[name]] for name in ("micro", "call"))
    places = zip(micros, repeat(rank), columns["phase"], columns["name"], calls, columns["slot"], strict=False)
    made = zip(
        range(len(roots)),
        roots,
        repeat((rank,)),
        starmap(partial(Site, step), places),
        *(columns[name] for name in ("kind", "api", "module")),
        [_flags(flags or "") for flags in columns["flags"]],
        *(columns[name] for name in ("dtype", "shape", "args", "stack")),
        _measured(columns, roots),
        _loaders(run, step, rank, columns, roots),
        columns["note"],
        strict=False,
    )
    meshes = enumerate(columns["mesh"])
    lying = {index: place_of(mesh) for index, mesh in meshes if mesh is not None}
    return RankStep(list(starmap(Value, made)), lying, run.manifest.plan_at(step).get("first_rows") is None)


def _roots(columns: dict[str, list[Any]]) -> list[int]:
    """For each row the index of the one that has its numbers, itself where that is not there."""
    place = {row: index for index, row in enumerate(columns["row"])}
    return [place.get(same, index) for index, same in enumerate(columns["same_as"])]


_MEASURED = ("dtype", "shape", "numel", *STAT_NAMES, "fingerprint", "exponents")


def _measured(columns: dict[str, list[Any]], roots: list[int]) -> list[TensorStats | None]:
    """The statistics of each row: those of its root, in its own shape."""
    is_own = [same is None for same in columns["same_as"]]
    rows = zip(*(compress(columns[name], is_own) for name in ("note", *_MEASURED)), strict=True)
    own = dict(zip(compress(range(len(roots)), is_own), starmap(_of_row, rows), strict=True))
    views: dict[tuple[int, Any], TensorStats] = {}
    found: list[TensorStats | None] = []
    for root, shape in zip(roots, columns["shape"], strict=True):
        stats = own.get(root)
        if stats is not None and stats.shape != shape:
            known = views.get((root, shape))
            stats = views[root, shape] = known if known is not None else replace(stats, shape=shape)
        found.append(stats)
    return found


def _of_row(
    note: str,
    dtype: str,
    shape: tuple[int, ...],
    numel: int | None,
    nan: int | None,
    pos_inf: int,
    neg_inf: int,
    zero: int,
    subnormal: int,
    low: float | None,
    high: float | None,
    total: float | None,
    total_sq: float | None,
    fingerprint: int | None,
    exponents: tuple[int, ...] | None,
) -> TensorStats | None:
    """Imported statistics that count nothing are of finite numbers where they say nothing else; of values that are not,
    all that is known is that some are NaN or infinite: one is counted. Of some only a checksum is known.
    """
    if nan is None:
        nan = pos_inf = neg_inf = zero = subnormal = 0
        if UNCOUNTED in note:
            nan, total, total_sq = 1, 0.0, 0.0
        elif (total is None or total_sq is None) and fingerprint is None:
            return None
    if numel is None:
        return None
    counts = nan, pos_inf, neg_inf, zero, subnormal
    extremes = None if low is None or math.isnan(low) else low, None if high is None or math.isnan(high) else high
    sums = math.nan if total is None else total, math.nan if total_sq is None else total_sq
    return TensorStats(dtype, shape, numel, *counts, *extremes, *sums, fingerprint, exponents)


def _loaders(
    run: Run, step: int, rank: int, columns: dict[str, list[Any]], roots: list[int]
) -> Iterable[Loader | None]:
    """What reads the stored value of each row, that of its root."""
    keys = columns["tensor"]
    if all(key is None for key in keys) or not run.stored.opens(rank, step, run.problems):
        return repeat(None)
    return [
        None if keys[root] is None else _loader(run, step, rank, keys[root], shape)
        for root, shape in zip(roots, columns["shape"], strict=True)
    ]


@functools.cache
def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) if text else frozenset()


def _loader(run: Run, step: int, rank: int, key: str, shape: tuple[int, ...]) -> Loader:
    place = {"micro": 0, "phase": "", "name": "", "call": 0, "slot": ""}
    row = {**place, "step": step, "rank": rank, "tensor": key, "shape": shape}

    def load() -> Stored:
        try:
            return stored(run.tensor(row))
        except RunError as error:
            raise RunError(f"{error} Copy the Run again; without that file its statistics are compared.") from None

    return load
