"""The settings of one job in the terms of the vocabulary, from whatever configurations it has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from trueline.same_job.vocabulary import PLAIN, Rule, Term, vocabulary

_OFF = ("", "none", "null", "false", "no", "off", "disabled", "0", "0.0", "-1", "[]", "default")
_AUTO = "auto"
"""What DeepSpeed's configuration has where the trainer is to fill it in."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a job sets a term to; ``where`` it does so, '' for what its framework does by itself."""

    term: Term
    value: Any
    framework: str
    where: str = ""
    switched_on: bool = True
    """Whether the option asks for something: one that is false or 0 is as if it were not there."""

    @property
    def text(self) -> str:
        """The value as it is written."""
        return written(self.value)


@dataclass(frozen=True)
class Settings:
    """Of one job: settings by term, and options that are no term of the vocabulary by name, with where they stand."""

    terms: dict[str, Setting] = field(default_factory=dict[str, Setting])
    others: dict[str, tuple[Any, str]] = field(default_factory=dict[str, tuple[Any, str]])
    unknown: set[str] = field(default_factory=set[str])
    """Terms whose values take a shell, another file, or what fills in an ``auto``, to be known."""
    automatic: set[str] = field(default_factory=set[str])
    """Terms that a configuration leaves to what fills in an ``auto``, as a trainer does for DeepSpeed."""
    frameworks: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list[str])

    def get(self, slug: str) -> Setting | None:
        """The setting of a term, or what the job's framework does where it is not set; None where nobody says."""
        if slug in self.terms:
            return self.terms[slug]
        if slug in self.unknown:
            return None
        term = vocabulary().terms[slug]
        for framework in self.frameworks:
            if framework in term.defaults and self.covers(term, framework):
                return Setting(term, term.defaults[framework], framework)
        return None

    def covers(self, term: Term, framework: str) -> bool:
        """Whether the configurations of a framework would say it, if a term were set: a model's say nothing of the
        optimizer, not even that it is the usual one.
        """
        topics = {each.term.topic for each in self.terms.values() if each.framework == framework}
        if framework == "hf":
            return "model" in topics if term.topic == "model" else bool(topics - {"model"})
        return term.topic in topics if framework == PLAIN else bool(topics)

    def number(self, slug: str) -> float | None:
        """The value of a term as a number above 0; None where it is none."""
        setting = self.get(slug)
        value: Any = None if setting is None else setting.value
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if math.isfinite(value) and value > 0 else None


