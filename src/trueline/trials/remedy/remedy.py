"""Whether a remedy makes a job well, and more than a sham that does the same elsewhere.

The rule, fixed before the first run. ``pairs`` times the job runs as it is (``base``), with the remedy, and with its
``sham``, all three from the same seeds, in random order; each pair has seeds of its own. What is wrong with a run is
one number (``Measure``). The remedy *recovers* the job where the share of it that is left is below a quarter (Fieller's
interval of the ratio of means), does so *partly* where that is below 1, and in both cases only where it is better than
base and than the sham by exact sign tests: a sham may do harm, and any change may do good. It has *no effect* where it
is excluded that it takes a quarter of what is wrong; or where base is no worse than the good run by more than seeds
make and it is excluded that the remedy does as much as they. All else is undecided.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.text.words import counted, listed
from trueline.store.reader import Run
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.trial import Answer, TrialAnswer, Undecided
from trueline.trials.remedy.effect import Effect, effect_of
from trueline.trials.remedy.treated_job import BASE, NOT_FINITE, REMEDY, SHAM, Measure, TreatedJob, Treatment, Ways

ARMS = (BASE, REMEDY, SHAM)
LEAST_PAIRS = 6
"""The sign test of fewer cannot be below 5 %: 2 / 2^6 = 3 %."""

_ANSWERS: dict[str, Answer] = {"recovers": "confirmed", "partly": "confirmed", "no effect": "excluded"}
_NEXT = {
    "recovers": ("Keep it, or look at why this is needed: trueline trial op, trueline trial precheck.",),
    "partly": ("Try it on more modules, or look for a second fault with the remedy in place.",),
    "no effect": ("Take it out again, and suspect something else: trueline diagnose.",),
    "undecided": ("Go on with more pairs: --pairs and another --out.",),
}


@dataclass
class RemedyTrial:
    """Runs the job through ``runs``; ``way`` is how it runs in an arm of a pair."""

    runs: Runs
    question: str
    way: Callable[[str, int], Way]
    treatment: Treatment
    measure: Measure
    pairs: int = 8
    error: float = 0.05
    seed: int = 0

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        draw = random.Random(self.seed)
        try:
            for pair in range(self.pairs):
                for arm in draw.sample(ARMS, len(ARMS)):
                    self.runs.outcome(self.way(arm, pair))
                self._look(pair)
        except Undecided as why:
            return self._answered("undecided", [why.says], why.then)
        return self._judged()

    def _look(self, pair: int) -> None:
        """Raises ``Undecided`` where the remedy finds nothing to do, or seeds do nothing."""
        met = {code for entry in self._entries_of(REMEDY) for code in entry["codes"][1:]}
        if self._entries_of(REMEDY) and not self._is_met(met):
            raise Undecided(
                f"The remedy finds nothing to do: {self._missing()}.",
                "See the names of the modules in the Run: `trueline info RUN --site '*'`",
            )
        losses = [entry["codes"][0] for entry in self._entries_of(BASE)]
        # pairs that are one pair would be counted as many by the sign test
        if pair and len(losses) > 1 and len({*losses}) == 1:
            raise Undecided(
                "Other seeds change nothing: two runs of the job as it is have the same losses, bit for bit, so that "
                "pairs would be one pair.",
                "Put {seed} where the command takes its seed; a torch.Generator of the script is not reached.",
            )

    def _is_met(self, met: set[str]) -> bool:
        if self.treatment.kind:
            return any(name.startswith("remedy:there") for name in met)
        in_process = [
            switch for switch in self.treatment.switches if switch.how not in ("variable", "argument", "json")
        ]
        return not in_process or len(in_process) < len(self.treatment.switches) or bool(met)

    def _missing(self) -> str:
        if self.treatment.kind:
            return f"no module of the model is called '{self.treatment.module}'"
        return f"the job does not have {listed([switch.name for switch in self.treatment.switches])} on"

    def _judged(self) -> TrialAnswer:
        complete = self._pairs()
        if len(complete) < LEAST_PAIRS:
            says = f"Only {counted(len(complete), 'pair')} of runs told something, and {LEAST_PAIRS} are needed."
            return self._answered("undecided", [says], _NEXT["undecided"])
        bad = {arm: sum(entry["measured"] >= NOT_FINITE for entry in self._entries_of(arm)) for arm in ARMS}
        finite = [entry["measured"] for entry in self._entries_of(BASE) if entry["measured"] < NOT_FINITE]
        if not finite:
            says = "No run of the job as it is has a loss that is finite, so that there is no mean of its gap."
            return self._answered("undecided", [says], ("Leave out --ref: what counts then are such steps.",))
        num_bad = ", ".join(f"{arm} {num}" for arm, num in bad.items())
        remarks = [f"Runs with a loss that is not finite ({num_bad}) count as the worst of the others."]
        # a mean without the runs that explode would praise a remedy that makes more of them
        if bad[REMEDY] > bad[BASE]:
            says = "With the remedy more runs have a loss that is not finite than without it."
            return self._answered("undecided", [says, *remarks, *self._where_changed()], _NEXT["undecided"])
        # no mean holds an infinite loss: it counts as the worst that is finite
        worst = max(value for pair in complete for value in pair if value < NOT_FINITE)
        complete = [(min(base, worst), min(remedy, worst), min(sham, worst)) for base, remedy, sham in complete]
        base, remedy, sham = zip(*complete, strict=True)
        effect = effect_of(base, remedy, sham, good_varies=self.measure.good is not None, error=self.error)
        credible = () if effect.verdict == "undecided" else (effect.verdict,)
        remarks = remarks if any(bad.values()) else []
        says = [f"{effect.why}.", *self._numbers(complete, effect), *remarks, *self._where_changed()]
        return self._answered(_ANSWERS.get(effect.verdict, "undecided"), says, _NEXT[effect.verdict], credible)

    # -- what they left ---------------------------------------------------------------------------------------------

    def _entries_of(self, arm: str) -> list[dict[str, Any]]:
        return [entry for entry in self.runs.log if entry["arm"] == arm and entry["showed"] is not None]

    def _pairs(self) -> list[tuple[float, float, float]]:
        """What is wrong in each pair, in the order of ``ARMS``; without those of which a run told nothing."""
        wrong_by_arm = [
            [
                entry["measured"] if entry["showed"] is not None else None
                for entry in self.runs.log
                if entry["arm"] == arm
            ]
            for arm in ARMS
        ]
        return [
            (base, remedy, sham)
            for base, remedy, sham in zip(*wrong_by_arm, strict=False)
            if None not in (base, remedy, sham)
        ]

    # -- words ------------------------------------------------------------------------------------------------------

    def _numbers(self, pairs: Sequence[tuple[float, float, float]], effect: Effect) -> list[str]:
        means = [sum(values) / len(pairs) for values in zip(*pairs, strict=True)]
        means_text = ", ".join(f"{arm} {mean:.3g}" for arm, mean in zip(ARMS, means, strict=True))
        lines = [f"{str(self.measure).capitalize()}, mean of {counted(len(pairs), 'pair')}: {means_text}."]
        if effect.remedy_left is not None:
            lines.append(
                f"The remedy leaves {effect.remedy_left} of it, the sham {effect.sham_left} (95 % confidence)."
                if self.error == 0.05
                else f"The remedy leaves {effect.remedy_left} of it, the sham {effect.sham_left}."
            )
        better = sum(remedy < min(base, sham) for base, remedy, sham in pairs)
        lines.append(
            f"It is better than both the job as it is and the sham in {better} of {counted(len(pairs), 'pair')} (sign "
            f"tests: p = {effect.sign_p:.2g})."
        )
        return lines

    def _where_changed(self) -> list[str]:
        """Lines on the modules at which remedy and sham were."""
        if not self.treatment.kind:
            return ["The sham has all that switches settings in place, and switches none."]
        marker = f"remedy:{self.treatment.kind} "
        at = {
            arm: sorted(
                {
                    code.removeprefix(marker)
                    for entry in self._entries_of(arm)
                    for code in entry["codes"]
                    if code.startswith(marker)
                }
            )
            for arm in (REMEDY, SHAM)
        }
        sham = f"the sham at {listed(at[SHAM])}" if at[SHAM] else "no other module is there for a sham"
        return [f"The remedy was at {listed(at[REMEDY])}, {sham}."]

    def _answered(
        self, answer: Answer, says: Sequence[str], then: Sequence[str], credible: Sequence[str] = ()
    ) -> TrialAnswer:
        wrong = [base_entry["measured"] for base_entry in self._entries_of(BASE) if base_entry["measured"] < NOT_FINITE]
        half = max(sum(wrong) / len(wrong) / 2, 0.0) if wrong else 0.0
        arms = self.runs.arms_by(lambda arm, _: sum(entry["measured"] > half for entry in self._entries_of(arm)))
        verdicts = tuple(credible) or ("recovers", "partly", "no effect")
        return self.runs.end(
            TrialAnswer("remedy", self.question, answer, tuple(says), arms, tuple(then), verdicts, self.error)
        )


def prepare(asked: Asked, *, remedy: str, ref: str | None = None, pairs: int = 8) -> Prepared:
    """Does a remedy make the job well? Raises ``InputError``."""
    if pairs < LEAST_PAIRS:
        raise InputError(f"--pairs is {pairs}; give {LEAST_PAIRS} or more: fewer cannot beat chance.")
    treatment = Treatment.from_text(remedy)
    job = asked.plain_job
    measure = Measure.between(Run(asked.run), None if ref is None else Run(ref), asked.steps)
    facts = {"remedy": remedy, "pairs": pairs, "error": asked.error}
    facts |= {"first": measure.first, "last": measure.last, "good": measure.good}
    runs = asked.runs_of(TreatedJob(job, measure), asked.max_runs, **facts)
    ways = Ways(asked.command, treatment, asked.seed, asked.folder / "files")
    question = f"Does the remedy {remedy} make the job well?"
    trial = RemedyTrial(runs, question, ways.way, treatment, measure, pairs, asked.error, asked.seed)
    plan = [
        f"Each run: {' '.join(asked.command)}, watched.",
        f"Arms, in {counted(pairs, 'pair')} of the same seeds: {', '.join(ARMS)}.",
        f"Measured: {measure}.",
    ]
    return Prepared(trial, plan, str(len(ARMS) * pairs), runs)
