"""One incident: what is claimed, what caused it and what speaks for and against that, the ranks that are accused among
the others, and what settles it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from trueline.judge.actions import record_step
from trueline.judge.compared_ranks import differs
from trueline.judge.registry import installed_checks
from trueline.judge.series.learning_rates import first_step_of_unequal_rates
from trueline.render.cause_words import excluded_because, speaking_against, speaking_for
from trueline.render.report.environment_table import Differing, Environment, environment, holders
from trueline.render.report.finding_row import FindingRow, finding_row
from trueline.render.wording import number
from trueline.schema.errors import InputError, SiteError
from trueline.schema.finding import Finding, Severity
from trueline.schema.site import SITE_FORM, Site
from trueline.schema.text.words import groups_text, ranks_text
from trueline.store.reader import Run
from trueline.web.views.overview import drawn_steps, key_of
from trueline.web.views.signals import signals_of, values_of
from trueline.web.views.sparkline import signal_of
from trueline.web.watched_run import WatchedRun

if TYPE_CHECKING:
    from trueline.judge.check_run import CheckReport
    from trueline.judge.incidents import Incident

_MAX_DIFFERING = 24
_MAX_SAMPLES, _MAX_SAMPLED_RANKS = 12, 4
"""Samples of a rank, and ranks, whose samples are shown."""
_MAX_READINGS = 12
_RECORDED_STEPS = 3
_AHEAD = 20
"""Steps between the last row that was read and the first that is recorded."""


@dataclass(frozen=True, slots=True)
class RecordedPlace:
    """A site whose step was recorded, so that the call can be looked at."""

    site: str
    step: int
    rank: int
    name: str


@dataclass(frozen=True, slots=True)
class SampleView:
    """What a rank consumed at the first step of an incident: how many samples, and of the first ``_MAX_SAMPLES`` the
    digest (hexadecimal), the loss where there is one for each ("" elsewhere), and the other ranks of which it is one
    of the samples at that step, too.
    """

    rank: int
    num: int
    samples: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A number at the first step of an incident: of the accused ranks (at most ``_MAX_SAMPLED_RANKS``), and the median
    of all others ("" where there are none), in words.
    """

    title: str
    accused: str
    others_median: str


@dataclass(frozen=True, slots=True)
class EvidenceGrowth:
    """How the evidence of a finding grew: steps with the odds against chance (natural log), the odds at which it is a
    finding, and the step at which it became one.
    """

    code: str
    points: tuple[tuple[int, float], ...]
    threshold: float
    crossed: int | None


@dataclass(frozen=True, slots=True)
class IncidentView:
    """All of the screen. ``ranks`` are those that its findings tell from others. ``signal`` is what to draw, over steps
    ``draw_first`` to ``draw_last``; ``supports`` and ``contradicts`` are evidence for and against the cause,
    ``alternatives`` causes as likely, ``excluded`` such as an exact check contradicts, ``missing`` what nobody looked
    at that would tell. ``record`` is a command that records further steps, and ``record_refused`` why it cannot be
    asked for from here; ``intended`` is what says that these ranks are meant to differ. ``settings`` are findings of it
    about what ranks are set to.
    """

    number: int
    key: str
    total: int
    severity: Severity
    claim: str
    where: str
    ranks: tuple[int, ...]
    step_first: int | None
    headline: str
    cause: str
    standing: str
    supports: tuple[str, ...]
    contradicts: tuple[str, ...]
    alternatives: tuple[str, ...]
    excluded: tuple[str, ...]
    missing: tuple[str, ...]
    next: tuple[str, ...]
    explain: str
    findings: tuple[FindingRow, ...]
    site_form: str
    signal: str
    draw_first: int | None
    draw_last: int | None
    growth: EvidenceGrowth | None
    settings: tuple[str, ...]
    differing: tuple[Differing, ...]
    num_differing: int
    recorded: tuple[RecordedPlace, ...]
    readings: tuple[Reading, ...]
    samples: tuple[SampleView, ...]
    record: str
    record_refused: str
    intended: str


