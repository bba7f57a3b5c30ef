"""A recorded step as an outline: every call in the order of execution, modules as intervals of it.

R rows of the table ``records``, C calls.
"""

from __future__ import annotations

import shlex
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trueline.judge.recorded.step_values import CallKey
from trueline.render.comparison.compare_call import call_of, own_frame
from trueline.render.comparison.compare_rows import shape_text
from trueline.schema.errors import InputError
from trueline.schema.site import Site
from trueline.store.reader import Run
from trueline.web.views.compared import judgements_of
from trueline.web.views.operands import Operands, Rows, operands_of
from trueline.web.watched_run import WatchedRun

Statistic = Literal["not_finite", "largest", "rms", "zeros", "judgement"]
"""What calls are coloured by: NaN and infinities, the largest magnitude, root mean square, the share of zeros, or how
they compare with those of the reference.
"""
AskedStatistic = Statistic | Literal["auto"]
"""``auto`` is what says something of the step: NaN and infinities, or the root mean square where all is finite."""

MAX_PAGE = 1000
MIN_EQUAL = 3
"""Layers that make the same calls, from which on all but the first are folded."""
_COLUMNS = (
    *("row", "micro", "phase", "name", "call", "slot", "kind", "api", "module", "stack", "dtype", "shape", "numel"),
    *("nan", "pos_inf", "neg_inf", "zero", "min", "max", "sum", "sum_sq", "flags", "rank", "args", "note", "same_as"),
)
_MAX_OUTLINES = 4
"""Outlines that are kept: of the steps and ranks that were looked at last."""


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """Steps and ranks that were recorded."""

    steps: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its place in the order of execution, how deep it lies, and numbers of its values.

    These are how many elements are not finite; and of the worst of the floating values that it returned, or of all
    floating ones where it returned none, the largest magnitude, root mean square and share of zeros (None: not
    measured). ``judgement`` is that of the worst of its values in the comparison with the reference, "" where there is
    none. ``opens`` where calls lie in it that can be folded away.
    """

    place: int
    depth: int
    micro: int
    phase: str
    name: str
    call: int
    kind: str
    api: str
    shape: str
    dtype: str
    source: str
    not_finite: int
    largest: float | None
    rms: float | None
    zeros: float | None
    judgement: str
    opens: bool


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls ``offset`` and after among the ``total`` that the search, and modules that are ``closed``, leave of the
    ``num_calls`` of a step. ``scale``
    is the lowest and highest value of the statistic over the whole step, None where none was measured;
    ``num_not_finite`` counts calls with NaN or infinities, and ``first_not_finite`` is the place of the first.
    """

    step: int
    rank: int
    offset: int
    total: int
    num_calls: int
    phases: tuple[str, ...]
    statistic: Statistic
    scale: tuple[float, float] | None
    num_not_finite: int
    first_not_finite: int | None
    found_at: int | None
    closed: tuple[str, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a call, as it was recorded."""

    slot: str
    site: str
    dtype: str
    shape: str
    numbers: tuple[tuple[str, float | None], ...]
    note: str


MAX_NEIGHBOURS = 24


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A call that gave this one a value, or took one of it."""

    place: int
    name: str


@dataclass(frozen=True, slots=True)
class CallDetails:
    """A call with its values, its arguments that are no tensors, and where it was made, innermost frame first; the
    calls that it ``takes`` from and ``gives`` to, as far as they were recorded (the nearest ``MAX_NEIGHBOURS`` each),
    and on which other ``ranks`` the same collective was recorded.
    """

    call: Call
    module: str
    flags: str
    arguments: tuple[tuple[str, str], ...]
    frames: tuple[str, ...]
    values: tuple[Value, ...]
    takes: tuple[Neighbour, ...]
    gives: tuple[Neighbour, ...]
    ranks: tuple[int, ...]


class Outline:
    """All calls of one step on one rank, in columns; objects are made of the few that are asked for."""

    def __init__(self, run: Run, step: int, rank: int) -> None:
        rows = run.records(steps=[step], ranks=[rank], columns=list(_COLUMNS))
        if not rows.num_rows:
            listed = f"`trueline info {shlex.quote(run.path)}` lists what was"
            raise InputError(f"Step {step} of rank {rank} was not recorded. {listed}.")
        self.run, self.step, self.rank = run, step, rank
        self._rows = rows
        self._first_C, of_R = _calls(rows)
        self.rows = Rows(of_R, [slot or "" for slot in rows["slot"].to_pylist()], _roots(rows))
        self.names = _take_column(rows["name"], self._first_C)
        self.phases = _take_column(rows["phase"], self._first_C)
        self.kinds = _take_column(rows["kind"], self._first_C)
        self.apis = _take_column(rows["api"], self._first_C)
        self.modules = _take_column(rows["module"], self._first_C)
        self.micros = np.array([micro or 0 for micro in _take_column(rows["micro"], self._first_C)], dtype=np.int64)
        self._depths = _depths(self.names, self.kinds, self.modules)
        self._numbers = _numbers(rows, self.rows, len(self._first_C))
        self.judged_by: object = None
        self.judgements: Sequence[str] = ()
        """[C] of the comparison with the reference, or none."""
        self._sources: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._first_C)

    def resolved(self, statistic: AskedStatistic) -> Statistic:
        """The statistic that is meant."""
        if statistic != "auto":
            return statistic
        return "not_finite" if self._numbers["not_finite"].any() else "rms"

    def statistic(self, name: Statistic) -> np.ndarray:
        """[C] float64, NaN where it was not measured; a judgement is no number."""
        return np.full(len(self), np.nan) if name == "judgement" else self._numbers[name]

    def shape(self, row: int) -> str:
        """That of the value in a row: ``8x32x64``, "" of a single number."""
        return shape_text(self._rows["shape"][row].as_py() or ())

    @cached_property
    def place_of(self) -> dict[CallKey, int]:
        """Places by micro-batch, phase, name and number of the call."""
        numbers = _take_column(self._rows["call"], self._first_C)
        keys = zip(self.micros.tolist(), self.phases, self.names, numbers, strict=True)
        return {(micro, phase or "", name or "", call or 0): at for at, (micro, phase, name, call) in enumerate(keys)}

    @cached_property
    def last_number(self) -> int | None:
        """The place of the last call of the forward pass that returned a single number: the loss, as a rule."""
        single_R = (pc.fill_null(self._rows["numel"], 0).to_numpy() == 1) & self.rows.returned_R
        indices = (index for index in self.rows.of_R[single_R][::-1].tolist() if self.phases[index] == "fwd")
        return next(indices, None)

    @cached_property
    def num_inside(self) -> Counter[str]:
        """How many calls lie in each module."""
        return Counter(outer for module in self.modules for outer in _modules_around(module or ""))

    @cached_property
    def equal_layers(self) -> tuple[str, ...]:
        """Modules whose names end in a number, and that make the same calls as the first of their siblings: these but
        for that first one, where there are ``MIN_EQUAL`` at least. One with values that are not finite is none.
        """
        calls: dict[str, int] = {}
        not_finite: set[str] = set()
        bad_C = self._numbers["not_finite"]
        for name, phase, module, bad in zip(self.names, self.phases, self.modules, bad_C.tolist(), strict=True):
            for layer in _modules_around(module or ""):
                if layer.rpartition(".")[2].isdecimal():
                    calls[layer] = hash((calls.get(layer), phase, (name or "").removeprefix(layer)))
                    if bad:
                        not_finite.add(layer)
        siblings: dict[tuple[str, int], list[str]] = {}
        for layer, signature in calls.items():
            siblings.setdefault((layer.rpartition(".")[0], signature), []).append(layer)
        equal = [layers[1:] for layers in siblings.values() if len(layers) >= MIN_EQUAL]
        return tuple(layer for layers in equal for layer in layers if layer not in not_finite)

    def outside(self, closed: Collection[str]) -> np.ndarray:
        """[C] bool, whether a call lies in none of the modules ``closed``."""
        if not closed:
            return np.ones(len(self), dtype=bool)
        closed_modules = frozenset(closed)
        is_hidden = {
            module: not closed_modules.isdisjoint(_modules_around(module or "")) for module in set(self.modules)
        }
        return np.fromiter((not is_hidden[module] for module in self.modules), bool, len(self))

    def search(self, search: str, phase: str) -> np.ndarray:
        """Places of the calls of ``phase`` ("": all) whose name or function has ``search`` in it, whatever its case."""
        kept_C = np.ones(len(self), dtype=bool)
        if phase:
            kept_C &= np.fromiter((call_phase == phase for call_phase in self.phases), bool, len(self))
        if search:
            kept_C &= self._matching(search.lower())
        return np.flatnonzero(kept_C)

    def call(self, index: int) -> Call:
        """The call at a place."""
        row = int(self._first_C[index])
        output_row = int(self._numbers["shown"][index])
        numbers = {name: self._numbers[name][index] for name in ("largest", "rms", "zeros")}
        return Call(
            place=index,
            depth=self._depths[index],
            micro=self._rows["micro"][row].as_py() or 0,
            phase=self.phases[index] or "",
            name=self.names[index] or "",
            call=self._rows["call"][row].as_py() or 0,
            kind=self.kinds[index] or "",
            api=self.apis[index] or "",
            shape=shape_text(self._rows["shape"][output_row].as_py() or ()),
            dtype=self._rows["dtype"][output_row].as_py() or "",
            source=self._source(self._rows["stack"][row].as_py()),
            judgement=self.judgements[index] if self.judgements else "",
            opens=self.kinds[index] == "module" and bool(self.num_inside[self.names[index] or ""]),
            not_finite=int(self._numbers["not_finite"][index]),
            **{name: None if np.isnan(value) else float(value) for name, value in numbers.items()},
        )

    def details(self, index: int) -> CallDetails:
        """All that was recorded of the call at a place. Raises ``InputError`` where there is none."""
        if not 0 <= index < len(self):
            raise InputError(f"There is no call {index} at step {self.step} of rank {self.rank}: it has {len(self)}.")
        rows = self._rows.take(pa.array(np.flatnonzero(self.rows.of_R == index))).to_pylist()
        recorded = call_of(self.run, rows)
        return CallDetails(
            call=self.call(index),
            module=recorded.module,
            flags=rows[0]["flags"] or "",
            arguments=tuple(recorded.arguments.items()),
            frames=recorded.frames,
            values=tuple(_value(row, self.step, self.rank) for row in rows),
            takes=self._neighbours(self._operands.source_E[self._operands.target_E == index], index),
            gives=self._neighbours(self._operands.target_E[self._operands.source_E == index], index),
            ranks=self._ranks_of_collective(rows[0]),
        )

    @cached_property
    def _operands(self) -> Operands:
        return operands_of(self.rows, np.ones(len(self), dtype=bool))

    def _neighbours(self, indices: np.ndarray, index: int) -> tuple[Neighbour, ...]:
        neighbours = sorted(
            {int(neighbour) for neighbour in indices} - {-1, index}, key=lambda neighbour: abs(neighbour - index)
        )
        nearest = sorted(neighbours[:MAX_NEIGHBOURS])
        return tuple(
            Neighbour(neighbour, f"{self.call(neighbour).name or self.call(neighbour).api}") for neighbour in nearest
        )

    def _ranks_of_collective(self, row: Mapping[str, Any]) -> tuple[int, ...]:
        """The other ranks that recorded the same call of a collective at this step."""
        if row["phase"] != "comm":
            return ()
        query = {"steps": [self.step], "phases": ["comm"], "columns": ["rank", "name", "call"]}
        rows = self.run.records(**query, resolve=False)
        is_same_call = pc.and_(pc.equal(rows["name"], row["name"]), pc.equal(rows["call"], row["call"]))
        return tuple(sorted(set(rows.filter(is_same_call)["rank"].to_pylist()) - {self.rank}))

    def _matching(self, search: str) -> np.ndarray:
        """[C] bool; each distinct text is looked at once."""
        is_match_by_text: dict[str | None, bool] = {}
        is_match = []
        for texts in zip(self.names, self.apis, strict=True):
            for text in texts:
                if text not in is_match_by_text:
                    is_match_by_text[text] = search in (text or "").lower()
            is_match.append(is_match_by_text[texts[0]] or is_match_by_text[texts[1]])
        return np.array(is_match, dtype=bool)

    def _source(self, stack: int | None) -> str:
        if stack is None:
            return ""
        if stack not in self._sources:
            has = self.run.has_stack(self.rank, stack)
            self._sources[stack] = own_frame(self.run.stack_frames(self.rank, stack)) if has else ""
        return self._sources[stack]


