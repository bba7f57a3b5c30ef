"""The recorded steps of a Run: what each call computed, as rows, stored values and call stacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from fsspec import AbstractFileSystem

from trueline.schema.errors import RunError
from trueline.schema.site import Site
from trueline.schema.stats import TensorStats
from trueline.schema.text.reading import reading, shortened
from trueline.store.file_names import Problem
from trueline.store.records.record_reader import RecordReader, site_of
from trueline.store.records.stack_files import read_stacks
from trueline.store.records.tensor_files import TensorValue
from trueline.store.records.tensor_reader import TensorReader
from trueline.store.records.whole import stats_of, whole_stats
from trueline.store.rows import RECORD_SCHEMA, require_column
from trueline.store.timeline import Timeline

UNREADABLE = "Check its permissions and the disk, or copy it again."


class RecordedSteps:
    """The part of a ``Run`` that is about recorded steps. Each file is read when it is first asked for."""

    path: str
    problems: list[Problem]
    _fs: AbstractFileSystem
    _root: str
    _timeline: Timeline

    @property
    def has_records(self) -> bool:
        """True if any step was recorded."""
        return len(self.record_steps) > 0

    @property
    def record_steps(self) -> np.ndarray:
        """[S] int64, distinct and ascending: the steps that any rank recorded."""
        return self._recorded.steps

    @property
    def record_ranks(self) -> list[int]:
        """Global ranks that recorded, ascending."""
        return self._recorded.ranks

    def records(
        self,
        *,
        steps: Collection[int] | None = None,
        ranks: Collection[int] | None = None,
        names: Sequence[str] | None = None,
        phases: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
        resolve: bool = True,
    ) -> pa.Table:
        """Rows of recorded steps under columns of ``schema.records``, sorted by (step, rank, row).

        ``names`` are globs (``*`` matches dots too); None selects all. With ``resolve`` a row that is ``same_as``
        another has its numbers and its key of a tensor. Raises ``RunError`` for an unknown column, or where a part is
        gone since the Run was opened.
        """
        for column in columns or ():
            require_column(column, RECORD_SCHEMA.names)
        return self._recorded.read(
            steps=steps, ranks=ranks, names=names, phases=phases, columns=columns, resolve=resolve
        )

    def records_at(self, site: Site | str) -> pa.Table:
        """The rows of ``records`` at a Site; ``records.record_reader.site_of`` goes the other way.

        Raises ``SiteError`` for a text that is no Site.
        """
        return self._recorded.at(Site.parse(site) if isinstance(site, str) else site)

    def whole(self, site: Site | str) -> TensorStats:
        """The statistics at a Site over all ranks: of a DTensor its shards merged, else what that rank measured.

        Raises ``RunError`` where nothing was measured there, ``MergeError`` where shards do not make up a whole.
        """
        site = Site.parse(site) if isinstance(site, str) else site
        rows = self.records_at(site).to_pylist()
        if not rows or (stats := stats_of(rows[0])) is None:
            raise RunError(f"Nothing was measured at '{site}' in Run '{self.path}'. Pass a site with numbers.")
        sites = [replace(site, rank=rank) for rank in self.record_ranks] if rows[0]["mesh"] else []
        return (
            whole_stats([row for shard_site in sites for row in self.records_at(shard_site).to_pylist()])
            if sites
            else stats
        )

    def tensor(self, where: Site | str | Mapping[str, Any]) -> TensorValue:
        """The stored value at a Site, or of a row of ``records``. Raises ``RunError`` where none was stored or it is
        damaged.
        """
        site = where if isinstance(where, Site | str) else site_of(where)
        rows = self.records_at(site).to_pylist() if isinstance(where, Site | str) else [where]
        if not rows:
            raise RunError(
                f"Nothing was recorded at '{site}' in Run '{self.path}'. Pass a site of `trueline info --site`."
            )
        if rows[0]["tensor"] is None:
            raise RunError(
                f"No value was stored at '{site}' in Run '{self.path}'. Record with depth = \"tensor\" to keep values."
            )
        value = self.stored.read(rows[0]["rank"], rows[0]["step"], rows[0]["tensor"])
        return value.shaped(tuple(rows[0]["shape"]))

    def tensor_problems(self) -> list[Problem]:
        """One line for each file of stored values that is not whole; damage within one shows when it is read."""
        return self.stored.problems()

    def stack_frames(self, rank: int, number: int) -> tuple[str, ...]:
        """The call stack that column ``stack`` of a row refers to, innermost first. Raises ``RunError``."""
        frames = self._stacks.get(rank, {}).get(number)
        if frames is None:
            raise RunError(f"Run '{self.path}' has no call stack {number} of rank {rank}.")
        return frames

    def has_stack(self, rank: int, number: int) -> bool:
        """True if there is a call stack to which column ``stack`` of a row refers."""
        return number in self._stacks.get(rank, {})

    @cached_property
    def _recorded(self) -> RecordReader:
        with reading(f"What '{shortened(self.path)}' recorded", UNREADABLE, error=RunError):
            return RecordReader(self._fs, self._root, self.problems, self._timeline)

    @cached_property
    def stored(self) -> TensorReader:
        """The files of stored values; what ``TensorReader.opens`` finds is for ``problems``."""
        return TensorReader(self._fs, self._root)

    @cached_property
    def _stacks(self) -> dict[int, dict[int, tuple[str, ...]]]:
        with reading(f"What '{shortened(self.path)}' has of call stacks", UNREADABLE, error=RunError):
            return read_stacks(self._fs, self._root, self.problems)
