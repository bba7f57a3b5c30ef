"""The terms in which settings of all frameworks are compared, and which option of which framework is which term.

The terms are in ``vocabulary.toml``, with their sources; what can change numbers of the rest is in ``weights.toml``.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

Starts = Literal["start", "update", "rounding"]
"""What a difference changes first: the first loss, the first update, or only how sums are rounded."""

PLAIN = "plain"
"""The framework of scripts of one's own, whose names hold wherever another one has none."""
_FRAMEWORKS = ("hf", "llamafactory", "deepspeed", "megatron", "lightning", "torchtitan", "verl", PLAIN)
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Term:
    """A setting by the name that all frameworks share here; ``defaults`` by framework."""

    slug: str
    says: str
    topic: str
    code: str
    likely: int
    starts: Starts
    kind: str
    within: bool
    defaults: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """What an option says of a term: its value, the ``fixed`` one where the option is on, or the opposite. Of several
    options of a job for one term that of the lowest ``place`` holds.
    """

    term: Term
    fixed: Any = None
    negated: bool = False
    place: int = 0


@dataclass(frozen=True)
class Vocabulary:
    """Terms by slug; rules by framework and option; values that mean the same, as ``framework:value`` or ``value``; the
    framework whose options a framework ``includes``.
    """

    terms: Mapping[str, Term]
    rules: Mapping[str, Mapping[str, tuple[Rule, ...]]]
    values: Mapping[str, Mapping[str, str]]
    includes: Mapping[str, str]

    def same_value(self, slug: str, text: str, framework: str) -> str:
        """The word for a value of a term that several frameworks write differently."""
        known = self.values.get(slug, {})
        return known.get(f"{framework}:{text}", known.get(text, text))


@cache
def vocabulary() -> Vocabulary:
    """The terms of ``vocabulary.toml``."""
    table = tomllib.loads((_HERE / "vocabulary.toml").read_text(encoding="utf-8"))
    includes = cast(Mapping[str, str], table.pop("includes"))
    values = {
        slug: {alias: value for value, aliases in kinds.items() for alias in aliases}
        for slug, kinds in cast(dict[str, dict[str, list[str]]], table.pop("values")).items()
    }
    table.pop("sources")
    terms = {slug: _term(slug, entry) for slug, entry in table.items()}
    rules: dict[str, defaultdict[str, list[Rule]]] = {name: defaultdict(list) for name in _FRAMEWORKS}
    for slug, entry in table.items():
        for name in _FRAMEWORKS:
            options = _options(entry, name) + (_options(entry, includes[name]) if name in includes else [])
            for place, option in enumerate(options):
                _add(rules[name], option, terms[slug], place)
    by_option = {name: {option: tuple(each) for option, each in found.items()} for name, found in rules.items()}
    return Vocabulary(terms, by_option, values, includes)


def _term(slug: str, entry: Mapping[str, Any]) -> Term:
    defaults = dict(entry.get("default", {}))
    if "hf" in defaults:
        defaults.setdefault("llamafactory", defaults["hf"])
    return Term(
        slug=slug,
        says=entry["says"],
        topic=entry["topic"],
        code=entry.get("code", "config-differs"),
        likely=entry["likely"],
        starts=entry["from"],
        kind=entry.get("kind", ""),
        within=entry.get("within", False),
        defaults=defaults,
    )


def _options(entry: Mapping[str, Any], framework: str) -> list[str]:
    found = entry.get(framework, [])
    return [found] if isinstance(found, str) else list(found)


def _add(rules: defaultdict[str, list[Rule]], option: str, term: Term, place: int) -> None:
    name, arrow, fixed = (part.strip() for part in option.partition("->"))
    rule = Rule(term, fixed=_fixed(fixed) if arrow else None, negated=name.startswith("!"), place=place)
    rules[name.removeprefix("!")].append(rule)


def _fixed(text: str) -> Any:
    return {"false": False, "true": True}.get(text, text)


@cache
def weights() -> Mapping[str, Any]:
    """The tables of ``weights.toml``."""
    return tomllib.loads((_HERE / "weights.toml").read_text(encoding="utf-8"))


def fits(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns fits a name, whatever its case."""
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def likely_of(table: str, name: str, *, otherwise: int = 0) -> int:
    """How likely a difference in a package, flag, device or build setting explains other numbers; ``otherwise`` where
    no pattern fits.
    """
    entries = cast(Mapping[str, Any], weights()[table])
    patterns = cast(Mapping[str, int], entries.get("likely", entries))
    return next((likely for pattern, likely in patterns.items() if fnmatchcase(name.lower(), pattern)), otherwise)
