"""Which framework setting a finding needs: the job itself, run with settings switched off.

The rule, fixed before the first run. Arms: ``base``, the job as it is; ``sham``, the same with all that switches
settings in place and none switched; ``off``, all of them off; then patterns of switches on and off. First ``base`` and
``sham`` must show the finding. Then ``Search`` runs the pattern that is expected to tell most until one hypothesis (one
switch, two needed together, two of which each suffices, none of them) has a probability of 1 - error / 4; every sixth
run is a ``base`` again. At last each side of it is run by itself: without what is needed it is gone, with nothing else
it is there. An arm that says otherwise beyond a share of the other half of the error is run again beside ``base``, and
leaves the trial undecided where it says so still.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trueline.schema.text.words import counted
from trueline.trials.frame.chance import Counts, decided, log_odds_present, most_rate
from trueline.trials.frame.runs import OutOfRuns, Runs, Way
from trueline.trials.frame.trial import TrialAnswer, Undecided, rate_of
from trueline.trials.knobs.catalogue import Switch
from trueline.trials.knobs.search import Hypothesis, Pattern, Search

Item = TypeVar("Item")

BASE, SHAM, OFF = "base", "sham", "off"
CONTROL_EVERY = 6
"""One run of so many is the job as it is, which must go on showing the finding: machines drift."""
PATIENCE = 15
"""Blocks of base, sham and off without it after which it is said not to occur."""
SECOND_LOOK = 4
"""Runs more, of base and of an arm that says otherwise, before that is believed."""
LEAST_SHOWN = 3
"""Runs of the job as it is that must have shown it before it is searched for, where not all did."""

_PASSES = 0.03
"""Error of passing a side of what is verified: a wrong answer must pass all of them and the search."""


@dataclass
class KnobTrial:
    """Runs the job through ``runs``. ``find`` returns which switches it has on, once the first ``sham`` has run;
    ``way`` is the job with these off.
    """

    runs: Runs
    question: str
    find: Callable[[], Sequence[Switch]]
    way: Callable[[str, Sequence[Switch]], Way]
    error: float = 0.05
    seed: int = 0
    left_on: list[str] = field(default_factory=list[str])
    """Switches without which the job does not run."""
    _switches: list[Switch] = field(default_factory=list[Switch])
    _search: Search = field(default_factory=lambda: Search([1.0]))
    _since_control: int = 0
    _looked_at: set[Pattern | str] = field(default_factory=set[Pattern | str])

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            self._endpoints()
            hypothesis = self._searched_and_verified()
        except Undecided as why:
            likely = self._what_is_left() if isinstance(why, OutOfRuns) else ()
            return self._answered("undecided", [why.says, *likely], why.then)
        if hypothesis.how == "elsewhere":
            names = ", ".join(switch.name for switch in self._switches)
            says = f"With all of these off the finding is still there, so none of them is needed for it: {names}."
            return self._answered("excluded", [says])
        return self._answered("confirmed", list(self._says(hypothesis)), self._advice(hypothesis))

    # -- endpoints --------------------------------------------------------------------------------------------------

    def _endpoints(self) -> None:
        self.runs.entry_with_outcome(self.way(SHAM, ()))
        self._take(list(self.find()))
        while self.runs.counts(BASE, SHAM).showed or self.runs.counts(BASE).runs < PATIENCE:
            for arm in self._shuffled(BASE, SHAM, OFF):
                self._run_pattern((False,) * len(self._switches)) if arm == OFF else self._control(arm)
            if self._is_shown():
                return
        counts = self.runs.counts(BASE, SHAM)
        raise Undecided(
            f"The finding was seen in none of {counts.runs} runs of the job as it is: it shows in at most "
            f"{most_rate(counts):.0%} of them.",
            "Run more steps, the same ranks and the same data as where it was found.",
        )

    def _is_shown(self) -> bool:
        """Return whether base and sham show it often enough to go on. Raises ``Undecided`` where sham cures it."""
        base, sham = self.runs.counts(BASE), self.runs.counts(SHAM)
        alike = decided(log_odds_present(sham, present=base, absent=Counts()), error=self.error / 4)
        # a first difference is looked at twice, as base may have shown it by luck
        if alike is False and base.showed and self._second_look(SHAM):
            return self._is_shown()
        if alike is False and base.showed:
            raise Undecided(
                f"With switches in place and none switched it is gone ({sham.showed} of {sham.runs} runs, "
                f"{base.showed} of {base.runs} without them): it depends on timing, and no switch could be blamed.",
                "Look for a race: trueline trial sync.",
            )
        together = base + sham
        return bool(
            base.showed and sham.showed and (together.showed == together.runs or together.showed >= LEAST_SHOWN)
        )

    def _take(self, switches: list[Switch]) -> None:
        if not switches:
            raise Undecided(
                "The job has none of the known settings on that can be switched from outside.",
                "Name what your script has: --knob NAME=VALUE for a variable, --knob=--flag for a word of the command.",
            )
        self._switches = switches
        self._search = Search([switch.prior for switch in switches], seed=self.seed)
        # the sham ran before it was known which switches there are: it counts as all on
        for entry in self.runs.log:
            if entry["showed"] is not None:
                self._search.tell((True,) * len(switches), entry["showed"])

    # -- search and verification ------------------------------------------------------------------------------------

    def _searched_and_verified(self) -> Hypothesis:
        while True:
            hypothesis = self._searched()
            # verifying adds runs, by which another hypothesis may become the likeliest
            if self._verified(hypothesis):
                return hypothesis

    def _searched(self) -> Hypothesis:
        """The hypothesis that has a probability of 1 - error / 4."""
        while True:
            credible = self._search.credible(self.error / 4)
            if len(credible) == 1:
                return credible[0][0]
            pattern = self._search.next()
            if pattern is None:
                raise Undecided(f"No further pattern of switches tells more. {' '.join(self._what_is_left())}")
            self._run_pattern(pattern)
            self._watch_for_drift()

    def _watch_for_drift(self) -> None:
        self._since_control += 1
        if self._since_control < CONTROL_EVERY - 1:
            return
        self._since_control = 0
        self._control(BASE)
        outcomes = [entry["showed"] for entry in self.runs.log if entry["arm"] == BASE and entry["showed"] is not None]
        half = len(outcomes) // 2
        early, late = Counts(half, sum(outcomes[:half])), Counts(len(outcomes) - half, sum(outcomes[half:]))
        if (
            early.showed
            and decided(log_odds_present(late, present=early, absent=Counts()), error=self.error / 8) is False
        ):
            raise Undecided(
                f"The job as it is does not show it any more: {early.showed} of the first {early.runs} runs, "
                f"{late.showed} of the last {late.runs}. Something else than the switches changed meanwhile.",
                "Run the trial on a machine that does nothing else, or lower its load.",
            )

    def _verified(self, hypothesis: Hypothesis) -> bool:
        """Return whether all sides of it are as it says; False where the search has come to doubt it again. Raises
        ``Undecided`` where a side is not, and no other hypothesis explains that.
        """
        sides = list(_sides(hypothesis, len(self._switches)))
        while True:
            side_holds = [self._holds(hypothesis, pattern, shows, len(sides)) for pattern, shows in sides]
            if all(side_holds):
                return True
            if [likely for likely, _ in self._search.credible(self.error / 4)] != [hypothesis]:
                return False
            if False in side_holds:
                pattern, shows = sides[side_holds.index(False)]
                if self._second_look(pattern):
                    continue
                counts = self._search.counts[pattern]
                raise Undecided(
                    f"{self._arm_name(pattern)}: {counts.showed} of {counts.runs} runs show it, where "
                    f"{'all' if shows else 'none'} should by {hypothesis.says(self._names)}, and no one or two of the "
                    "switches explain that.",
                )
            for pattern, _ in self._shuffled(
                *(side for side, holds in zip(sides, side_holds, strict=True) if not holds)
            ):
                self._run_pattern(pattern)
            self._watch_for_drift()

    def _second_look(self, pattern: Pattern | str) -> bool:
        """Run a pattern (or the sham) that says otherwise again beside base, once, and return whether that was done:
        how often base shows it may only have been known too well, by luck.
        """
        if pattern in self._looked_at:
            return False
        self._looked_at.add(pattern)
        for _ in range(SECOND_LOOK):
            for arm in self._shuffled(BASE, pattern):
                self._control(arm) if isinstance(arm, str) else self._run_pattern(arm)
        return True

    def _holds(self, hypothesis: Hypothesis, pattern: Pattern, shows: bool, sides: int) -> bool | None:
        """Return whether runs of a pattern show it, as they should by ``hypothesis``, or do not; None while that is
        open.
        """
        all_off = (False,) * len(self._switches)
        counts = self._search.counts.get(pattern, Counts())
        present, absent = self._search.split(hypothesis, without=pattern)
        log_odds = log_odds_present(counts, present=present, absent=absent)
        # turned so that positive always means that the side holds
        log_odds = log_odds if shows else -log_odds
        if decided(log_odds, error=self.error / 2 / sides) is False:
            return False
        # where not every run with the cause shows it, a single one may be a false alarm
        if shows and counts.showed < 2 and present.showed < present.runs:
            return None  # one may be a false alarm
        return decided(log_odds, error=self.error / 4 if pattern == all_off and shows else _PASSES)

    # -- runs -------------------------------------------------------------------------------------------------------

    def _control(self, arm: str) -> None:
        showed = self.runs.outcome(self.way(arm, ()))
        if showed is not None:
            self._search.tell((True,) * len(self._switches), showed)

    def _run_pattern(self, is_on_by_switch: Pattern) -> None:
        """Run with some off. Where the job does not run so, the switch to blame is found and left on from then on."""
        switches_off = [switch for switch, is_on in zip(self._switches, is_on_by_switch, strict=True) if not is_on]
        showed = self.runs.outcome(self.way(self._arm_name(is_on_by_switch), switches_off))
        if showed is not None:
            self._search.tell(is_on_by_switch, showed)
            return
        # else the search would ask for it again, as no outcome tells it apart
        self._search.bar(is_on_by_switch)
        while len(switches_off) > 1:
            half = switches_off[: len(switches_off) // 2]
            pattern = tuple(switch not in half for switch in self._switches)
            showed = self.runs.outcome(self.way(self._arm_name(pattern), half))
            if showed is not None:
                self._search.tell(pattern, showed)
            # the half that does not run holds the switch to blame; else the other one does
            switches_off = half if showed is None else switches_off[len(switches_off) // 2 :]
        self._leave(switches_off[0])

    def _leave(self, switch: Switch) -> None:
        index = self._switches.index(switch)
        self.left_on.append(f"{switch.name}: {self.runs.last_why()}")
        rest = [other_switch for other_switch in self._switches if other_switch is not switch]
        if not rest:
            raise Undecided(f"The job does not run with {switch.name} off: {self.runs.last_why()}.")
        counts_by_pattern, self._switches = self._search.counts, rest
        self._search = Search([other_switch.prior for other_switch in rest], seed=self.seed)
        for pattern, counts in counts_by_pattern.items():
            for number in range(counts.runs if pattern[index] else 0):
                # runs with the switch on hold for the search without it; those with it off do not
                self._search.tell((*pattern[:index], *pattern[index + 1 :]), number < counts.showed)

    def _arm_name(self, pattern: Pattern) -> str:
        """``off`` for all off, ``off: a, b`` or ``on: c`` for some."""
        names = [switch.name for switch in self._switches]
        on_names = [name for name, is_on in zip(names, pattern, strict=True) if is_on]
        off_names = [name for name, is_on in zip(names, pattern, strict=True) if not is_on]
        if not off_names:
            return BASE
        if not on_names:
            return OFF if not self.left_on else f"{OFF}: {', '.join(off_names)}"
        return f"on: {', '.join(on_names)}" if len(on_names) < len(off_names) else f"off: {', '.join(off_names)}"

    def _shuffled(self, *items: Item) -> list[Item]:
        return self._random.sample(items, len(items))

    # -- words ------------------------------------------------------------------------------------------------------

    def _answered(self, answer: str, says: Sequence[str], then: Sequence[str] = ()) -> TrialAnswer:
        counts = self.runs.counts(BASE, SHAM)
        rate = rate_of(counts)
        lines = [*says, *(f"Left on, as the job does not run without it: {line}." for line in self.left_on)]
        return self.runs.end(
            TrialAnswer(
                "knobs",
                self.question,
                answer,  # type: ignore[arg-type]
                tuple(lines),
                self.runs.arms,
                tuple(then),
                tuple(hypothesis.says(self._names) for hypothesis, _ in self._credible()),
                self.error,
                rate,
            )
        )

    @property
    def _names(self) -> list[str]:
        return [switch.name for switch in self._switches]

    def _credible(self) -> list[tuple[Hypothesis, float]]:
        return self._search.credible(self.error) if self._switches else []

    def _what_is_left(self) -> list[str]:
        likely = [f"{hypothesis.says(self._names)} ({chance:.0%})" for hypothesis, chance in self._credible()[:5]]
        return [f"Likeliest: {', '.join(likely)}."] if likely else []

    def _says(self, hypothesis: Hypothesis) -> Iterator[str]:
        names = [self._switches[index].name for index in hypothesis.indices]
        counts_by_pattern = self._search.counts
        if hypothesis.how == "one":
            yield f"The finding needs {names[0]}: with only this off it is gone, with all others off it is there."
        elif hypothesis.how == "and":
            yield f"The finding needs {names[0]} and {names[1]} together: with either off it is gone."
        else:
            yield (
                f"Two faults hide each other: {names[0]} and {names[1]} each show the finding without the other, and "
                "it is gone only with both off."
            )
        for pattern, shows in _sides(hypothesis, len(self._switches)):
            counts = counts_by_pattern[pattern]
            expected = "all" if shows else "none"
            yield f"{self._arm_name(pattern)}: {counts.showed} of {counts.runs} runs show it, expected {expected}."
        probability = self._credible()[0][1]
        among = counted(len(self._switches), "setting")
        yield f"Probability of this answer among {among}: {min(probability, 0.9999):.2%}."

    def _advice(self, hypothesis: Hypothesis) -> tuple[str, ...]:
        switches = [self._switches[index] for index in hypothesis.indices]
        names = " and ".join(switch.name for switch in switches)
        lines = [f"Switch {names} off, and report it where it comes from."]
        if hypothesis.how == "and":
            lines = [f"Switch {switches[0].name} or {switches[1].name} off, and report it where they come from."]
        lines += [f"{switch.name}: {switch.source}" for switch in switches if switch.source]
        return tuple(lines)


def _sides(hypothesis: Hypothesis, size: int) -> Iterator[tuple[Pattern, bool]]:
    """Patterns that each verify one side of ``hypothesis``, with whether the finding must be there."""
    indices = set(hypothesis.indices)
    if hypothesis.how == "elsewhere":
        yield (False,) * size, True
        return
    if hypothesis.how == "and":
        for index in hypothesis.indices:
            yield tuple(other_index != index for other_index in range(size)), False
        yield tuple(other_index in indices for other_index in range(size)), True
        return
    yield tuple(other_index not in indices for other_index in range(size)), False
    for index in hypothesis.indices:
        yield tuple(other_index == index for other_index in range(size)), True
