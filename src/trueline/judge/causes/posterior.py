"""Probability of each known cause, and of none of them, by the signs of one incident.

Naive Bayes over signs, with one vote a root statistic each for and against, so that five checks which one loss spike
moves do not count five times. A sign that nobody looked at counts nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from trueline.judge.causes.cause import Cause
from trueline.judge.causes.signs import Signs, is_fact
from trueline.judge.facts.base_rates import base_rates
from trueline.schema.law import facts_of

UNKNOWN = "unknown"
"""The cause that is none of the known."""

BY_UNKNOWN = 0.1
"""Probability of a finding under a cause that nobody wrote down: it brings some, but not these in particular."""
UNRELATED = 0.01
"""Probability of a finding that a cause neither brings nor explains: another fault at the same time."""
HINT = 0.5
"""The share of a finding's vote that one of severity info has: nothing is wrong by it alone."""
NEUTRAL = 0.5
"""Probability of what a sign says beyond its code, under a cause that is silent on it."""


def posterior(causes: Sequence[Cause], signs: Signs, telling: Sequence[str]) -> dict[str, float]:
    """The probability of each cause's slug, and of ``UNKNOWN``, all as likely before anything was seen.

    A cause that is excluded, rests on a fact that the Run does not tell, or does not account for one of the codes
    ``telling``, which nothing else in the incident explains, has 0.
    """
    scores = {
        cause.slug: score(cause, signs)
        for cause in causes
        if not exclusions(cause, signs) and _facts_are_known(cause, signs)
        if any(accounts_for(cause, code, signs) for code in telling)
    }
    scores[UNKNOWN] = 0.0
    top = max(scores.values())  # subtracted, so that no exponential overflows
    weights = {slug: math.exp(value - top) for slug, value in scores.items()}
    total = sum(weights.values())
    return {cause.slug: 0.0 for cause in causes} | {slug: weight / total for slug, weight in weights.items()}


def _facts_are_known(cause: Cause, signs: Signs) -> bool:
    """True unless the Run says nothing of a fact that the cause always has: it is a case of another, and that is named
    where nobody knows.
    """
    return all(
        signs.looked_at(sign) for sign, strength in cause.shows.items() if strength == "always" and is_fact(sign)
    )


def exclusions(cause: Cause, signs: Signs) -> tuple[str, ...]:
    """The signs that contradict ``cause``: those it cannot be with, or all that it needs, looked for in vain."""
    against = [kind for sign in cause.excludes if sign in signs.fired for kind in _fired_kinds(sign, signs)]
    if cause.needs and all(sign in signs.silent - hints(cause, signs) for sign in cause.needs):
        against += cause.needs
    return tuple(against)


def _fired_kinds(sign: str, signs: Signs) -> list[str]:
    """Those of the alternatives of ``a/x|y`` that are there."""
    topic, mark, rest = sign.partition("/")
    return [kind for kind in (f"{topic}{mark}{part}" for part in rest.split("|")) if kind in signs.fired] or [sign]


def score(cause: Cause, signs: Signs) -> float:
    """Log of how much better ``cause`` explains ``signs`` than ``UNKNOWN`` does."""
    votes: defaultdict[str, list[float]] = defaultdict(list)
    weak = hints(cause, signs) - signs.fired
    for code in weak:
        votes[_root(code)].append(math.log(cause.chance(code) / BY_UNKNOWN) * HINT)
    for sign in {*filter(_is_code, signs.fired), *cause.shows}:
        if sign not in weak and signs.looked_at(sign):
            votes[_root(sign)].append(_log_ratio(cause, sign, signs))
    # One vote for and one against a root: five checks that one loss spike moves do not count five times.
    return math.fsum(max(0.0, *ratios) + min(0.0, *ratios) for ratios in votes.values())


def hints(cause: Cause, signs: Signs) -> frozenset[str]:
    """The codes of findings of severity info that speak for ``cause``: it brings them and, where it says of which kind,
    one of that kind; and none of a kind that it cannot be with.
    """
    return frozenset(
        code
        for code in cause.codes
        if code in cause.shows and code in signs.hinted
        if any(sign in signs.hinted for sign in _kinds_of(code, cause.shows) or [code])
        and signs.hinted.isdisjoint(_kinds_of(code, cause.excludes))
    )


def accounts_for(cause: Cause, code: str, signs: Signs) -> bool:
    """True if ``cause`` brings the finding ``code``, or what brings it."""
    return _brings(cause, code, signs) or explained_by(cause, code, signs)


def _brings(cause: Cause, code: str, signs: Signs) -> bool:
    """True if ``cause`` brings ``code``, of a kind that was found where that has any. One that states no such kind says
    nothing of what was found: the finding's own sentence is better.
    """
    if code not in cause.codes:
        return False
    has_kind = any(sign.startswith(f"{code}/") for sign in signs.fired)
    return not has_kind or any(sign in signs.fired for sign in _kinds_of(code, cause.shows))


def _kinds_of(code: str, signs: Iterable[str]) -> list[str]:
    return [sign for sign in signs if sign.startswith(f"{code}/")]


def explained_by(cause: Cause, sign: str, signs: Signs) -> bool:
    """True if what ``cause`` brings brings the finding ``sign`` with it."""
    weak = hints(cause, signs)
    codes = [code for code in cause.codes if code in weak or (code in signs.fired and _brings(cause, code, signs))]
    return any(sign in facts_of(code).explains for code in codes)


def _log_ratio(cause: Cause, sign: str, signs: Signs) -> float:
    if is_fact(sign):
        return _fact_ratio(cause, sign, signs)
    if not _is_code(sign):
        chance = cause.chance(sign)
        return math.log((chance if sign in signs.fired else 1 - chance) / NEUTRAL)
    # A finding that another of the cause's brings with it speaks neither for the cause nor against it.
    if sign not in cause.shows and explained_by(cause, sign, signs):
        return 0.0
    chance = cause.chance(sign) if sign in cause.shows else UNRELATED
    return math.log(chance / BY_UNKNOWN) if sign in signs.fired else math.log((1 - chance) / (1 - BY_UNKNOWN))


def _fact_ratio(cause: Cause, sign: str, signs: Signs) -> float:
    """Log of how many times likelier a fact is with ``cause`` than in healthy trainings; 0 where nobody measured how
    often these show it. The upper end of the interval of that share stands for it, so that a fact which no healthy
    training showed counts no more than their number allows.
    """
    rate = base_rates().get(sign.partition(":")[2])
    if rate is None or not 0 < rate.at_most < 1:
        return 0.0
    chance = cause.chance(sign)
    return math.log(chance / rate.at_most) if sign in signs.fired else math.log((1 - chance) / (1 - rate.at_most))


def _is_code(sign: str) -> bool:
    return "/" not in sign and ":" not in sign


def _root(sign: str) -> str:
    """Root statistic of a sign: of a kind its code and kind; alternatives of who, when and how are one question
    each.
    """
    if is_fact(sign):
        return sign
    return (facts_of(sign).root or sign) if _is_code(sign) else sign.partition(":")[0]


def leading(chances: Mapping[str, float], factor: float) -> list[str]:
    """The most probable slug, and those not ``factor`` times less so, best first."""
    ordered = sorted(chances, key=lambda slug: (-chances[slug], slug))
    return [slug for slug in ordered if chances[slug] * factor >= chances[ordered[0]] > 0]
