"""`trueline diagnose`: what most likely caused each incident of a Run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trueline.cli.options import LATEST, Json, MaxBytes, Page, Ref, RunPath, bounds_of

if TYPE_CHECKING:
    from rich.text import Text

    from trueline.cli.screen import Console
    from trueline.judge.causes.diagnosis import Diagnosis
    from trueline.judge.incidents import Incident


def command(
    run: RunPath = LATEST,
    ref: Ref = None,
    trial: Annotated[
        list[str] | None,
        typer.Option(
            help="The folder of a trial about this Run, whose answer counts; may be given again.", metavar="DIR"
        ),
    ] = None,
    json: Json = False,
    max_bytes: MaxBytes = None,
    page: Page = 1,
) -> None:
    """Name the most likely cause of what is wrong in a Run, what speaks for and against it, and what would settle it.

    Exit code as of `trueline check`: 0 no fault found, and enough was judged; 1 found; 2 no Run to read; 3 cannot tell.
    """
    from trueline.cli.json_document import print_bounded
    from trueline.cli.lines import screen
    from trueline.cli.waiting import waiting
    from trueline.judge.causes.diagnosis import diagnose

    bounds = bounds_of(max_bytes, page, json=json)
    with waiting(f"Diagnosing {run}"):
        diagnosis = diagnose(run, ref=ref, trials=trial or ())
    if json:
        print_bounded(diagnosis.to_json(), "diagnose", bounds)
    else:
        _print(screen(), diagnosis)
    raise typer.Exit(diagnosis.exit_code)


def _print(console: Console, diagnosis: Diagnosis) -> None:
    from trueline.cli.lines import print_verdict

    report = diagnosis.report
    print_verdict(console, report)
    for index, incident in enumerate(report.incidents):
        _print_incident(console, diagnosis, index, incident)
    for note in report.notes:
        console.print(note, markup=False, highlight=False)


def _print_incident(console: Console, diagnosis: Diagnosis, index: int, incident: Incident) -> None:
    from rich.text import Text

    from trueline.cli.lines import print_advice
    from trueline.render.cause_words import excluded_because, speaking_against, speaking_for
    from trueline.schema.text.words import capitalized

    answer, *alternatives = diagnosis.of(index)
    findings = [diagnosis.report.findings[finding] for finding in incident.findings]
    number = f"{index + 1}. " if len(diagnosis.report.incidents) > 1 else ""
    console.print(Text.assemble((f"{number}{answer.headline}", "bold")))
    lines = [
        *_labelled("for", speaking_for(diagnosis.report, answer)),
        *_labelled("against", speaking_against(findings, answer)),
        *_labelled(
            "or", [f"{verdict.says} ({verdict.cause})" for verdict in alternatives if verdict.standing != "excluded"]
        ),
        *_labelled(
            "not", [excluded_because(findings, verdict) for verdict in alternatives if verdict.standing == "excluded"]
        ),
        *_labelled("trial", [capitalized(line) for line in answer.trials]),
        *_labelled("missing", answer.missing),
        *_labelled("next", answer.next),
    ]
    if answer.is_known:
        lines += _labelled("more", [f"trueline explain {answer.cause}"])
    for line in lines:
        print_advice(console, line)
    console.print()


def _labelled(label: str, lines: list[str] | tuple[str, ...]) -> list[Text]:
    from rich.text import Text

    return [Text.assemble((f"{label}: ", "green"), line) for line in lines]
