"""Differences between the settings of two jobs, of one framework or of two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trueline.same_job.derived import Derived, rates_part
from trueline.same_job.difference import UNSET, Difference
from trueline.same_job.settings import (
    Setting,
    Settings,
    canonical,
    canonical_value,
    is_off,
    is_open,
    same,
    written,
)
from trueline.same_job.vocabulary import PLAIN, Term, fits, vocabulary, weights

_UNKNOWN_OPTION = 42
"""How likely an option explains anything of which nothing is known but that it is not one that cannot."""
_MODEL_OPTION = 64
"""The same of an option of the model's own configuration, most of which say what it computes."""
_DERIVED_RTOL = 1e-6
_COUNTED = {
    "global-batch": "global_batch",
    "warmup-steps": "warmup_steps",
    "decay-steps": "decay_steps",
    "steps": "total_steps",
    "min-learning-rate": "lowest_rate",
    "accumulation": "accumulation",
}
"""Terms that are compared by what follows from the settings, where both jobs say enough."""
_STANDS_FOR = {
    "warmup-fraction": "warmup-steps",
    "warmup-samples": "warmup-steps",
    "decay-samples": "decay-steps",
    "train-samples": "steps",
    "epochs": "steps",
    "min-learning-rate-fraction": "min-learning-rate",
    "ranks-per-node": "world-size",
    "nodes": "world-size",
}
"""Terms that say the same in another way, and by which one they are compared where that is known of both."""


def compare_settings(one: Settings, other: Settings, derived: tuple[Derived, Derived]) -> tuple[list[Difference], int]:
    """What differs, and how many settings were compared: those that both tell, or one tells and the other could."""
    found: list[Difference] = []
    compared = 0
    for slug, term in vocabulary().terms.items():
        counts = _counts(slug, derived)
        if counts is None and None not in (_counts(_STANDS_FOR.get(slug, ""), derived) or (None,)):
            continue
        if counts is not None:
            compared += 1
            found += _counted(term, (one, other), counts)
            continue
        if slug not in one.terms and slug not in other.terms:
            continue
        differs = _stated(term, one, other)
        compared += differs is not None
        found += differs or []
    found += _curve(derived, found)
    others = list(_unknown(one, other))
    compared += len(set(one.others) & set(other.others))
    known = {(each.run, each.ref): each for each in found if _is_number(each.run) and _is_number(each.ref)}
    return found + [_behind(each, known.get((each.run, each.ref))) for each in others], compared


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _behind(each: Difference, known: Difference | None) -> Difference:
    """An option of a script behind the setting that has the same two values: most likely that comes from it."""
    if known is None:
        return each
    likely, note = max(min(each.likely, known.likely - 1), 0), f"the same values as {known.says}"
    return replace(each, likely=likely, starts=known.starts, note=note)


def _counts(slug: str, derived: tuple[Derived, Derived]) -> tuple[float, float] | None:
    """What follows for a term from the settings of both jobs; None where one does not say enough."""
    name = _COUNTED.get(slug)
    if slug == "world-size" or name is None:
        return None
    one, other = (getattr(each, name) for each in derived)
    return None if one is None or other is None else (one, other)


def _counted(term: Term, sides: tuple[Settings, Settings], counts: tuple[float, float]) -> Iterator[Difference]:
    if not math.isclose(*counts, rel_tol=_DERIVED_RTOL):
        texts = [f"{count:.6g}" if count % 1 else f"{count:.0f}" for count in counts]
        yield _difference(term, *texts, *(_from(side, term) for side in sides))


def _from(settings: Settings, term: Term) -> str:
    """Where the setting stands that a number of this term follows from."""
    slugs = [
        slug
        for slug in (*_STANDS_FOR, term.slug)
        if slug in settings.terms and _STANDS_FOR.get(slug, slug) == term.slug
    ]
    if slugs:
        return settings.terms[slugs[0]].where
    default = settings.get(term.slug)
    return "follows from other settings" if default is None else _where(default)


