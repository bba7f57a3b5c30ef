"""Answers of trials as signs of causes, and the trial that would tell most.

A trial leaves ``trial.json`` with its answer. Of one that has an answer, that is a sign: ``trial-sync:ordering``,
``trial-knobs:fused-optimizer``; of trials that name what only the job has (a device, a call, a module), the kind of
that: ``trial-vote:device``, ``trial-repeat:call``, ``trial-remedy-fp32:recovers``. Causes state which of them they
bring, as they do with other signs.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trueline.judge.causes.cause import Cause
from trueline.schema.errors import InputError
from trueline.schema.trial_verbs import VERBS

PREFIX = "trial-"
LEAST_NATS = 0.02
"""Expected drop of doubt below which no trial is proposed."""


DECISIVE = frozenset({"trial-sync:ordering", "trial-sync:memory", "trial-sync:filling"})
"""Signs that no cause has which does not state them: of a mistake in the script the trial says ``neither``."""


@dataclass(frozen=True)
class TrialSign:
    """The answer of a trial about the finding ``code`` ('': about the whole job), as a sign; ``says`` is the answer in
    words, and ``next`` what the trial said is to be done.
    """

    code: str
    sign: str
    says: str = ""
    next: tuple[str, ...] = ()

    @property
    def topic(self) -> str:
        """Prefix of the signs of all answers of that trial."""
        return self.sign.partition(":")[0] + ":"

    @property
    def text(self) -> str:
        """The trial and its answer, for the screen."""
        verb, _, answer = self.sign.removeprefix(PREFIX).partition(":")
        return f"trial {verb} answered '{answer}'{f': {self.says}' if self.says else ''}"


@dataclass(frozen=True)
class TrialProposal:
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
        verb, request = str(document["trial"]), cast(Mapping[str, Any], document["asked"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' cannot be read as a trial: {error}. Give the --out of a trial.") from None
    if document.get("answer") not in ("confirmed", "excluded"):
        return None
    credible, says, following = (
        [str(line) for line in cast(Sequence[Any], document.get(key) or [])] for key in ("credible", "says", "next")
    )
    sign = f"{verb}:{credible[0]}" if len(credible) == 1 else None
    if "code" not in request:
        sign = _of_job(verb, credible, request)
    if sign is None:
        return None
    return TrialSign(str(request.get("code", "")), PREFIX + sign, says[0] if says else "", tuple(following))


def _of_job(verb: str, credible: Sequence[str], request: Mapping[str, Any]) -> str | None:
    """The kind of answer of a trial about the whole job; None of one that tells no causes apart."""
    first = credible[0] if credible else ""
    if verb == "vote":
        return f"vote:{first.partition(' ')[0].rstrip('s') or 'none'}"
    if verb == "repeat":
        return f"repeat:{'none' if not first else 'between' if first.startswith('before ') else 'call'}"
    if verb == "remedy":
        return f"remedy-{str(request.get('remedy')).partition(':')[0]}:{first}"
    return None


def propose_trial(causes: Sequence[Cause], chances: Mapping[str, float]) -> TrialProposal | None:
    """The trial with the largest expected drop of entropy over causes for the runs that it takes."""
    likely = [(cause, chances[cause.slug]) for cause in causes if chances.get(cause.slug, 0.0) > 0.01]
    rest = max(0.0, 1 - sum(chance for _, chance in likely))
    proposals = [
        TrialProposal(name, _drop(name, likely, rest), verb.usual) for name, verb in VERBS.items() if verb.answers
    ]
    best = max(proposals, key=lambda proposal: proposal.nats / proposal.runs)
    return best if best.nats >= LEAST_NATS else None


def _drop(verb: str, likely: Sequence[tuple[Cause, float]], rest: float) -> float:
    """Mutual information of the cause and the answer, in nats."""
    topic = f"{PREFIX}{verb}:"
    answers = sorted({sign for cause, _ in likely for sign in cause.shows if sign.startswith(topic)})
    if not answers:
        return 0.0
    rows = [(_answers(cause, answers, VERBS[verb].answers), chance) for cause, chance in likely]
    rows.append((_unstated(answers, VERBS[verb].answers), rest))
    total = sum(chance for _, chance in rows)
    mean = [sum(row[column] * chance for row, chance in rows) / total for column in range(len(answers) + 1)]
    return _entropy(mean) - sum(_entropy(row) * chance for row, chance in rows) / total


def _answers(cause: Cause, answers: Sequence[str], num: int) -> list[float]:
    """Probability of each answer, and of any other."""
    stated = [sign for sign in answers if sign in cause.shows]
    if not stated:
        return _unstated(answers, num)
    sure = cause.chance(stated[0]) / len(stated)
    rest = (1 - sure * len(stated)) / (len(answers) + 1 - len(stated))
    return [sure if sign in stated else rest for sign in answers] + [rest]


def _unstated(answers: Sequence[str], num: int) -> list[float]:
    return [1 / num] * len(answers) + [1 - len(answers) / num]


def _entropy(chances: Sequence[float]) -> float:
    return -sum(chance * math.log(chance) for chance in chances if chance > 0)
