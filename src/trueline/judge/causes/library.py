"""The causes that are known: blocks of the ``causes.toml`` of every law."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, get_args

from trueline.judge.causes.cause import Cause, Strength
from trueline.schema.law import Law, installed_laws

CAUSES = "causes.toml"


@cache
def known_causes() -> tuple[Cause, ...]:
    """Every cause, in the order of their slugs."""
    causes = [_cause(slug, block) for law in installed_laws() for slug, block in _blocks(law).items()]
    return tuple(sorted(causes, key=lambda cause: cause.slug))


def _blocks(law: Law) -> dict[str, Any]:
    path = files(law.package) / CAUSES
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _cause(slug: str, block: dict[str, Any]) -> Cause:
    """The cause of one block: signs by how surely it brings them, and what ``Cause`` has by the same name."""
    return Cause(
        shows={sign: strength for strength in get_args(Strength) for sign in block.get(strength, ())},
        settles=block["settles"],
        needs=tuple(block.get("needs", ())),
        excludes=tuple(block.get("excludes", ())),
        effort=block.get("effort", "step"),
        slug=slug,
        manual=block["manual"].strip(),
    )
