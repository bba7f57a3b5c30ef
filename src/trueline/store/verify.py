"""Every file of a Run against what was written: checksums of documents, frames, parts, call stacks and values, and what
is missing between them.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from fsspec import AbstractFileSystem

from trueline.schema.errors import RunError
from trueline.schema.files.plan_files import PLAN_FILE, REVISIONS_DIR
from trueline.schema.files.run_manifest import SCHEMA_VERSION, unknown_keys
from trueline.schema.plan import Plan
from trueline.schema.text.documents import decode
from trueline.schema.text.reading import why
from trueline.schema.text.secrets import without_credentials
from trueline.store import file_names
from trueline.store.env_and_findings import env_of, findings_of
from trueline.store.file_names import PartName, Problem
from trueline.store.filesystem import filesystem_of
from trueline.store.judged import is_whole
from trueline.store.log.journal import read_journal
from trueline.store.log.listing import names_in
from trueline.store.log.parts import decode_part
from trueline.store.manifest import open_manifest
from trueline.store.migrate import read_manifest
from trueline.store.reader import Run
from trueline.store.records.stack_files import decode_stacks, has_checksum
from trueline.store.records.tensor_files import TensorContents
from trueline.store.rows import RECORD_SCHEMA, TABLE_SCHEMAS, worker_schema

State = Literal["whole", "unchecked", "torn", "damaged"]
"""``unchecked``: it can be read, and has no checksum, as those of older versions; ``torn``: a process was killed, or
writes just now, and what it had finished is whole.
"""

Verdict = tuple[State, str]
"""A state and the sentence on it, '' where there is nothing to say."""

_WHOLE: Verdict = ("whole", "")
_OLDER = "it has no checksum (of an older version, or edited)"


@dataclass(frozen=True, slots=True)
class FileState:
    """One file, by its path within the Run."""

    file: str
    state: State
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found in the Run at ``run``: all its ``files``, and a line for each thing that is ``missing``."""

    run: str
    files: tuple[FileState, ...]
    missing: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Files by state."""
        counter = Counter(file.state for file in self.files)
        states: tuple[State, ...] = ("whole", "unchecked", "torn", "damaged")
        return {state: counter[state] for state in states}

    @property
    def exit_code(self) -> int:
        """1 where anything is damaged or missing, else 0."""
        return 1 if self.counts["damaged"] or self.missing else 0

    @property
    def verdict(self) -> str:
        counts, total = self.counts, len(self.files)
        if self.exit_code:
            lacks = f"; missing: {len(self.missing)}" if self.missing else ""
            return f"Damaged: {counts['damaged']} of {total} files are not what was written{lacks}."
        remarks = [f"{counts['torn']} end where a process was killed, or writes just now"] if counts["torn"] else []
        remarks += [f"{counts['unchecked']} have no checksum and can be read"] if counts["unchecked"] else []
        whole = f"Whole: {counts['whole']} of {total} files are what was written"
        return "; ".join([whole, *remarks]) + "."

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract; ``files`` are those that are not whole."""
        files = [{"file": file.file, "state": file.state, "why": file.why} for file in self.files if file.why]
        return {
            "schema": SCHEMA_VERSION,
            "run": self.run,
            "verdict": self.verdict,
            "counts": self.counts,
            "files": files,
            "missing": list(self.missing),
        }


def verify(path: str) -> Verification:
    """Every file of the Run at ``path``, read to its end. Raises ``RunError`` where there is no Run."""
    fs, root = filesystem_of(path)
    label = without_credentials(path)
    if not fs.exists(root) or not fs.isdir(root) or file_names.MANIFEST not in names_in(fs, root):
        open_manifest(fs, root, label)  # which says what there is instead
    names = sorted(posixpath.relpath(file, root) for file in fs.find(root))
    files = tuple(_state(fs, root, name) for name in names)
    missing: list[str] = []
    try:
        run = Run(path)
        missing = _missing(run, {file.file for file in files if file.why})
    except RunError as error:
        if all(file.state != "damaged" for file in files):
            missing = [str(error)]
    return Verification(label, files, tuple(missing))


def _state(fs: AbstractFileSystem, root: str, name: str) -> FileState:
    path = posixpath.join(root, name)
    folder, _, base = name.rpartition("/")
    if base.endswith(file_names.TEMPORARY_SUFFIX):
        return FileState(name, "torn", "a process was in the middle of it (killed, or writing just now)")
    try:
        check = _check_of(name, folder, base)
        state, problem = check(fs, path, base) if check else ("unchecked", "it is not a file of a Run")
    except Exception as error:  # of any library, about any damage
        state, problem = "damaged", why(error)
    return FileState(name, state, problem)


Check = Callable[[AbstractFileSystem, str, str], Verdict]


