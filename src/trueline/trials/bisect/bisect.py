"""Since which commit or release a job shows a finding, where runs show it by chance and some of them do not run.

The rule, fixed before the first run. Arms: ``bad`` and ``good``, the ends, both checked out as all commits are, in
random order until ``bad`` has shown it and runs of ``good`` decide that it is not there, by a sequential test with a
quarter of the error. Then the commit is run that best halves what is believed, every sixth time ``bad`` again, until
one commit has a probability of 1 - error / 2; commits that do not run are left out, and named with the one after them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trueline.trials.bisect.commits import Commits
from trueline.trials.bisect.line import Line
from trueline.trials.bisect.releases import Releases
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.chance import Counts, decided, log_odds_present, most_rate
from trueline.trials.frame.runs import JobFails, Runs, Way
from trueline.trials.frame.trial import Answer, TrialAnswer, Undecided, rate_of

GOOD, BAD = "good", "bad"
CONTROL_EVERY = 6
PATIENCE = 15
"""Runs of the bad end without it after which it is said not to occur."""


@dataclass
class BisectTrial:
    """Runs the job through ``runs`` at versions 0 (good) to ``size`` - 1 (bad), as ``way`` says; ``says`` names one,
    and ``clean_up`` is called at the end.
    """

    runs: Runs
    question: str
    size: int
    way: Callable[[str, int], Way]
    says: Callable[[int], str]
    error: float = 0.05
    seed: int = 0
    clean_up: Callable[[], None] = lambda: None
    then: tuple[str, ...] = ("Read its changes: git show.",)
    """What to do with the answer."""
    _line: Line = field(init=False)

    def __post_init__(self) -> None:
        self._line = Line(self.size)
        self._random = random.Random(self.seed)

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            self._endpoints()
            self._search()
        except JobFails as fails:
            end = f"The {fails.arm} end, {self.says(0 if fails.arm == GOOD else self.size - 1)},"
            return self._answered("undecided", [f"{end} comes to no outcome: {fails.why}."], fails.then)
        except Undecided as why:
            return self._answered("undecided", [why.says], why.then)
        finally:
            self.clean_up()
        return self._answered("confirmed", self._evidence(), self.then)

    def _endpoints(self) -> None:
        while True:
            for arm in self._random.sample((BAD, GOOD), 2):
                self._run(self.size - 1 if arm == BAD else 0)
            bad, good = self.runs.counts(BAD), self.runs.counts(GOOD)
            if not bad.showed and bad.runs >= PATIENCE:
                raise Undecided(
                    f"The bad end, {self.says(self.size - 1)}, shows it in none of {bad.runs} runs (in at most "
                    f"{most_rate(bad):.0%}) in a place of its own.",
                    "Is all that it needs there? Files that git does not have are not in a checkout; a release is "
                    "installed without what it depends on.",
                )
            is_present = decided(log_odds_present(good, present=bad, absent=Counts()), error=self.error / 4)
            if is_present:
                raise Undecided(
                    f"The good end, {self.says(0)}, shows it too ({good.showed} of {good.runs} runs).",
                    "Name an older one with --good; if none is good, it is of something else.",
                )
            if is_present is False and (bad.showed >= 3 or bad.showed == bad.runs):
                return

    def _search(self) -> None:
        runs_since_control = 0
        # the other half of the error is that of the ends
        while not self._line.is_settled(self.error / 2):
            self._run(self._line.next())
            runs_since_control += 1
            if runs_since_control == CONTROL_EVERY - 1:
                runs_since_control = 0
                self._control()

    def _control(self) -> None:
        """Run the bad end again. Raises ``Undecided`` where it stops showing it."""
        self._run(self.size - 1)
        outcomes = [entry["showed"] for entry in self.runs.log if entry["arm"] == BAD and entry["showed"] is not None]
        early, late = (
            Counts(len(part), sum(part)) for part in (outcomes[: len(outcomes) // 2], outcomes[len(outcomes) // 2 :])
        )
        log_odds = log_odds_present(late, present=early, absent=Counts())
        if early.showed and decided(log_odds, error=self.error / 8) is False:
            raise Undecided(
                f"The bad end does not show it any more ({late.showed} of the last {late.runs} runs, before "
                f"{early.showed} of {early.runs}): something else changed meanwhile.",
                "Run the trial on a machine that does nothing else.",
            )

    def _run(self, version: int) -> None:
        arm = {0: GOOD, self.size - 1: BAD}.get(version, self.says(version).split()[0])
        showed = self.runs.outcome(self.way(arm, version))
        # an end that told nothing is run again; a version between them is given up
        if showed is not None or arm not in (GOOD, BAD):
            self._line.tell(version, showed)

    def _evidence(self) -> list[str]:
        *before, first = self._line.credible(self.error / 2)
        lines = [f"It shows since {self.says(first)}."]
        if before:
            names = "; ".join(self.says(version) for version in before)
            lines = [f"It shows since {self.says(first)} or one of those before it, which do not run: {names}."]
        # the first bad version and the last good one that was run: what a reader checks
        sides = [first, max(version for version in range(first) if self._line.counts[version].runs)]
        for version in sides:
            counts = self._line.counts[version]
            lines.append(f"{self.says(version)}: {counts.showed} of {counts.runs} runs show it.")
        return lines

    def _answered(self, answer: Answer, says: Sequence[str], then: Sequence[str]) -> TrialAnswer:
        credible = self._line.credible(self.error if answer == "undecided" else self.error / 2)
        return self.runs.end(
            TrialAnswer(
                "bisect",
                self.question,
                answer,
                tuple(says),
                self.runs.arms,
                tuple(then),
                tuple(self.says(version) for version in credible),
                self.error,
                rate_of(self.runs.counts(BAD)),
            )
        )


def prepare(asked: Asked, *, good: str, bad: str | None = None, package: str | None = None) -> Prepared:
    """Since which commit is it there, or which release of a package? Raises ``InputError``."""
    runs = asked.runs_for_finding(good=good, bad=bad, **({} if package is None else {"package": package}))
    if package is None:
        line, kind, then = Commits.between(good, bad, tree=asked.folder / "checkout"), "commit", "git show"
    else:
        releases = asked.folder / "releases"
        line = Releases.between(package, good, bad, folder=releases, words=asked.command)
        kind, then = "release", f"the changelog of {package}; report it there"
    size = len(line.names)
    trial = BisectTrial(
        runs,
        asked.question(f"Since which {kind} is it that"),
        size,
        lambda arm, version: line.way(arm, version, asked.command),
        line.says,
        asked.error,
        asked.seed,
        line.remove,
        (f"Read its changes: {then}.",),
    )
    plan = [*asked.says(), f"{kind.capitalize()}s: {size}, from {line.says(0)} to {line.says(size - 1)}."]
    return asked.prepared(trial, plan, str(6 + size.bit_length()))
