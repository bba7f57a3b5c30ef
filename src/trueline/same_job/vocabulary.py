"""Terms in which settings of all frameworks are compared, and the options of each framework by term.

``vocabulary.toml`` has the terms with their sources; ``weights.toml`` rates everything else that can change numbers.
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
"""First quantity that a difference changes: the first loss, the first update, or only the rounding of sums."""

PLAIN = "plain"
"""Framework of home-made scripts: its option names hold wherever a framework has none of its own."""
_FRAMEWORKS = (
    *("hf", "llamafactory", "deepspeed", "megatron", "lightning", "torchtitan", "verl"),
    *("axolotl", "openrlhf", "slime", "nemo-rl", "accelerate", PLAIN),
)
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Term:
    """Setting under the name that all frameworks share here; ``defaults`` are by framework."""

    slug: str
    says: str
    topic: str
    code: str
    likely: int
    starts: Starts
    kind: str
    within_framework: bool
    defaults: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """Reading of an option as a term: its value, the ``fixed`` one where the option is on, or the opposite.

    Of several options of a job for one term, that with the lowest ``position`` holds.
    """

    term: Term
    fixed: Any = None
    negated: bool = False
    position: int = 0


@dataclass(frozen=True)
class Vocabulary:
    """Terms by slug, and rules by framework and option.

    ``values`` has aliases of a value (``framework:value`` or ``value``) by term; ``includes`` has, by
    framework, another one whose options hold in it, too.
    """

    terms: Mapping[str, Term]
    rules: Mapping[str, Mapping[str, tuple[Rule, ...]]]
    values: Mapping[str, Mapping[str, str]]
    includes: Mapping[str, str]

    def shared_spelling(self, slug: str, text: str, framework: str) -> str:
        """Spelling shared by all frameworks for a value of a term."""
        aliases = self.values.get(slug, {})
        return aliases.get(f"{framework}:{text}", aliases.get(text, text))


@cache
def vocabulary() -> Vocabulary:
    """Read ``vocabulary.toml``."""
    table = tomllib.loads((_FOLDER / "vocabulary.toml").read_text(encoding="utf-8"))
    includes = cast(Mapping[str, str], table.pop("includes"))
    values = {
        slug: {alias: value for value, aliases in kinds.items() for alias in aliases}
        for slug, kinds in cast(dict[str, dict[str, list[str]]], table.pop("values")).items()
    }
    table.pop("sources")
    terms = {slug: _read_term(slug, entry, includes) for slug, entry in table.items()}
    rules: dict[str, defaultdict[str, list[Rule]]] = {name: defaultdict(list) for name in _FRAMEWORKS}
    for slug, entry in table.items():
        for name in _FRAMEWORKS:
            options = _read_options(entry, name) + (_read_options(entry, includes[name]) if name in includes else [])
            for position, option in enumerate(options):
                _add_rule(rules[name], option, terms[slug], position)
    by_option = {
        name: {option: tuple(option_rules) for option, option_rules in by_name.items()}
        for name, by_name in rules.items()
    }
    return Vocabulary(terms, by_option, values, includes)


def _read_term(slug: str, entry: Mapping[str, Any], includes: Mapping[str, str]) -> Term:
    defaults = dict(entry.get("default", {}))
    for name, included in includes.items():  # LLaMA-Factory hands its options on to TrainingArguments
        if included in defaults:
            defaults.setdefault(name, defaults[included])
    return Term(
        slug=slug,
        says=entry["says"],
        topic=entry["topic"],
        code=entry.get("code", "config-differs"),
        likely=entry["likely"],
        starts=entry["from"],
        kind=entry.get("kind", ""),
        within_framework=entry.get("within", False),
        defaults=defaults,
    )


def _read_options(entry: Mapping[str, Any], framework: str) -> list[str]:
    options = entry.get(framework, [])
    return [options] if isinstance(options, str) else list(options)


def _add_rule(rules: defaultdict[str, list[Rule]], option: str, term: Term, position: int) -> None:
    name, arrow, fixed = (part.strip() for part in option.partition("->"))
    rule = Rule(
        term, fixed=_parse_fixed_value(fixed) if arrow else None, negated=name.startswith("!"), position=position
    )
    rules[name.removeprefix("!")].append(rule)


def _parse_fixed_value(text: str) -> Any:
    return {"false": False, "true": True}.get(text, text)


@cache
def weights() -> Mapping[str, Any]:
    """Read ``weights.toml``, by table."""
    return tomllib.loads((_FOLDER / "weights.toml").read_text(encoding="utf-8"))


def fits(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether one of the patterns fits a name, whatever its case."""
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def likelihood_of(table: str, name: str, *, otherwise: int = 0) -> int:
    """Likelihood, 0 to 100, that a difference in a package, flag, device or build setting explains other numbers.

    Returns ``otherwise`` where no pattern fits.
    """
    entries = cast(Mapping[str, Any], weights()[table])
    patterns = cast(Mapping[str, int], entries.get("likely", entries))
    # Tables of weights.toml are read from the top: the first pattern that fits holds.
    return next((likely for pattern, likely in patterns.items() if fnmatchcase(name.lower(), pattern)), otherwise)
