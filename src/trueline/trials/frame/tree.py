"""Which of several causes a finding has: experiments, of which each takes the finding away where some of them are it.

The rule, fixed before the first run. Experiments run in their order, each as long as it would divide the causes that
are left: where it takes the finding away, those are left that it cures, else the others. Whether it does is decided by
a sequential test with an equal share of the error, and ``base`` runs in between. Where ``sham``, which has all in place
and changes nothing, takes it away, timing does, and nothing can be told.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trueline.schema.text.words import listed
from trueline.trials.frame.chance import Counts, decided, log_odds_present, most_rate
from trueline.trials.frame.runs import JobFails, Runs, Way
from trueline.trials.frame.trial import Answer, TrialAnswer, Undecided, rate_of

BASE, SHAM = "base", "sham"
NEVER_AFTER = 7
"""Runs of base without it after which it is taken for one that does not occur: it does in less than 35 %."""


@dataclass(frozen=True)
class Experiment:
    """A change of the job, in words: ``cures`` are the causes whose finding it takes away."""

    name: str
    says: str
    cures: frozenset[str]


@dataclass
class TreeTrial:
    """Runs the job through ``runs``; ``ways`` are the experiments that can be reached, and the sham where it is one of
    them; ``error`` is shared by all. ``causes`` are told apart; of each there is what it ``means``, and ``then``
    what to do, in words; ``to_reach`` is how an experiment is reached that is not.
    """

    runs: Runs
    question: str
    experiments: Sequence[Experiment]
    ways: Mapping[str, Way]
    error: float = 0.05
    seed: int = 0
    causes: tuple[str, ...] = ()
    means: Mapping[str, str] = field(default_factory=dict[str, str])
    then: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    to_reach: str = ""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._causes_left = set(self.causes)
        self._says: list[str] = []

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            self._base()
            self._require_sham()
            for experiment in self.experiments:
                self._try(experiment)
        except Undecided as why:
            return self._answered("undecided", why.says, *why.then)
        if len(self._causes_left) == 1:
            (cause,) = self._causes_left
            self._says.insert(0, f"It is {cause}: {self.means[cause]}.")
            return self._answered("confirmed", "", *self.then[cause])
        return self._answered("undecided", self._not_reached(), *self._ways_wanted())

    def _base(self) -> None:
        counts = self.runs.counts(BASE)
        # two of two, or three of more: the sequential tests need a base that shows it
        while not (counts.showed >= 3 or counts.runs == counts.showed == 2):
            if counts.runs >= NEVER_AFTER and not counts.showed:
                seldom = f"It shows in none of {counts.runs} runs of the job as it is"
                raise Undecided(f"{seldom}, so at most in {most_rate(counts):.0%}.", "Run more steps.")
            self.runs.outcome(Way(BASE))
            counts = self.runs.counts(BASE)

    def _require_sham(self) -> None:
        """Raise where the sham takes the finding away, which can cure nothing."""
        if SHAM in self.ways and not self._stays(SHAM):
            raise Undecided(
                "It is gone as well where all is in place that the trial changes with, and nothing is changed: timing "
                "or watching takes it away.",
                "Tell a race from memory with trueline trial sync.",
            )

    def _try(self, experiment: Experiment) -> None:
        """Narrow what is left, where the experiment can be reached and would divide it."""
        cured = self._causes_left & experiment.cures
        if experiment.name not in self.ways or not cured or cured == self._causes_left:
            return
        try:
            stays = self._stays(experiment.name)
        except JobFails as why:
            self._says.append(f"There is no outcome where {experiment.says}: {why.why}.")
            return
        counts = self.runs.counts(experiment.name)
        how = "It stays" if stays else "It is gone"
        self._says.append(f"{how} where {experiment.says}: {counts.showed} of {counts.runs} runs show it.")
        self._causes_left = self._causes_left - cured if stays else cured

    def _stays(self, arm: str) -> bool:
        """Return whether the finding is there in this arm, which runs in blocks with base, in random order, until that
        is known.
        """
        # a share for each decision that may be made, the sham's among them
        error = self.error / (2 * (len(self.experiments) + (SHAM in self.ways)))
        while True:
            odds = log_odds_present(self.runs.counts(arm), present=self.runs.counts(BASE), absent=Counts())
            decision = decided(odds, error=error)
            if decision is not None:
                return decision
            for block_arm in self._random.sample([arm, BASE], 2):
                self.runs.outcome(self.ways.get(block_arm, Way(BASE)))

    def _open(self) -> list[Experiment]:
        """Experiments that would divide what is left, and cannot be reached."""
        return [
            experiment
            for experiment in self.experiments
            if experiment.name not in self.ways
            and self._causes_left & experiment.cures
            and not self._causes_left <= experiment.cures
        ]

    def _not_reached(self) -> str:
        names = listed([experiment.name for experiment in self._open()])
        return f"No word of the command is known that reaches {names}." if names else "Nothing divides what is left."

    def _ways_wanted(self) -> tuple[str, ...]:
        if not self.to_reach:
            return ()
        return tuple(
            f"Say how {experiment.says}: {self.to_reach.format(experiment.name)}." for experiment in self._open()
        )

    def _answered(self, answer: Answer, remark: str, *then: str) -> TrialAnswer:
        credible = tuple(cause for cause in self.causes if cause in self._causes_left)
        rate = rate_of(self.runs.counts(BASE))
        words = (*self._says, *([remark] if remark else []))
        return self.runs.end(
            TrialAnswer(self.runs.trial, self.question, answer, words, self.runs.arms, then, credible, self.error, rate)
        )
