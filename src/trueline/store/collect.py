"""Brings together in one Run what the ranks of a job wrote on disks of their own.

Each file of a Run has one writer, so a Run is the union of what lies on all machines. What never changes (sealed parts,
whose names hold their checksums, and stored values) is copied once; what still grows is copied whole each time. A row
is in a journal or in a part: journals are read first and written last, so that a reader of the copy finds it in one of
the two at any moment.
"""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from trueline.schema.errors import InputError, RunError
from trueline.schema.files.plan_files import PLAN_FILE, REVISIONS_DIR
from trueline.schema.files.run_lock import living
from trueline.schema.text.documents import decode
from trueline.schema.text.reading import why
from trueline.schema.text.secrets import without_credentials
from trueline.schema.text.words import counted, ranks_text
from trueline.store import file_names
from trueline.store.file_names import PartName, Problem
from trueline.store.filesystem import filesystem_of
from trueline.store.log.durable import make_folder, replace_file, sync
from trueline.store.log.earlier_start import journals_of, sealed
from trueline.store.log.journal import read_journal
from trueline.store.log.listing import name_missing_parts
from trueline.store.rows import WORKER_SCHEMA

CHUNK = 8 << 20
"""Bytes that are held at a time of a file that is copied."""

LISTINGS = 3
"""Times that a place is listed whose parts are merged meanwhile."""