class Outlines:
    """The outlines that were looked at last, as long as the Run has not recorded more."""

    def __init__(self) -> None:
        self._outlines: dict[tuple[str, int, int, int], Outline] = {}
        self._lock = threading.Lock()

    def outline_of(self, watched: WatchedRun, step: int, rank: int) -> Outline:
        """The outline of a step on a rank. Raises ``InputError`` where it was not recorded."""
        key = (watched.path, watched.versions["records"], step, rank)
        with self._lock:
            if key not in self._outlines:
                outline = Outline(watched.run, step, rank)  # may raise, and then the others stay
                while len(self._outlines) >= _MAX_OUTLINES:
                    # the oldest one: insertion order
                    self._outlines.pop(next(iter(self._outlines)))
                self._outlines[key] = outline
            outline = self._outlines[key]
            if watched.compared is not None and outline.judged_by is not watched.compared:
                # the comparison may have been made anew since this outline was
                outline.judged_by = watched.compared
                outline.judgements = judgements_of(watched.compared.comparison.rows, step, rank, outline.place_of)
            return outline


def recorded_steps(watched: WatchedRun) -> RecordedSteps:
    """What there is to look at."""
    return RecordedSteps(tuple(watched.run.record_steps.tolist()), tuple(watched.run.record_ranks))


