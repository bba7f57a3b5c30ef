"""The verdict on a Run: whether a fault was found, on which ranks, since which step, or why that is unknown."""

from __future__ import annotations

from collections.abc import Sequence

from trueline.analyze.incidents import Incident
from trueline.schema.finding import WATCH_DEGRADED, Finding
from trueline.schema.judged import QUESTIONS, Asked, Judged, Verdict
from trueline.schema.text.words import counted, listed


def verdict_of(findings: Sequence[Finding], incidents: Sequence[Incident], judged: Judged, where: str = "") -> Verdict:
    """What the findings say together, and whether enough was judged for none to mean that there is no fault. ``where``
    says on which ranks the first of the incidents is, and since when.
    """
    if incidents:
        first = incidents[0]
        num_grave = sum(finding.severity != "info" for finding in findings)
        several = f" in {len(incidents)} incidents" if len(incidents) > 1 else ""
        rest = f"{'; ' if where else ': '}{counted(num_grave, 'finding')}{several}"
        return Verdict("out" if first.severity == "error" else "suspect", where, rest)
    if not judged.enough:
        return Verdict("unknown", "", f": {_lack(judged)}")
    stops = [finding for finding in findings if finding.code == WATCH_DEGRADED]
    early = next((finding for finding in stops if not _in_the_second_half(finding, judged)), None)
    if early is not None:
        return Verdict("unknown", "", f": {early.claim[:1].lower()}{early.claim[1:].rstrip('.')}")
    stopped = f"; watching stopped in part at step {stops[0].step_first}" if stops else ""
    return Verdict("clear", "", f"{_scope(judged)}{_left_open(judged)}{stopped}")


def _in_the_second_half(finding: Finding, judged: Judged) -> bool:
    """Whether a part of the watching stopped only then, and rows go on: what came before was watched whole."""
    if finding.step_first is None or judged.steps is None:
        return False
    first, last = judged.steps
    return (first + last) / 2 <= finding.step_first <= last


def _scope(judged: Judged) -> str:
    """`` in 150 steps of 4 ranks``, `` so far in`` them where the Run was not closed; nothing for records alone."""
    if not judged.num_steps:
        return ""
    so_far = " so far" if judged.unclosed else ""
    left_out = f"{len(judged.ranks)} of {judged.world_size} ranks"
    ranks = counted(judged.world_size, "rank") if len(judged.ranks) == judged.world_size else left_out
    return f"{so_far} in {counted(judged.num_steps, 'step')} of {ranks}"


def _left_open(judged: Judged) -> str:
    partly, still = judged.of("partly"), judged.of("open")
    in_part = f"; judged in part: {_questions(partly)}" if partly else ""
    return in_part + (f"; could not be judged: {_questions(still)}" if still else "")


def _lack(judged: Judged) -> str:
    if judged.failed:
        looks = "looks" if len(judged.failed) == 1 else "look"
        return (
            f"{listed(judged.failed)} could not be run, and nobody looked at what it {looks} for; the other checks "
            f"found nothing{_scope(judged)}"
        )
    if judged.of("open", among=("reference",)):
        return "it could not be compared with the reference"
    if not judged.num_steps:
        for asked in judged.of("partly", among=("rollouts",)):
            ran, all_of = len(asked.checks_run), len(asked.checks_run) + len(asked.checks_not_run)
            return f"{ran} of {all_of} checks of rollouts had what they need; these found nothing"
        return "no step was recorded"
    if judged.world_size == 1:
        seen = judged.of("judged", among=("nonfinite", "jumps", "rollouts"))
        alone = f"; looked at and without a finding: {_questions(seen)}" if seen else ""
        return f"there is one rank, so none could be compared with another{alone}"
    if len(judged.ranks) < 2:
        return f"no two of {judged.world_size} ranks could be compared with each other"
    return f"could not be judged: {_questions(judged.of('open'))}"


def _questions(questions: Sequence[Asked]) -> str:
    return listed([QUESTIONS[asked.question] for asked in questions])
