"""Names of the files in a Run, for the writer and the reader alike (docs/architecture.md, "The Run")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MANIFEST = "manifest.json"
CLEAN = "clean.json"
JUDGED = "judged.json"
JUDGED_DIR = "judged"
KNOWN_PARTS = "parts.json"
ENV_DIR = "env"
WORKERS_DIR = "workers"
JOURNAL_DIR = "journal"
RECORDS_DIR = "records"
TENSORS_DIR = "tensors"
STACKS_DIR = "stacks"
ROLLOUTS_DIR = "rollouts"
SYNCS_DIR = "syncs"
MODELS_DIR = "models"
OF_GROUP = ".ranks-"
"""Follows the name of a Run in that of the Run beside it, of a further group of ranks; then comes its first rank."""
TEMPORARY_SUFFIX = ".tmp"
INTERRUPTED = "(killed, or writing just now)"
"""Describes files that are whole up to where a process stopped."""
PARTS_PER_ATTEMPT = 1_000_000
"""The parts of a start of the job are numbered from its own number times this: at one every 30 s, room for a year."""

_PART = re.compile(r"part-r(\d{5,})-(\d{6,})(?:-(\d{6,}))?-([0-9a-f]{8})\.parquet")
_ENV = re.compile(r"rank-(\d{5,})\.json")
_JOURNAL = re.compile(r"rank-(\d{5,})\.tlj")
_RECORDS_JOURNAL = re.compile(r"rank-(\d{5,})-records\.tlj")
_TABLE_JOURNAL = re.compile(r"rank-(\d{5,})-(rollouts|syncs)\.tlj")
_RANK_FOLDER = re.compile(r"rank-(\d{5,})")
_STACKS = re.compile(r"rank-(\d{5,})\.parquet")
_TENSORS = re.compile(r"step-(\d{8,})(\.partial)?\.safetensors")
_FINDINGS = re.compile(r"findings(?:-r(\d{5,}))?\.jsonl")
_TOP_LEVEL = re.compile(
    r"manifest\.json|clean\.json|judged\.json|plan\.json(\.\d+)?|plans|env|workers|journal|records|tensors|stacks|rollouts|syncs|models|"
    r"findings(-r\d{5,})?\.jsonl"
)


class Problem(str):
    """One line on what is not whole in a Run, in words: "FILE: TEXT". ``file`` is its path within the Run, '' where the
    line is of no file or its reader does not know the name; ``torn`` where a process stopped there, or writes just now.
    """

    __slots__ = ("file", "text", "torn")

    def __new__(cls, text: str, *, file: str = "", torn: bool = False) -> Problem:
        """The line on ``text``, which is without the name of the file."""
        line = super().__new__(cls, f"{file}: {text}" if file else text)
        line.file, line.text, line.torn = file, text, torn
        return line

    def in_file(self, file: str) -> Problem:
        """The line with the name of the file in front, for a reader that did not know it."""
        return Problem(self.text, file=file, torn=self.torn)


@dataclass(frozen=True, slots=True, order=True)
class PartName:
    """The name of a sealed part: its rank, its zero-based index (offset by the start of the job, see
    ``PARTS_PER_ATTEMPT``), the CRC32 of the file, and for a merged part the index of the last part in it.

    Parquet's own checksums cover its pages but not its footer; the one in the name covers every byte.
    """

    rank: int
    sequence: int
    crc: int
    last: int = -1

    @property
    def attempt(self) -> int:
        """The start of the job, from 0, that wrote it."""
        return self.sequence // PARTS_PER_ATTEMPT

    @property
    def numbers(self) -> range:
        """The numbers of the parts whose rows it holds: its own, or those that were merged into it."""
        return range(self.sequence, max(self.sequence, self.last) + 1)

    def __str__(self) -> str:
        last = f"-{self.last:06d}" if self.last > self.sequence else ""
        return f"part-r{self.rank:05d}-{self.sequence:06d}{last}-{self.crc:08x}.parquet"

    @classmethod
    def parse(cls, name: str) -> PartName | None:
        """The PartName that ``name`` spells, or None where it is no sealed part."""
        match = _PART.fullmatch(name)
        if match is None:
            return None
        part = cls(int(match[1]), int(match[2]), int(match[4], 16), int(match[3] or -1))
        follows = part.last > part.sequence and part.last // PARTS_PER_ATTEMPT == part.attempt
        return part if match[3] is None or follows else None


def numbers_of(parts: Iterable[PartName]) -> set[int]:
    """The numbers of all parts whose rows these hold."""
    return {number for part in parts for number in part.numbers}


def env_name(rank: int) -> str:
    """The file under ``env/`` that describes ``rank``."""
    return f"rank-{rank:05d}.json"


def journal_name(rank: int) -> str:
    """The file under ``journal/`` with the steps of ``rank`` that are not yet sealed."""
    return f"rank-{rank:05d}.tlj"


def records_journal_name(rank: int) -> str:
    """The file under ``journal/`` with the recorded steps of ``rank`` that are not yet sealed."""
    return f"rank-{rank:05d}-records.tlj"


def table_journal_name(rank: int, table: str) -> str:
    """The file under ``journal/`` with the rows of ``table`` that ``rank`` wrote and that are not yet sealed."""
    return f"rank-{rank:05d}-{table}.tlj"


def reserve_name(rank: int) -> str:
    """The file under ``journal/`` that keeps room on the disk for the last Finding of ``rank``."""
    return f".rank-{rank:05d}-reserve{TEMPORARY_SUFFIX}"


def rank_folder(rank: int) -> str:
    """The folder of ``rank`` under ``records/`` and ``tensors/``."""
    return f"rank-{rank:05d}"


def stacks_name(rank: int) -> str:
    """The file under ``stacks/`` with the call stacks of ``rank``."""
    return f"rank-{rank:05d}.parquet"


def tensors_name(step: int, *, partial: bool = False) -> str:
    """The file under ``tensors/rank-*/`` with the values of a step; ``partial`` where the step did not end."""
    return f"step-{step:08d}{'.partial' if partial else ''}.safetensors"


def findings_name(rank: int) -> str:
    """The file with the live Findings of ``rank``."""
    return "findings.jsonl" if rank == 0 else f"findings-r{rank:05d}.jsonl"


def env_rank(name: str) -> int | None:
    """The rank that a file under ``env/`` describes; None for any other file."""
    return _rank(_ENV.fullmatch(name))


def journal_rank(name: str) -> int | None:
    """The rank whose journal a file under ``journal/`` is; None for any other file."""
    return _rank(_JOURNAL.fullmatch(name))


def records_journal_rank(name: str) -> int | None:
    """The rank whose recorded steps a file under ``journal/`` holds; None for any other file."""
    return _rank(_RECORDS_JOURNAL.fullmatch(name))


def table_journal(name: str) -> tuple[int, str] | None:
    """The rank and the table of a file under ``journal/`` that holds rows as they came; None for any other file."""
    match = _TABLE_JOURNAL.fullmatch(name)
    return None if match is None else (int(match[1]), match[2])


def folder_rank(name: str) -> int | None:
    """The rank that a folder under ``records/`` or ``tensors/`` belongs to; None for anything else."""
    return _rank(_RANK_FOLDER.fullmatch(name))


def stacks_rank(name: str) -> int | None:
    """The rank whose call stacks a file under ``stacks/`` holds; None for any other file."""
    return _rank(_STACKS.fullmatch(name))


def tensors_step(name: str) -> tuple[int, bool] | None:
    """The step of a file under ``tensors/rank-*/`` and whether it ended; None for any other file."""
    match = _TENSORS.fullmatch(name)
    return None if match is None else (int(match[1]), match[2] is None)


def share(rank: int) -> dict[str, re.Pattern[str]]:
    """By folder, the names of the files of one rank, which must be gone before it writes again."""
    stem = f"rank-{rank:05d}"
    return {
        ENV_DIR: re.compile(rf"{stem}\.json"),
        WORKERS_DIR: re.compile(rf"part-r{rank:05d}-.*\.parquet"),
        JOURNAL_DIR: re.compile(rf"{stem}(-\w+)?\.tlj"),
        ROLLOUTS_DIR: re.compile(rf"part-r{rank:05d}-.*\.parquet"),
        SYNCS_DIR: re.compile(rf"part-r{rank:05d}-.*\.parquet"),
        RECORDS_DIR: re.compile(stem),
        TENSORS_DIR: re.compile(stem),
        STACKS_DIR: re.compile(rf"{stem}\.parquet"),
    }


def findings_rank(name: str) -> int | None:
    """The rank whose live Findings a top-level file holds; None for any other file."""
    return _rank(_FINDINGS.fullmatch(name))


def belongs_to_run(name: str) -> bool:
    """True for the top-level entries that a Run has; nothing else is ever removed by overwriting one."""
    return _TOP_LEVEL.fullmatch(name.removeprefix(".").removesuffix(TEMPORARY_SUFFIX)) is not None


def _rank(match: re.Match[str] | None) -> int | None:
    return None if match is None else int(match[1] or 0)
