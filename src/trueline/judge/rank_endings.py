"""Ends of a Run on each rank: closed, by an exception, killed, or still being written; and which ranks stopped before
the others.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Literal

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.schema.files.run_lock import living, owner_left
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.finding import JOB_DIED, Finding
from trueline.schema.text.words import capitalized, ranks_text
from trueline.store.reader import Run

End = Literal["running", "killed", "unknown"]
_WORDS: dict[End, str] = {
    "running": "the job may still be running",
    "killed": "killed, or ended without a chance to close it",
    "unknown": "killed, or still running",
}


def ends_of(run: Run, *, part: bool) -> list[str]:
    """A line for the ranks that an exception ended, one for those that did not close the Run and still run, one for
    those that were killed, and one for closed ranks whose rows end before those of the others. Workers that ``part``
    made other numbers of updates, so that their last steps tell nothing.
    """
    last = {rank: run.last_steps.get(rank) for rank in dict.fromkeys([*data_parallel_ranks(run), *run.unclosed])}
    unclosed: dict[End, list[int]] = {}
    for rank in run.unclosed:
        unclosed.setdefault(_end(run, rank), []).append(rank)
    if part:  # the last steps of workers with other numbers of updates cannot be compared: all count as the latest
        last = dict.fromkeys(last, max((step for step in last.values() if step is not None), default=None))
    lines = _raised(run, last)
    lines += [_not_closed(ranks, [last[rank] for rank in ranks], _WORDS[end]) for end, ranks in unclosed.items()]
    return lines + _early({rank: step for rank, step in last.items() if rank not in run.unclosed}, last)


ASKED_FOR = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which somebody, or a scheduler, ends a job that is well."""
ENDED = ("KeyboardInterrupt", "SystemExit", "TrainingStopped", "GeneratorExit")
"""Exceptions by which somebody ends a job that is well."""


def death_of(run: Run) -> tuple[Finding, ...]:
    """Finding that the job died, on which rank first, and where; () where it runs, was closed, or was ended. Where all
    ranks were killed at once, `trueline run` knows how its command ended, or nobody does: a scheduler that ends a job
    leaves no more than that.
    """
    raised = _in_order(run)
    killed = [rank for rank in run.unclosed if _end(run, rank) == "killed"]
    closed = [rank for rank, env in run.env.items() if rank not in run.unclosed and not env.raised]
    if raised:
        if raised[0].raised.split()[0] in ENDED:
            return ()
        ranks, (claim,) = (raised[0].rank,), _raised(run, run.last_steps)
        todo = f"Read what {ranks_text(ranks)} printed last: the traceback there says why."
    elif killed and closed:
        ranks = tuple(killed)
        claim = _not_closed(killed, [run.last_steps.get(rank) for rank in killed], _WORDS["killed"])
        todo = f"Ask the system of {ranks_text(ranks)} who killed it: `dmesg` where memory ran out, else the scheduler."
    elif killed and (how := _how_killed(run)):
        ranks = tuple(killed)
        claim = _not_closed(killed, [run.last_steps.get(rank) for rank in killed], how)
        todo = "Read what the job printed last, and ask the system who ended it: `dmesg` where memory ran out."
    else:
        return ()
    last = max((step for rank in ranks if (step := run.last_steps.get(rank)) is not None), default=None)
    death = Finding(
        code=JOB_DIED,
        severity="error",
        claim=f"The job died: {claim[:1].lower()}{claim[1:]}",
        ranks=ranks,
        step_first=last,
        step_last=last,
        false_alarm_rate=0.0,
        next=(todo,),
    )
    return (death,)


def _how_killed(run: Run) -> str:
    """End of a command of which no rank closed the Run, in words; '' where nobody knows, it was asked to end, or
    it ended with exit code 0.
    """
    end = run.manifest.ended
    if end is None or end.passed_on or not all_killed(run):
        return ""
    number = -end.status if end.status < 0 else end.status - 128  # as shells and `timeout` tell of it
    if number in ASKED_FOR or not end.status:
        return ""
    if number == signal.SIGKILL:
        return "killed by SIGKILL, as the system does where memory ran out"
    if number in {*signal.Signals}:
        return f"ended by {signal.Signals(number).name}"
    return f"killed, or ended at once; the command's exit code is {end.status}"


