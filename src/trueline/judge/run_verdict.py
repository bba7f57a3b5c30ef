"""The verdict on a Run: whether a fault was found, on which ranks, since which step, or why that is unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from trueline.judge.incidents import Incident, is_told
from trueline.schema.finding import UNUSUAL, WATCH_DEGRADED, Finding
from trueline.schema.judged import FEWEST_STEPS_OF_ONE, TOPICS, AskedQuestion, Judged, Verdict
from trueline.schema.text.words import by_reason, counted, listed, uncapitalized

MOST_TO_CONFIRM = 5
"""Things to confirm that a screen has: more are not read."""
_ASIDE = re.compile(r" \([^()]*\)")
_TAIL = re.compile(r": |; |\. |, (?:as|so|while|though|but) ")
"""Where a claim begins to list or to explain."""
_FEWEST_SPACES = 3
"""Between the words of a head: one of fewer says nothing, as ``The model``."""


def to_confirm(findings: Iterable[Finding]) -> list[Finding]:
    """What a person is to confirm, one finding an id: contradictions first, then what the fewest healthy trainings
    show. What a fault that was found brings with it is none.
    """
    findings = list(findings)
    grave = [finding for finding in findings if finding.is_grave]
    to_ask = (finding for finding in findings if finding.severity == "confirm" and not is_told(finding, grave))
    by_id = {finding.id: finding for finding in to_ask}
    return sorted(by_id.values(), key=lambda finding: (finding.code == UNUSUAL, finding.expected or 0.0))


def verdict_of(
    findings: Sequence[Finding], incidents: Sequence[Incident], coverage: Judged, where: str = ""
) -> Verdict:
    """Verdict of all findings together, and whether enough was judged for none to mean that there is no fault.
    ``where`` says on which ranks the first of the incidents is, and since when.
    """
    if incidents:
        first = incidents[0]
        num_grave = sum(finding.is_grave for finding in findings)
        in_incidents = f" in {len(incidents)} incidents" if len(incidents) > 1 else ""
        rest = f"{'; ' if where else ': '}{counted(num_grave, 'finding')}{in_incidents}"
        return Verdict("out" if first.severity == "error" else "suspect", where, rest)
    if not coverage.enough:
        return Verdict("unknown", "", _lack(coverage))
    # "Nothing found" says little where watching stopped early: what it no longer saw may be wrong.
    stops = [finding for finding in findings if finding.code == WATCH_DEGRADED]
    early = next((finding for finding in stops if not _in_the_second_half(finding, coverage)), None)
    if early is not None:
        return Verdict("unknown", "", f": {early.claim[:1].lower()}{early.claim[1:].rstrip('.')}")
    alone = ""
    if coverage.world_size == 1 and coverage.num_steps:
        alone = ". Comparisons between ranks do not apply"
    elif coverage.world_size > 1 and coverage.of("not-applicable", among=("workers",)):
        alone = ". Comparisons between workers do not apply"
    stop_text = f". Watching stopped in part at step {stops[0].step_first}" if stops else ""
    # of one process a reader need not be told that it has no other
    brief_alone = "" if coverage.world_size == 1 else alone
    rest, brief_rest = (
        f"{_scope(coverage)}{_confirm(findings, shorten)}{clause}{_left_open(coverage)}{stop_text}"
        for shorten, clause in ((_short, alone), (_head, brief_alone))
    )
    return Verdict("clear", "", rest, confirm=bool(to_confirm(findings)), brief_rest=brief_rest)


def _confirm(findings: Sequence[Finding], shorten: Callable[[Finding], str]) -> str:
    """``; 1 thing to confirm: a token in …``: of each what ``shorten`` leaves of its claim."""
    claims = [shorten(finding) for finding in to_confirm(findings)]
    # A semicolon stands between two things, and within none.
    texts = list(dict.fromkeys(uncapitalized(claim).replace("; ", ", ") for claim in claims))
    more = f"; and {len(texts) - MOST_TO_CONFIRM} more" if len(texts) > MOST_TO_CONFIRM else ""
    listed_texts = "; ".join(texts[:MOST_TO_CONFIRM]) + more
    return f"; {counted(len(texts), 'thing')} to confirm: {listed_texts}" if texts else ""


def _head(finding: Finding) -> str:
    """The claim up to its tail, which stands below, without what is in brackets."""
    claim = _ASIDE.sub("", _short(finding))
    ends = (tail.start() for tail in _TAIL.finditer(claim) if claim.count(" ", 0, tail.start()) >= _FEWEST_SPACES)
    return claim[: next(ends, None)]


def _short(finding: Finding) -> str:
    """The claim without its reason, or its base rate."""
    # A fact is told whole: what is unusual of it may stand behind a colon.
    reason = r"\. .*|\." if finding.code == UNUSUAL else r": .*|\. .*|\."
    return re.sub(rf"^(Model \S+: )?(.*?)({reason})?$", r"\1\2", finding.claim, flags=re.S)


def _in_the_second_half(finding: Finding, coverage: Judged) -> bool:
    """True if a part of the watching stopped only then, and rows go on: what came before was watched whole."""
    if finding.step_first is None or coverage.steps is None:
        return False
    first, last = coverage.steps
    return (first + last) / 2 <= finding.step_first <= last


def _scope(coverage: Judged) -> str:
    """`` in 150 steps of 4 ranks``, ``of one process``, `` so far in`` them where the Run was not closed; nothing for
    records alone.
    """
    if not coverage.num_steps:
        return ""
    so_far = " so far" if coverage.unclosed and not coverage.killed else ""
    how_ended = ", before the job was killed, or ended without closing its Run" if coverage.killed else ""
    left_out = f"{len(coverage.ranks)} of {coverage.world_size} ranks"
    ranks = counted(coverage.world_size, "rank") if len(coverage.ranks) == coverage.world_size else left_out
    ranks = "one process" if coverage.world_size == 1 else ranks
    return f"{so_far} in {counted(coverage.num_steps, 'step')} of {ranks}{how_ended}"


def _left_open(coverage: Judged) -> str:
    """``. Not tested: token order (no token stands twice in a row). Partly: data sharding (…)``: what and why."""
    open_topics, partly = _topics(coverage.of("open")), _topics(coverage.of("partly"))
    return (f". Not tested: {open_topics}" if open_topics else "") + (f". Partly: {partly}" if partly else "")


def _topics(questions: Sequence[AskedQuestion]) -> str:
    """Topics of the questions, and in brackets why there is no answer; topics with one reason stand together."""
    pairs = [(TOPICS[question.question], _why(question)) for question in questions]
    return "; ".join(f"{', '.join(topics)} ({why})" if why else ", ".join(topics) for topics, why in by_reason(pairs))


def _why(question: AskedQuestion) -> str:
    """Why most checks of the question have no answer, up to where the reason begins to list examples."""
    whys = [entry.why for entry in question.checks_not_run if entry.lacks]
    return max(whys, key=whys.count).split(": ")[0] if whys else ""


def _lack(coverage: Judged) -> str:
    """Why nothing can be told, as it stands behind ``Cannot tell``."""
    if coverage.failed:
        looks = "looks" if len(coverage.failed) == 1 else "look"
        return (
            f": {listed(coverage.failed)} could not be run, and nobody looked at what it {looks} for; the other checks "
            f"found nothing{_scope(coverage)}"
        )
    if coverage.of("open", among=("reference",)):
        return ": it could not be compared with the reference"
    if not coverage.num_steps:
        for rollouts in coverage.of("partly", among=("rollouts",)):
            ran, all_of = len(rollouts.checks_run), len(rollouts.checks_run) + len(rollouts.checks_not_run)
            return f": {ran} of {all_of} checks of rollouts had what they need; these found nothing"
        return ": no step was recorded"
    if coverage.world_size == 1 and coverage.num_steps < FEWEST_STEPS_OF_ONE:
        steps = counted(coverage.num_steps, "step")
        verb = "is" if coverage.num_steps == 1 else "are"
        return f": {steps} of one process {verb} too few; it takes {FEWEST_STEPS_OF_ONE}"
    if coverage.world_size > 1 and len(coverage.ranks) < 2:
        return f": no two of {coverage.world_size} ranks could be compared with each other"
    return f". Not tested: {_topics(coverage.of('open', among=coverage.main))}"
