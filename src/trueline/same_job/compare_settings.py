"""Differences between the settings of two jobs, of one framework or of two."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trueline.same_job.derived import Derived, first_differing_rates
from trueline.same_job.difference import UNKNOWN_EFFECT, UNSET, Difference
from trueline.same_job.settings import (
    Setting,
    Settings,
    canonical,
    canonical_value,
    format_value,
    is_off,
    is_open,
    is_same_setting,
)
from trueline.same_job.vocabulary import PLAIN, Term, fits, vocabulary, weights
from trueline.schema.text.words import clipped

_UNKNOWN_OPTION = 42
"""Likelihood of an option without a term that is not among the harmless ones."""
_MODEL_OPTION = 64
"""Likelihood of an option of the model's own configuration: most of these define what it computes."""
_ROUNDING_OPTION = 18
"""Likelihood of an option that says how states are sharded, reduced or moved."""
_CLASS_PATH = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)*\.[A-Z]\w*")
"""``litgpt.data.Alpaca``."""
_DERIVED_RTOL = 1e-6
_DERIVED_TERMS = {
    "global-batch": "global_batch",
    "warmup-steps": "warmup_steps",
    "decay-steps": "decay_steps",
    "steps": "total_steps",
    "min-learning-rate": "lowest_rate",
    "accumulation": "accumulation",
}
"""Terms that are compared by a derived quantity, where the settings of both jobs suffice for it."""
_REPLACED_BY = {
    "warmup-fraction": "warmup-steps",
    "warmup-samples": "warmup-steps",
    "decay-samples": "decay-steps",
    "train-samples": "steps",
    "epochs": "steps",
    "min-learning-rate-fraction": "min-learning-rate",
    "ranks-per-node": "world-size",
    "nodes": "world-size",
}
"""Terms that state a quantity in another unit, by the term that replaces them where both jobs have its quantity."""


def compare_settings(
    settings: Settings, ref_settings: Settings, derived: tuple[Derived, Derived]
) -> tuple[list[Difference], int]:
    """Differences, and the number of settings compared: set by both jobs, or set by one and settable by the other."""
    differences: list[Difference] = []
    compared = 0
    for slug, term in vocabulary().terms.items():
        counts = _derived_counts(slug, derived)
        # A term whose quantity is compared under another term is not compared a second time.
        if counts is None and None not in (_derived_counts(_REPLACED_BY.get(slug, ""), derived) or (None,)):
            continue
        if counts is not None:
            compared += 1
            differences += _derived_difference(term, (settings, ref_settings), counts)
            continue
        if slug not in settings.terms and slug not in ref_settings.terms:
            continue
        stated = _stated_difference(term, settings, ref_settings)
        compared += stated is not None
        differences += stated or []
    differences += _rate_difference(derived, differences)
    differences += _rank_batch_difference(settings, ref_settings, derived)
    # the rank of an adapter explains nothing beside that there is one
    differences = _without_parts_of_adapters(differences)
    compared += len(set(settings.other_options) & set(ref_settings.other_options))
    by_values = {
        (difference.run, difference.ref): difference
        for difference in differences
        if _is_number(difference.run) and _is_number(difference.ref)
    }
    options = [
        _rank_behind_setting(difference, by_values.get((difference.run, difference.ref)))
        for difference in _option_differences(settings, ref_settings)
    ]
    return differences + options, compared


def _without_parts_of_adapters(differences: list[Difference]) -> list[Difference]:
    """Say how an adapter is made in the line that one job alone has one, which is the difference."""
    if not any(difference.name == "adapters" for difference in differences):
        return differences
    parts = [difference for difference in differences if difference.name.startswith("lora-")]
    texts = [
        f"{part.name.removeprefix('lora-')} {clipped(part.ref if part.run == UNSET else part.run, 24)}"
        for part in parts
    ]
    note = f"LoRA: {', '.join(texts)}" if parts else ""
    return [
        replace(difference, note=note) if difference.name == "adapters" else difference
        for difference in differences
        if difference not in parts
    ]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rank_behind_setting(option: Difference, setting: Difference | None) -> Difference:
    """Rank an option of a script behind the setting with the same two values, which most likely comes from it."""
    if setting is None:
        return option
    likely, note = max(min(option.likely, setting.likely - 1), 0), f"the same values as {setting.says}"
    return replace(option, likely=likely, starts=setting.starts, note=note)


