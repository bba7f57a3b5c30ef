"""Whether pieces belong together: of one job, and nothing of a rank there twice."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trueline.schema.errors import InputError
from trueline.store import file_names
from trueline.store.collecting.sides import Side
from trueline.store.file_names import PartName


def require_one_job(sides: Sequence[Side], ranks: Collection[int]) -> None:
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
                jobs.setdefault(str(document.get("job") or ""), side.label)
    if len(jobs) > 1 and "" in jobs:
        raise InputError(
            f"'{jobs['']}' does not say of which job it is (an older version wrote it, or it is damaged), so it is not "
            "collected with others. Copy it by hand where it belongs to them."
        )
    if len(jobs) > 1:
        first, second = list(jobs.values())[:2]
        raise InputError(
            f"'{first}' and '{second}' are of different jobs, or different starts that did not go on with each other. "
            "Collect each into a place of its own."
        )


def require_no_conflict(sides: Sequence[Side]) -> None:
    """Raise ``InputError`` where two places hold different rows of one rank under the same number."""
    for folder, rank in sorted({key for side in sides for key in side.parts}):
        first_by_numbers: dict[range, tuple[PartName, Side]] = {}
        for side in sides:
            for part in side.parts.get((folder, rank), ()):
                first_part, first_side = first_by_numbers.setdefault(part.numbers, (part, side))
                if first_part.crc != part.crc:
                    raise InputError(
                        f"Rank {rank} is there twice: '{folder}/{first_part}' in '{first_side.label}' and "
                        f"'{folder}/{part}' in '{side.label}' hold different rows. Leave out the place that is "
                        "not of this job."
                    )


def world_size(side: Side, manifest: Mapping[str, Any]) -> int:
    """As the manifest says, or, where that is provisional, what any rank says."""
    documents = [manifest]
    if _is_provisional(manifest):
        names = (posixpath.join(file_names.ENV_DIR, name) for name in side.inside(file_names.ENV_DIR)[:1])
        documents += [document for name in names if (document := side.document(name)) is not None]
    return max(int(document.get("world_size", 1)) for document in documents)


def _is_provisional(document: Mapping[str, Any]) -> bool:
    """True if it is the manifest of a job that has not come to say what it is."""
    return "attempts" in document and not any(document.get(name) for name in ("job", "started_at", "source"))
