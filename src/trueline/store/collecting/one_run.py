"""One Run of its pieces: what is taken from which of them, and in which order."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from trueline.schema.files.plan_files import PLAN_FILE, REVISIONS_DIR
from trueline.store import file_names
from trueline.store.collecting.belonging import require_no_conflict, require_one_job
from trueline.store.collecting.copying import Work, copy_all, put_bytes, put_file
from trueline.store.collecting.sides import Side, rank_of_journal
from trueline.store.file_names import Problem
from trueline.store.log.earlier_start import sealed
from trueline.store.log.journal import read_journal
from trueline.store.log.listing import name_missing_parts
from trueline.store.log.sealed_tables import tables_of
from trueline.store.rows import worker_schema


def collect_run(sides: Sequence[Side], into: Side, work: Work) -> None:
    """Copy the files of one Run, each from the places that have it."""
    ranks = {rank for side in sides for rank in side.wrote}
    require_one_job([*sides, into], ranks)
    journals = {side: _journals(side, ranks) for side in [*sides, into]}
    # A journal that is sealed after it was read is found among the parts; listed first, its rows would be in neither.
    sides = [side.fresh() for side in sides]
    journals = dict(zip([*sides, into], journals.values(), strict=True))
    require_no_conflict([*sides, into])
    newest = {rank: _newest(rank, sides, journals) for rank in sorted(ranks)}
    for side in sides:
        copy_all(side, into, work)
    for rank, side in newest.items():
        _seal_others(rank, side, into, journals, work)
        _copy_share(rank, side, [source for source in sides if source is not side], into, work)
    for side in sides:
        for name in side.files:
            if posixpath.dirname(name) == REVISIONS_DIR:
                put_file(side, name, into, work)
    _copy_manifest(sides, into, work)
    for rank, side in newest.items():
        for name in (table.journal for table in tables_of(rank)):
            data, path = journals[side].get(name), posixpath.join(file_names.JOURNAL_DIR, name)
            if data is not None:
                put_bytes(data, into, path, work)
            elif path in into.files:
                into.remove(path)
    copied = into.fresh()
    _remove_merged(copied)
    for rank, side in newest.items():
        for table in tables_of(rank):
            data, missing = journals[side].get(table.journal), list[Problem]()
            journal = None if data is None else read_journal(data, table.schema)
            name_missing_parts(table.folder, rank, [*copied.parts.get((table.folder, rank), ())], journal, missing)
            work.problems += missing


def _journals(side: Side, ranks: Collection[int]) -> Mapping[str, bytes]:
    """The bytes of each journal of ``ranks``, by name."""
    data_by_name: dict[str, bytes] = {}
    for name in side.inside(file_names.JOURNAL_DIR):
        if rank_of_journal(name) in ranks:
            with contextlib.suppress(FileNotFoundError):
                data_by_name[name] = side.read(posixpath.join(file_names.JOURNAL_DIR, name))
    return data_by_name


def _newest(rank: int, sides: Sequence[Side], journals: Mapping[Side, Mapping[str, bytes]]) -> Side:
    """The place to which the rank wrote last, where it moved to another machine."""

    def number(side: Side) -> tuple[int, int]:
        sequence = _sequence(journals[side].get(file_names.journal_name(rank)))
        parts = [max(part.numbers) for part in side.parts.get((file_names.WORKERS_DIR, rank), ())]
        return max([*parts, -1 if sequence is None else sequence], default=-1), rank in side.ranks

    return max((side for side in sides if rank in side.wrote), key=number)


def _sequence(data: bytes | None, schema: pa.Schema | None = None) -> int | None:
    return None if data is None else read_journal(data, schema or worker_schema()).sequence


def _seal_others(rank: int, newest: Side, into: Side, journals: Mapping[Side, Mapping[str, bytes]], work: Work) -> None:
    """Make parts of journals of an earlier start of the rank, on another machine or collected before, whose rows are in
    no part: the journal of this start takes their place.
    """
    for table in tables_of(rank):
        present = {
            number for side in journals for part in side.parts.get((table.folder, rank), ()) for number in part.numbers
        }
        now = _sequence(journals[newest].get(table.journal), table.schema)
        for side, data_by_name in journals.items():
            if side is newest or table.journal not in data_by_name:
                continue
            content = read_journal(data_by_name[table.journal], table.schema)
            part = sealed(content, table, present | ({now} - {None}))
            if part is not None:
                present.add(part[0].sequence)
                put_bytes(part[1], into, posixpath.join(table.folder, str(part[0])), work)


def _copy_share(rank: int, side: Side, rest: Sequence[Side], into: Side, work: Work) -> None:
    """Copy what ``rank`` says of itself: its environment, findings and call stacks; ``rest`` are the other places."""
    put_file(side, posixpath.join(file_names.ENV_DIR, file_names.env_name(rank)), into, work)
    stacks = posixpath.join(file_names.STACKS_DIR, file_names.stacks_name(rank))
    put_file(side, stacks, into, work)
    if any(stacks in source.files for source in rest):
        work.problems.append(f"rank {rank} recorded on several machines: call stacks are those of '{side.label}' alone")
    name = file_names.findings_name(rank)
    lines: dict[bytes, None] = {}
    for source in (into, *rest, side):
        if name in source.files:
            whole_lines = source.read(name).split(b"\n")[:-1]  # the last one may be half written
            lines |= dict.fromkeys(filter(None, whole_lines))
    if name in side.files or any(name in source.files for source in rest):
        put_bytes(b"".join(line + b"\n" for line in lines), into, name, work)


def _copy_manifest(sides: Sequence[Side], into: Side, work: Work) -> None:
    """The manifest that knows most starts of the job, and the Plan beside it."""
    candidates = [
        (len(document.get("attempts", ())), priority, side)
        for priority, side in enumerate([into, *sides])
        if (document := side.document(file_names.MANIFEST)) is not None
    ]
    if not candidates:
        damaged = next((side for side in sides if file_names.MANIFEST in side.files), None)
        if damaged is not None:
            work.problems.append(f"the manifest in '{damaged.label}' is damaged, and was not copied")
        return
    side = max(candidates, key=lambda candidate: candidate[:2])[2]
    if side is not into:
        put_file(side, PLAN_FILE, into, work)
        put_file(side, file_names.MANIFEST, into, work)


def _remove_merged(into: Side) -> None:
    """Remove what another file holds: parts that were merged into one, and values of a step that has ended since."""
    for (folder, _), parts in into.parts.items():
        merged = [part for part in parts if len(part.numbers) > 1]
        for part in parts:
            if any(part != merged_part and {*part.numbers} <= {*merged_part.numbers} for merged_part in merged):
                into.remove(posixpath.join(folder, str(part)))
    for name in _partial(into):
        into.remove(name)


def _partial(into: Side) -> Iterator[str]:
    for name in into.files:
        folder, _, base = name.rpartition("/")
        step = file_names.tensors_step(base) if folder.startswith(file_names.TENSORS_DIR) else None
        if step is not None and not step[1] and f"{folder}/{file_names.tensors_name(step[0])}" in into.files:
            yield name
