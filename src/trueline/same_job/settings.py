"""Settings of one job in the terms of the vocabulary, from whatever configurations it has."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, cast

from trueline.same_job.vocabulary import PLAIN, Rule, Term, vocabulary

_OFF_VALUES = ("", "none", "null", "false", "no", "off", "disabled", "0", "0.0", "-1", "[]", "default")
_AUTO_VALUE = "auto"
"""Value in DeepSpeed's configuration that the trainer fills in."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Value that a job sets a term to, and the line ``where``; '' for a default of its framework."""

    term: Term
    value: Any
    framework: str
    where: str = ""
    switched_on: bool = True
    """False for an option that is false or 0, which is as if it were not there."""

    @property
    def text(self) -> str:
        """Value as text."""
        return format_value(self.value)


@dataclass(frozen=True)
class Settings:
    """Settings of one job by term; ``other_options`` have no term: (value, file) by name."""

    terms: dict[str, Setting] = field(default_factory=dict[str, Setting])
    other_options: dict[str, tuple[Any, str]] = field(default_factory=dict[str, tuple[Any, str]])
    unknown: set[str] = field(default_factory=set[str])
    """Terms whose values are open: they depend on a shell, another file, or what fills in an ``auto``."""
    automatic: set[str] = field(default_factory=set[str])
    """Terms that a configuration sets to ``auto``, which the trainer of DeepSpeed fills in."""
    frameworks: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list[str])

    def get(self, slug: str) -> Setting | None:
        """Setting of a term, or the default of the job's framework; None where neither is known."""
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
        """Tell whether a term, if it were set, would stand in the job's configurations of ``framework``.

        A model's configuration says nothing of the optimizer, not even that it is the usual one.
        """
        topics = {setting.term.topic for setting in self.terms.values() if setting.framework == framework}
        if framework == "hf":  # config.json of a model and TrainingArguments are both transformers'
            return "model" in topics if term.topic == "model" else bool(topics - {"model"})
        return term.topic in topics if framework == PLAIN else bool(topics)

    def number(self, slug: str) -> float | None:
        """Value of a term as a number above 0; None for any other value."""
        setting = self.get(slug)
        value: Any = None if setting is None else setting.value
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if math.isfinite(value) and value > 0 else None