def _derived_counts(slug: str, derived: tuple[Derived, Derived]) -> tuple[float, float] | None:
    """Derived quantities of both jobs for a term; None where a job's settings do not suffice."""
    name = _DERIVED_TERMS.get(slug)
    if slug == "world-size" or name is None:
        return None
    count, ref_count = (getattr(side, name) for side in derived)
    return None if count is None or ref_count is None else (count, ref_count)


def _derived_difference(
    term: Term, sides: tuple[Settings, Settings], counts: tuple[float, float]
) -> Iterator[Difference]:
    if not math.isclose(*counts, rel_tol=_DERIVED_RTOL):
        texts = [f"{count:.6g}" if count % 1 else f"{count:.0f}" for count in counts]
        yield _difference(term, *texts, *(_source_line(side, term) for side in sides))


def _source_line(settings: Settings, term: Term) -> str:
    """Line of the setting from which a quantity of this term is derived."""
    slugs = [
        slug
        for slug in (*_REPLACED_BY, term.slug)
        if slug in settings.terms and _REPLACED_BY.get(slug, slug) == term.slug
    ]
    if slugs:
        return settings.terms[slugs[0]].where
    default = settings.get(term.slug)
    return "follows from other settings" if default is None else _setting_line(default)


def _setting_line(setting: Setting) -> str:
    return setting.where or f"default of {setting.framework}"


def _stated_difference(term: Term, settings: Settings, ref_settings: Settings) -> list[Difference] | None:
    """Difference in a term that a job sets, if any; None where the jobs cannot be compared in it."""
    if term.slug in settings.unknown | ref_settings.unknown:
        return None
    setting, ref_setting = settings.get(term.slug), ref_settings.get(term.slug)
    if setting is not None and ref_setting is not None:
        frameworks = (setting.framework, ref_setting.framework)
        families = {vocabulary().includes.get(framework, framework) for framework in frameworks}
        if term.within_framework and len(families) > 1 and PLAIN not in families:
            return None
        if is_same_setting(setting, ref_setting):
            return []
        if len(families) > 1 and any(_CLASS_PATH.fullmatch(str(side.value)) for side in (setting, ref_setting)):
            return None  # a class of one framework's own, which the other has no name for
        wheres = (_setting_line(setting), _setting_line(ref_setting))
        return [_difference(term, setting.text, ref_setting.text, *wheres)]
    stated, silent = (setting, ref_settings) if setting is not None else (ref_setting, settings)
    if stated is None or not _could_state(silent, stated):
        return None
    if not stated.switched_on:
        return []
    texts = (stated.text, UNSET) if setting is not None else (UNSET, stated.text)
    wheres = (stated.where, "") if setting is not None else ("", stated.where)
    return [_difference(term, *texts, *wheres)]


def _could_state(silent: Settings, stated: Setting) -> bool:
    """Tell whether a job that does not set a term could have set it."""
    return silent.covers(stated.term, stated.framework)


def one_sided_terms(settings: Settings, ref_settings: Settings) -> list[str]:
    """Terms, in words, that one job sets and the other, of another framework, cannot."""
    return [
        stated.term.says
        for speaker, silent in ((settings, ref_settings), (ref_settings, settings))
        for slug, stated in speaker.terms.items()
        if silent.get(slug) is None and not _could_state(silent, stated)
    ]


def _difference(term: Term, run: str, ref: str, run_where: str, ref_where: str) -> Difference:
    return Difference(
        term.code, term.topic, term.slug, term.says, run, ref, term.likely, term.starts, run_where, ref_where
    )