def _check_of(name: str, folder: str, base: str) -> Check | None:
    """The check of a file by its name; None for a file that is not of a Run."""
    inside, _, _ = folder.partition("/")
    checks: dict[str, Check | None] = {
        file_names.ENV_DIR: _env if file_names.env_rank(base) is not None else None,
        file_names.WORKERS_DIR: _part(worker_schema()) if PartName.parse(base) else None,
        file_names.RECORDS_DIR: _part(RECORD_SCHEMA) if PartName.parse(base) else None,
        **{table: _part(schema) if PartName.parse(base) else None for table, schema in TABLE_SCHEMAS.items()},
        file_names.STACKS_DIR: _stacks if file_names.stacks_rank(base) is not None else None,
        file_names.TENSORS_DIR: _tensors if file_names.tensors_step(base) else None,
        REVISIONS_DIR: _revision,
        file_names.JUDGED_DIR: _judged_array,
    }
    if inside == file_names.JOURNAL_DIR:
        if file_names.records_journal_rank(base) is not None:
            return _journal(RECORD_SCHEMA)
        if (table := file_names.table_journal(base)) is not None:
            return _journal(TABLE_SCHEMAS[table[1]])
        return _journal(worker_schema()) if file_names.journal_rank(base) is not None else None
    if inside:
        return checks.get(inside)
    if file_names.findings_rank(name) is not None:
        return _findings
    return {
        file_names.MANIFEST: _manifest,
        PLAN_FILE: _plan,
        file_names.CLEAN: _judged,
        file_names.JUDGED: _judged,
        file_names.KNOWN_PARTS: _judged,
    }.get(name)


def _sealed(had_checksum: bool, unknown: list[str]) -> Verdict:
    newer = f"this version does not know {', '.join(unknown)}" if unknown else ""
    if had_checksum:
        return "whole", newer
    return ("damaged", f"{_OLDER}, and {newer}") if unknown else ("unchecked", _OLDER)


def _manifest(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
    data = fs.cat_file(path)
    return _sealed(decode(data)[1], unknown_keys(read_manifest(data, base)))


def _env(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
    data = fs.cat_file(path)
    return _sealed(decode(data)[1], unknown_keys(env_of(data)))


def _revision(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
    document, had_checksum = decode(fs.cat_file(path))
    unknown = sorted(set(document) - set(Plan.model_fields))
    Plan.load({key: value for key, value in document.items() if key in Plan.model_fields})
    return _sealed(had_checksum, unknown)


def _plan(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
    document, _ = decode(fs.cat_file(path))
    Plan.load(document)
    return _WHOLE


def _judged_array(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
    whole = is_whole(posixpath.basename(path), fs.cat_file(path))
    return ("whole", "") if whole else ("unchecked", "it is not what was written; checks make it again")


def _judged(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
    try:
        return _sealed(decode(fs.cat_file(path))[1], [])
    except ValueError as error:
        return "unchecked", f"{error}; nothing is lost, the next check makes it again"


def _findings(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
    data = fs.cat_file(path)
    problems = findings_of(data)[1]
    if problems:
        return _unsound(problems), "; ".join(problems)
    return _sealed(all(decode(line)[1] for line in data.split(b"\n") if line), [])


def _unsound(problems: list[Problem]) -> State:
    return "torn" if all(problem.torn for problem in problems) else "damaged"


def _part(schema: pa.Schema) -> Check:
    def check(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
        part = PartName.parse(base)
        assert part is not None
        decode_part(fs.cat_file(path), part, schema.names).validate(full=True)
        return _WHOLE

    return check


def _journal(schema: pa.Schema) -> Check:
    def check(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
        problems = read_journal(fs.cat_file(path), schema).problems
        return _unsound(problems), "; ".join(
            problems
        ) or f"it is not sealed {file_names.INTERRUPTED}; its frames are whole"

    return check


def _stacks(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
    data = fs.cat_file(path)
    decode_stacks(data)
    return _WHOLE if has_checksum(data) else ("unchecked", _OLDER)


def _tensors(fs: AbstractFileSystem, path: str, base: str) -> Verdict:
    contents = TensorContents(lambda begin, end: fs.cat_file(path, begin, end), fs.size(path))
    for key in contents.keys:
        contents.value(key)
    step = file_names.tensors_step(base)
    if step is not None and not step[1]:
        return "torn", "its step did not end: it holds the values up to there, and no rows refer to them"
    return _WHOLE if contents.sealed else ("unchecked", _OLDER)


def _missing(run: Run, named_files: set[str]) -> list[str]:
    """A line on each value, stack, part and document that other files refer to and that is not there."""
    for table in TABLE_SCHEMAS:
        run.kept(table)
    if not run.has_records:  # reading them names what is missing of them
        return [problem for problem in run.problems if problem.file not in named_files]
    rows = run.records(columns=["rank", "step", "tensor", "stack"], resolve=False)
    tensor_keys: dict[tuple[int, int], set[str]] = {}
    stacks: dict[int, set[int]] = {}
    for rank, step, tensor, stack in zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True):
        if tensor is not None:
            tensor_keys.setdefault((rank, step), set()).add(tensor)
        if stack is not None:
            stacks.setdefault(rank, set()).add(stack)
    problems = list(run.problems)
    for (rank, step), keys in tensor_keys.items():
        absent = keys - run.stored.keys(rank, step, problems)
        if absent:
            text = f"of step {step} some values are not stored ({len(absent)}), such as '{min(absent)}'"
            problems.append(Problem(f"rank {rank}: {text}"))
    for rank, numbers in stacks.items():
        absent = [number for number in numbers if not run.has_stack(rank, number)]
        if absent:
            problems.append(Problem(f"rank {rank}: {len(absent)} call stacks that rows refer to are not there"))
    return [problem for problem in problems if problem.file not in named_files]
