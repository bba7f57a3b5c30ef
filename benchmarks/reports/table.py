"""The page of results, and the list of what is not said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.page import table
from benchmarks.reports.catalogue import HALVES, PEER, PEER_REPORTS, SECOND, THIRD, Peer, Report
from benchmarks.reports.trial import Tried

INTRODUCTION = """\
Public reports of faults that no training stops at, written down with a small job of our own each, its repaired twin,
and what a good first screen would say, before anything was tried on them. *Said* is a report of whose words (`words`
in its file) one line of the first screen of `trueline check` has one of each list: the verdict, a finding, or what is
to confirm. *In `facts`* is one that only a line of `trueline facts` tells. A twin is *accused* where its exit code is
1; every line to confirm about a twin counts as a wrong one. The half of a report is in the digest of its name: those
that are *held* were not looked at while checks were built. Tried for the first time, at commit 05008203, 8 of the 31
held ones were said; what the others miss was built then, so that they are open by now. Those of the *second* set were
written down before that was begun, and looked at after it: their first run is what the page has. So were those of the
*third*, by somebody who had read no law, after the second set was open."""
PEER_INTRODUCTION = """## The 18 of TrainCheck

[TrainCheck](https://github.com/OrderLab/TrainCheck) (OSDI '25) learns invariants of healthy runs and names 18 silent
errors that it detects with them; its artifact supports 15. Of each that is of no half there is a job of the same
mechanism here too, with words that were fixed before it was tried, and nothing but its own Run is looked at: no healthy
run is learned from. What needs two GPUs or a library that no CPU has is imitated, and its job says so. *First* is what
was said when the set was tried for the first time, before anything was built for it."""
LIMIT = 160


def page(reports: Sequence[Report], trials: Iterable[Tried], head: str, peer: Peer | None = None) -> str:
    """The page in Markdown; a report that was not tried has no result."""
    everything = {tried.id: tried for tried in trials}
    in_set = {report.id for report in reports if report.set == PEER}
    by_id = {name: tried for name, tried in everything.items() if name not in in_set}
    of_peer = [report for report in reports if report.id in PEER_REPORTS]
    reports = [report for report in reports if report.set != PEER]
    sums = [_sums(name, [tried for tried in by_id.values() if tried.half == name]) for name in (*HALVES, SECOND, THIRD)]
    figures = table(
        ["half", "reports tried", "said", "accused of something else", "nothing said", "of these in `facts`",
         "job or check broke", "twins accused", "twins with lines to confirm", "such lines"],
        [row for row in sums if row[1]],
        right=range(1, 10),
    )  # fmt: skip
    rows = [_row(report, by_id[report.id]) for report in reports if report.id in by_id]
    listed = table(["report", "half", "mechanism", "first line of the screen", "said", "twin"], rows)
    untried = [report.id for report in reports if report.id not in by_id]
    parts = [head, INTRODUCTION, figures, listed]
    if untried:
        parts.append(f"Not tried yet: {len(untried)} of {len(reports)}.")
    if peer is not None:
        parts += _peer_parts(of_peer, everything, peer)
    return "\n\n".join(parts) + "\n"


def unsaid(reports: Sequence[Report], trials: Iterable[Tried]) -> str:
    """Each report that is not said, with the first screen of its job; then what is said wrongly of twins."""
    by_id = {report.id: report for report in reports}
    parts = ["# Not said"]
    trials = list(trials)
    for tried in (tried for tried in trials if not tried.said):
        report = by_id[tried.id]
        screen = "\n".join(f"> {text}" for text in [tried.fault.broke] * bool(tried.fault.broke) or tried.fault.lines)
        source = f"{report.title} ({report.url})"
        parts += [f"## {report.id}", source, report.mechanism, f"Good: {report.good}", screen]
    parts.append("# Twins")
    for tried in (tried for tried in trials if tried.twin.broke or tried.twin_accused or tried.wrong_lines):
        lines = [tried.twin.broke] if tried.twin.broke else tried.wrong_lines
        parts.append(
            "\n".join([f"## {tried.id}: exit code {tried.twin.exit_code}", "", *(f"- {text}" for text in lines)])
        )
    parts.append("# Said")
    for tried in (tried for tried in trials if tried.said):
        cause = f" (cause: {tried.fault.causes[0]})" if tried.fault.causes else ""
        parts.append(f"- {tried.id}: {tried.said[0]}{cause}")
    return "\n\n".join(parts) + "\n"


def _peer_parts(reports: Sequence[Report], by_id: Mapping[str, Tried], peer: Peer) -> list[str]:
    tried = [by_id[report.id] for report in reports if report.id in by_id]
    said, wrong = [row for row in tried if row.said], [row for row in tried if row.wrong_lines]
    figure = (
        f"First (commit {peer.commit}): {len(peer.said)} of {peer.tried} said. Now {len(said)} of {len(tried)} said, "
        f"and {len(wrong)} of their twins have a line; {len(reports) - len(tried)} of the 18 are held."
    )
    rows = [_peer_row(report, by_id.get(report.id), peer) for report in reports]
    header = ["report", "mechanism", "first", "now", "what is said, or what is not looked at", "twin"]
    return [PEER_INTRODUCTION, figure, table(header, rows)]


def _peer_row(report: Report, tried: Tried | None, peer: Peer) -> list[str]:
    link = f"[{report.id.removeprefix('traincheck-')}]({report.url})"
    if tried is None:
        return [link, "", "–", "held", "", ""]
    first = "–" if report.half == HALVES[1] else "yes" if report.id in peer.said else "no"
    line = (tried.said or [peer.not_looked_at.get(report.id, tried.fault.first)])[0]
    return [link, report.mechanism, first, _answer(tried), _cell(line), _healthy(tried)]


def _sums(name: str, trials: list[Tried]) -> list[str | int]:
    broke = [tried for tried in trials if tried.fault.broke or tried.twin.broke]
    said = [tried for tried in trials if tried.said]
    otherwise = [tried for tried in trials if not tried.said and tried.accused_otherwise]
    broken = [tried for tried in trials if tried.fault.broke]
    nothing = [tried for tried in trials if tried not in [*said, *otherwise, *broken]]
    confirmed = [tried for tried in trials if tried.twin.to_confirm]
    return [
        name,
        len(trials),
        len(said),
        len(otherwise),
        len(nothing),
        sum(bool(tried.facts) for tried in nothing),
        len(broke),
        sum(tried.twin_accused for tried in trials),
        len(confirmed),
        sum(len(tried.twin.to_confirm) for tried in trials),
    ]


def _row(report: Report, tried: Tried) -> list[str]:
    cells = [f"[{report.id}]({report.url})", report.half, report.mechanism]
    line = (tried.said or tried.facts or [tried.fault.first])[0]
    return [*cells, _cell(line), _answer(tried), _healthy(tried)]


def _answer(tried: Tried) -> str:
    return (
        "yes" if tried.said else "something else" if tried.accused_otherwise else "in `facts`" if tried.facts else "no"
    )


def _healthy(tried: Tried) -> str:
    if tried.twin.broke:
        return "broke"
    if not tried.wrong_lines:
        return "silent"
    return _cell(f"{'accused: ' if tried.twin_accused else 'to confirm: '}{tried.twin.first}")


def _cell(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= LIMIT else f"{flat[: LIMIT - 1]}…"