def _where(setting: Setting) -> str:
    return setting.where or f"default of {setting.framework}"


def _stated(term: Term, one: Settings, other: Settings) -> list[Difference] | None:
    """What differs in a term that a job states; None where the two cannot be compared in it."""
    if term.slug in one.unknown | other.unknown:
        return None
    a, b = one.get(term.slug), other.get(term.slug)
    if a is not None and b is not None:
        families = {vocabulary().includes.get(each.framework, each.framework) for each in (a, b)}
        if term.within and len(families) > 1 and PLAIN not in families:
            return None
        return [] if same(a, b) else [_difference(term, a.text, b.text, _where(a), _where(b))]
    given, lacking = (a, other) if a is not None else (b, one)
    if given is None or not _could_say(lacking, given):
        return None
    if not given.switched_on:
        return []
    texts = (given.text, UNSET) if a is not None else (UNSET, given.text)
    wheres = (given.where, "") if a is not None else ("", given.where)
    return [_difference(term, *texts, *wheres)]


def _could_say(lacking: Settings, given: Setting) -> bool:
    """Whether a job that does not state a term could have."""
    return lacking.covers(given.term, given.framework)


def one_sided(one: Settings, other: Settings) -> list[str]:
    """In words, the terms that one job states and the other, of another framework, does not."""
    found = [(a, b, slug) for a, b in ((one, other), (other, one)) for slug in a.terms if b.get(slug) is None]
    return [a.terms[slug].term.says for a, b, slug in found if not _could_say(b, a.terms[slug])]


def _difference(term: Term, run: str, ref: str, run_where: str, ref_where: str) -> Difference:
    return Difference(
        term.code, term.topic, term.slug, term.says, run, ref, term.likely, term.starts, run_where, ref_where
    )


def _curve(derived: tuple[Derived, Derived], found: list[Difference]) -> Iterator[Difference]:
    """That learning rates part, where nothing that is stated says so."""
    parts = rates_part(*derived)
    if parts is not None and not any(each.topic == "optimizer" for each in found):
        step, one, other = parts
        says = f"the learning rate of step {step:,}"
        yield Difference(
            "config-differs", "optimizer", "learning-rate-curve", says, f"{one:.6g}", f"{other:.6g}", 70, "update"
        )


def _unknown(one: Settings, other: Settings) -> Iterator[Difference]:
    """Options that are no term of the vocabulary, and not known to change nothing: of jobs of one framework."""
    if not set(one.frameworks) & set(other.frameworks):
        return
    for name in [*one.others, *(each for each in other.others if each not in one.others)]:
        a, b = one.others.get(name), other.others.get(name)
        if _agree(a, b) or is_harmless_option(name):
            continue
        (run, run_where), (ref, ref_where) = (_shown(each) for each in (a, b))
        of_model = "model.config" in (run_where, ref_where)
        yield Difference(
            "config-differs", "other", name, name, run, ref, _MODEL_OPTION if of_model else _UNKNOWN_OPTION, "start",
            run_where, ref_where,
            note="not in the vocabulary: what it does is not known",
        )  # fmt: skip


def is_harmless_option(name: str) -> bool:
    """Whether an option is one of those that cannot change numbers."""
    options = weights()["options"]
    return fits(name, options["harmless"]) and not fits(name, options["keeps"])


def _agree(a: tuple[Any, str] | None, b: tuple[Any, str] | None) -> bool:
    one, other = (None if each is None else each[0] for each in (a, b))
    if is_open(one) or is_open(other):
        return True
    if a is None or b is None:
        return is_off(one) and is_off(other)
    if is_off(one) and is_off(other):
        return True
    return canonical_value(one) == canonical_value(other)


def _shown(each: tuple[Any, str] | None) -> tuple[str, str]:
    return (UNSET, "") if each is None else (written(each[0]), each[1])


def told(settings: Settings) -> dict[str, str]:
    """Every setting in the words of the vocabulary, with its value as it compares."""
    return {slug: str(canonical(setting)) for slug, setting in sorted(settings.terms.items())}
