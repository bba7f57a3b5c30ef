"""All checks on one Run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from trueline.judge.actions import Action, Commands, actions_of
from trueline.judge.answers import left_out_notes, reference_findings, unlooked_notes
from trueline.judge.asking import ask_checks, not_run_of
from trueline.judge.causes.signs import context_of
from trueline.judge.causes.trial_signs import TrialSign
from trueline.judge.causes.verdicts import CauseVerdict, verdicts_of
from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.facts.training_facts import TrainingFacts, read_facts
from trueline.judge.facts.unusual import unusual_findings
from trueline.judge.following import Followed, earlier_judgements, unjudged_steps, write_judgements
from trueline.judge.incidents import Incident, advice_of, began, incidents_of, is_explained, onset_interval
from trueline.judge.no_update import merge_no_update
from trueline.judge.rank_endings import all_killed, death_of, ends_of
from trueline.judge.registry import Check, installed_checks
from trueline.judge.run_verdict import to_confirm, verdict_of
from trueline.judge.series.iterations import may_part, parting_of
from trueline.judge.watching_cost import watching_cost
from trueline.judge.where import Machines, machine_text, machines_of, where_of
from trueline.schema.errors import AlignmentError, CannotTell, RunError
from trueline.schema.finding import JOB_DIED, Finding, by_weight, columns_of, documents_of, ids_of
from trueline.schema.judged import (
    EXIT_CODES,
    FEWEST_STEPS_OF_ONE,
    AskedQuestion,
    Judged,
    NotRun,
    Question,
    Verdict,
    asked_of,
    judged_together,
)
from trueline.schema.law import COMPARISON, SAME_JOB, facts_of, findings_of
from trueline.schema.law import codes as declared_codes
from trueline.schema.plan import Plan
from trueline.schema.text.plan_options import options_of
from trueline.schema.text.shown import Shown
from trueline.schema.text.words import counted, named_or_ends, of_one_process, whose_text
from trueline.store.log.part_files import known_parts
from trueline.store.plan_change import confirmed_ids
from trueline.store.reader import Run

SCHEMA = 1
"""Version of the document that ``CheckReport.to_json`` makes; raised when a field changes meaning."""


@dataclass(frozen=True, repr=False)
class CheckReport(Shown):
    """Report of all checks on one Run; findings are sorted, errors first. ``judged`` is what was looked at, ``notes``
    tell what is wrong with the Run itself, ``context`` how the job was run (signs, as ``adapter:ddp``),
    which is read only where something was found.
    """

    run: str
    findings: tuple[Finding, ...]
    judged: Judged
    notes: tuple[str, ...] = ()
    context: frozenset[str] = frozenset()
    unlooked: tuple[str, ...] = ()
    """Subjects that nobody looked at though one can, each with the command that looks."""
    trials: tuple[TrialSign, ...] = ()
    """Answers of trials about its findings."""
    job: tuple[str, ...] = ()
    """The whole command that was watched, where it is known."""
    machines: Machines = field(default_factory=dict[int, tuple[str, str]])
    facts: TrainingFacts | None = None
    """What the training did."""
    strict: bool = False
    """Whether what is to confirm counts as found."""
    again: str = ""
    """The command that runs the job again as it was watched, between backticks; "" where it is not known."""

    @property
    def checks_run(self) -> tuple[str, ...]:
        """Codes of the checks that had what they need, sorted."""
        return tuple(sorted(code for question in self.judged.questions for code in question.checks_run))

    @property
    def checks_not_run(self) -> tuple[NotRun, ...]:
        """The other checks, sorted by code."""
        entries = (entry for question in self.judged.questions for entry in question.checks_not_run)
        return tuple(sorted(entries, key=lambda entry: entry.check))

    @cached_property
    def incidents(self) -> tuple[Incident, ...]:
        """Errors and warnings by the fault that they tell of, the gravest first."""
        return incidents_of(self.findings)

    @cached_property
    def causes(self) -> tuple[CauseVerdict, ...]:
        """Most likely causes of each incident, the answer of each first."""
        return verdicts_of(self)

    def cause(self, incident: int) -> CauseVerdict:
        """The answer to what caused the incident at a place in ``incidents``."""
        return next(verdict for verdict in self.causes if verdict.incident == incident)

    @property
    def cause_named(self) -> str | None:
        """The slug of what most likely caused the first incident; None where there is none, or nothing is likely."""
        return self.cause(0).cause if self.incidents and self.cause(0).is_likely else None

    @cached_property
    def verdict(self) -> Verdict:
        """All of it in one sentence."""
        where = self.where(0) if self.incidents else ""
        death = next((finding for finding in self.findings if finding.code == JOB_DIED), None)
        if death is not None:
            died = f"{death.claim[:1].lower()}{death.claim[1:].rstrip('.')}"
            is_all = self.findings[self.incidents[0].findings[0]] is death
            where = died if is_all or not where else f"{died}; {where}"
        return verdict_of(self.findings, self.incidents, self.judged, where)

    def began(self, incident: int) -> Finding:
        """The finding that shows when the fault of an incident began: the earliest of those that its cause explains."""
        findings = [self.findings[index] for index in self.incidents[incident].findings]
        first = began(findings)
        if first is findings[0]:  # then nobody need look for the cause, which takes longer
            return first
        cause = self.cause(incident)
        because = cause.because if cause.is_known else ()
        return began([findings[0], *(finding for finding in findings[1:] if finding.code in because)])

    def where(self, incident: int) -> str:
        """``rank 2, since step 32`` of the incident at a place in ``incidents``."""
        first, ranks = self.began(incident), self.accused(incident)
        others_text = "the others" if any(_learns_alone(finding, ranks) for finding in self.findings) else ""
        against = tuple(rank for rank in self.incidents[incident].ranks if rank not in ranks)
        return whose_text(
            ranks,
            first.step_first,
            self.judged.world_size,
            or_who=others_text,
            against=against,
            interval=onset_interval(first),
            machine=machine_text(ranks, self.machines),
        )

    def accused(self, incident: int) -> tuple[int, ...]:
        """The ranks that findings of an incident tell from others: all that those name which name some and not all;
        where none does, or they name all together, those of the telling one.
        """
        fault = self.incidents[incident]
        ranks_named = [set(self.findings[index].ranks) for index in fault.findings]
        told_apart = set[int]().union(*(ranks for ranks in ranks_named if len(ranks) < self.judged.world_size))
        return tuple(sorted(told_apart)) if 0 < len(told_apart) < self.judged.world_size else fault.ranks

    @property
    def next(self) -> tuple[str, ...]:
        """Advice where nothing was found."""
        return () if self.incidents else self.unlooked

    @property
    def commands(self) -> Commands:
        """The filler of commands in advice."""
        return Commands(self.run, self.job)

    @property
    def actions(self) -> tuple[Action, ...]:
        """Next actions on all incidents, the gravest first; where nothing was found, those that look further."""
        advice = [line for incident in self.incidents for line in self.advice(incident)]
        if advice:
            why = f"`trueline diagnose {shlex.quote(self.run)} --json`"
            advice.append(f"What speaks for and against each cause, and what would settle it: {why}.")
            return actions_of([*advice, *self.mended])
        asked = [line for finding in self.to_confirm for line in (*finding.next[:1], self._if_meant(finding))]
        longer = [f"{self.verdict.line} More steps: {self.again}."] if self.exit_code == 3 and self.again else []
        return actions_of([*asked, *self.next, *longer])

    @property
    def mended(self) -> tuple[str, ...]:
        """What to do once a fault is mended: a finding that is gone is the proof."""
        return (f"Once it is mended, run the job again, and check that: {self.again}.",) if self.again else ()

    def _if_meant(self, finding: Finding) -> str:
        return f"If it is meant: `trueline confirm {shlex.quote(self.run)} {finding.id}`."

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of the findings, equal whenever this Run is checked: code, ranks, and what each is about."""
        return ids_of(self.findings)

    @cached_property
    def to_confirm(self) -> tuple[Finding, ...]:
        """What may be meant, and seldom is: contradictions first, then what the fewest healthy trainings show."""
        return tuple(to_confirm(self.findings))

    @cached_property
    def worth_knowing(self) -> tuple[Finding, ...]:
        """Findings of severity info, but for what was confirmed: first those that speak for a cause that is named, then
        those about some ranks only, last those that state facts and expect nothing else.
        """
        causal = {code for verdict in self.causes if verdict.standing != "excluded" for code in verdict.because}
        infos = [
            finding for finding in self.findings if finding.severity == "info" and not finding.evidence.get(CONFIRMED)
        ]
        return tuple(
            sorted(
                infos,
                key=lambda finding: (
                    finding.code not in causal,
                    not 0 < len(finding.ranks) < self.judged.world_size,
                    finding.measured is not None and finding.expected is None,
                ),
            )
        )

    def advice(self, incident: Incident) -> tuple[str, ...]:
        """Advice on ``incident``, each line once: of its telling finding and those that nothing of it explains."""
        return advice_of([self.findings[index] for index in incident.findings])

    def explained(self, finding: int, incident: Incident) -> bool:
        """True if another finding of ``incident`` brings the ``finding``-th of the report with it."""
        return is_explained(self.findings[finding], [self.findings[index] for index in incident.findings])

    @property
    def has_incidents(self) -> bool:
        """True if anything is more than an info."""
        return bool(self.incidents)

    @property
    def exit_code(self) -> int:
        """0 nothing found and enough was judged, 1 found, 3 cannot tell. Where the report is ``strict``, 1 also where
        there is something to confirm.
        """
        return EXIT_CODES[self.verdict.status] or int(self.strict and self.verdict.confirm)

    def _title(self) -> str:
        return self.verdict.line

    def _columns_shown(self) -> Mapping[str, Sequence[Any]]:
        return columns_of(self.findings)

    def _notes(self) -> Sequence[str]:
        return (*self.notes, *(f"not checked: {entry.check}: {entry.why}" for entry in self.checks_not_run))

    def head(self) -> dict[str, Any]:
        """What documents on a Run begin with: what it comes to, and which questions have no answer, or one in part."""
        return {
            "run": self.run,
            "status": self.verdict.for_programs,
            "exit_code": self.exit_code,
            "verdict": self.verdict.line,
            "cause": self.cause_named,
            "not_judged": [entry.question for entry in self.judged.of("open", "partly")],
        }

    def incident_documents(self) -> list[dict[str, Any]]:
        """The incidents, with the names of their findings, which stay as they are where only some are shown."""
        names = self.ids
        return [
            incident.to_json() | {"ids": [names[index] for index in incident.findings]} for incident in self.incidents
        ]

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        return {
            "schema": SCHEMA,
            **self.head(),
            "actions": [action.to_json() for action in self.actions],
            "confirm": [{"id": finding.id} | finding.to_json() for finding in self.to_confirm],
            "facts": [] if self.facts is None else [fact.to_json() for fact in self.facts.facts],
            "judged": self.judged.to_json(),
            "incidents": self.incident_documents(),
            "findings": documents_of(self.findings),
            "checks_run": list(self.checks_run),
            "checks_not_run": [entry.to_json() for entry in self.checks_not_run],
            "next": list(self.next),
            "notes": list(self.notes),
        }


