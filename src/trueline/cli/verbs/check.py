"""`trueline check`: run every check that a Run has data for."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trueline.cli.options import LATEST, Json, MaxBytes, Page, Ref, RunPath, bounds_of
from trueline.schema.site import SITE_FORM

if TYPE_CHECKING:
    from rich.text import Text

    from trueline.cli.screen import Console
    from trueline.judge.check_run import CheckReport
    from trueline.judge.incidents import Incident
    from trueline.schema.finding import Finding

_COLOURS = {"error": "red", "warning": "yellow", "confirm": "cyan", "info": "blue"}


def command(
    run: RunPath = LATEST,
    ref: Ref = None,
    format: Annotated[
        Literal["github", "junit", "sarif"] | None,
        typer.Option(help="Print GitHub annotations, JUnit XML, or SARIF for code scanning.", show_default=False),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Say of every check that did not run why, also of those that do not apply.")
    ] = False,
    facts: Annotated[bool, typer.Option("--facts", help="Say what the training did, too.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where there is something to confirm.")] = False,
    json: Json = False,
    max_bytes: MaxBytes = None,
    page: Page = 1,
) -> None:
    """Say what is wrong in a Run: since which step, on which ranks, and what to do next.

    Exit code 0: no fault found, and enough was judged; 1: errors or warnings found; 2: no Run to read; 3: cannot tell.
    What is to confirm may be meant, and seldom is.
    """
    from trueline.cli.json_document import print_bounded
    from trueline.cli.lines import screen
    from trueline.cli.log import print_commands
    from trueline.cli.waiting import waiting
    from trueline.judge.check_run import check
    from trueline.render.ci.github import annotations
    from trueline.render.ci.junit import junit
    from trueline.render.ci.sarif import sarif
    from trueline.schema.errors import InputError

    bounds = bounds_of(max_bytes, page, json=json)
    if json and format is not None:
        raise InputError(f"--json and --format {format} contradict each other. Pass one of them.")
    if facts and format is not None:
        raise InputError(f"--format {format} has no place for --facts. Run `trueline facts {run}` beside it.")
    with waiting(f"Checking {run}"):
        report = check(run, ref=ref, strict=strict)
    if json:
        print_bounded(report.to_json(), "check", bounds)
    elif format == "github":
        print_commands(annotations(report), sys.stdout)
    elif format == "junit":
        print(junit(report))
    elif format == "sarif":
        print(sarif(report))
    else:
        print_report(screen(), report, all_reasons=every, facts=facts)
    raise typer.Exit(report.exit_code)


def print_report(console: Console, report: CheckReport, *, all_reasons: bool = False, facts: bool = False) -> None:
    """Print the verdict, each incident with its telling finding first, and what is to know about the Run; with
    ``all_reasons`` also why checks that do not apply were left out, with ``facts`` what the training did.
    """
    from trueline.cli.lines import print_facts, print_next, print_section, print_verdict

    print_verdict(console, report, brief=True, advise=not report.to_confirm)
    for number, incident in enumerate(report.incidents, start=1):
        _print_incident(console, report, incident, f"{number}. " if len(report.incidents) > 1 else "")
    if report.to_confirm:
        print_to_confirm(console, report)
        print_next(console, report)
    for title, lines in (
        ("About this Run", report.notes),
        ("Worth knowing", [f"{finding.code}: {finding.claim}" for finding in report.worth_knowing]),
        ("Not checked", _not_checked(report) if all_reasons else []),
    ):
        if lines:
            print_section(console, title, lines)
            console.print()
    if not all_reasons and (line := _not_checked_line(report)):
        console.print(line, style="dim", markup=False, highlight=False)
    if any(report.findings[incident.findings[0]].sites for incident in report.incidents):
        console.print(f"Sites: {SITE_FORM}", style="dim", markup=False, highlight=False)
    if facts and report.facts is not None:
        print_facts(console, report.facts)


def print_to_confirm(console: Console, report: CheckReport) -> None:
    """Print what is to confirm, contradictions first, then what is rarest, each with what to do and where more stands,
    and how to say that it is meant.
    """
    from rich.text import Text

    from trueline.cli.lines import print_advice
    from trueline.judge.run_verdict import MOST_TO_CONFIRM

    questions, run = report.to_confirm[:MOST_TO_CONFIRM], shlex.quote(report.run)
    is_one = len(report.to_confirm) == 1
    console.print(f"To confirm: {CONFIRM_HEADS[is_one]}", style="bold", markup=False, highlight=False)
    for finding in questions:
        print_advice(console, Text.assemble((finding.id, "bold"), f": {finding.claim}"))
        if finding.next:
            print_advice(console, Text.assemble(("next: ", "green"), finding.next[0]), indent=4)
        print_advice(console, Text.assemble(("more: ", "green"), f"trueline explain {finding.manual}"), indent=4)
    if len(report.to_confirm) > len(questions):
        print_advice(
            console, Text(f"and {len(report.to_confirm) - len(questions)} more: `trueline check {run} --json`")
        )
    print_advice(console, Text(f"Meant? `trueline confirm {run} {questions[0].id}`"))
    console.print()


CONFIRM_HEADS = {
    True: "only you know whether this is meant. If it is not, it may have spoilt the training.",
    False: "only you know whether these are meant. What is not may have spoilt the training.",
}
"""What is asked of a person, by whether it is one thing."""


def _print_incident(console: Console, report: CheckReport, incident: Incident, number: str) -> None:
    from rich.text import Text

    from trueline.cli.lines import print_advice

    first, *later_findings = (report.findings[index] for index in incident.findings)
    num_ranks = report.judged.world_size
    console.print(Text.assemble((number, "bold"), _head(first, num_ranks)))
    lines = [Text(line) for line in (first.claim, *_numbers(first))]
    answer = report.cause(report.incidents.index(incident))
    if answer.is_likely:
        lines.append(Text.assemble((f"{answer.strength}: ", "green"), answer.says))
    lines += [Text.assemble("with ", _head(finding, num_ranks), ": ", finding.claim) for finding in later_findings]
    lines += [Text.assemble(("next: ", "green"), line) for line in report.advice(incident)]
    if first.code in report.checks_run:
        lines.append(Text.assemble(("more: ", "green"), f"trueline explain {first.code}"))
    for line in lines:
        print_advice(console, line)
    console.print()


def _head(finding: Finding, num_ranks: int) -> Text:
    """``error replica-drift  rank 2  steps 50-149``, without a rank where there is one."""
    from rich.text import Text

    from trueline.schema.text.words import ranks_text

    head = Text.assemble((finding.severity, f"bold {_COLOURS[finding.severity]}"), " ", (finding.code, "bold"))
    if finding.ranks and num_ranks > 1:
        head.append(f"  {ranks_text(finding.ranks)}")
    if finding.step_first is not None:
        span = "" if finding.step_last in (None, finding.step_first) else f"-{finding.step_last}"
        head.append(f"  step{'s' if span else ''} {finding.step_first}{span}")
    return head


def _numbers(finding: Finding) -> list[str]:
    lines: list[str] = []
    if finding.measured is not None and finding.unit:
        expected = "" if finding.expected is None else f", expected {finding.expected:.4g}"
        chance = f"; chance of a false alarm at most {finding.false_alarm_rate:.1g}" if finding.false_alarm_rate else ""
        lines.append(f"{finding.unit}: {finding.measured:.4g}{expected}{chance}")
    if finding.where.code_line:
        lines.append(f"in {finding.where.code_line}")
    if finding.sites:
        lines.append("at " + ", ".join(finding.sites[:3]) + (" ..." if len(finding.sites) > 3 else ""))
    return lines


def _not_checked(report: CheckReport) -> list[str]:
    """A line for each reason, with all checks that did not run for it."""
    from trueline.schema.text.words import by_reason

    entries = ((entry.check, entry.why) for entry in report.checks_not_run)
    return [f"{', '.join(checks)}: {why}" for checks, why in by_reason(entries)]


def _not_checked_line(report: CheckReport) -> str:
    """How many checks lacked something, by what they look at, how many do not apply, and where the reasons are; ""
    where all ran.
    """
    from trueline.schema.finding import NO_UPDATE
    from trueline.schema.judged import TOPICS
    from trueline.schema.text.words import counted

    # without training nearly every check lacks something, and the finding says all there is to say
    untrained = any(finding.code == NO_UPDATE for finding in report.findings)
    lacking = {
        TOPICS[question.question]: sum(entry.lacks for entry in question.checks_not_run)
        for question in report.judged.questions
    }
    num_lacking = 0 if untrained else sum(lacking.values())
    parts = [", ".join(f"{topic} ({counted(num, 'check')})" for topic, num in lacking.items() if num)]
    if more := len(report.checks_not_run) - num_lacking:
        verb = "does not apply here, or looks" if more == 1 else "do not apply here, or look"
        parts.append(f"{counted(more, 'check')} {verb} at what was not recorded")
    listed = "; ".join(parts if num_lacking else parts[1:])
    return f"Not checked: {listed}. Why: `trueline check {shlex.quote(report.run)} --all`" if listed else ""
