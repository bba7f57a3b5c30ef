"""Merges small parts into larger ones, so that the Run of a long job opens as fast as that of a short one.

Ten parts are merged into one of level 1, ten of those into one of level 2, and so on: a row is written again once a
level. The new part is durable before those that it holds are removed, so a reader, or the next start of the job after a
power cut, finds either or both.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from itertools import accumulate

import pyarrow as pa

from trueline.schema.safe_logger import SafeLogger
from trueline.store.file_names import PartName
from trueline.store.log.durable import replace_file
from trueline.store.log.parts import DamagedPart, decode_part, encode_part

_log = SafeLogger()

FAN_IN = 10
MAX_BYTES = 4 * 2**20
"""Parts that are larger together stay as they are: to write them again would take longer than a step may."""

ROWS_A_GROUP = 1_000
"""Rows of a merged part that are decoded together: who asks for some steps need not decode those of all."""

_COUNTS = b"trueline.rows"


class PartMerger:
    """The parts of one rank in ``folder``, as they are sealed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._levels: list[list[PartName]] = []

    def add(self, part: PartName, level: int = 0) -> None:
        """Take a part, and merge those of its level when there are ten. One that cannot be merged stays as it is."""
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(part)
        if len(self._levels[level]) == FAN_IN:
            parts, self._levels[level] = self._levels[level], []
            try:
                whole = _merge(self._folder, parts)
            except (OSError, DamagedPart, pa.ArrowException) as error:
                _log.debug("parts from %s on are not merged: %s", parts[0], error)
            else:
                if whole is not None:
                    self.add(whole, level + 1)


def rows_within(rows: pa.Table, whole: PartName, part: PartName) -> pa.Table:
    """Of the rows of a merged part, those that came from ``part``. Raises ``DamagedPart`` where it does not say."""
    try:
        ends = [0, *accumulate(json.loads((rows.schema.metadata or {})[_COUNTS]))]
        begin, end = (ends[number - whole.sequence] for number in (part.sequence, part.numbers[-1] + 1))
        return rows.slice(begin, end - begin)
    except (KeyError, ValueError, TypeError, IndexError, RecursionError, OverflowError):
        raise DamagedPart("it does not say which of its rows came from which part") from None


def _merge(folder: str, parts: list[PartName]) -> PartName | None:
    """The part that now holds the rows of all; None where it would be too large."""
    paths = [os.path.join(folder, str(part)) for part in parts]
    if sum(map(os.path.getsize, paths)) > MAX_BYTES:
        return None
    tables = [decode_part(_content(path), part) for path, part in zip(paths, parts, strict=True)]
    counts = [count for table in tables for count in _counts(table)]
    rows = pa.concat_tables([table.replace_schema_metadata() for table in tables], promote_options="default")
    data = encode_part(rows.replace_schema_metadata({_COUNTS: json.dumps(counts)}), rows_a_group=ROWS_A_GROUP)
    whole = PartName(parts[0].rank, parts[0].sequence, zlib.crc32(data), parts[-1].numbers[-1])
    replace_file(os.path.join(folder, str(whole)), data)
    for path in paths:
        with contextlib.suppress(OSError):  # readers prefer the new one
            os.remove(path)
    return whole


def _counts(table: pa.Table) -> list[int]:
    """The number of rows that came from each part."""
    counts = (table.schema.metadata or {}).get(_COUNTS)
    return [table.num_rows] if counts is None else json.loads(counts)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
