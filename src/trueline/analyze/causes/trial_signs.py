"""What trials say of causes: the signs that their answers are, and which trial would tell most.

A trial leaves ``trial.json`` with its answer. Of one that has an answer, that is a sign: ``trial-sync:ordering``,
``trial-knobs:fused-optimizer``. Causes state which of them they bring, as they do with other signs.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trueline.analyze.causes.cause import Cause
from trueline.schema.errors import InputError

PREFIX = "trial-"
USUAL_RUNS: Mapping[str, int] = {"knobs": 12, "sync": 12, "rl": 12}
"""Of the job, where every run shows the finding: benchmarks/trials, and the rules of ``trial sync`` and ``trial rl``.
"""
LEAST_NATS = 0.02
"""Expected drop of doubt below which no trial is proposed."""
_ANSWERS: Mapping[str, int] = {"knobs": 20, "sync": 4, "rl": 6}
"""That a trial may give: settings that a job usually has on; the kinds of its table; the causes of its tree. Each is
as likely by a cause that is silent on them.
"""


@dataclass(frozen=True)
class TrialSign:
    """The answer of a trial about the finding ``code``, as a sign."""

    code: str
    sign: str


@dataclass(frozen=True)
class Proposed:
    """A trial that would tell: the ``verb``, by how many ``nats`` the entropy over causes is expected to fall, and how
    many ``runs`` of the job it usually takes.
    """

    verb: str
    nats: float
    runs: int


def read_trial(folder: str | os.PathLike[str]) -> TrialSign | None:
    """The sign that a trial left in ``folder``; None where it has no answer. Raises ``InputError`` where none is."""
    path = Path(folder, "trial.json")
    try:
        document = cast(Mapping[str, Any], json.loads(path.read_text(encoding="utf-8")))
        verb, asked = str(document["trial"]), cast(Mapping[str, Any], document["asked"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' cannot be read as a trial: {error}. Give the --out of a trial.") from None
    if "code" not in asked:
        raise InputError(
            f"'{path}' is of a trial {verb}, which is about no finding of a Run. Give the --out of trial knobs, sync, "
            "bisect or shrink."
        )
    code = str(asked["code"])
    credible = cast(Sequence[str], document.get("credible") or [])
    if document.get("answer") not in ("confirmed", "excluded") or len(credible) != 1:
        return None
    return TrialSign(code, f"{PREFIX}{verb}:{credible[0]}")


def proposed(causes: Sequence[Cause], chances: Mapping[str, float]) -> Proposed | None:
    """The trial with the largest expected drop of entropy over causes for the runs that it takes."""
    likely = [(cause, chances[cause.slug]) for cause in causes if chances.get(cause.slug, 0.0) > 0.01]
    rest = max(0.0, 1 - sum(chance for _, chance in likely))
    every = [Proposed(verb, _drop(verb, likely, rest), runs) for verb, runs in USUAL_RUNS.items()]
    best = max(every, key=lambda each: each.nats / each.runs)
    return best if best.nats >= LEAST_NATS else None


def _drop(verb: str, likely: Sequence[tuple[Cause, float]], rest: float) -> float:
    """Mutual information of the cause and the answer, in nats."""
    topic = f"{PREFIX}{verb}:"
    answers = sorted({sign for cause, _ in likely for sign in cause.shows if sign.startswith(topic)})
    if not answers:
        return 0.0
    rows = [(_answers(cause, answers, _ANSWERS[verb]), chance) for cause, chance in likely]
    rows.append((_unstated(answers, _ANSWERS[verb]), rest))
    total = sum(chance for _, chance in rows)
    mean = [sum(row[place] * chance for row, chance in rows) / total for place in range(len(answers) + 1)]
    return _entropy(mean) - sum(_entropy(row) * chance for row, chance in rows) / total


def _answers(cause: Cause, answers: Sequence[str], num: int) -> list[float]:
    """Probability of each answer, and of any other."""
    stated = [sign for sign in answers if sign in cause.shows]
    if not stated:
        return _unstated(answers, num)
    sure = cause.chance(stated[0]) / len(stated)
    others = (1 - sure * len(stated)) / (len(answers) + 1 - len(stated))
    return [sure if sign in stated else others for sign in answers] + [others]


def _unstated(answers: Sequence[str], num: int) -> list[float]:
    return [1 / num] * len(answers) + [1 - len(answers) / num]


def _entropy(chances: Sequence[float]) -> float:
    return -sum(chance * math.log(chance) for chance in chances if chance > 0)
