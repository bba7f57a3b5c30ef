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
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

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


def _nothing(row: Mapping[str, Any]) -> tuple[()]:
    return ()


class ShortRows:
    """The messages of rows with the columns of ``schema``; ``mask`` says which these are."""

    def __init__(self, schema: pa.Schema, mask: bytes) -> None:
        self.mask = mask
        self._schema = schema
        self._forms: dict[tuple[int, ...], tuple[bytes, Callable[..., bytes]] | None] = {}
        self._fits = len(schema) > 1 and not any(pa.types.is_string(field.type) for field in schema)
        self._runs: list[tuple[str, Callable[[Any], Any]]] = []
        """Columns next to each other that are numbers, to be taken together, and lists, by name."""
        for is_list, fields in itertools.groupby(schema, lambda field: pa.types.is_list(field.type)):
            names = [field.name for field in fields]
            if is_list:
                self._runs += [(name, _nothing) for name in names]
            else:
                self._runs.append(("", operator.itemgetter(*names, names[0])))  # of one name it would make no tuple

    def message(self, row: Mapping[str, Any]) -> bytes | None:
        """The message; None where Arrow has to make it, and where a value does not fit its column."""
        if not self._fits:
            return None
        numbers: list[Any] = []
        lengths: list[int] = []
        for name, take in self._runs:
            if not name:
                numbers += take(row)[:-1]
                continue
            values = row[name]
            length = len(values)
            if type(values) is not list or length > MOST_NUMBERS:
                return None
            lengths.append(length)
            numbers += (0, length)
            numbers += values
        key = tuple(lengths)
        form = self._forms[key] if key in self._forms else self._learn(key, row, numbers)
        if form is None:
            return None
        head, pack = form
        try:
            return head + pack(*numbers)
        except (struct.error, OverflowError):
            return None

    def _learn(
        self, lengths: tuple[int, ...], row: Mapping[str, Any], numbers: list[Any]
    ) -> tuple[bytes, Callable[..., bytes]] | None:
        """The metadata of rows with lists of these ``lengths``, and what packs their bodies; None: Arrow does it."""
        if len(self._forms) >= MOST_FORMS:
            return None
        pack = struct.Struct("<" + "".join(self._formats(lengths))).pack
        self._forms[lengths] = None
        try:
            values = [from_values([row[field.name]], field.type) for field in self._schema]
            body = pack(*numbers)
        except (struct.error, pa.ArrowException, OverflowError, TypeError, ValueError):
            del self._forms[lengths]  # of this row, and perhaps of no other
            return None
        whole = pa.RecordBatch.from_arrays(values, schema=self._schema).serialize().to_pybytes()
        end = _HEAD.size + _HEAD.unpack_from(whole)[1]
        if whole[end:] == body:
            self._forms[lengths] = whole[:end], pack
        return self._forms[lengths]

    def _formats(self, lengths: tuple[int, ...]) -> list[str]:
        """How ``struct`` is to pack each column."""
        left = list(lengths)
        formats: list[str] = []
        for field in self._schema:
            letter = LETTERS[field.type.value_type if pa.types.is_list(field.type) else field.type]
            num = left.pop(0) if pa.types.is_list(field.type) else 1
            ends = "ii" if pa.types.is_list(field.type) else ""
            formats.append(f"{ends}{num}{letter}{-num * struct.calcsize('<' + letter) % 8}x")
        return formats