def _rate_difference(derived: tuple[Derived, Derived], differences: list[Difference]) -> Iterator[Difference]:
    """Difference of the derived learning rates, where no stated difference says so."""
    rates = first_differing_rates(*derived)
    if rates is not None and not any(difference.topic == "optimizer" for difference in differences):
        step, rate, ref_rate = rates
        says = f"the learning rate of step {step:,}"
        yield Difference(
            "config-differs", "optimizer", "learning-rate-curve", says, f"{rate:.6g}", f"{ref_rate:.6g}", 70, "update"
        )


def _rank_batch_difference(
    settings: Settings, ref_settings: Settings, derived: tuple[Derived, Derived]
) -> Iterator[Difference]:
    """Difference in samples per rank and update, where the number of ranks, and so the global batch, is not known."""
    if None not in (derived[0].global_batch, derived[1].global_batch):
        return
    # what one job states as a whole is not compared with what a rank of the other takes
    if any("global-batch" in side.terms for side in (settings, ref_settings)):
        return
    term = vocabulary().terms["global-batch"]
    counts: list[float] = []
    for side in (settings, ref_settings):
        micro = side.terms.get("micro-batch")
        if micro is None or not isinstance(micro.value, int | float):
            return
        counts.append(float(micro.value) * (side.number("accumulation") or 1.0))
    if not math.isclose(*counts, rel_tol=_DERIVED_RTOL):
        # the line to look at is that of the factor that differs
        micro, ref_micro = (side.terms["micro-batch"] for side in (settings, ref_settings))
        slug = "accumulation" if is_same_setting(micro, ref_micro) else "micro-batch"
        wheres = (_source_line(side, vocabulary().terms[slug]) for side in (settings, ref_settings))
        says = "samples per rank and update (the number of ranks is not known)"
        texts = (f"{count:.6g}" for count in counts)
        yield replace(_difference(term, *texts, *wheres), says=says, likely=term.likely - 1)


def _option_differences(settings: Settings, ref_settings: Settings) -> Iterator[Difference]:
    """Differences in options without a term that are not harmless, of jobs that share a framework."""
    if not set(settings.frameworks) & set(ref_settings.frameworks):
        return
    for name in settings.other_options | ref_settings.other_options:
        sides = settings.other_options.get(name), ref_settings.other_options.get(name)
        if _is_same_option(*sides) or is_harmless_option(name):
            continue
        (run, run_where), (ref, ref_where) = map(_option_text, sides)
        is_of_model = "model.config" in (run_where, ref_where)
        # a model's own configuration defines what it computes, whatever its options are called
        if fits(name, weights()["options"]["rounding"]) and not is_of_model:
            yield Difference(
                "config-differs", "parallel", name, name, run, ref, _ROUNDING_OPTION, "rounding", run_where, ref_where
            )
            continue
        likely = _MODEL_OPTION if is_of_model else _UNKNOWN_OPTION
        yield Difference(
            "config-differs", "other", name, name, run, ref, likely, "start", run_where, ref_where, note=UNKNOWN_EFFECT
        )


def is_harmless_option(name: str) -> bool:
    """Tell whether an option cannot change numbers."""
    options = weights()["options"]
    return fits(name, options["harmless"]) and not fits(name, options["keeps"])


def _is_same_option(option: tuple[Any, str] | None, ref_option: tuple[Any, str] | None) -> bool:
    value, ref_value = (None if side is None else side[0] for side in (option, ref_option))
    if is_open(value) or is_open(ref_value):
        return True
    if option is None or ref_option is None:
        return is_off(value) and is_off(ref_value)
    if is_off(value) and is_off(ref_value):
        return True
    return canonical_value(value) == canonical_value(ref_value)


def _option_text(option: tuple[Any, str] | None) -> tuple[str, str]:
    return (UNSET, "") if option is None else (format_value(option[0]), option[1])


def canonical_texts(settings: Settings) -> dict[str, str]:
    """Comparable value of every setting as text, by the slug of its term."""
    return {slug: str(canonical(setting)) for slug, setting in sorted(settings.terms.items())}
