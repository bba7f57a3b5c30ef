"""One recorded step: its values in the order of execution, and the calls that took and returned them.

A value is one row of ``Run.records``, or the rows of several ranks or micro-batches merged.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress, repeat, starmap
from typing import Any, cast

from trueline.judge.recorded.stored_tensors import Stored, stored
from trueline.schema.columns.records import PROJECTION_NAMES, STAT_NAMES, Unmeasured
from trueline.schema.errors import RunError
from trueline.schema.fact import fact
from trueline.schema.site import Site
from trueline.schema.stats import TensorStats
from trueline.store.log import column_lists
from trueline.store.reader import Run
from trueline.store.records.whole import ShardPlace, shard_place

_RETURNED = re.compile(r"out(\d.*|\.\D.*)")
"""Slots of what a call returned, as ``capture.record.arguments.outputs`` names them: ``out0``, ``out0.2``, ``out.x``.
"""

_TO_WRITE = re.compile(r"out(\.\d.*)?")
"""Slots of the argument ``out``, a tensor or a list of them."""

NAN, POS_INF, NEG_INF = 1, 2, 4
"""Kinds of numbers that are not finite, as bits."""

OF_BATCH = ("fwd", "bwd", "save")
"""Phases that every micro-batch has; of the others, the micro-batch that is noted is the last one."""

Loader = Callable[[], Stored]
"""Opens a stored value; float32 for what NumPy has no type for (bfloat16, float8). Raises ``RunError`` where it is gone
or damaged."""


@fact(eq=False)
class Value:
    """One value of a step. ``index`` is its place in ``StepValues.values``, ``root`` that of the first sighting of the
    same tensor (itself where it is the first). ``ranks`` saw it: one, or all that were merged. ``stats`` None: it was
    not measured; ``note`` says why. ``load`` None: it was not stored. ``scale`` is what the numbers were multiplied
    by to be comparable (1.0 but for gradients of averaged losses).
    """

    index: int
    root: int
    ranks: tuple[int, ...]
    site: Site
    kind: str
    api: str
    module: str
    flags: frozenset[str]
    dtype: str
    shape: tuple[int, ...]
    args: str | None = None
    stack: int | None = None
    stats: TensorStats | None = None
    load: Loader | None = None
    note: str = ""
    scale: float = 1.0

    @property
    def returned(self) -> bool:
        """True if the call of this value returned it (else it took it). Of a gradient: of the forward call."""
        return is_returned(self.site.slot)

    @property
    def in_model(self) -> bool:
        """True if its call is of the model's forward pass: that of a module, or inside of one."""
        return self.site.phase == "fwd" and (self.kind == "module" or bool(self.module))

    @property
    def numel(self) -> int:
        """Numbers measured; 0 where none were."""
        return 0 if self.stats is None else self.stats.numel

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of NaN, +inf and -inf in it; 0 where it was not measured."""
        return (0, 0, 0) if self.stats is None else (self.stats.nan, self.stats.pos_inf, self.stats.neg_inf)

    @property
    def largest(self) -> float | None:
        """The largest magnitude of its finite numbers; None where none is finite or measured."""
        ends = () if self.stats is None else (self.stats.min, self.stats.max)
        return max((abs(end) for end in ends if end is not None and math.isfinite(end)), default=None)

    @property
    def function(self) -> str:
        """Name of the called function: ``softmax`` of ``torch.nn.functional.softmax``, ``truediv`` of
        ``torch.Tensor.__truediv__``.
        """
        return function_name(self.api)


@functools.cache
def is_returned(slot: str) -> bool:
    """True if a slot is of what a call returned."""
    return _RETURNED.fullmatch(slot) is not None


def function_name(api: str) -> str:
    """The last part of an ``api``, without the underscores around it."""
    return api.rpartition(".")[2].strip("_")


CallKey = tuple[int, str, str, int]
"""(micro, phase, name, call) of a Site."""


def key_of(value: Value) -> CallKey:
    """The call that a value belongs to."""
    site = value.site
    return site.micro, site.phase, site.name, site.call


def spot_of(value: Value) -> tuple[int, str, int, str]:
    """Key of a value of the forward pass, and of its gradient: micro-batch, name, call and slot."""
    site = value.site
    return site.micro, site.name, site.call, site.slot


@fact(eq=False)
class Call:
    """The values of one call in one phase, in order; a parameter or gradient is a call of its own, kind ``param``."""

    micro: int
    phase: str
    name: str
    number: int
    values: list[Value] = field(default_factory=list[Value])

    @property
    def key(self) -> CallKey:
        """Key of the call among those of the step."""
        return self.micro, self.phase, self.name, self.number

    @property
    def first(self) -> Value:
        """The value that was seen first, which carries the arguments."""
        return self.values[0]

    @property
    def ins(self) -> list[Value]:
        """Values that it took; of gradients: the gradients of these."""
        return [value for value in self.values if not value.returned]

    @property
    def outs(self) -> list[Value]:
        """Values that it returned; of gradients: the gradients of these."""
        return [value for value in self.values if value.returned]

    @property
    def module(self) -> str:
        """FQN of the module that the call ran in; of a module's own call, its own."""
        return self.name if self.first.kind == "module" else self.first.module

    @property
    def op(self) -> str:
        """Name of the operation, without where it is: ``linear``, ``add``; the class's name for a module."""
        return self.first.api.rsplit(".", 1)[-1] if self.first.api else self.name.rsplit(".", 1)[-1]


