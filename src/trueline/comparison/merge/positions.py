"""Positions in a batch that was merged from shares: each share numbers its elements from its own beginning, so that
the numbers are wrong for the whole; and values that such positions sort, each share by itself.

Tokens that are sorted by their expert are the usual case: the order is a list of positions, the tokens that it picks
are those of the whole batch in another order, and statistics, which do not depend on the order, can still be compared.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from trueline.comparison.op_names import function_of
from trueline.judge.recorded.step_values import StepValues, Value, key_of
from trueline.schema.formats import FORMATS

UNORDERED = "unordered"
"""The flag of a value that has the rows of the whole, in an order that each share chose by itself."""

OF_SHARES = "numbered within each share of the batch, and not within the whole batch"

_COUNTING = frozenset({"arange", "range", "randperm", "nonzero", "argwhere", "unique", "unique_consecutive"})
"""Functions that count what they return, or what they find, from the beginning of what they see."""
_ALONG = frozenset({"argsort", "topk", "cumsum", "cummax", "cummin"})
"""Functions that do so along a dim."""
_SORTING = frozenset({"sort", "msort"})
"""Functions that return what they took in another order along a dim, then the positions of that."""
_WRITING = frozenset({"setitem", "index_put", "index_copy", "scatter", "masked_scatter", "copy"})
"""Functions that write into their first argument and may return nothing."""
_EXECUTED = ("fwd", "save")

Kind = Literal["positions", "unordered"]


def without_positions(step: StepValues, dims: Mapping[int, int], agreeing: Collection[int] = frozenset()) -> StepValues:
    """``step`` with positions marked as not comparable, and with ``UNORDERED`` on what they brought into an order.

    ``dims`` has the dim along which the shares of the batch lie in each value that was put together from them.
    ``agreeing`` are the indices of those that came out as the other run has them: their shares did count in the whole.
    """
    kinds = _Kinds(dims, agreeing)
    return replace(step, values=[_marked(value, kinds.of(value)) for value in step.values])


def _marked(value: Value, kind: Kind | None) -> Value:
    if kind == "positions":
        return replace(value, stats=None, load=None, note=OF_SHARES)
    return replace(value, flags=value.flags | {UNORDERED}) if kind == "unordered" else value


class _Kinds:
    """The kind of each value; to be asked in the order of execution."""

    def __init__(self, dims: Mapping[int, int], agreeing: Collection[int]) -> None:
        self._dims, self._marked = dims, agreeing
        self._known: dict[int, Kind] = {}
        self._taken: dict[tuple[object, ...], list[Value]] = {}
        self._sites: dict[tuple[object, ...], Kind] = {}
        self._written: set[tuple[object, ...]] = set()

    def of(self, value: Value) -> Kind | None:
        """The kind of a value; None where it is as in the whole."""
        site = value.site
        place = (site.micro, site.name, site.call, site.slot)
        if site.phase == "bwd" and value.args is None:  # of the gradient of what holds positions there is none
            return self._sites.get(place)
        if site.phase not in _EXECUTED:
            return None
        kind = self._known.get(value.root)
        if kind is None and value.root == value.index and value.index in self._dims:
            kind = self._returned(value) if value.returned else self._given(value)
            if kind == "positions" and value.index in self._marked:
                kind = None
            if kind is not None:
                self._known[value.root] = kind
        if kind is not None:
            self._sites[place] = kind
        if not value.returned:
            self._take(value)
        return kind

    def _take(self, value: Value) -> None:
        taken = self._taken.setdefault(key_of(value), [])
        taken.append(value)
        if function_of(value.api) in _WRITING and self._known.get(value.root) == "positions":
            self._written.add(_memory(taken[0]))

    def _given(self, value: Value) -> Kind | None:
        """Of what no call returned: memory that positions were written into is seen again as another tensor."""
        return "positions" if _memory(value) in self._written else None

    def _returned(self, value: Value) -> Kind | None:
        if value.kind != "op":
            return None
        taken = self._taken.get(key_of(value), [])
        kinds = {self._known.get(each.root) for each in taken}
        if self._sees_share(value, taken):
            sorts = function_of(value.api) in _SORTING and value.site.slot == "out0"
            return "unordered" if sorts else "positions"
        if "positions" in kinds:
            return "unordered" if value.dtype in FORMATS else "positions"
        return "unordered" if "unordered" in kinds else None

    def _sees_share(self, value: Value, taken: list[Value]) -> bool:
        """Whether what a call returns depends on all that its share of the batch has."""
        function = function_of(value.api)
        if function in _COUNTING or (function == "where" and len(taken) == 1):
            return True
        if function not in _ALONG | _SORTING or not value.shape:
            return False
        dim = _dim(next((each.args for each in taken if each.args is not None), None), function)
        return dim % len(value.shape) == self._dims[value.index]


def _dim(args: str | None, function: str) -> int:
    """The dim that a call works along, from its recorded arguments; the default of the function if it is not given."""
    given: dict[str, Any] = {} if args is None else json.loads(args)
    named = given.get("kwargs", {}).get("dim")
    place = 2 if function == "topk" else 1
    listed: list[Any] = given.get("args", [])
    dim = named if named is not None else listed[place] if len(listed) > place else None
    first = 0 if function == "msort" else -1
    return dim if isinstance(dim, int) and not isinstance(dim, bool) else first


def _memory(value: Value) -> tuple[object, ...]:
    return value.module, value.dtype, value.shape
