"""All that Trueline can say: findings, causes, and what its documents and exit codes mean."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from trueline.judge.causes.library import known_causes
from trueline.judge.facts.unusual import manuals_of_marks
from trueline.judge.json_schemas import NAMES
from trueline.judge.registry import installed_checks
from trueline.schema.errors import InputError
from trueline.schema.finding import LIVE_CODES, UNUSUAL
from trueline.schema.law import installed_laws

SCHEMA = 1
"""Version of the document that ``catalogue`` makes."""
EXIT_CODES: Mapping[int, str] = {
    0: "nothing found, and enough was judged; of a verb that judges nothing: it did its work",
    1: "found: an error or a warning; of compare and diff: different",
    2: "usage or input error: one sentence on standard error, nothing on standard output",
    3: "cannot tell: too little was judged, or time is over; this is not fine",
    4: "of run with --fail-on-error: the command ended with 0, and its Run shows an error",
}
STATUSES: Mapping[str, str] = {
    "fault": "an error or a warning was found",
    "confirm": "no fault, and something that may be meant and seldom is: ask a person",
    "fine": "no fault found, and enough was judged; `not_judged` names what was not",
    "same": "of compare and diff: nothing differs that rounding does not explain",
    "different": "of compare and diff: something differs that can explain other numbers",
    "cannot-tell": "too little was judged: this is not fine",
    "not-judged": "the document says what is, and not whether it is well",
    "confirmed": "of trials: the answer is yes, as `verdict` says it",
    "excluded": "of trials: the answer is no",
    "undecided": "of trials: no answer, `says` has why: this is not fine",
}


def manuals_of_checks() -> dict[str, str]:
    """What each installed check says of itself, by its code."""
    return {check.code: check.manual for check in installed_checks()}


def manuals_of_others() -> dict[str, str]:
    """What findings are that no check has: those of commands, and of a job that runs."""
    return {
        code: f"{facts.manual}\n\nA finding of `{law.command}`."
        for law in installed_laws()
        for code, facts in law.findings.items()
    } | LIVE_CODES


def manuals_of_causes() -> dict[str, str]:
    """What each cause is, and what settles it."""
    return {
        cause.slug: f"{cause.manual}\n\nWhat settles it\n---------------\n{cause.settles}" for cause in known_causes()
    }


def manual_of(name: str) -> tuple[str, str]:
    """The code that ``name``, or the id of a finding, has, and its manual. Raises ``InputError`` for another name."""
    manuals = manuals_of_causes() | manuals_of_checks() | manuals_of_others() | manuals_of_marks()
    # an id is the code, and the kind of what was found or a digest
    for code in (name, name.partition(".")[0]):
        if code in manuals and (code == name or code != UNUSUAL):
            return code, manuals[code]
    near = get_close_matches(name, manuals, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    raise InputError(f"No finding or cause is called '{name}'. {hint}List all with: trueline explain.")


def catalogue() -> dict[str, Any]:
    """The document of all of it, but the verbs."""
    return {
        "schema": SCHEMA,
        "exit_codes": {str(code): words for code, words in EXIT_CODES.items()},
        "statuses": dict(STATUSES),
        "schemas": list(NAMES),
        "checks": [{"code": code, "manual": manual} for code, manual in manuals_of_checks().items()],
        "findings": [{"code": code, "manual": manual} for code, manual in manuals_of_others().items()],
        "causes": [
            {"code": cause.slug, "says": cause.says, "settles": cause.settles, "manual": cause.manual}
            for cause in known_causes()
        ],
    }
