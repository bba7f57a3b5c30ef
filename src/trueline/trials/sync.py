"""Whether a finding is a race, memory that is read before it is written or after it is freed, or neither.

The rule, fixed before the first run. Arms: ``base``; ``blocking``, each operation is waited for; ``sham``, everything
takes as much longer, but nothing is waited for; ``poison`` and ``poison 2``, memory is filled with a pattern before it
is handed out and with another after it is freed; either of these with ``blocking``. They run in random order in blocks,
until each is decided by a sequential test with its share of the error. An arm with poison is *other* where it has an
error or warning that ``base`` has not, or measures more than ``OTHER_SIZE`` times as much or as little.

==========  ==========  =======  ====================  ==========================================================
base        blocking    sham     poison                says
==========  ==========  =======  ====================  ==========================================================
shows       gone        shows                          ordering: a race, a missing wait or ``record_stream``
shows       gone        gone                           timing only: undecided
shows       shows                other, or gone        memory is read before it is written, or after it is freed
shows       shows                the same              neither: one kernel, a stray writer, or not of memory
never                            with blocking too     memory, as above
never                            only without          what fills memory races with who uses it
never                            the same              undecided: it does not occur
==========  ==========  =======  ====================  ==========================================================
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.chance import Counts, decided, log_odds_present, most_rate
from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.trial import Answer, TrialAnswer, Undecided, rate_of

BASE, BLOCKING, SHAM = "base", "blocking", "sham"
POISONS: dict[str, dict[str, str]] = {
    "poison": {"MALLOC_PERTURB_": "165"},
    "poison 2": {"MALLOC_PERTURB_": "255", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}
"""glibc (mallopt(3), M_PERTURB) fills what is freed with this byte, and what is handed out with its complement. As
float32 these are -3e-16 freed and 1.5e16 handed out, and with the other NaN freed and 0 handed out: a finding that one
of them leaves as it is, as NaN does 1.5e16, is another with the other.
"""
ARMS = (BASE, BLOCKING, SHAM, *POISONS, "poison + blocking")

NEVER_AFTER = 7
"""Runs of base without it after which it is taken for one that does not occur by itself: it does in less than 35 %."""
OTHER_SIZE = 4.0
LEAST_SLOW, MOST_SLOW = 2.0, 10.0

_BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1", "ASCEND_LAUNCH_BLOCKING": "1"}
_FILLED = (
    {
        "name": "fill",
        "how": "setting",
        "where": "torch.utils.deterministic.fill_uninitialized_memory",
        "off": True,
        "device": "cuda",
    },
    {
        "name": "deterministic",
        "how": "function",
        "where": "torch.use_deterministic_algorithms",
        "reads": "torch.are_deterministic_algorithms_enabled",
        "off": True,
        "device": "cuda",
        "keywords": {"warn_only": True},
    },
)
"""On a GPU torch fills what it hands out from its own cache, with NaN, in its deterministic mode only."""

_NEXT = {
    "ordering": (
        "Look for a tensor that is used on another stream or thread than the one that fills it: `wait_stream`, "
        "`record_stream`, `work.wait()` of an asynchronous collective.",
        "Switch overlap off one by one: trueline trial knobs.",
    ),
    "memory": (
        "Look for `torch.empty` (`new_empty`, `empty_like`, `resize_`) that is not written everywhere, and for views "
        "or pointers (`data_ptr`, `from_blob`, `frombuffer`) that outlive what they point to.",
        "On a GPU: compute-sanitizer --tool initcheck, and --tool memcheck.",
    ),
    "filling": (
        "Who uses the memory does not wait for the stream that it was handed out on: without poison this is usually "
        "harmless, but the wait is missing.",
    ),
    "neither": (
        "Look at the operation itself: trueline trial knobs, or record the step and compare it.",
        "Do only some runs show it? Then something may write where it should not, whatever is waited for: store the "
        "step in two runs and compare them (corruption-pattern says which memory it was, and whose numbers are there).",
    ),
    "timing": ("Try it on a machine with another load, or at another number of threads.",),
}


@dataclass
class SyncTrial:
    """Runs the job through ``runs``; ``error`` is shared by all decisions."""

    runs: Runs
    question: str
    error: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            return self._answered(*self._judged())
        except Undecided as why:
            return self._answered("undecided", [why.says], why.then)

    def _judged(self) -> tuple[Answer, list[str], Sequence[str], Sequence[str]]:
        shows = self._settled(BASE, self._base)
        if not shows:
            return self._latent()
        if self._settled(BLOCKING, lambda: self._is_there(BLOCKING)):
            stays = f"It stays when each operation is waited for ({self._counts_text(BLOCKING)}), and is"
            if arm := self._other_arm():
                says = f"{stays} another with memory filled by a pattern: {self._differs(arm)}."
                return "confirmed", [says], _NEXT["memory"], ["memory"]
            poison_counts = "; ".join(self._counts_text(arm) for arm in POISONS)
            says = f"{stays} the same with memory filled by either of two patterns ({poison_counts})."
            return "excluded", [says], _NEXT["neither"], ["neither"]
        if self._settled(SHAM, lambda: self._is_there(SHAM)):
            says = f"It is gone when each operation is waited for ({self._counts_text(BLOCKING)}), and stays when "
            says += f"everything takes as long without waiting ({self._counts_text(SHAM)})."
            return "confirmed", [says], _NEXT["ordering"], ["ordering"]
        raise Undecided(
            f"It is gone when each operation is waited for ({self._counts_text(BLOCKING)}), and also when everything "
            f"takes as long without waiting ({self._counts_text(SHAM)}): any delay cures it, so that nothing is known "
            "of its cause.",
            *_NEXT["timing"],
        )

    def _latent(self) -> tuple[Answer, list[str], Sequence[str], Sequence[str]]:
        counts = self.runs.counts(BASE)
        seldom = f"By itself it was seen in none of {counts.runs} runs (it shows in at most {most_rate(counts):.0%})"
        arm = self._other_arm()
        if arm is None:
            raise Undecided(
                f"{seldom}, and with memory filled by a pattern neither.", "Run more steps, on the same data."
            )
        blocking_arm = f"{arm} + blocking"
        if self._settled(blocking_arm, lambda: self._is_other(blocking_arm)):
            says = f"{seldom}; with memory filled by a pattern it is another, also when each operation is waited for: "
            return "confirmed", [f"{says}{self._differs(blocking_arm)}."], _NEXT["memory"], ["memory"]
        says = f"{seldom}; with memory filled by a pattern it is another, but not when each operation is waited for: "
        return "confirmed", [f"{says}{self._differs(arm)}."], _NEXT["filling"], ["filling"]

    def _other_arm(self) -> str | None:
        """The arm with poison, if any, whose runs are others than those of base."""
        return next((arm for arm in POISONS if self._settled(arm, lambda arm=arm: self._is_other(arm))), None)

    # -- runs -------------------------------------------------------------------------------------------------------

    def _settled(self, arm: str, ask: Callable[[], bool | None]) -> bool:
        """The answer of ``ask`` once it has one: until then ``arm`` runs in blocks with base, in random order."""
        while (decision := ask()) is None:
            for block_arm in self._random.sample([*dict.fromkeys((arm, BASE))], len({arm, BASE})):
                self.runs.outcome(self.way(block_arm))
        return decision

    def way(self, arm: str) -> Way:
        """The way the job runs in an arm."""
        if arm == SHAM:
            return Way(arm, changes={"slow": self._times_slower()})
        first, *more = arm.split(" + ")
        poison = POISONS.get(first, {})
        environ = poison | (_BLOCKING if BLOCKING in (first, *more) else {})
        fill_changes = {"switches": _FILLED, "off": [switch["name"] for switch in _FILLED]} if first == "poison" else {}
        return Way(arm, environ, changes=fill_changes)

    def _times_slower(self) -> float:
        """The factor by which a run takes longer with ``blocking``."""
        seconds = {
            arm: [entry["seconds"] for entry in self.runs.log if entry["arm"] == arm] for arm in (BASE, BLOCKING)
        }
        means = [sum(second) / len(second) for second in seconds.values() if second]
        # the sham must take as long as blocking does, or it shows nothing of timing
        ratio = means[1] / means[0] if len(means) == 2 and means[0] else LEAST_SLOW
        return round(min(max(ratio, LEAST_SLOW), MOST_SLOW), 1)

    # -- decisions --------------------------------------------------------------------------------------------------

    def _base(self) -> bool | None:
        counts = self.runs.counts(BASE)
        if counts.showed and (counts.showed >= 3 or counts.runs == counts.showed == 2):
            return True
        return False if counts.runs >= NEVER_AFTER and not counts.showed else None

    def _is_there(self, arm: str) -> bool | None:
        log_odds = log_odds_present(self.runs.counts(arm), present=self.runs.counts(BASE), absent=Counts())
        return decided(log_odds, error=self.error / 4)

    def _is_other(self, arm: str) -> bool | None:
        """Return whether runs of an arm with poison are others than those of base, or do not show it; one by chance is
        a false alarm.
        """
        counts, base = self._other_counts(arm), self.runs.counts(BASE)
        if arm in POISONS and not base.showed and not counts.showed:
            return False if counts.runs >= NEVER_AFTER else None
        alone = arm.removesuffix(" + blocking")
        present = base if base.showed else self._other_counts(alone) if alone != arm else Counts()
        absent = Counts() if base.showed else base
        is_other = decided(log_odds_present(counts, present=present, absent=absent), error=self.error / 4)
        if not base.showed or is_other:
            return is_other
        is_present = self._is_there(arm)
        return True if is_present is False else False if is_present and is_other is False else None

    def _other_counts(self, arm: str) -> Counts:
        base, runs = (
            [entry for entry in self.runs.log if entry["arm"] == compared_arm and entry["showed"] is not None]
            for compared_arm in (BASE, arm)
        )
        return Counts(len(runs), sum(_differs(entry, base) for entry in runs))

    # -- words ------------------------------------------------------------------------------------------------------

    def _counts_text(self, arm: str) -> str:
        counts = self.runs.counts(arm)
        return f"{arm}: {counts.showed} of {counts.runs} runs show it"

    def _differs(self, arm: str) -> str:
        base = [entry for entry in self.runs.log if entry["arm"] == BASE]
        usual = {code for entry in base for code in entry["codes"]}
        runs = [entry for entry in self.runs.log if entry["arm"] == arm]
        new = sorted({code for entry in runs for code in entry["codes"]} - usual)
        differences = [f"new {', '.join(new)}"] if new else []
        differences += (
            [f"measured {_median_text(runs)}, and {_median_text(base)} without"]
            if _median_text(runs) and _median_text(base)
            else []
        )
        return "; ".join(differences) or self._counts_text(arm)

    def _answered(
        self, answer: Answer, says: Sequence[str], then: Sequence[str], credible: Sequence[str] = ()
    ) -> TrialAnswer:
        causes = tuple(credible) or ("ordering", "memory", "neither")
        rate = rate_of(self.runs.counts(BASE))
        return self.runs.end(
            TrialAnswer(
                "sync", self.question, answer, tuple(says), self.runs.arms, tuple(then), causes, self.error, rate
            )
        )


def prepare(asked: Asked) -> Prepared:
    """Is it a race, or of memory? Raises ``InputError``."""
    question = asked.question("Is it a race, or of memory, that")
    trial = SyncTrial(asked.runs_for_finding(), question, asked.error, asked.seed)
    plan = [*asked.says(), f"Arms: {', '.join(ARMS)}; those that the answer needs."]
    return asked.prepared(trial, plan, "8 to 20")


def _differs(entry: Mapping[str, Any], base: Sequence[Mapping[str, Any]]) -> bool:
    if {*entry["codes"]} - {code for base_entry in base for code in base_entry["codes"]}:
        return True
    base_sizes, sizes = _measured(base_entry for base_entry in base if base_entry["showed"]), _measured([entry])
    if not base_sizes or not sizes or not entry["showed"]:
        return False
    return not base_sizes[0] / OTHER_SIZE <= sizes[0] <= base_sizes[-1] * OTHER_SIZE


def _median_text(entries: Sequence[Mapping[str, Any]]) -> str:
    values = _measured(entries)
    return f"{values[len(values) // 2]:.3g}" if values else ""


def _measured(entries: Iterable[Mapping[str, Any]]) -> list[float]:
    """Sizes, ascending; what is not finite is text once it was on disk, and is left out."""
    values = [entry["measured"] for entry in entries]
    return sorted(abs(value) for value in values if isinstance(value, int | float) and math.isfinite(value))