def _learns_alone(finding: Finding, ranks: tuple[int, ...]) -> bool:
    """True if the loss of one rank is below those of all others: it may be the only one that is right."""
    kind = facts_of(finding.code).right_alone
    return (
        bool(kind) and kind in finding.evidence.get("kind", ()) and len(finding.ranks) == 1 and finding.ranks == ranks
    )


def check(
    run: str | os.PathLike[str] | Run,
    *,
    ref: str | os.PathLike[str] | Run | None = None,
    strict: bool = False,
    remembers: bool = True,
) -> CheckReport:
    """Run every installed check on a Run, or a path of one, and compare it with ``ref`` where that is given; where that
    is ``strict``, what is to confirm counts as found. What is known of the Run now is written into it for the next look
    where it ``remembers``. Raises ``RunError`` where there is no Run to read.

    Findings that live checks left while the job ran are included, and what is said of further groups of ranks and of
    further models.
    """
    opened = run if isinstance(run, Run) else Run(run, parts=known_parts(run))
    reference = ref if ref is None or isinstance(ref, Run) else Run(ref)
    findings = [*merge_no_update(opened.live_findings), *death_of(opened)]
    codes: list[str] = []
    not_run: list[NotRun] = []
    question_of: dict[str, Question] = dict.fromkeys(findings_of(COMPARISON, SAME_JOB), "reference")
    checks = _checks_that_apply(opened)
    judgements = earlier_judgements(opened, checks)
    parting = parting_of(opened) if judgements is None or _may_part(opened, judgements) else None
    # What was silent was so on steps that are no longer compared: all checks begin anew.
    judgements = None if parting is not None else judgements
    answers, followed = ask_checks(
        opened, opened if parting is None else opened.before(parting.step), checks, judgements
    )
    if followed is not None and remembers:
        write_judgements(opened, checks, followed)
    for law_check in checks:
        question_of[law_check.code] = law_check.question
        outcome = answers[law_check.code]
        if isinstance(outcome, NotRun):
            not_run.append(outcome)
        else:
            findings += outcome
            codes.append(law_check.code)
    notes = [
        *ends_of(opened, part=parting is not None),
        *opened.problems,
        *opened.manifest.notes,
        *left_out_notes(opened),
    ]
    if (cost := watching_cost(opened)) is not None and cost.is_over:
        notes.append(f"watching took {cost.words}.")
    if reference is not None:
        outcome, judged, lacking = _compare_with_reference(opened, reference)
        findings, codes, not_run = [*findings, *outcome], [*codes, *judged], [*not_run, *lacking]
        outcome, remarks = reference_findings(opened, reference)
        findings, notes = [*findings, *outcome], [*notes, *remarks]
    outcome, remarks = _check_models(opened, remembers=remembers)
    findings, notes = [*findings, *outcome], [*notes, *remarks]
    commands = Commands(os.fspath(opened.path), tuple(opened.manifest.argv))
    calls = {law_check.code: law_check.calls for law_check in checks}
    facts = read_facts(opened)
    confirmed = confirmed_ids(opened)
    # The trainings that base rates are of went on for longer: what has just begun is like none of them.
    unusual = unusual_findings(facts, findings) if opened.steps.size >= FEWEST_STEPS_OF_ONE else []
    findings = [_unless_confirmed(finding, confirmed) for finding in (*findings, *unusual)]
    worded = _wording(opened, reference)
    findings = [
        replace(
            finding,
            claim=worded(finding.claim),
            next=tuple(commands.filled(worded(line)) for line in finding.next),
            where=where_of(finding, opened, calls.get(finding.code, {})),
        )
        for finding in findings
    ]
    report_of_run = CheckReport(
        run=commands.run,
        findings=tuple(sorted(findings, key=by_weight)),
        judged=_judged(opened, asked_of(codes, not_run, question_of)),
        notes=tuple(map(worded, notes)),
        context=context_of(opened) if any(finding.is_grave for finding in findings) else frozenset(),
        unlooked=tuple(map(commands.filled, unlooked_notes(opened, not_run))),
        job=commands.job,
        machines=machines_of(opened),
        facts=facts,
        strict=strict,
        again=_again(opened, commands),
    )
    return _with_groups(report_of_run, [check(path, remembers=remembers) for path in opened.groups], confirmed)