SCHEMA = 1
"""Of the document that ``Collected.to_json`` makes."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What is at ``run`` now: of ``world_size`` ranks (None: rank 0's files, which say so, are not there yet) these,
    and of which ``unclosed`` were still being written, or killed. ``copied`` files of ``copied_bytes`` were not there
    before, or not as they are now. ``problems`` has a line for each thing that is not as it should be.
    """

    run: str
    ranks: tuple[int, ...]
    world_size: int | None
    unclosed: tuple[int, ...]
    copied: int
    copied_bytes: int
    problems: tuple[str, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job of which nothing is there."""
        return tuple(sorted({*range(self.world_size or 0)} - {*self.ranks}))

    @property
    def verdict(self) -> str:
        """One sentence."""
        copied = f"{counted(self.copied, 'file')} ({self.copied_bytes / 2**20:.1f} MiB) copied"
        if self.world_size is None:
            there = f"only {ranks_text(self.ranks)}" if self.ranks else "no rank"
            return f"No Run yet at '{self.run}': {there}, and the manifest is where rank 0 writes; {copied}."
        if self.missing:
            return (
                f"Incomplete: {ranks_text(self.missing)} of {self.world_size} left nothing in these places; {copied}."
            )
        return f"Complete: {counted(len(self.ranks), 'rank')} of {self.world_size} in '{self.run}'; {copied}."

    @property
    def exit_code(self) -> int:
        """1 where ranks are missing, or something is not as it should be; else 0."""
        return 1 if self.world_size is None or self.missing or self.problems else 0

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "verdict": self.verdict,
            "ranks": list(self.ranks),
            "world_size": self.world_size,
            "missing": list(self.missing),
            "unclosed": list(self.unclosed),
            "copied": self.copied,
            "copied_bytes": self.copied_bytes,
            "problems": list(self.problems),
        }


def collect(
    sources: Sequence[str | os.PathLike[str]],
    dst: str,
    *,
    max_bytes_per_s: float | None = None,
    reads_again: bool = True,
) -> Collected:
    """Copy to ``dst``, a path or fsspec URL, what it lacks of the ``sources``: Runs, or what ranks of one job left on
    machines without rank 0. Jobs that still write may be collected again and again; nothing is changed at a source.
    With ``reads_again`` parts that were copied before are read at their source, so that damage is named each time.

    Raises ``InputError`` where they are not of one job, or hold different rows of one rank; ``RunError`` where a source
    is no Run or cannot be read, and ``OSError`` where ``dst`` does not take, or does not keep, what it is given.
    """
    sides = _sides(sources)
    into = require_place(dst, [side.root for side in sides if side.is_local])
    work = _Work(_Budget(max_bytes_per_s), reads_again)
    for suffix in sorted({side.suffix for side in sides}):
        alike = [side for side in sides if side.suffix == suffix]
        target = _Side(f"{os.fspath(dst).rstrip('/')}{suffix}") if suffix else into
        for folder in sorted({folder for side in alike for folder in side.folders}):
            _collect_run([side.at(folder) for side in alike if folder in side.folders], target.at(folder), work)
    into = into.fresh()
    ranks, unclosed = into.ranks, into.unclosed
    for suffix in sorted({side.suffix for side in sides if side.suffix}):
        of_group = _Side(f"{os.fspath(dst).rstrip('/')}{suffix}")
        ranks, unclosed = ranks | of_group.ranks, unclosed | of_group.unclosed
    manifest = into.document(file_names.MANIFEST)
    return Collected(
        run=into.shown,
        ranks=tuple(sorted(ranks)),
        world_size=None if manifest is None else _world_size(into, manifest),
        unclosed=tuple(sorted(unclosed)),
        copied=work.copied,
        copied_bytes=work.copied_bytes,
        problems=tuple(dict.fromkeys(work.problems)),
    )


def follow_until(
    over: Callable[[], bool],
    sources: Sequence[str],
    dst: str,
    *,
    every_s: float,
    tell: Callable[[str], None],
    max_bytes_per_s: float | None = None,
) -> None:
    """``collect`` every ``every_s`` seconds until ``over``. A place that cannot be reached, or a source that is not
    there yet, costs nothing: each sentence about it is told once, and it is tried again.
    """
    told = ""
    while not over():
        try:
            collect(sources, dst, max_bytes_per_s=max_bytes_per_s, reads_again=False)
        except NothingYet:
            pass
        except (RunError, InputError, OSError) as error:
            if str(error) != told:
                tell(f"{why(error)}. It is tried again every {every_s:g} s, and nothing is lost meanwhile.")
                told = str(error)
        else:
            if told:
                tell("collecting goes on.")
                told = ""
        time.sleep(every_s)


def ended(sources: Sequence[str]) -> bool:
    """Whether ranks wrote to all of ``sources``, and none writes there any more."""
    try:
        sides = _sides(sources)
    except RunError:
        return False
    return not any(living(side.root) if side.is_local else side.unclosed for side in sides)


class NothingYet(RunError):
    """There is nothing at any source."""


class _Budget:
    """Keeps copying below so many bytes a second, if any are given."""

    def __init__(self, max_bytes_per_s: float | None) -> None:
        self._rate = max_bytes_per_s
        self._free_at = time.monotonic()

    def spend(self, num_bytes: int) -> None:
        """Wait until the bytes before these have had their time."""
        if self._rate:
            time.sleep(max(0.0, self._free_at - time.monotonic()))
            self._free_at = max(self._free_at, time.monotonic()) + num_bytes / self._rate


@dataclass(slots=True)
class _Work:
    """What was done so far, and what is to be said of it."""

    budget: _Budget
    reads_again: bool
    copied: int = 0
    copied_bytes: int = 0
    problems: list[str] = field(default_factory=list[str])

    def did(self, num_bytes: int) -> None:
        """Count a file."""
        self.copied += 1
        self.copied_bytes += num_bytes


class _Side:
    """A place that holds the files of a Run, or some of them, as listed when it was made; ``suffix`` follows the name
    of the Run where it is that of a further group of ranks.
    """

    def __init__(self, path: str | os.PathLike[str], *, suffix: str = "", folder: str = "") -> None:
        self._given, self.suffix, self._folder = os.fspath(path), suffix, folder
        self.shown = (
            posixpath.join(without_credentials(self._given), folder) if folder else without_credentials(self._given)
        )
        self.fs, top = filesystem_of(self._given)
        self.root = posixpath.join(top, folder) if folder else top

    def fresh(self) -> _Side:
        """The same place, listed again."""
        return _Side(self._given, suffix=self.suffix, folder=self._folder)

    def at(self, folder: str) -> _Side:
        """The Run inside of it that lies in ``folder``."""
        return _Side(self._given, suffix=self.suffix, folder=folder)

    @property
    def is_local(self) -> bool:
        """Whether files can be replaced and synced."""
        return isinstance(self.fs, LocalFileSystem)

    @cached_property
    def every(self) -> Mapping[str, int]:
        """Bytes of each file below, by its path within; none where there is nothing."""
        with contextlib.suppress(AttributeError):
            self.fs.invalidate_cache(self.root)
        try:
            found: Mapping[str, Any] = self.fs.find(self.root, detail=True)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise RunError(
                f"'{self.shown}' cannot be reached ({why(error)}). Check the address and its permissions."
            ) from None
        root = self.root.rstrip("/") + "/"
        return {
            name.removeprefix(root): int(entry.get("size") or 0)
            for name, entry in found.items()
            if name.startswith(root) and not name.endswith(file_names.TEMPORARY_SUFFIX)
        }

    @cached_property
    def files(self) -> Mapping[str, int]:
        """The same of this Run alone, without those inside of it, and without what is no file of a Run."""
        return {
            name: size
            for name, size in self.every.items()
            if file_names.belongs_to_run(top := name.partition("/")[0]) and top != file_names.MODELS_DIR
        }

    @cached_property
    def folders(self) -> Sequence[str]:
        """Where Runs lie inside of it: '' for its own, and those of further models."""
        split = (name.split("/") for name in self.every)
        models = {"/".join(parts[:2]) for parts in split if parts[0] == file_names.MODELS_DIR and len(parts) > 2}
        return ["", *sorted(models)] if self.files else sorted(models)

    @cached_property
    def by_folder(self) -> Mapping[str, Sequence[str]]:
        """Names of the files right in each folder."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.files):
            folder, _, base = name.rpartition("/")
            found.setdefault(folder, []).append(base)
        return found

    def inside(self, folder: str) -> Sequence[str]:
        """Names of the files right in ``folder``."""
        return self.by_folder.get(folder, ())

    @cached_property
    def parts(self) -> Mapping[tuple[str, int], Sequence[PartName]]:
        """The sealed parts by folder and rank."""
        found: dict[tuple[str, int], list[PartName]] = {}
        for folder, names in self.by_folder.items():
            for part in filter(None, map(PartName.parse, names)):
                found.setdefault((folder, part.rank), []).append(part)
        return found

    @cached_property
    def ranks(self) -> Collection[int]:
        """Ranks that said what they are."""
        return _known(map(file_names.env_rank, self.inside(file_names.ENV_DIR)))

    @cached_property
    def unclosed(self) -> Collection[int]:
        """Ranks that have a journal."""
        return _known(map(file_names.journal_rank, self.inside(file_names.JOURNAL_DIR)))

    @cached_property
    def wrote(self) -> Collection[int]:
        """Ranks that left any file."""
        return (
            self.ranks
            | _known(map(_rank_of_journal, self.inside(file_names.JOURNAL_DIR)))
            | {rank for _, rank in self.parts}
        )

    def path(self, name: str) -> str:
        """The path of a file for its file system."""
        return posixpath.join(self.root, name)

    def read(self, name: str) -> bytes:
        """All of a file."""
        return self.fs.cat_file(self.path(name))

    def document(self, name: str) -> dict[str, Any] | None:
        """A JSON document; None where it is not there, or damaged."""
        try:
            return decode(self.read(name))[0]
        except (OSError, ValueError):
            return None

    def remove(self, name: str) -> None:
        """Remove a file that others have made superfluous."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))


def _sides(sources: Sequence[str | os.PathLike[str]]) -> list[_Side]:
    """Each source once, with the Runs beside it of further groups of ranks. Raises where there is nothing to copy."""
    sides: dict[str, _Side] = {}
    for source in sources:
        path = os.fspath(source).rstrip("/") or os.fspath(source)
        if not path:
            raise InputError("A place to collect from is empty. Pass the directories that the ranks wrote to.")
        groups = sorted(glob.glob(f"{glob.escape(path)}{file_names.OF_GROUP}*"))
        found = [_Side(path), *(_Side(group, suffix=group.removeprefix(path)) for group in groups)]
        found = [side for side in found if side.folders]
        if not found:
            there = filesystem_of(path)[0].exists(filesystem_of(path)[1])
            said = "holds nothing that ranks wrote" if there else "is not there"
            raise NothingYet(
                f"'{without_credentials(path)}' {said}. Pass the directory that was --out on that machine."
            )
        for side in found:
            sides.setdefault(os.path.realpath(side.root) if side.is_local else side.root, side)
    if not sides:
        raise InputError("Nothing to collect from was given. Pass the directories that the ranks wrote to.")
    return list(sides.values())


def require_place(dst: str, local_sources: Iterable[str]) -> _Side:
    """The place to collect into. Raises ``RunError`` where it cannot be reached, ``InputError`` where it must be left
    alone.
    """
    if not dst:
        raise InputError("The place to collect into is empty. Pass a directory, or a URL such as s3://bucket/run.")
    into = _Side(dst)
    present = into.every
    is_file = bool(into.fs.exists(into.root) and not into.fs.isdir(into.root))
    if is_file:
        raise InputError(f"'{into.shown}' is a file, and a Run is a directory. Pass another place.")
    for source in local_sources if into.is_local else ():
        if os.path.realpath(source) == os.path.realpath(into.root):
            raise InputError(f"'{into.shown}' is both collected from and collected into. Pass another place.")
    others = sorted(name for name in present if not file_names.belongs_to_run(name.partition("/")[0]))
    if others:
        raise InputError(
            f"'{into.shown}' holds what is not of a Run ('{others[0]}'), so it is left alone. Pass a place that is "
            "empty or does not exist."
        )
    writer = living(into.root) if into.is_local and os.path.isdir(into.root) else None
    if writer is not None:
        raise InputError(
            f"'{into.shown}' is being written by {writer.name}: it is where ranks write, not what was collected. Pass "
            "another place."
        )
    return into


def _collect_run(sides: Sequence[_Side], into: _Side, work: _Work) -> None:
    """The files of one Run."""
    ranks = {rank for side in sides for rank in side.wrote}
    _require_one_job([*sides, into], ranks)
    journals = {side: _journals(side, ranks) for side in [*sides, into]}
    sides = [side.fresh() for side in sides]  # parts are listed after journals were read
    journals = dict(zip([*sides, into], journals.values(), strict=True))
    _require_no_conflict([*sides, into])
    newest = {rank: _newest(rank, sides, journals) for rank in sorted(ranks)}
    for side in sides:
        _copy_all(side, into, work)
    for rank, side in newest.items():
        _seal_others(rank, side, into, journals, work)
        _copy_share(rank, side, [each for each in sides if each is not side], into, work)
    for side in sides:
        for name in side.files:
            if posixpath.dirname(name) == REVISIONS_DIR:
                _put(side, name, into, work)
    _copy_manifest(sides, into, work)
    for rank, side in newest.items():
        for name in (file_names.journal_name(rank), file_names.records_journal_name(rank)):
            data, path = journals[side].get(name), posixpath.join(file_names.JOURNAL_DIR, name)
            if data is not None:
                _put_bytes(data, into, path, work)
            elif path in into.files:
                into.remove(path)
    copied = into.fresh()
    _remove_merged(copied)
    for rank, side in newest.items():
        for kept in journals_of(rank):
            data, missing = journals[side].get(kept.name), list[Problem]()
            journal = None if data is None else read_journal(data, kept.schema)
            name_missing_parts(kept.folder, rank, [*copied.parts.get((kept.folder, rank), ())], journal, missing)
            work.problems += missing


def _require_one_job(sides: Sequence[_Side], ranks: Collection[int]) -> None:
    """Raise ``InputError`` where files say that they are of different jobs, or one of several places does not say. Of
    the environments those of ``ranks`` are read: a place may have thousands of others, which whoever collected them
    looked at.
    """
    jobs: dict[str, str] = {}
    for side in sides:
        names = [f"{file_names.ENV_DIR}/{file_names.env_name(rank)}" for rank in sorted(side.ranks & {*ranks})]
        for name in (file_names.MANIFEST, *names):
            document = side.document(name) if name in side.files else None
            if document is not None and not _is_provisional(document):
                jobs.setdefault(str(document.get("job") or ""), side.shown)
    if len(jobs) > 1 and "" in jobs:
        raise InputError(
            f"'{jobs['']}' does not say of which job it is (an older version wrote it, or it is damaged), so it is not "
            "collected with others. Copy it by hand where it belongs to them."
        )
    if len(jobs) > 1:
        one, other = list(jobs.values())[:2]
        raise InputError(
            f"'{one}' and '{other}' are of different jobs, or different starts that did not go on with each other. "
            "Collect each into a place of its own."
        )


def _world_size(side: _Side, manifest: Mapping[str, Any]) -> int:
    """As the manifest says, or, where that is provisional, what any rank says."""
    said = [manifest]
    if _is_provisional(manifest):
        names = (posixpath.join(file_names.ENV_DIR, name) for name in side.inside(file_names.ENV_DIR)[:1])
        said += [document for name in names if (document := side.document(name)) is not None]
    return max(int(document.get("world_size", 1)) for document in said)


def _is_provisional(document: Mapping[str, Any]) -> bool:
    """Whether it is the manifest of a job that has not come to say what it is."""
    return "attempts" in document and not any(document.get(name) for name in ("job", "started_at", "source"))


def _journals(side: _Side, ranks: Collection[int]) -> Mapping[str, bytes]:
    """The bytes of each journal of ``ranks``, by name."""
    found: dict[str, bytes] = {}
    for name in side.inside(file_names.JOURNAL_DIR):
        if _rank_of_journal(name) in ranks:
            with contextlib.suppress(FileNotFoundError):
                found[name] = side.read(posixpath.join(file_names.JOURNAL_DIR, name))
    return found


def _rank_of_journal(name: str) -> int | None:
    rank = file_names.journal_rank(name)
    return file_names.records_journal_rank(name) if rank is None else rank


def _known(ranks: Iterable[int | None]) -> frozenset[int]:
    return frozenset(rank for rank in ranks if rank is not None)


def _require_no_conflict(sides: Sequence[_Side]) -> None:
    """Raise ``InputError`` where two places hold different rows of one rank under the same number."""
    for folder, rank in sorted({key for side in sides for key in side.parts}):
        seen: dict[range, tuple[PartName, _Side]] = {}
        for side in sides:
            for part in side.parts.get((folder, rank), ()):
                one, other = seen.setdefault(part.numbers, (part, side))
                if one.crc != part.crc:
                    raise InputError(
                        f"Rank {rank} is there twice: '{folder}/{one}' in '{other.shown}' and '{folder}/{part}' in "
                        f"'{side.shown}' hold different rows. Leave out the place that is not of this job."
                    )


def _newest(rank: int, sides: Sequence[_Side], journals: Mapping[_Side, Mapping[str, bytes]]) -> _Side:
    """The place to which the rank wrote last, where it moved to another machine."""

    def number(side: _Side) -> tuple[int, int]:
        sequence = _sequence(journals[side].get(file_names.journal_name(rank)))
        parts = [max(part.numbers) for part in side.parts.get((file_names.WORKERS_DIR, rank), ())]
        return max([*parts, -1 if sequence is None else sequence], default=-1), rank in side.ranks

    return max((side for side in sides if rank in side.wrote), key=number)


def _sequence(data: bytes | None, schema: pa.Schema = WORKER_SCHEMA) -> int | None:
    return None if data is None else read_journal(data, schema).sequence


def _never_changes(name: str) -> bool:
    folder, _, base = name.rpartition("/")
    top = folder.partition("/")[0]
    if top in (file_names.WORKERS_DIR, file_names.RECORDS_DIR):
        return PartName.parse(base) is not None
    return top == file_names.TENSORS_DIR and file_names.tensors_step(base) is not None


def _seal_others(
    rank: int, newest: _Side, into: _Side, journals: Mapping[_Side, Mapping[str, bytes]], work: _Work
) -> None:
    """Make parts of journals of an earlier start of the rank, on another machine or collected before, whose rows are in
    no part: the journal of this start takes their place.
    """
    for kept in journals_of(rank):
        present = {
            number for side in journals for part in side.parts.get((kept.folder, rank), ()) for number in part.numbers
        }
        now = _sequence(journals[newest].get(kept.name), kept.schema)
        for side, found in journals.items():
            if side is newest or kept.name not in found:
                continue
            part = sealed(read_journal(found[kept.name], kept.schema), kept, rank, present | ({now} - {None}))
            if part is not None:
                present.add(part[0].sequence)
                _put_bytes(part[1], into, posixpath.join(kept.folder, str(part[0])), work)


def _copy_share(rank: int, side: _Side, others: Sequence[_Side], into: _Side, work: _Work) -> None:
    """What ``rank`` says of itself: its environment, findings and call stacks."""
    _put(side, posixpath.join(file_names.ENV_DIR, file_names.env_name(rank)), into, work)
    stacks = posixpath.join(file_names.STACKS_DIR, file_names.stacks_name(rank))
    _put(side, stacks, into, work)
    if any(stacks in other.files for other in others):
        work.problems.append(f"rank {rank} recorded on several machines: call stacks are those of '{side.shown}' alone")
    name = file_names.findings_name(rank)
    lines: dict[bytes, None] = {}
    for each in (into, *others, side):
        if name in each.files:
            lines |= dict.fromkeys(filter(None, each.read(name).split(b"\n")[:-1]))  # the last one may be half written
    if name in side.files or any(name in other.files for other in others):
        _put_bytes(b"".join(line + b"\n" for line in lines), into, name, work)


def _copy_manifest(sides: Sequence[_Side], into: _Side, work: _Work) -> None:
    """The manifest that knows most starts of the job, and the Plan beside it."""
    known = [
        (len(document.get("attempts", ())), place, side)
        for place, side in enumerate([into, *sides])
        if (document := side.document(file_names.MANIFEST)) is not None
    ]
    if not known:
        damaged = next((side for side in sides if file_names.MANIFEST in side.files), None)
        if damaged is not None:
            work.problems.append(f"the manifest in '{damaged.shown}' is damaged, and was not copied")
        return
    side = max(known, key=lambda each: each[:2])[2]
    if side is not into:
        _put(side, PLAN_FILE, into, work)
        _put(side, file_names.MANIFEST, into, work)


def _put(side: _Side, name: str, into: _Side, work: _Work) -> None:
    """Copy a file that may change, if it is there and not the same already."""
    if name in side.files:
        with contextlib.suppress(FileNotFoundError):
            _put_bytes(side.read(name), into, name, work)


def _put_bytes(data: bytes, into: _Side, name: str, work: _Work) -> None:
    if into.files.get(name) == len(data) and into.read(name) == data:
        return
    work.budget.spend(len(data))
    if into.is_local:
        make_folder(posixpath.dirname(into.path(name)))
        replace_file(into.path(name), data)
    else:
        into.fs.pipe_file(into.path(name), data)
    if into.read(name) != data:
        raise OSError(f"'{into.shown}' does not keep what is written to it: '{name}' is another file when it is read")
    work.did(len(data))


def _copy_all(side: _Side, into: _Side, work: _Work) -> None:
    """What never changes. A part that was merged into another one since the place was listed is found in that."""
    done: set[str] = set()
    for _ in range(LISTINGS):
        names = [name for name in side.files if _never_changes(name) and name not in done]
        for name in names:
            if into.files.get(name) != side.files[name]:
                done |= {name} if _copy(side, name, into, work) else set()
            else:
                done.add(name)
                if work.reads_again and PartName.parse(posixpath.basename(name)):
                    with contextlib.suppress(FileNotFoundError), side.fs.open(side.path(name), "rb") as source:
                        _name_damage(side, name, _pour(source, lambda data: None, _Budget(None))[0], work)
        if done.issuperset(names):
            return
        side = side.fresh()


def _name_damage(side: _Side, name: str, crc: int, work: _Work) -> None:
    part = PartName.parse(posixpath.basename(name))
    if part is not None and part.crc != crc:
        work.problems.append(f"'{posixpath.join(side.shown, name)}' is damaged, and was copied as it is")


def _copy(side: _Side, name: str, into: _Side, work: _Work) -> bool:
    """Copy a file that never changes, a chunk at a time, and read it back; False where it is gone."""
    path = into.path(name)
    temporary = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}{file_names.TEMPORARY_SUFFIX}")
    try:
        with side.fs.open(side.path(name), "rb") as source:
            if into.is_local:
                make_folder(posixpath.dirname(path))
                with Path(temporary).open("wb") as target:
                    crc, size = _pour(source, target.write, work.budget)
                    target.flush()
                    os.fsync(target.fileno())
                os.replace(temporary, path)
                sync(posixpath.dirname(path))
            else:
                with into.fs.open(path, "wb") as target:
                    crc, size = _pour(source, target.write, work.budget)
    except FileNotFoundError:
        if name in side.fresh().files:
            raise
        return False
    with into.fs.open(path, "rb") as copy:
        again = _pour(copy, lambda data: None, _Budget(None))
    if again != (crc, size):
        raise OSError(f"'{into.shown}' does not keep what is written to it: '{name}' is another file when it is read")
    _name_damage(side, name, crc, work)
    work.did(size)
    return True


def _pour(source: Any, write: Callable[[bytes], Any], budget: _Budget) -> tuple[int, int]:
    """Give ``write`` all of ``source``; the CRC32 and the number of its bytes."""
    crc = size = 0
    while data := source.read(CHUNK):
        budget.spend(len(data))
        write(data)
        crc, size = zlib.crc32(data, crc), size + len(data)
    return crc, size


def _remove_merged(into: _Side) -> None:
    """Remove what another file holds: parts that were merged into one, and values of a step that has ended since."""
    for (folder, _), parts in into.parts.items():
        merged = [part for part in parts if len(part.numbers) > 1]
        for part in parts:
            if any(part != each and {*part.numbers} <= {*each.numbers} for each in merged):
                into.remove(posixpath.join(folder, str(part)))
    for name in _partial(into):
        into.remove(name)


def _partial(into: _Side) -> Iterator[str]:
    for name in into.files:
        folder, _, base = name.rpartition("/")
        step = file_names.tensors_step(base) if folder.startswith(file_names.TENSORS_DIR) else None
        if step is not None and not step[1] and f"{folder}/{file_names.tensors_name(step[0])}" in into.files:
            yield name