def calls_of(
    outline: Outline,
    *,
    offset: int,
    limit: int,
    search: str,
    phase: str,
    statistic: AskedStatistic,
    at: str = "",
    index: int | None = None,
    closed: str = "none",
) -> Calls:
    """A page of calls.

    ``found_at`` is where among them the first call of the name ``at`` (``phase/name#call``) is, or the one at place
    ``index``. ``closed`` are names of modules, with commas between them, whose calls are left out: "equal" stands for
    equal layers but the first, "none" for none. Raises ``InputError``.
    """
    if not 1 <= limit <= MAX_PAGE or offset < 0:
        raise InputError(f"{limit} calls from {offset} on were asked for. Ask for 1 to {MAX_PAGE}, from 0 on.")
    closed_modules = {"equal": outline.equal_layers, "none": ()}.get(closed, tuple(closed.split(",")))
    indices = outline.search(search, phase)
    indices = indices[outline.outside(closed_modules)[indices]]
    resolved = outline.resolved(statistic)
    values_C = outline.statistic(resolved)
    finite = values_C[np.isfinite(values_C)]
    bad = np.flatnonzero(outline.statistic("not_finite") > 0)
    return Calls(
        step=outline.step,
        rank=outline.rank,
        offset=offset,
        total=len(indices),
        num_calls=len(outline),
        phases=tuple(dict.fromkeys(phase or "" for phase in outline.phases)),
        statistic=resolved,
        scale=(float(finite.min()), float(finite.max())) if finite.size else None,
        num_not_finite=len(bad),
        first_not_finite=_position_among(indices, int(bad[0])) if bad.size else None,
        found_at=_found_at(outline, indices, at) if index is None else _position_among(indices, index),
        closed=closed_modules,
        calls=tuple(outline.call(int(index)) for index in indices[offset : offset + limit]),
    )