def _again(run: Run, commands: Commands) -> str:
    """The command that runs the job of ``run`` again as it was watched; "" where that is not known."""
    if not commands.job:
        return ""
    try:
        options = options_of(Plan.model_validate(run.manifest.plan))
    except ValueError:  # a key of another version
        options = ""
    return commands.filled(f"`trueline run {options} -- COMMAND`".replace("  ", " "))


def _wording(run: Run, reference: Run | None) -> Callable[[str], str]:
    """What a sentence of a law becomes: of one process no rank is named, unless a reference has several."""
    is_one = run.world_size == 1 and len(run.ranks) == 1 and not run.groups and reference is None
    return partial(of_one_process, rank=run.ranks[0]) if is_one else str


def _may_part(run: Run, judgements: Followed) -> bool:
    """Whether ranks may come apart in the steps of which that is not known yet."""
    ending = (code for code, facts in declared_codes().items() if facts.end_comparison)
    return any(may_part(unjudged_steps(run, judgements, code)) for code in ending)


def _check_models(run: Run, *, remembers: bool) -> tuple[list[Finding], list[str]]:
    """Findings on the further models of ``run``, and their verdicts and notes, each with the name of the model."""
    findings: list[Finding] = []
    notes: list[str] = []
    for name, path in run.models.items():
        try:
            report = check(path, remembers=remembers)
        except RunError as error:
            notes.append(f"Model {name}: {error}")
            continue
        findings += [
            replace(finding, claim=f"Model {name}: {finding.claim}")
            for finding in report.findings
            if finding.code != JOB_DIED
        ]
        notes += [f"Model {name}: {line}" for line in (report.verdict.line, *report.notes)]
    return findings, notes


