"""Positions in a batch that was merged from shares, and values that such positions sort.

Each share numbers its elements from its own beginning, so the numbers are wrong for the whole; and it sorts by itself.

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
"""Flag of a value with the rows of the whole, in an order that each share chose by itself."""

OF_SHARES = "numbered within each share of the batch, and not within the whole batch"

_COUNTING = frozenset({"arange", "range", "randperm", "nonzero", "argwhere", "unique", "unique_consecutive"})
"""Functions that return counts or positions from the beginning of their input."""
_COUNTING_ALONG_DIM = frozenset({"argsort", "topk", "cumsum", "cummax", "cummin"})
"""Functions that return counts or positions along a dim."""
_SORTING = frozenset({"sort", "msort"})
"""Functions that return their input in another order along a dim, then the positions of this order."""
_WRITING = frozenset({"setitem", "index_put", "index_copy", "scatter", "masked_scatter", "copy"})
"""Functions that write into their first argument and may return nothing."""
_EXECUTED = ("fwd", "save")

Kind = Literal["positions", "unordered"]


def without_positions(step: StepValues, dims: Mapping[int, int], agreeing: Collection[int] = frozenset()) -> StepValues:
    """Mark positions in ``step`` as not comparable, and values that they brought into an order as ``UNORDERED``.

    ``dims`` has the dim along which the shares of the batch lie in each value that was put together from them.
    ``agreeing`` are the indices of values equal to those of the other run: their shares did count in the whole.
    """
    kinds = _Kinds(dims, agreeing)
    return replace(step, values=[_mark_value(value, kinds.kind_of(value)) for value in step.values])


def _mark_value(value: Value, kind: Kind | None) -> Value:
    if kind == "positions":
        return replace(value, stats=None, load=None, note=OF_SHARES)
    return replace(value, flags=value.flags | {UNORDERED}) if kind == "unordered" else value


class _Kinds:
    """Kinds of values, which must be queried in the order of execution."""

    def __init__(self, dims: Mapping[int, int], agreeing: Collection[int]) -> None:
        self._dims, self._marked = dims, agreeing
        self._kind_by_root: dict[int, Kind] = {}
        self._inputs_by_call: dict[tuple[object, ...], list[Value]] = {}
        self._kind_by_site: dict[tuple[object, ...], Kind] = {}
        self._written: set[tuple[object, ...]] = set()

    def kind_of(self, value: Value) -> Kind | None:
        """Kind of a value; None where it is as in the whole."""
        site = value.site
        site_key = (site.micro, site.name, site.call, site.slot)
        if site.phase == "bwd" and value.args is None:  # positions have no gradient
            return self._kind_by_site.get(site_key)
        if site.phase not in _EXECUTED:
            return None
        kind = self._kind_by_root.get(value.root)
        if kind is None and value.root == value.index and value.index in self._dims:
            kind = self._returned_kind(value) if value.returned else self._not_returned_kind(value)
            if kind == "positions" and value.index in self._marked:
                kind = None
            if kind is not None:
                self._kind_by_root[value.root] = kind
        if kind is not None:
            self._kind_by_site[site_key] = kind
        if not value.returned:
            self._add_input(value)
        return kind

    def _add_input(self, value: Value) -> None:
        inputs = self._inputs_by_call.setdefault(key_of(value), [])
        inputs.append(value)
        if function_of(value.api) in _WRITING and self._kind_by_root.get(value.root) == "positions":
            self._written.add(_memory_key(inputs[0]))

    def _not_returned_kind(self, value: Value) -> Kind | None:
        """Kind of a value that no call returned: positions may have been written into its memory."""
        return "positions" if _memory_key(value) in self._written else None

    def _returned_kind(self, value: Value) -> Kind | None:
        if value.kind != "op":
            return None
        inputs = self._inputs_by_call.get(key_of(value), [])
        kinds = {self._kind_by_root.get(taken_value.root) for taken_value in inputs}
        if self._sees_share(value, inputs):
            sorts = function_of(value.api) in _SORTING and value.site.slot == "out0"
            return "unordered" if sorts else "positions"
        if "positions" in kinds:
            return "unordered" if value.dtype in FORMATS else "positions"
        return "unordered" if "unordered" in kinds else None

    def _sees_share(self, value: Value, inputs: list[Value]) -> bool:
        """Tell whether the result of a call depends on everything in its share of the batch."""
        function = function_of(value.api)
        if function in _COUNTING or (function == "where" and len(inputs) == 1):
            return True
        if function not in _COUNTING_ALONG_DIM | _SORTING or not value.shape:
            return False
        dim = _dim_of_call(
            next((taken_value.args for taken_value in inputs if taken_value.args is not None), None), function
        )
        return dim % len(value.shape) == self._dims[value.index]


def _dim_of_call(args: str | None, function: str) -> int:
    """Dim that a call works along, by its recorded arguments or the default of the function."""
    arguments: dict[str, Any] = {} if args is None else json.loads(args)
    keyword_dim = arguments.get("kwargs", {}).get("dim")
    position = 2 if function == "topk" else 1
    positional: list[Any] = arguments.get("args", [])
    dim = keyword_dim if keyword_dim is not None else positional[position] if len(positional) > position else None
    default = 0 if function == "msort" else -1
    return dim if isinstance(dim, int) and not isinstance(dim, bool) else default


def _memory_key(value: Value) -> tuple[object, ...]:
    return value.module, value.dtype, value.shape
