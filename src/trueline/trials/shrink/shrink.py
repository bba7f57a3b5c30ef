"""The smallest job that still shows a finding.

The rule, fixed before the first run. ``base`` must show the finding. Then each axis (steps, ranks, layers, batch,
sequence, and options that the user names) is halved as long as the smaller job shows it by a quick sequential test, and
all axes again, until none can be halved. What is left is run until it is decided with a tenth of the error, as a wrong
one costs the trial; where it is decided otherwise, the next larger one is. ``base`` runs again every eighth time. The
last job is run with what is known to cure the finding (``twin``), where the user names it: a small size may make a
fault by itself. Where that shows it, too, the next larger job is tried so.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trueline.schema.errors import InputError
from trueline.store.reader import Run
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.chance import Counts, decided, log_odds_present, most_rate
from trueline.trials.frame.runs import OutOfRuns, Runs, Way
from trueline.trials.frame.trial import Answer, TrialAnswer, Undecided, rate_of
from trueline.trials.frame.watched_job import batch_of
from trueline.trials.knobs.catalogue import IN_PROCESS, switch_named, with_off
from trueline.trials.shrink.axes import BATCH, STEPS, Axis, axes_of, sized

BASE, TWIN = "base", "twin"
CONTROL_EVERY = 8
PATIENCE = 10
"""Runs of base without it after which it is said not to occur."""

_QUICK = (0.05, 0.1)
"""Errors of accepting and of rejecting a smaller job on the way; what is accepted is decided again at the end."""

Sizes = dict[str, int]


@dataclass
class ShrinkTrial:
    """Runs the job through ``runs``; ``way`` is how it runs in an arm with these sizes, and cured or not. ``command``
    is how a user runs it so.
    """

    runs: Runs
    question: str
    axes: Sequence[Axis]
    way: Callable[[str, Mapping[str, int], bool], Way]
    command: Callable[[Mapping[str, int]], str]
    has_twin: bool = False
    error: float = 0.05
    _accepted: list[Sizes] = field(default_factory=list[Sizes])
    _rejected: list[Sizes] = field(default_factory=list[Sizes])
    _failed: dict[str, str] = field(default_factory=dict[str, str])
    _runs_since_control: int = 0

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        self._accepted = [{axis.name: axis.now for axis in self.axes}]
        try:
            self._base()
            self._shrink()
            self._settle()
        except OutOfRuns as out:
            while (
                len(self._accepted) > 1 and self.runs.counts(f"smaller: {_sizes_text(self._accepted[-1])}").showed < 2
            ):
                self._accepted.pop()
            if len(self._accepted) == 1:
                return self._answered("undecided", [out.says], out.then)
            return self._smallest(["All runs that were allowed were made: it may be smaller still."])
        except Undecided as why:
            return self._answered("undecided", [why.says], why.then)
        return self._judged()

    def _judged(self) -> TrialAnswer:
        if len(self._accepted) == 1:
            return self._answered("excluded", ["It shows in no smaller job that was tried.", *self._unreached()], ())
        if not self.has_twin:
            alone = "No healthy twin was run, so that the small size may show something of its own: name with"
            return self._smallest([f"{alone} --cured-by what makes the finding go away."])
        try:
            says = self._twinned()
        except OutOfRuns:
            says = ["No run was left for the healthy twin."]
        if len(self._accepted) == 1:
            return self._answered("excluded", [*says, "No smaller job shows only the finding."], ())
        return self._smallest(says)

    # -- runs -------------------------------------------------------------------------------------------------------

    def _base(self) -> None:
        while (counts := self.runs.counts(BASE)).showed < 2:
            if not counts.showed and counts.runs >= PATIENCE:
                raise Undecided(
                    f"The job as it is shows it in none of {counts.runs} runs (in at most {most_rate(counts):.0%}).",
                    "Run more steps, the same ranks and the same data as where it was found.",
                )
            self.runs.outcome(self.way(BASE, self._accepted[0], False))

    def _shrink(self) -> None:
        shrank = True
        while shrank:
            shrank = False
            for axis in self.axes:
                while (value := axis.smaller(self._accepted[-1][axis.name])) is not None:
                    sizes = self._accepted[-1] | {axis.name: value}
                    # another round over all axes comes by sizes that were tried
                    if sizes in self._rejected:
                        break
                    if not self._shows(sizes, cured=False):
                        self._rejected.append(sizes)
                        break
                    self._accepted.append(sizes)
                    shrank = True

    def _settle(self) -> None:
        """Give up sizes that do not show it after all."""
        # what is left was accepted by a quick test, whose error of 5 % is not that of the trial
        sure = (self.error / 10, self.error / 10)
        while len(self._accepted) > 1 and not self._shows(self._accepted[-1], cured=False, errors=sure):
            self._accepted.pop()

    def _shows(self, sizes: Sizes, *, cured: bool, errors: tuple[float, float] = _QUICK) -> bool:
        """Return whether a job of these sizes shows it, with these errors of yes and no. One that does not run, does
        not.
        """
        arm = f"{TWIN if cured else 'smaller'}: {_sizes_text(sizes)}"
        while True:
            counts = self.runs.counts(arm)
            log_odds = log_odds_present(counts, present=self.runs.counts(BASE), absent=Counts())
            if counts.runs and decided(log_odds, error=errors[0]):
                return True
            if counts.runs and decided(log_odds, error=errors[1]) is False:
                return False
            if self.runs.outcome(self.way(arm, sizes, cured)) is None:
                self._failed[arm] = self.runs.last_why()
                return False
            self._control()

    def _control(self) -> None:
        self._runs_since_control += 1
        if self._runs_since_control < CONTROL_EVERY - 1:
            return
        self._runs_since_control = 0
        self.runs.outcome(self.way(BASE, self._accepted[0], False))
        outcomes = [entry["showed"] for entry in self.runs.log if entry["arm"] == BASE and entry["showed"] is not None]
        late = Counts(len(outcomes[-3:]), sum(outcomes[-3:]))
        early = Counts(len(outcomes[:-3]), sum(outcomes[:-3]))
        if early.showed and decided(log_odds_present(late, present=early, absent=Counts()), error=0.001) is False:
            raise Undecided("The job as it is does not show it any more: something else changed meanwhile.")

    def _twinned(self) -> list[str]:
        """Lines on the healthy twin; sizes at which it shows the finding are given up."""
        says: list[str] = []
        while len(self._accepted) > 1:
            sizes = self._accepted[-1]
            if not self._shows(sizes, cured=True, errors=(self.error / 10, self.error / 2)):
                failed = self._failed.get(f"{TWIN}: {_sizes_text(sizes)}")
                clean = "Its healthy twin is clean."
                return [*says, f"The healthy twin of this size did not run: {failed}." if failed else clean]
            says.append(f"At {_sizes_text(sizes)} the healthy twin shows it too: that size makes it by itself.")
            self._accepted.pop()
        return says

    # -- words ------------------------------------------------------------------------------------------------------

    def _smallest(self, says: Sequence[str]) -> TrialAnswer:
        first, last = self._accepted[0], self._accepted[-1]
        changed = [f"{name} {first[name]} to {last[name]}" for name in last if last[name] != first[name]]
        lines = [f"It still shows with {', '.join(changed)}.", *says, *self._unreached()]
        return self._answered("confirmed", lines, (self.command(last),))

    def _unreached(self) -> list[str]:
        names = {axis.name for axis in self.axes}
        unreached = [name for name in ("ranks", "batch") if name not in names]
        lines = [f"{arm} does not run: {why}." for arm, why in self._failed.items() if not arm.startswith(TWIN)]
        if unreached:
            options = "name options of the command with --axis"
            lines.append(f"Not reached from outside, and left: {', '.join(unreached)}; {options}.")
        return lines

    def _answered(self, answer: Answer, says: Sequence[str], then: Sequence[str]) -> TrialAnswer:
        return self.runs.end(
            TrialAnswer(
                "shrink",
                self.question,
                answer,
                tuple(says),
                self.runs.arms,
                tuple(then),
                (_sizes_text(self._accepted[-1]),) if answer == "confirmed" else (),
                self.error,
                rate_of(self.runs.counts(BASE)),
            )
        )


def prepare(asked: Asked, *, axis: Sequence[str] = (), cured_by: str | None = None) -> Prepared:
    """What is the smallest job that still shows it? ``axis`` are options of the command that may be smaller,
    ``cured_by`` a setting as of ``knobs`` that makes the finding go away. Raises ``InputError``.
    """
    job, runs = asked.job, asked.runs_for_finding(axes=list(axis), cured_by=cured_by)
    axes = axes_of(asked.command, steps=job.last_step + 1, batch=batch_of(Run(asked.run)), users_options=axis)
    if not axes:
        raise InputError("Nothing of this job can be made smaller from outside. Name options of it with --axis.")
    cure = [] if cured_by is None else [switch_named(cured_by)]

    def way(arm: str, sizes: Mapping[str, int], cured: bool) -> Way:
        words, changes = sized(asked.command, sizes)
        words, environ = with_off(words, cure if cured else (), asked.folder / "files")
        switches_off = [switch.to_process() for switch in cure if cured and switch.how in IN_PROCESS]
        changes["switches"] = [*changes["switches"], *switches_off]
        changes["off"] = [*changes["off"], *(switch["name"] for switch in switches_off)]
        return Way(arm, environ, words, changes | job.up_to(sizes.get(STEPS, job.last_step + 1) - 1))

    def command(sizes: Mapping[str, int]) -> str:
        words, _ = sized(asked.command, {name: value for name, value in sizes.items() if name != BATCH})
        batch_words = f", with batches of {sizes[BATCH]}" if BATCH in sizes else ""
        return f"{shlex.join(words)} (up to step {sizes.get(STEPS, job.last_step + 1) - 1}{batch_words})"

    question = asked.question("What is the smallest job in which")
    trial = ShrinkTrial(runs, question, axes, way, command, bool(cure), asked.error)
    plan = [*asked.says(), "Axes: " + ", ".join(f"{reducible.name} (now {reducible.now})" for reducible in axes) + "."]
    return asked.prepared(trial, plan, str(4 + sum(2 * reducible.now.bit_length() for reducible in axes)))


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sizes.items())