CONFIRMED = "confirmed"
"""Key of the evidence of what was to confirm, and somebody did."""


def _unless_confirmed(finding: Finding, confirmed: Collection[str]) -> Finding:
    """``finding``, of severity info where it was to confirm and is ``confirmed``."""
    if finding.severity != "confirm" or finding.id not in confirmed:
        return finding
    return replace(finding, severity="info", evidence={**finding.evidence, CONFIRMED: True})


def _compare_with_reference(run: Run, ref: Run) -> tuple[list[Finding], list[str], list[NotRun]]:
    """What the comparison with ``ref`` finds, of the values and then of the jobs, but for what values tell better;
    the codes of what was judged; and why the others were not.
    """
    from trueline.comparison.compare import compare  # a check without a reference need not wait for these
    from trueline.same_job.diff import diff

    sides: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
        (COMPARISON, lambda: compare(run, ref).findings),
        (SAME_JOB, lambda: diff(run, ref).findings()),
    )
    findings: list[Finding] = []
    judged: list[str] = []
    lacking: list[NotRun] = []
    for package, find in sides:
        codes = findings_of(package)
        # Values tell of these better than the settings of the job: they know whether a difference had an effect.
        in_values = {code for code, facts in findings_of(COMPARISON, SAME_JOB).items() if facts.seen_in_values}
        codes_seen = {finding.code for finding in findings} | (in_values if judged else set[str]())
        try:
            findings += [finding for finding in find() if finding.code not in codes_seen]
            judged += codes
        except (CannotTell, AlignmentError, RunError) as error:
            lacking += [not_run_of(code, error) for code in codes]
    return findings, judged, lacking


