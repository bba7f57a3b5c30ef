"""Ranks of one job that never updated, as one finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueline.schema.finding import NO_UPDATE, Finding
from trueline.schema.text.words import counted, ranges


def merge_no_update(findings: Sequence[Finding]) -> list[Finding]:
    """``findings``, those that ranks left of no update as one: 20 backward passes on 2 ranks, and no update."""
    no_updates = [finding for finding in findings if finding.code == NO_UPDATE]
    if not no_updates:
        return list(findings)
    first = no_updates[0]
    ranks = tuple(sorted({rank for finding in no_updates for rank in finding.ranks}))
    passes = ranges({int(finding.evidence.get("backward_passes", 0)) for finding in no_updates})
    where = f" on {counted(len(ranks), 'rank')}" if len(ranks) > 1 else ""
    rest = first.claim.partition(", and no update")[2]  # the reason, which is that of every rank
    claim = f"{', '.join(passes)} backward passes{where}, and no update{rest}"
    return [
        *(finding for finding in findings if finding.code != NO_UPDATE),
        replace(first, ranks=ranks, claim=claim),
    ]
