"""Names of the files in a Run, for the writer and the reader alike (ARCHITECTURE.md §5)."""

from __future__ import annotations

import re
from dataclasses import dataclass

MANIFEST = "manifest.json"
ENV_DIR = "env"
WORKERS_DIR = "workers"
JOURNAL_DIR = "journal"
TEMPORARY_SUFFIX = ".tmp"

_PART = re.compile(r"part-r(\d{5,})-(\d{6,})-([0-9a-f]{8})\.parquet")
_ENV = re.compile(r"rank-(\d{5,})\.json")
_JOURNAL = re.compile(r"rank-(\d{5,})\.tlj")
_FINDINGS = re.compile(r"findings(?:-r(\d{5,}))?\.jsonl")
_TOP_LEVEL = re.compile(r"manifest\.json|env|workers|journal|records|tensors|stacks|findings(-r\d{5,})?\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class PartName:
    """What the name of a sealed part says: whose rows, the how-manieth part of that rank, and the CRC32 of the file.

    Parquet's own checksums cover its pages but not its footer; the one in the name covers every byte.
    """

    rank: int
    sequence: int
    crc: int

    def __str__(self) -> str:
        return f"part-r{self.rank:05d}-{self.sequence:06d}-{self.crc:08x}.parquet"

    @classmethod
    def parse(cls, name: str) -> PartName | None:
        """The PartName that ``name`` spells, or None where it is no sealed part."""
        found = _PART.fullmatch(name)
        return cls(int(found[1]), int(found[2]), int(found[3], 16)) if found else None


def env_name(rank: int) -> str:
    """The file under ``env/`` that describes ``rank``."""
    return f"rank-{rank:05d}.json"


def journal_name(rank: int) -> str:
    """The file under ``journal/`` with the steps of ``rank`` that are not yet sealed."""
    return f"rank-{rank:05d}.tlj"


def findings_name(rank: int) -> str:
    """The file with the live Findings of ``rank``."""
    return "findings.jsonl" if rank == 0 else f"findings-r{rank:05d}.jsonl"


def env_rank(name: str) -> int | None:
    """The rank that a file under ``env/`` describes; None for any other file."""
    return _rank(_ENV.fullmatch(name))


def journal_rank(name: str) -> int | None:
    """The rank whose journal a file under ``journal/`` is; None for any other file."""
    return _rank(_JOURNAL.fullmatch(name))


def findings_rank(name: str) -> int | None:
    """The rank whose live Findings a top-level file holds; None for any other file."""
    return _rank(_FINDINGS.fullmatch(name))


def belongs_to_run(name: str) -> bool:
    """True for the top-level entries that a Run has; nothing else is ever removed by overwriting one."""
    return _TOP_LEVEL.fullmatch(name.removeprefix(".").removesuffix(TEMPORARY_SUFFIX)) is not None


def _rank(found: re.Match[str] | None) -> int | None:
    return None if found is None else int(found[1] or 0)