def settings_of(sources: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Settings from configurations by where they stand, the most telling first: what an earlier one says holds."""
    found = Settings()
    frameworks: list[str] = []
    for where, options in sources.items():
        framework = framework_of(options)
        if framework not in frameworks:
            frameworks.append(framework)
        _take(found, options, framework, where)
    left = found.automatic - found.terms.keys()
    return replace(found, frameworks=tuple(frameworks), unknown=found.unknown | left, automatic=left)


def framework_of(options: Mapping[str, Any]) -> str:
    """The framework of which most of these options are: its own words, since all share some."""
    rules = vocabulary().rules
    counts = {name: sum(option in rules[name] for option in options) for name in rules}
    best = max(counts, key=lambda name: (counts[name], name != PLAIN, -list(counts).index(name)))
    return best if counts[best] else PLAIN


def _take(found: Settings, options: Mapping[str, Any], framework: str, where: str) -> None:
    own, plain = (vocabulary().rules[name] for name in (framework, PLAIN))
    applied = [(rule.place, option, rule) for option in options for rule in own.get(option, ())]
    for _, option, rule in sorted(applied, key=lambda each: each[0]):
        _apply(found, rule, options[option], framework, f"{where}: {option}")
    taken = {rule.term.slug for _, _, rule in applied}
    last_parts = [_last_part(option) for option in options]
    for option, value in options.items():
        if option in own:
            continue
        rules = [rule for rule in plain.get(_last_part(option), ()) if rule.term.slug not in taken]
        alone = last_parts.count(_last_part(option)) == 1
        applies = [_apply(found, rule, value, framework, f"{where}: {option}") for rule in rules if alone]
        if not any(applies):
            found.others.setdefault(option, (value, where))


def _last_part(option: str) -> str:
    """``lr`` of ``optim.lr``, ``betas.0`` of ``optim.betas.0``."""
    parts = option.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]


def _apply(found: Settings, rule: Rule, value: Any, framework: str, where: str) -> bool:
    """Whether the option says something of the term."""
    if value is None:
        return False
    if value == _AUTO:
        found.automatic.add(rule.term.slug)
        return True
    if is_open(value.rpartition("/")[2] if rule.term.kind == "path" and isinstance(value, str) else value):
        found.unknown.add(rule.term.slug)
        return True
    switched_on = not is_off(value)
    if rule.fixed is not None:
        if not switched_on:
            return False
        value = rule.fixed
    elif rule.negated:
        value = not switched_on
    slug = rule.term.slug
    if rule.term.slug in ("steps", "global-batch") and isinstance(value, int | float) and value < 0:
        return False  # "as many as it takes"
    before = found.terms.get(slug)
    if before is None:
        found.terms[slug] = Setting(rule.term, value, framework, where, switched_on)
    elif (
        not same(before, Setting(rule.term, value, framework, where))
        and before.where.partition(":")[0] != where.partition(":")[0]
    ):
        found.notes.append(f"{rule.term.says}: {before.where} has {before.text}, {where} has {written(value)}")
    return True


def same(one: Setting, other: Setting) -> bool:
    """Whether two settings of a term are the same, however they are written."""
    return canonical(one) == canonical(other) or _close(canonical(one), canonical(other))


def _close(one: Any, other: Any) -> bool:
    numbers = all(isinstance(each, float) for each in (one, other))
    return numbers and math.isclose(one, other, rel_tol=1e-9, abs_tol=0.0)


def canonical(setting: Setting) -> Any:
    """A value as it compares: numbers as such, words in one spelling, paths by their last part."""
    return canonical_value(setting.value, setting.term.slug, setting.term.kind, setting.framework)


def canonical_value(value: Any, slug: str = "", kind: str = "", framework: str = "") -> Any:
    """A value of a term of this ``kind``, as it compares."""
    if isinstance(value, list | tuple):
        items = [canonical_value(each, slug, kind, framework) for each in cast(Sequence[Any], value)]
        return tuple(sorted(items, key=str)) if kind == "list" else tuple(items) if len(items) != 1 else items[0]
    if isinstance(value, bool) or value is None:
        return value if value is not None else False
    if isinstance(value, int | float):
        return float(value)
    text = str(value).strip()
    if kind == "path" and "," in text:
        return tuple(canonical_value(each, slug, kind, framework) for each in text.split(","))
    if kind == "path" or looks_like_path(text):
        return text.rstrip("/").rpartition("/")[2].lower()
    if kind == "list" and "," in text:
        return tuple(sorted(canonical_value(each, slug, "", framework) for each in text.split(",")))
    lowered = text.lower()
    return vocabulary().same_value(slug, lowered, framework)


def looks_like_path(text: str) -> bool:
    """Whether a text names a place on a disk or in a store."""
    return text.startswith(("/", "./", "../", "~", "s3://", "gs://", "hdfs://", "file://")) or (
        "/" in text and " " not in text and "." in text.rpartition("/")[2]
    )


def is_off(value: Any) -> bool:
    """Whether a value says that something is not done, as if it were not set."""
    if isinstance(value, Mapping | list | tuple):
        return not value
    return value is None or value is False or str(value).strip().lower() in _OFF


def is_open(value: Any) -> bool:
    """Whether a value takes a shell, another file, or what fills in an ``auto``, to be known."""
    return isinstance(value, str) and ("$" in value or "`" in value or value == _AUTO)


def written(value: Any) -> str:
    """A value as text, shortly."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(written(each) for each in cast(Sequence[Any], value))
    return str(value)
