"""One recorded step of one rank, read as values."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import Any, cast

from trueline.analyze.stored import Stored, stored
from trueline.analyze.values import Loader, StepValues, Value
from trueline.schema.errors import RunError
from trueline.schema.records import STAT_NAMES, UNCOUNTED
from trueline.schema.site import Site
from trueline.schema.stats import TensorStats
from trueline.store.reader import Run
from trueline.store.whole import Place, place_of, stats_of

_COLUMNS = (
    *("row", "micro", "phase", "name", "call", "slot", "kind", "api", "module", "args", "stack", "flags", "dtype"),
    *("shape", "mesh", "same_as", "numel", "nan", "pos_inf", "neg_inf", "zero", "subnormal", "min", "max", "sum"),
    *("sum_sq", "fingerprint", "exponents", "tensor", "note"),
)


_COMPILED = re.compile(r"(\S+) is compiled: what runs inside it is not seen")


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
    return StepValues(run.path, step, (rank,), read_rank_step(run, step, rank).values, compiled_in(run))


def compiled_in(run: Run) -> frozenset[str]:
    """The modules that the recorder could not look into, as ``capture.record.session`` notes them."""
    return frozenset(found[1] for note in run.manifest.notes if (found := _COMPILED.match(note)) is not None)


def read_rank_step(run: Run, step: int, rank: int) -> RankStep:
    """As ``read_step``, with what it takes to merge the step with those of other ranks. Where the file of stored values
    is gone or damaged, ``Run.problems`` says so and statistics are left.
    """
    table = cast(Any, run).records(steps=[step], ranks=[rank], columns=_COLUMNS, resolve=False)
    columns: dict[str, list[Any]] = table.to_pydict()
    keys, shapes = columns["tensor"], [tuple(shape or ()) for shape in columns["shape"]]
    place = {row: index for index, row in enumerate(columns["row"])}
    roots = [place.get(same, index) for index, same in enumerate(columns["same_as"])]
    stored = any(key is not None for key in keys) and run.stored.opens(rank, step, run.problems)
    measured = _measured(columns)
    sites = zip(*(columns[name] for name in ("micro", "phase", "name", "call", "slot")), strict=True)
    told = zip(
        *(columns[name] for name in ("kind", "api", "module", "flags", "dtype", "args", "stack", "note")), strict=True
    )
    values: list[Value] = []
    for index, (root, shape, at, of) in enumerate(zip(roots, shapes, sites, told, strict=True)):
        micro, phase, name, call, slot = at
        kind, api, module, flags, dtype, args, stack, note = of
        key = keys[root]
        values.append(
            Value(
                index=index,
                root=root,
                ranks=(rank,),
                site=Site(step, micro or 0, rank, phase or "", name or "", call or 0, slot),
                kind=kind or "",
                api=api or "",
                module=module or "",
                flags=_flags(flags or ""),
                dtype=dtype or "",
                shape=shape,
                args=args,
                stack=stack,
                stats=_in_shape(measured[root], shape),
                load=None if key is None or not stored else _loader(run, step, rank, key, shape),
                note=note or "",
            )
        )
    meshes = enumerate(columns["mesh"])
    places = {index: place_of(mesh) for index, mesh in meshes if mesh is not None}
    return RankStep(values, places, run.manifest.plan_at(step).get("first_rows") is None)


def _measured(columns: dict[str, list[Any]]) -> list[TensorStats | None]:
    """The statistics of each row that has its own."""
    names = ("dtype", "shape", "numel", *STAT_NAMES, "fingerprint", "exponents", "note", "same_as")
    rows = zip(*(columns[name] for name in names), strict=True)
    return [None if row[-1] is not None else _of_row(dict(zip(names, row, strict=True))) for row in rows]


def _of_row(row: dict[str, Any]) -> TensorStats | None:
    """Imported statistics that count nothing are of finite numbers where they say nothing else; of values that are not,
    all that is known is that some are NaN or infinite: one is counted.
    """
    if row["nan"] is not None:
        return stats_of(row)
    counts = {"pos_inf": 0, "neg_inf": 0, "zero": 0, "subnormal": 0}
    if UNCOUNTED in (row["note"] or ""):
        return stats_of({**row, **counts, "nan": 1, "sum": 0.0, "sum_sq": 0.0})
    if row["sum"] is None or row["sum_sq"] is None:
        return None
    return stats_of({**row, **counts, "nan": 0})


@functools.cache
def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) if text else frozenset()


def _in_shape(stats: TensorStats | None, shape: tuple[int, ...]) -> TensorStats | None:
    """The statistics of a view; a row that is the same as another has a shape of its own."""
    return stats if stats is None or stats.shape == shape else replace(stats, shape=shape)


def _loader(run: Run, step: int, rank: int, key: str, shape: tuple[int, ...]) -> Loader:
    place = {"micro": 0, "phase": "", "name": "", "call": 0, "slot": ""}
    row = {**place, "step": step, "rank": rank, "tensor": key, "shape": shape}

    def load() -> Stored:
        try:
            return stored(run.tensor(row))
        except RunError as error:
            raise RunError(f"{error} Copy the Run again; without that file its statistics are compared.") from None

    return load
