"""Rows of a few numbers as Arrow's own messages, without Arrow: a step writes one, and making an array of each column
takes ten times as long as all else that is done for the row.

A message is metadata, which depends on the columns and on how long their lists are, and a body: the buffers of the
columns one after the other, padded to 8 bytes (https://arrow.apache.org/docs/format/Columnar.html, "RecordBatch
message"). Arrow makes the first message of each form, and what is made here must be equal to that, byte by byte;
otherwise Arrow makes them all.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from trueline.store.records.arrays import LETTERS, from_values

Row: TypeAlias = "pa.RecordBatch | Mapping[str, Any]"
"""Rows of a journal: a batch, or one row as it was given, of which nobody may change anything any more."""

MOST_NUMBERS = 256
"""Numbers of a list: Arrow is as fast with longer ones, and holds them in less memory until the part is sealed."""
MOST_FORMS = 64
"""Forms of rows with the same columns, as where a list grows at every step; others are left to Arrow."""

_HEAD = struct.Struct("<Ii")
"""What a message begins with: -1, and how long its metadata are."""


_LIST = frozenset((list,))


class _Form(NamedTuple):
    """Rows whose lists have the same lengths: their metadata, what packs their bodies, and what stands in front of each
    run of columns: of a list where it begins and ends.
    """

    head: bytes
    pack: Callable[..., bytes]
    ends: Sequence[tuple[int, ...]]

    def numbers(self, runs: Iterable[Sequence[Any]]) -> Iterable[Any]:
        """What is to be packed."""
        return _flat(_flat(zip(self.ends, runs, strict=True)))


_flat = itertools.chain.from_iterable


class ShortRows:
    """The messages of rows with the columns of ``schema``; ``mask`` says which these are."""

    def __init__(self, schema: pa.Schema, mask: bytes) -> None:
        self.mask = mask
        self._schema = schema
        self._forms: dict[tuple[int, ...], _Form | None] = {}
        self._fits = len(schema) > 1 and not any(pa.types.is_string(field.type) for field in schema)
        self._lists = _taking([field.name for field in schema if pa.types.is_list(field.type)])
        self._runs: list[Callable[[Mapping[str, Any]], Sequence[Any]]] = []
        """What takes columns next to each other that are numbers, together, or a list."""
        self._are_lists: list[bool] = []
        for is_list, fields in itertools.groupby(schema, lambda field: pa.types.is_list(field.type)):
            names = [field.name for field in fields]
            runs = [operator.itemgetter(name) for name in names] if is_list else [_taking(names)]
            self._runs += runs
            self._are_lists += [is_list] * len(runs)

    def message(self, row: Mapping[str, Any]) -> bytes | None:
        """The message; None where Arrow has to make it, and where a value does not fit its column."""
        if not self._fits:
            return None
        lists = self._lists(row)
        if not _LIST.issuperset(map(type, lists)):
            return None
        lengths = tuple(map(len, lists))
        form = self._forms[lengths] if lengths in self._forms else self._learn(lengths, row)
        if form is None:
            return None
        try:
            return form.head + form.pack(*form.numbers([take(row) for take in self._runs]))
        except (struct.error, OverflowError):
            return None

    def _learn(self, lengths: tuple[int, ...], row: Mapping[str, Any]) -> _Form | None:
        """The form of rows with lists of these ``lengths``; None: Arrow makes them."""
        if len(self._forms) >= MOST_FORMS or max(lengths, default=0) > MOST_NUMBERS:
            return None
        remaining = iter(lengths)
        ends = [(0, next(remaining)) if is_list else () for is_list in self._are_lists]
        form = _Form(b"", struct.Struct("<" + "".join(self._formats(lengths))).pack, ends)
        self._forms[lengths] = None
        try:
            values = [from_values([row[field.name]], field.type) for field in self._schema]
            body = form.pack(*form.numbers([take(row) for take in self._runs]))
        except (struct.error, pa.ArrowException, OverflowError, TypeError, ValueError):
            del self._forms[lengths]  # of this row, and perhaps of no other
            return None
        whole = pa.RecordBatch.from_arrays(values, schema=self._schema).serialize().to_pybytes()
        end = _HEAD.size + _HEAD.unpack_from(whole)[1]
        if whole[end:] == body:
            self._forms[lengths] = form._replace(head=whole[:end])
        return self._forms[lengths]

    def _formats(self, lengths: tuple[int, ...]) -> list[str]:
        """How ``struct`` is to pack each column."""
        remaining = list(lengths)
        formats: list[str] = []
        for field in self._schema:
            letter = LETTERS[field.type.value_type if pa.types.is_list(field.type) else field.type]
            num = remaining.pop(0) if pa.types.is_list(field.type) else 1
            ends = "ii" if pa.types.is_list(field.type) else ""
            formats.append(f"{ends}{num}{letter}{-num * struct.calcsize('<' + letter) % 8}x")
        return formats


def _taking(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """What takes the values of these columns from a row."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda row: tuple(row[name] for name in names)
