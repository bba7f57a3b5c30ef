"""Verdicts on the causes of each incident: what most likely went wrong, what speaks for and against it, and what
would settle it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trueline.judge.actions import record_step
from trueline.judge.causes.cause import EFFORTS, Cause
from trueline.judge.causes.library import known_causes
from trueline.judge.causes.posterior import UNKNOWN, exclusions, explained_by, hints, leading, posterior
from trueline.judge.causes.signs import Signs, is_fact, signs_of
from trueline.judge.causes.trial_signs import DECISIVE, PREFIX, TrialProposal, TrialSign, propose_trial
from trueline.judge.incidents import Incident
from trueline.schema.judged import NotRun
from trueline.schema.law import facts_of
from trueline.schema.text.words import capitalized
from trueline.schema.trial_verbs import VERBS

if TYPE_CHECKING:
    from trueline.judge.check_run import CheckReport

Standing = Literal["suspected", "supported", "confirmed", "excluded", "undecided"]

SUPPORTED = 0.85
"""Least probability of a cause that is called supported."""
TIED_FACTOR = 3.0
"""Causes less than this many times less probable than the first are named together with it."""
_RECORD, _UNRECORDED = "trueline run --plan mix", "o step was recorded, as"
"""Words of advice that records a step, and of a reason that no step was."""
_MAX_LIKELY = 4
"""Causes among which the first is still worth a line beside a finding."""
_MAX_SETTLED = 3
"""Causes named together of which each gets its next step."""
_MAX_EXCLUDED = 3
"""Excluded causes that a diagnosis lists for one incident."""


@dataclass(frozen=True, slots=True)
class CauseVerdict:
    """What is said of one cause of the incident at ``incident``.

    ``standing``: confirmed (supported, and a trial answered as it must), supported (at least ``SUPPORTED`` likely by
    what was looked at), suspected (first, but less likely), undecided (one of ``among``, which what was looked at
    cannot tell apart, or none that is known), excluded (an exact check contradicts it). ``because`` and ``against`` are
    codes of findings or, of those against, of checks that found nothing; ``missing`` what nobody looked at that would
    tell; ``trials`` what trials about it answered, in words.
    """

    cause: str
    standing: Standing
    incident: int
    says: str
    probability: float
    among: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    trials: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """True if a cause is named, and not that none is known."""
        return self.cause != UNKNOWN

    @property
    def is_likely(self) -> bool:
        """True if it is one of few causes."""
        return self.is_known and len(self.among) <= _MAX_LIKELY

    @property
    def headline(self) -> str:
        """The answer in a line: the cause, and how surely."""
        if not self.is_known:
            near = f"; nearest: {', '.join(self.among)}" if self.among else ""
            says = self.says.replace("No known cause", "none of the known ones")
            return f"Cause unknown: {says}{near}"
        word = f"Cause {self.strength}" if self.standing == "undecided" else f"{capitalized(self.strength)} cause"
        return f"{word}: {self.says} ({self.cause})"

    @property
    def strength(self) -> str:
        """Certainty in words: ``suspected``, ``likely``, ``confirmed``; or ``undecided, one of 3``."""
        more = f", one of {len(self.among)}" if self.among else ""
        return f"{'likely' if self.standing == 'supported' else self.standing}{more}"

    @property
    def shortly(self) -> str:
        """The answer in a few words, beside a finding."""
        return f"{capitalized(self.strength)}: {self.says}"

    def to_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "standing": self.standing,
            "incident": self.incident,
            "says": self.says,
            "probability": self.probability,
            "among": list(self.among),
            "because": list(self.because),
            "against": list(self.against),
            "missing": list(self.missing),
            "next": list(self.next),
            "trials": list(self.trials),
        }


def verdicts_of(report: CheckReport, causes: Sequence[Cause] | None = None) -> tuple[CauseVerdict, ...]:
    """The causes of the incidents of ``report``, the answer of each first, among all that are known unless ``causes``
    are given.
    """
    among = known_causes() if causes is None else causes
    signs = {sign for cause in among for sign in (*cause.shows, *cause.needs, *cause.excludes)}
    verdicts: list[CauseVerdict] = []
    for position, incident in enumerate(report.incidents):
        verdicts += _verdicts(report, position, incident, signs_of(report, incident, signs), among)
    return tuple(verdicts)


def _verdicts(
    report: CheckReport, position: int, incident: Incident, signs: Signs, causes: Sequence[Cause]
) -> list[CauseVerdict]:
    """The answer, then causes that are as likely or nearly, then such as were near but for an exact contradiction."""
    by_slug = {cause.slug: cause for cause in causes}
    telling = [report.findings[index].code for index in incident.findings if not report.explained(index, incident)]
    chances = posterior(causes, signs, telling)
    first = leading(chances, TIED_FACTOR)
    answer = by_slug.get(first[0])
    lacking = [entry for entry in report.checks_not_run if entry.lacks]
    untold, rivals = ([], []) if answer is None else _untested_rivals(lacking, causes, signs, telling, answer)
    among = [slug for slug in (*first, *rivals) if slug != UNKNOWN]
    answers = _answers_about(report, incident)
    # A decisive answer that the best cause does not state refutes it, whatever its probability.
    if answer is not None and any(trial.sign in DECISIVE and trial.sign not in answer.shows for trial in answers):
        return [
            _unknown(report, position, incident, among, chances, untold, answers),
            *_excluded(position, incident, signs, causes, report),
        ]
    if answer is None or _is_not_shown(answer, signs, telling, lacking) or (untold and len(among) < 2):
        return [
            _unknown(report, position, incident, among, chances, untold, answers),
            *_excluded(position, incident, signs, causes, report),
        ]
    tied = [by_slug[slug] for slug in among]
    standing: Standing = "suspected"
    if len(tied) > 1:
        standing = "undecided"
    elif chances[answer.slug] >= SUPPORTED:
        standing = "supported"
    if standing == "supported" and any(sign.startswith(PREFIX) and sign in signs.fired for sign in answer.shows):
        standing = "confirmed"
    trial = None if standing == "confirmed" else propose_trial(causes, chances)
    verdicts = [
        _verdict(
            report,
            position,
            incident,
            cause,
            signs,
            chances[cause.slug],
            standing,
            tied if len(tied) > 1 else [],
            untold,
            trial,
            answers,
        )
        for cause in tied
    ]
    return [*verdicts, *_excluded(position, incident, signs, causes, report)]


def _untested_rivals(
    lacking: Sequence[NotRun], causes: Sequence[Cause], signs: Signs, telling: Sequence[str], answer: Cause
) -> tuple[list[NotRun], list[str]]:
    """The checks ``lacking`` data that would contradict ``answer`` had they found something, and the causes that would
    then be first. What nobody looked for speaks neither for a cause nor against the others.
    """
    against = {sign.partition("/")[0] for sign in answer.excludes}
    untold: list[NotRun] = []
    rivals: list[str] = []
    for entry in lacking:
        if entry.check not in against:
            continue
        unexplained = [code for code in telling if code not in facts_of(entry.check).explains]
        codes = telling if len(unexplained) == len(telling) else [entry.check, *unexplained]
        first = leading(posterior(causes, signs.with_found(entry.check), codes), 1.0)[0]
        if first != answer.slug:
            untold.append(entry)
            rivals += [] if first in (UNKNOWN, *rivals) else [first]
    return untold, rivals


def _is_not_shown(cause: Cause, signs: Signs, telling: Sequence[str], lacking: Sequence[NotRun]) -> bool:
    """True if ``cause``, though nearer than the others, always shows something that was looked for and is not there,
    or nothing that it needs was found, as nobody could look, or the findings ``telling`` are of it only as what a
    finding would bring whose check is ``lacking`` data.
    """
    weak = hints(cause, signs)
    if cause.needs and (signs.fired | weak).isdisjoint(cause.needs):
        return True
    always = {sign for sign, strength in cause.shows.items() if strength == "always"} - weak
    untold = {entry.check for entry in lacking} & always - signs.fired
    return not always.isdisjoint(signs.silent) or any(
        code in facts_of(sign).explains for sign in untold for code in telling
    )


def _verdict(
    report: CheckReport,
    position: int,
    incident: Incident,
    cause: Cause,
    signs: Signs,
    chance: float,
    standing: Standing,
    tied: Sequence[Cause],
    untold: Sequence[NotRun],
    trial: TrialProposal | None,
    answers: Sequence[TrialSign],
) -> CauseVerdict:
    codes = [report.findings[index].code for index in incident.findings]
    because = [code for code in codes if code in cause.shows or explained_by(cause, code, signs)]
    weak = sorted(hints(cause, signs) - signs.fired)
    marks = sorted(sign for sign in cause.shows if is_fact(sign) and sign in signs.fired)
    unlike = [code for code in codes if code not in because]
    # What a rival would have shown tells it from this cause, too.
    shown = {code for candidate in (cause, *tied) for code in candidate.codes}
    missing = [(entry.check, entry.why) for entry in report.checks_not_run if entry.check in shown or entry in untold]
    lacking = [code for code in cause.codes if code in signs.silent.difference(weak) and cause.shows[code] != "often"]
    lacking_data = [f"{capitalized(why)}." for _, why in missing] if tied else []
    rivals = [rival for rival in tied if rival is not cause]
    cheapest = sorted((cause, *rivals), key=lambda candidate: EFFORTS.index(candidate.effort))
    settles = [candidate.settles for candidate in cheapest][:_MAX_SETTLED]
    return CauseVerdict(
        cause=cause.slug,
        standing=standing,
        incident=position,
        says=cause.says,
        probability=chance,
        among=tuple(rival.slug for rival in tied),
        because=tuple(dict.fromkeys([*because, *weak, *marks])),
        against=tuple(dict.fromkeys([*unlike, *lacking])),
        missing=tuple(f"{code}: {why}" for code, why in missing),
        next=_next(report, incident, [*lacking_data, *settles, *_trying(trial)]),
        trials=tuple(_said_of(answer, tied or [cause]) for answer in answers),
    )


def _answers_about(report: CheckReport, incident: Incident) -> list[TrialSign]:
    """Answers of trials about ``incident`` or about the whole job."""
    codes = {report.findings[index].code for index in incident.findings}
    return [trial for trial in report.trials if not trial.code or trial.code in codes]


def _said_of(answer: TrialSign, causes: Sequence[Cause]) -> str:
    """The answer, and that it tells none of ``causes`` from another where none of them states an answer of that."""
    stated = any(sign.startswith(answer.topic) for cause in causes for sign in (*cause.shows, *cause.excludes))
    return answer.text if stated else f"{answer.text} This speaks neither for nor against the cause named here."


def _next(report: CheckReport, incident: Incident, lines: Sequence[str]) -> tuple[str, ...]:
    """``lines`` and then the advice on ``incident``, each once, with commands as they can be run; where no step was
    recorded, the command that records the first one of the incident.
    """
    advice = report.advice(incident)
    runnable = [line for line in lines if _UNRECORDED not in line]
    if len(runnable) < len(lines) and not any(_RECORD in line for line in advice):
        runnable.insert(0, f"Record a step: {record_step(incident.step_first or 0)}")
    return tuple(dict.fromkeys([*map(report.commands.filled, runnable), *advice]))


def _trying(trial: TrialProposal | None) -> list[str]:
    """The command of the trial that would tell most."""
    if trial is None:
        return []
    return [f"Or let runs tell, about {trial.runs} where each shows it: `{VERBS[trial.verb].command('RUN')}`"]


def _unknown(
    report: CheckReport,
    position: int,
    incident: Incident,
    near: Sequence[str],
    chances: Mapping[str, float],
    untold: Sequence[NotRun],
    answers: Sequence[TrialSign],
) -> CauseVerdict:
    decisive = [trial for trial in answers if trial.sign in DECISIVE]
    says = "No known cause explains these findings together"
    if decisive:
        says = f"{decisive[0].text.rstrip('.')}; no known cause explains that with these findings"
    codes = tuple(dict.fromkeys(report.findings[index].code for index in incident.findings))
    return CauseVerdict(
        cause=UNKNOWN,
        standing="undecided",
        incident=position,
        says=says,
        probability=chances[UNKNOWN],
        among=tuple(near),
        because=codes,
        missing=tuple(f"{entry.check}: {entry.why}" for entry in untold),
        next=_next(
            report,
            incident,
            [*(line for trial in decisive for line in trial.next), *(f"{capitalized(entry.why)}." for entry in untold)],
        ),
        trials=tuple(trial.text for trial in answers),
    )


def _excluded(
    position: int, incident: Incident, signs: Signs, causes: Sequence[Cause], report: CheckReport
) -> list[CauseVerdict]:
    """Causes that bring the telling finding and are contradicted all the same."""
    telling = report.findings[incident.findings[0]].code
    near = [(cause, exclusions(cause, signs)) for cause in causes if telling in cause.codes]
    return [
        CauseVerdict(cause.slug, "excluded", position, cause.says, 0.0, against=against)
        for cause, against in near
        if against and not any(":" in sign for sign in against)
    ][:_MAX_EXCLUDED]