@dataclass(frozen=True, eq=False)
class StepValues:
    """All values of one step of one run, on one rank or merged over several. ``label`` is the user's path of it,
    ``compiled`` names modules of which only what goes in and comes out was seen, if that. ``autocast`` is the coarsest
    dtype in which autocast lets calls compute, '' where it was not seen on.
    """

    label: str
    step: int
    ranks: tuple[int, ...]
    values: Sequence[Value]
    compiled: frozenset[str] = frozenset()
    autocast: str = ""

    def calls(self) -> list[Call]:
        """The calls in the order of their first values."""
        calls: dict[CallKey, Call] = {}
        last, values = None, list[Value]()
        for value in self.values:
            key = key_of(value)
            if key != last:  # most values of a call follow each other
                call = calls.get(key)
                if call is None:
                    call = calls[key] = Call(*key)
                last, values = key, call.values
            values.append(value)
        return list(calls.values())

    @cached_property
    def nonfinite(self) -> list[int]:
        """For each value the kinds of numbers in it that are not finite, as bits; 0 where all are finite or none was
        measured.

        What a call is to write into was measured before it did, and is left out: FSDP hides the change from the version
        of the value.
        """
        unwritten = {value.root for value in self.values if _TO_WRITE.fullmatch(value.site.slot)}
        return [0 if value.root in unwritten else _kinds(*value.counts) for value in self.values]


def _kinds(nan: int, pos_inf: int, neg_inf: int) -> int:
    return NAN * (nan > 0) | POS_INF * (pos_inf > 0) | NEG_INF * (neg_inf > 0)


_COLUMNS = (
    *("row", "micro", "phase", "name", "call", "slot", "kind", "api", "module", "args", "stack", "flags", "dtype"),
    *("shape", "mesh", "same_as", "numel", "nan", "pos_inf", "neg_inf", "zero", "subnormal", "min", "max", "sum"),
    *("sum_sq", *PROJECTION_NAMES, "fingerprint", "exponents", "tensor", "note"),
)


@dataclass(frozen=True)
class RankStep:
    """A step as one rank recorded it; ``places`` says of parts of DTensors where they lie, by index of the value.
    ``whole`` is False where the Plan asked for the first rows of stored values only.
    """

    values: list[Value]
    shard_places: dict[int, ShardPlace]
    whole: bool


def read_step(run: Run, step: int, rank: int) -> StepValues:
    """Values of a step on a rank as they were measured, in the order in which they were seen; none where it recorded
    none. Stored values are left where they are.

    Raises ``RunError`` where a part is gone since the Run was opened.
    """
    columns = _read_columns(run, step, rank)
    return StepValues(run.path, step, (rank,), _values(step, rank, columns, repeat(None)), run.manifest.compiled)


def read_rank_step(run: Run, step: int, rank: int) -> RankStep:
    """As ``read_step``, with the stored values and what it takes to merge the step with those of other ranks. Where the
    file of stored values is gone or damaged, ``Run.problems`` says so and statistics are left.
    """
    columns = _read_columns(run, step, rank)
    values = _values(step, rank, columns, _loaders(run, step, rank, columns))
    shard_places = {index: shard_place(mesh) for index, mesh in enumerate(columns["mesh"]) if mesh is not None}
    return RankStep(values, shard_places, run.manifest.plan_at(step).get("first_rows") is None)