def read_settings(sources: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Read configurations, by file, into settings; an earlier file holds against a later one."""
    settings = Settings()
    frameworks: list[str] = []
    for where, stated_options in sources.items():
        options = gathered(in_force(stated_options))
        framework = detect_framework(options)
        if framework not in frameworks:
            frameworks.append(framework)
        _read_options(settings, options, framework, where)
    open_terms = settings.automatic - settings.terms.keys()
    return replace(settings, frameworks=tuple(frameworks), unknown=settings.unknown | open_terms, automatic=open_terms)


_SWITCHES = ("enabled", "enable")


def in_force(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those of a section that its own ``enabled`` switches off, which stays."""
    off = tuple(
        f"{option.rpartition('.')[0]}."
        for option, value in options.items()
        if value is False and "." in option and option.rpartition(".")[2] in _SWITCHES
    )
    switches = {f"{section}{switch}" for section in off for switch in _SWITCHES}
    return {name: value for name, value in options.items() if name in switches or not name.startswith(off)}


_ENTRY = re.compile(r"(?P<section>.+)\.(?P<number>\d+)\.(?P<facet>.+)")
_NAMES_OF_DATA = ("path", "id", "dataset_name", "data_path")
"""What an entry of a list of data sets is called by."""
_WEIGHTED = "dataset_mixer."


def gathered(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which a list of data sets, each with its path, split and weight, is one option for all paths, one for
    all splits, and so on; equal values of all entries are one. ``dataset_mixer`` names each data set by its weight.
    """
    entries = {option: match for option in options if (match := _ENTRY.fullmatch(option))}
    sections = {match["section"] for match in entries.values() if match["facet"] in _NAMES_OF_DATA}
    lists: dict[str, list[Any]] = {}
    single: dict[str, Any] = {}
    for option, value in options.items():
        match = entries.get(option)
        if match is not None and match["section"] in sections:
            lists.setdefault(f"{match['section']}.{match['facet']}", []).append(value)
        elif option.startswith(_WEIGHTED):
            # names were flattened with their slash as a dot
            lists.setdefault("dataset_mixer", []).append(option.removeprefix(_WEIGHTED).replace(".", "/", 1))
            lists.setdefault("dataset_mixer_weights", []).append(value)
        else:
            single[option] = value
    # one value for all is what a job with a single data set says, too
    return single | {name: values[0] if len(set(map(str, values))) == 1 else values for name, values in lists.items()}


def detect_framework(options: Mapping[str, Any]) -> str:
    """Framework that has most of these options; its own words decide, since all share some."""
    rules = vocabulary().rules
    counts = {name: sum(option in rules[name] for option in options) for name in rules}
    best = max(counts, key=lambda name: (counts[name], name != PLAIN, -list(counts).index(name)))
    return best if counts[best] else PLAIN


def _read_options(settings: Settings, options: Mapping[str, Any], framework: str, where: str) -> None:
    framework_rules, plain_rules = (vocabulary().rules[name] for name in (framework, PLAIN))
    applied = [(rule.position, option, rule) for option in options for rule in framework_rules.get(option, ())]
    for _, option, rule in sorted(applied, key=itemgetter(0)):
        _apply_rule(settings, rule, options[option], framework, f"{where}: {option}")
    covered_slugs = {rule.term.slug for _, _, rule in applied}
    last_parts = [_last_part(option) for option in options]
    for option, value in options.items():
        if option in framework_rules:
            continue
        rules = [rule for rule in plain_rules.get(_last_part(option), ()) if rule.term.slug not in covered_slugs]
        # Two options that end alike (actor.lr, critic.lr) cannot both be the one term.
        is_unique = last_parts.count(_last_part(option)) == 1
        applies = [_apply_rule(settings, rule, value, framework, f"{where}: {option}") for rule in rules if is_unique]
        if not any(applies):
            settings.other_options.setdefault(option, (value, where))


def _last_part(option: str) -> str:
    """``lr`` of ``optim.lr``, ``betas.0`` of ``optim.betas.0``."""
    parts = option.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]


def _apply_rule(settings: Settings, rule: Rule, value: Any, framework: str, where: str) -> bool:
    """Set the term of a rule to the value of its option; False where the option says nothing of the term."""
    if value is None:
        return False
    # ``auto`` is before ``is_open``, which holds for it, too, and loses that a trainer fills it in.
    if value == _AUTO_VALUE:
        settings.automatic.add(rule.term.slug)
        return True
    if is_open(value.rpartition("/")[2] if rule.term.kind == "path" and isinstance(value, str) else value):
        settings.unknown.add(rule.term.slug)
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
    earlier = settings.terms.get(slug)
    if earlier is None:
        settings.terms[slug] = Setting(rule.term, value, framework, where, switched_on)
    elif (  # a contradiction inside one file is settled by the rules' positions
        not is_same_setting(earlier, Setting(rule.term, value, framework, where))
        and earlier.where.partition(":")[0] != where.partition(":")[0]
    ):
        settings.notes.append(
            f"{rule.term.says}: {earlier.where} has {earlier.text}, {where} has {format_value(value)}"
        )
    return True


def is_same_setting(setting: Setting, ref_setting: Setting) -> bool:
    """Tell whether two settings of a term are equal, however they are written."""
    return canonical(setting) == canonical(ref_setting) or _is_close(canonical(setting), canonical(ref_setting))


def _is_close(value_a: Any, value_b: Any) -> bool:
    numbers = all(isinstance(value, float) for value in (value_a, value_b))
    return numbers and math.isclose(value_a, value_b, rel_tol=1e-9, abs_tol=0.0)


def canonical(setting: Setting) -> Any:
    """Value in comparable form: numbers as float, words in one spelling, paths by their last part."""
    return canonical_value(setting.value, setting.term.slug, setting.term.kind, setting.framework)


def canonical_value(value: Any, slug: str = "", kind: str = "", framework: str = "") -> Any:
    """Comparable form of a value of a term of this ``kind``."""
    if isinstance(value, list | tuple):
        items = [canonical_value(item, slug, kind, framework) for item in cast(Sequence[Any], value)]
        return tuple(sorted(items, key=str)) if kind == "list" else tuple(items) if len(items) != 1 else items[0]
    if isinstance(value, bool) or value is None:  # before int, of which bool is a kind
        return value if value is not None else False
    if isinstance(value, int | float):
        return float(value)
    text = str(value).strip()
    if kind == "path" and "," in text:
        return tuple(canonical_value(part, slug, kind, framework) for part in text.split(","))
    if kind == "path" or looks_like_path(text):
        return text.rstrip("/").rpartition("/")[2].lower()
    if kind == "list" and "," in text:
        return tuple(sorted(canonical_value(part, slug, "", framework) for part in text.split(",")))
    lowered = text.lower()
    return vocabulary().shared_spelling(slug, lowered, framework)


def looks_like_path(text: str) -> bool:
    """Tell whether a text names a path on a disk or in a store."""
    return text.startswith(("/", "./", "../", "~", "s3://", "gs://", "hdfs://", "file://")) or (
        "/" in text and " " not in text and "." in text.rpartition("/")[2]
    )


def is_off(value: Any) -> bool:
    """Tell whether a value switches its option off, as if it were not set."""
    if isinstance(value, Mapping | list | tuple):
        return not value
    return value is None or value is False or str(value).strip().lower() in _OFF_VALUES


def is_open(value: Any) -> bool:
    """Tell whether a value depends on a shell, another file, or what fills in an ``auto``."""
    return isinstance(value, str) and ("$" in value or "`" in value or value == _AUTO_VALUE)


def format_value(value: Any) -> str:
    """Short text of a value."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(format_value(item) for item in cast(Sequence[Any], value))
    return str(value)