def _modules_around(name: str) -> Iterator[str]:
    """``layers``, ``layers.3`` and ``layers.3.attn`` of the last."""
    parts = name.split(".") if name else []
    return (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _position_among(indices: np.ndarray, index: int) -> int | None:
    """Where a call is among those that were found."""
    at = int(np.searchsorted(indices, index))
    return at if at < len(indices) and indices[at] == index else None


def _found_at(outline: Outline, indices: np.ndarray, at: str) -> int | None:
    phase, slash, rest = at.partition("/")
    name, _, _ = rest.rpartition("#")
    if not slash:
        return None
    matching = (index for index in indices.tolist() if outline.names[index] == name and outline.phases[index] == phase)
    first = next(matching, None)
    return None if first is None else _position_among(indices, first)


def _calls(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """[C] the first row of each call, ascending, and [R] the call of each row: rows that have micro-batch, phase, name
    and number in common.
    """
    keys = []
    for name in ("micro", "phase", "name", "call"):
        codes = pc.fill_null(rows[name], 0 if name in ("micro", "call") else "").combine_chunks().dictionary_encode()
        keys.append(codes.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    together_R = keys[0]
    for codes_R in keys[1:]:
        together_R = together_R * (int(codes_R.max(initial=0)) + 1) + codes_R
    _, first, inverse = np.unique(together_R, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank_of = np.empty(len(order), dtype=np.int64)
    rank_of[order] = np.arange(len(order))
    return first[order], rank_of[inverse]


def _roots(rows: pa.Table) -> np.ndarray:
    """[R] int64 of each row the place of the one that has its numbers, itself where that is not there."""
    place_of = {row: index for index, row in enumerate(rows["row"].to_pylist())}
    rows_referred = enumerate(rows["same_as"].to_pylist())
    return np.array(
        [index if row is None else place_of.get(row, index) for index, row in rows_referred], dtype=np.int64
    )


def _take_column(column: pa.ChunkedArray, first_C: np.ndarray) -> list[Any]:
    return column.take(pa.array(first_C)).to_pylist()


def _depths(names: list[str], kinds: list[str], modules: list[str]) -> list[int]:
    """How many modules each call lies in; of a module that was not recorded the parts of its name say it."""
    inside: dict[str, int] = {"": 0}
    depths: list[int] = []
    for name, kind, module in zip(names, kinds, modules, strict=True):
        outer = inside.get(module or "", (module or "").count(".") + 1)
        depths.append(outer)
        if kind == "module":
            inside.setdefault(name, outer + 1)
    return depths


def _numbers(rows: pa.Table, row_columns: Rows, num_calls: int) -> dict[str, np.ndarray]:
    """[C] each statistic of the worst value of each call, and the row of its output, or of its last value.

    An index or a mask is no activation, and what a call takes is another's: magnitudes are those of the floating values
    that a call returns, or of all floating ones where it returns none.
    """
    of_R = row_columns.of_R
    floating_R = pc.match_substring_regex(pc.fill_null(rows["dtype"], ""), "float|complex").to_numpy()
    telling_R = row_columns.returned_R & floating_R
    has_telling_C = np.zeros(num_calls, dtype=bool)
    has_telling_C[of_R[telling_R]] = True
    telling_R |= floating_R & ~has_telling_C[of_R]

    def column(name: str, absent: float = np.nan) -> np.ndarray:
        return pc.fill_null(rows[name].cast(pa.float64(), safe=False), absent).to_numpy()

    def worst(values_R: np.ndarray) -> np.ndarray:
        out_C = np.full(num_calls, np.nan)
        np.fmax.at(out_C, of_R[telling_R], values_R[telling_R])
        return out_C

    numel_R = column("numel")
    bad_R = column("nan", 0) + column("pos_inf", 0) + column("neg_inf", 0)
    bad_C = np.zeros(num_calls)
    np.maximum.at(bad_C, of_R, bad_R)
    shown_C = np.zeros(num_calls, dtype=np.int64)
    row_indices = np.arange(len(of_R))
    np.maximum.at(shown_C, of_R, row_indices)
    outputs_C = np.full(num_calls, len(of_R))
    np.minimum.at(outputs_C, of_R[row_columns.returned_R], row_indices[row_columns.returned_R])
    with np.errstate(all="ignore"):
        return {
            "not_finite": bad_C,
            "largest": worst(np.fmax(np.abs(column("min")), np.abs(column("max")))),
            "rms": worst(np.sqrt(column("sum_sq") / np.where(numel_R - bad_R > 0, numel_R - bad_R, np.nan))),
            "zeros": worst(column("zero") / np.where(numel_R > 0, numel_R, np.nan)),
            "shown": np.where(outputs_C < len(of_R), outputs_C, shown_C),
        }


def _value(row: dict[str, Any], step: int, rank: int) -> Value:
    site = Site(step, row["micro"] or 0, rank, row["phase"], row["name"], row["call"] or 0, row["slot"])
    numbers = [(name, row[name]) for name in ("numel", "nan", "pos_inf", "neg_inf", "zero", "min", "max")]
    numel = (row["numel"] or 0) - sum(row[name] or 0 for name in ("nan", "pos_inf", "neg_inf"))
    has_sums = row["sum_sq"] is not None and numel > 0
    mean = row["sum"] / numel if has_sums and row["sum"] is not None else None
    numbers += [("mean", mean), ("rms", (row["sum_sq"] / numel) ** 0.5 if has_sums else None)]
    return Value(
        slot=row["slot"] or "",
        site=str(site),
        dtype=row["dtype"] or "",
        shape=shape_text(row["shape"] or ()),
        numbers=tuple((name, None if value is None else float(value)) for name, value in numbers),
        note=row["note"] or "",
    )