def all_killed(run: Run) -> bool:
    """True if no rank closed the Run, and none runs: the job was killed or ended from outside, or left at once."""
    return set(run.unclosed) >= set(run.env) and all(_end(run, rank) == "killed" for rank in run.unclosed)


def has_ended(run: Run) -> bool:
    """True if nobody writes the Run any more: every rank has closed it or was killed, or it was imported. Of one that
    lies elsewhere nobody knows that a rank was killed.
    """
    if run.manifest.ended is not None or run.manifest.source:
        return True
    return bool(run.env) and all(_end(run, rank) == "killed" for rank in run.unclosed)


def _end(run: Run, rank: int) -> End:
    """``unknown`` where no owner is named: a Run from elsewhere, or of a version that did not name any."""
    if "://" in run.path or not owner_left(run.path, rank):
        return "unknown"
    return "killed" if living(run.path, rank=rank) is None else "running"


def _in_order(run: Run) -> list[RankEnv]:
    """The ranks that raised, in the order in which they did."""
    begins_ns = _last_common_ns(run)
    raised = [env for env in run.env.values() if env.raised]
    return sorted(raised, key=lambda env: env.raised_ns - begins_ns.get(env.rank, 0))


def _raised(run: Run, last: Mapping[int, int | None]) -> list[str]:
    """One line of what ended the training on which ranks, in the order in which they raised: those that were left
    waiting for one often raise too, of the connection.
    """
    by_cause: dict[str, list[int]] = {}
    for env in _in_order(run):
        step = last.get(env.rank)
        after = "before its first step" if step is None else f"after step {step}"
        by_cause.setdefault(f"{env.raised} {after}", []).append(env.rank)
    lines = [f"{ranks_text(ranks)} raised {cause}" for cause, ranks in by_cause.items()]
    if quiet := [rank for rank, env in run.env.items() if not env.raised and rank not in run.unclosed]:
        lines.append(f"{ranks_text(quiet)} ended without an exception")
    return [f"{capitalized('; '.join(lines))}."] if by_cause else []


def _last_common_ns(run: Run) -> dict[int, int]:
    """When each rank ended the last step that all of them did, by its own clock: an update follows a reduction, in
    which all ranks meet, and the clocks of two machines may be an hour apart. None where there is no such step.
    """
    raised = [rank for rank, env in run.env.items() if env.raised]
    common = min((run.last_steps.get(rank, -1) for rank in raised), default=-1)
    if common < 0:
        return {}
    time_N, known_N = (values[run.steps.searchsorted(common)] for values in run.pivot("time_ns"))
    columns = {rank: run.ranks.index(rank) for rank in raised}
    are_known = all(known_N[column] for column in columns.values())
    return {rank: int(time_N[column]) for rank, column in columns.items()} if are_known else {}


def _not_closed(ranks: Sequence[int], last: Sequence[int | None], how: str) -> str:
    steps = sorted({step for step in last if step is not None})
    if not steps:
        at = "without a step"
    elif len(steps) == 1:
        at = f"last step {steps[0]}"
    else:
        at = f"last steps {steps[0]} to {steps[-1]}"
    return f"{capitalized(ranks_text(ranks))} did not close this Run ({at}): {how}."


def _early(closed: dict[int, int | None], last: dict[int, int | None]) -> list[str]:
    latest = max((step for step in last.values() if step is not None), default=None)
    if latest is None:
        return []
    early: dict[int | None, list[int]] = {}
    for rank, step in closed.items():
        if step is None or step < latest:
            early.setdefault(step, []).append(rank)
    return [_early_text(ranks, step, latest) for step, ranks in early.items()]


def _early_text(ranks: Sequence[int], step: int | None, latest: int) -> str:
    verb = "has" if len(ranks) == 1 else "have"
    rows = "no rows" if step is None else f"rows up to step {step} only"
    return f"{capitalized(ranks_text(ranks))} {verb} {rows}, others go on to step {latest}."