def incident_of(watched: WatchedRun, place: int) -> IncidentView:
    """The incident that the first screen lists as ``place``. Raises ``InputError`` where there is none."""
    report = watched.judgement.report
    if report is None or not 1 <= place <= len(report.incidents):
        count = 0 if report is None else len(report.incidents)
        raise InputError(f"There is no incident {place} of '{watched.name}'. It has {count}; look at the first screen.")
    incident = report.incidents[place - 1]
    findings = [report.findings[index] for index in incident.findings]
    answer, *alternatives = [verdict for verdict in report.causes if verdict.incident == place - 1]
    accused = report.accused(place - 1)
    differing = _differing(watched)
    draw_first, draw_last = drawn_steps(incident, report)
    return IncidentView(
        number=place,
        key=key_of(findings[0].code, incident),
        total=len(report.incidents),
        severity=incident.severity,
        claim=incident.title,
        where=report.where(place - 1),
        ranks=accused,
        step_first=incident.step_first,
        headline=answer.headline,
        cause=answer.cause,
        standing=answer.standing,
        supports=tuple(speaking_for(report, answer)),
        contradicts=tuple(speaking_against(findings, answer)),
        alternatives=tuple(f"{index.says} ({index.cause})" for index in alternatives if index.standing != "excluded"),
        excluded=tuple(excluded_because(findings, index) for index in alternatives if index.standing == "excluded"),
        missing=answer.missing,
        next=answer.next,
        explain=f"trueline explain {answer.cause if answer.is_known else findings[0].code}",
        findings=tuple(
            finding_row(
                order + 1,
                report.findings[index],
                watched.run.ranks,
                explained_by=1 if report.explained(index, incident) else 0,
            )
            for order, index in enumerate(incident.findings)
        ),
        site_form=SITE_FORM,
        signal=next((signal for signal in (signal_of(index.code) for index in findings) if signal), ""),
        draw_first=draw_first,
        draw_last=draw_last,
        growth=next((growth for growth in map(_growth, findings) if growth is not None), None),
        settings=about_settings(findings),
        differing=differing[:_MAX_DIFFERING],
        num_differing=len(differing),
        readings=_readings(watched, accused, incident.step_first),
        samples=_samples(watched, accused, incident.step_first),
        recorded=_recorded(watched, [site for finding in findings for site in finding.sites]),
        record=_record_command(watched),
        record_refused=_record_refused(watched, report, incident),
        intended=_intended(watched, accused),
    )


@dataclass(frozen=True, slots=True)
class NextSteps:
    """Steps ``first`` to before ``end``, which the job is asked to record."""

    first: int
    end: int

    @property
    def keys(self) -> dict[str, object]:
        """The keys of the plan that ask for it."""
        return {"preset": "mix", "steps": [self.first, self.end]}


def recording(watched: WatchedRun) -> NextSteps:
    """The next steps that can be recorded. Ranks take a change of the plan up together, two sampled steps after the
    first has seen it, so that these begin a little later than the last row.
    """
    begin = (watched.last_step or 0) + _AHEAD
    return NextSteps(begin, begin + _RECORDED_STEPS)


def _record_command(watched: WatchedRun) -> str:
    steps = recording(watched)
    return f"trueline plan {watched.run.path} --set preset=mix --set steps={steps.first}:{steps.end}"


def _record_refused(watched: WatchedRun, report: CheckReport, incident: Incident) -> str:
    if watched.read_failure:
        return "The Run can no longer be read."
    if not watched.run.unclosed:
        again = report.commands.filled(record_step(incident.step_first or 0))
        return f"The job has ended, so it records no further step. Start it again: {again}"
    return ""


def _intended(watched: WatchedRun, ranks: tuple[int, ...]) -> str:
    healthy_ranks = [rank for rank in watched.run.ranks if rank not in ranks]
    return f"worker_groups = {groups_text(healthy_ranks)}" if ranks and len(healthy_ranks) > 1 else ""


def _samples(watched: WatchedRun, ranks: tuple[int, ...], step: int | None) -> tuple[SampleView, ...]:
    """The samples of the accused ranks, a few of them, at the step; nothing where they were not seen."""
    run = watched.run
    if step is None or run.column("sample_digests").null_count == len(run.column("sample_digests")):
        return ()
    digests = {rank: values for (_, rank), values in run.lists("sample_digests", steps=[step]).items()}
    losses = {rank: values for (_, rank), values in run.lists("part_losses", steps=[step]).items()}
    views: list[SampleView] = []
    for rank in [accused_rank for accused_rank in ranks if accused_rank in digests][:_MAX_SAMPLED_RANKS]:
        digests_of_rank, losses_of_rank = digests[rank], losses.get(rank, np.empty(0))
        samples: list[tuple[str, str, str]] = []
        for index, digest in enumerate(digests_of_rank[:_MAX_SAMPLES].tolist()):
            loss = number(float(losses_of_rank[index])) if len(losses_of_rank) == len(digests_of_rank) else ""
            sharing_ranks = [
                other_rank for other_rank, values in digests.items() if other_rank != rank and (values == digest).any()
            ]
            samples.append((f"{digest:016x}", loss, ranks_text(sharing_ranks, dash="–") if sharing_ranks else ""))
        views.append(SampleView(rank, len(digests_of_rank), tuple(samples)))
    return tuple(views)