def _with_groups(report: CheckReport, of_groups: Sequence[CheckReport], confirmed: Collection[str]) -> CheckReport:
    """One report on all groups of ranks that average apart from each other, as on one Run."""
    if not of_groups:
        return report
    reports = [report, *of_groups]
    runs = named_or_ends([group.run for group in reports])
    covers = (
        f"it has {counted(len(reports), 'group')} of ranks that do not average gradients with each other, each in a "
        f"directory of its own, which are judged together: {runs}."
    )
    return replace(
        report,
        findings=tuple(
            sorted(
                (_unless_confirmed(finding, confirmed) for group in reports for finding in group.findings),
                key=by_weight,
            )
        ),
        judged=judged_together([group.judged for group in reports]),
        notes=tuple(dict.fromkeys([covers, *(note for group in reports for note in group.notes)])),
    )


def _checks_that_apply(run: Run) -> list[Check]:
    """All checks; of a Run that holds rollouts and nothing else, those of rollouts."""
    alone = not run.steps.size and not run.has_records and (bool(run.kept("rollouts")) or bool(run.kept("syncs")))
    return [installed for installed in installed_checks() if not alone or installed.question == "rollouts"]


def _judged(run: Run, questions: tuple[AskedQuestion, ...]) -> Judged:
    steps = run.steps
    return Judged(
        questions=questions,
        ranks=tuple(data_parallel_ranks(run)),
        world_size=max(run.world_size, len(run.ranks)),  # a manifest that was lost knows of one rank only
        num_steps=int(steps.size),
        steps=(int(steps[0]), int(steps[-1])) if steps.size else None,
        unclosed=tuple(run.unclosed),
        killed=all_killed(run),
    )
