"""The causes that are known: blocks of the TOML files under ``known``."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, get_args

from trueline.judge.causes.cause import Cause, Strength

KNOWN = Path(__file__).parent / "known"


@cache
def known_causes() -> tuple[Cause, ...]:
    """Every cause, in the order of their slugs."""
    tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in KNOWN.glob("*.toml")]
    causes = [_cause(slug, block) for table in tables for slug, block in table.items()]
    return tuple(sorted(causes, key=lambda cause: cause.slug))


def _cause(slug: str, block: dict[str, Any]) -> Cause:
    """The cause of one block: signs by how surely it brings them, and what ``Cause`` has by the same name."""
    return Cause(
        shows={sign: strength for strength in get_args(Strength) for sign in block.get(strength, ())},
        settles=block["settles"],
        needs=tuple(block.get("needs", ())),
        excludes=tuple(block.get("excludes", ())),
        slug=slug,
        manual=block["manual"].strip(),
    )