def _growth(finding: Finding) -> EvidenceGrowth | None:
    points, threshold = finding.evidence.get("growth"), finding.evidence.get("threshold")
    if not points or not isinstance(threshold, int | float):
        return None
    crossed = finding.evidence.get("crossed_step")
    return EvidenceGrowth(finding.code, tuple((step, height) for step, height in points), threshold, crossed)


def about_settings(findings: Iterable[Finding]) -> tuple[str, ...]:
    """What findings say of how ranks are set: such differences come and go, and no environment has them."""
    codes = {check.code for check in installed_checks() if check.question == "configuration"}
    return tuple(finding.claim for finding in findings if finding.code in codes and finding.is_grave)


def _differing(watched: WatchedRun) -> tuple[Differing, ...]:
    """What ranks are told apart by, and should not be, with who has which value."""
    return environment_of(watched.run).within


def environment_of(run: Run) -> Environment:
    """What the ranks of a Run are, and in what they differ; hyper-parameters of the optimizer by what they were at the
    same steps.
    """
    digests, measured = run.digests("optimizer_digest")
    differing = bool(digests.size) and bool(differs(digests, measured).any())
    table = environment(run.manifest, run.env, optimizer_alike=bool(measured.any()) and not differing)
    step = first_step_of_unequal_rates(run) if differing else None
    if step is None:
        return table
    rates = {rank: rates.tolist() for (_, rank), rates in sorted(run.lists("lr", steps=[step]).items())}
    of_group = zip_longest(*rates.values(), fillvalue="(absent)")
    rows = [
        Differing(f"lr of group {group} at step {step}", holders(dict(zip(rates, map(str, values), strict=True))))
        for group, values in enumerate(of_group)
        if len(set(values)) > 1
    ]
    return replace(table, within=(*rows, *table.within))


def _readings(watched: WatchedRun, accused: tuple[int, ...], step: int | None) -> tuple[Reading, ...]:
    """What the accused, and the others, had at a step: the settings that change, and what was measured first."""
    steps, ranks = watched.run.steps, watched.run.ranks
    at = -1 if step is None else int(np.searchsorted(steps, step))
    if not 0 <= at < steps.size or steps[at] != step:
        return ()
    is_accused_N = np.isin(ranks, accused[:_MAX_SAMPLED_RANKS])
    if not is_accused_N.any():
        return ()
    readings: list[Reading] = []
    for title, values_N in _numbers_at(watched, at):
        if np.isnan(values_N[is_accused_N]).all():
            continue
        others_N = values_N[~np.isin(ranks, accused)]
        readings.append(
            Reading(
                title,
                ", ".join(
                    f"rank {rank}: {number(value)}"
                    for rank, value, is_accused in zip(ranks, values_N, is_accused_N, strict=True)
                    if is_accused
                ),
                number(float(np.nanmedian(others_N))) if np.isfinite(others_N).any() else "",
            )
        )
    return tuple(readings[:_MAX_READINGS])


def _numbers_at(watched: WatchedRun, at: int) -> Iterator[tuple[str, np.ndarray]]:
    """Titles and values [N] of what the ranks had at the step of a place: first the learning rate."""
    step = int(watched.run.steps[at])
    rates = {rank: rates_G[0] for (_, rank), rates_G in watched.run.lists("lr", steps=[step]).items() if len(rates_G)}
    if rates:
        yield "Learning rate", np.array([rates.get(rank, np.nan) for rank in watched.run.ranks])
    for signal in signals_of(watched).signals:
        if signal.of == "rank" and not signal.group:
            yield signal.title, values_of(watched, signal.key)[0][at]


def _recorded(watched: WatchedRun, sites: list[str]) -> tuple[RecordedPlace, ...]:
    steps = set(watched.run.record_steps.tolist())
    sites_recorded: list[RecordedPlace] = []
    for text in dict.fromkeys(sites):
        try:
            site = Site.parse(text)
        except SiteError:
            continue
        if site.step in steps:
            sites_recorded.append(RecordedPlace(text, site.step, site.rank, f"{site.phase}/{site.name}#{site.call}"))
    return tuple(sites_recorded)