def _read_columns(run: Run, step: int, rank: int) -> dict[str, list[Any]]:
    """The columns of the R rows of a step, each of length R; ``root`` is for each row the index of the one that has its
    numbers, itself where that is not there.
    """
    table = cast(Any, run).records(steps=[step], ranks=[rank], columns=_COLUMNS, resolve=False)
    columns: dict[str, list[Any]] = cast(Any, column_lists).column_lists(table)
    for name in ("phase", "name", "slot", "kind", "api", "module", "dtype", "note"):
        if None in columns[name]:
            columns[name] = [text or "" for text in columns[name]]
    columns["shape"] = [shape or () for shape in columns["shape"]]
    index_of = {row: index for index, row in enumerate(columns["row"])}
    columns["root"] = [index_of.get(source, index) for index, source in enumerate(columns["same_as"])]
    return columns


def _values(step: int, rank: int, columns: dict[str, list[Any]], loaders: Iterable[Loader | None]) -> list[Value]:
    micros, calls = ([number or 0 for number in columns[name]] for name in ("micro", "call"))
    sites = zip(micros, repeat(rank), columns["phase"], columns["name"], calls, columns["slot"], strict=False)
    fields = zip(
        range(len(columns["root"])),
        columns["root"],
        repeat((rank,)),
        starmap(partial(Site, step), sites),
        *(columns[name] for name in ("kind", "api", "module")),
        [_flags(flags or "") for flags in columns["flags"]],
        *(columns[name] for name in ("dtype", "shape", "args", "stack")),
        _measured(columns),
        loaders,
        columns["note"],
        strict=False,
    )
    return list(starmap(Value, fields))


_MEASURED = ("dtype", "shape", "numel", *STAT_NAMES, "fingerprint", "exponents")


def _measured(columns: dict[str, list[Any]]) -> list[TensorStats | None]:
    """The statistics of each row: those of its root, in its own shape."""
    is_own = [source is None for source in columns["same_as"]]
    rows = zip(*(compress(columns[name], is_own) for name in ("note", *_MEASURED)), strict=True)
    stats_of_root = dict(zip(compress(range(len(is_own)), is_own), starmap(_of_row, rows), strict=True))
    views: dict[tuple[int, Any], TensorStats] = {}
    stats_of_rows: list[TensorStats | None] = []
    for root, shape in zip(columns["root"], columns["shape"], strict=True):
        stats = stats_of_root.get(root)
        if stats is not None and stats.shape != shape:
            view = views.get((root, shape))
            stats = views[root, shape] = view if view is not None else replace(stats, shape=shape)
        stats_of_rows.append(stats)
    return stats_of_rows


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
    first: float | None,
    second: float | None,
    third: float | None,
    fingerprint: int | None,
    exponents: tuple[int, ...] | None,
) -> TensorStats | None:
    """Imported statistics that count nothing are of finite numbers where they say nothing else; of values that are not,
    all that is known is that some are NaN or infinite: one is counted. Of some only a checksum is known.
    """
    if nan is None:  # the tool that was imported counts nothing
        nan = pos_inf = neg_inf = zero = subnormal = 0
        if Unmeasured.of(note) is Unmeasured.UNCOUNTED:
            nan, total, total_sq = 1, 0.0, 0.0
        elif (total is None or total_sq is None) and fingerprint is None:
            return None
    if numel is None:
        return None
    counts = nan, pos_inf, neg_inf, zero, subnormal
    # NaN stands for an extreme that no finite number has, and None for it here.
    extremes = None if low is None or math.isnan(low) else low, None if high is None or math.isnan(high) else high
    sums = math.nan if total is None else total, math.nan if total_sq is None else total_sq
    projections = None if first is None or second is None or third is None else (first, second, third)
    return TensorStats(dtype, shape, numel, *counts, *extremes, *sums, fingerprint, exponents, projections)


def _loaders(run: Run, step: int, rank: int, columns: dict[str, list[Any]]) -> Iterable[Loader | None]:
    """Loader of the stored value of each row, that of its root."""
    keys = columns["tensor"]
    if keys.count(None) == len(keys) or not run.stored.opens(rank, step, run.problems):
        return repeat(None)
    return [
        None if keys[root] is None else _loader(run, step, rank, keys[root], shape)
        for root, shape in zip(columns["root"], columns["shape"], strict=True)
    ]


@functools.cache
def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) if text else frozenset()


def _loader(run: Run, step: int, rank: int, key: str, shape: tuple[int, ...]) -> Loader:
    site = {"micro": 0, "phase": "", "name": "", "call": 0, "slot": ""}
    row = {**site, "step": step, "rank": rank, "tensor": key, "shape": shape}

    def load() -> Stored:
        try:
            return stored(run.tensor(row))
        except RunError as error:
            raise RunError(f"{error} Copy the Run again; without that file its statistics are compared.") from None

    return load
