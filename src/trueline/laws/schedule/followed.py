"""Schedulers of the learning rate, with where they were at each update.

T updates with one scheduler, G parameter groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

UPDATES_AT_LEAST = 3
"""Updates from which on a pattern is no coincidence."""


@dataclass(frozen=True, eq=False)
class Followed:
    """One scheduler on the first rank; starts of the job that go on from each other's are one.

    Arrays are by update: its ``steps`` [T], the scheduler's ``last_epoch`` (``epochs`` [T]), and the largest learning
    ``rates`` [T] of a parameter group. ``length`` is what it declares in steps of its own, by ``name``; 0 where it
    declares none. ``num_schedulers`` are those of the optimizer together, ``num_epochs`` how often the data was gone
    through; 0 where nothing shows that.
    """

    kind: str
    name: str
    length: int
    steps: np.ndarray
    epochs: np.ndarray
    rates: np.ndarray
    num_schedulers: int
    num_epochs: int

    @property
    def pace(self) -> float:
        """Steps of the schedule in an update, of the update in the middle: of ones that a GradScaler left out, and of
        schedules that are stepped once an epoch, the most updates tell nothing else.
        """
        return float(np.median(np.diff(self.epochs))) if len(self.epochs) > 1 else 0.0

    @property
    def label(self) -> str:
        """``CosineAnnealingLR, T_max 5``."""
        return f"{self.kind}, {self.name} {self.length}" if self.length else self.kind

    @property
    def slack(self) -> float:
        """Steps of the schedule that an error in counting explains: one update an epoch, and two more; of a schedule
        that is stepped once an epoch, one.
        """
        return self.pace * (max(self.num_epochs, 1) + 2) if self.pace else 1.0

    @property
    def num_after(self) -> int:
        """Updates after the end that it declares, where these are more than an error in counting explains; else 0."""
        if not self.length or self.epochs[-1] - self.length <= self.slack:
            return 0
        return int(np.sum(self.epochs > self.length))

    @property
    def climbs(self) -> bool:
        """True where the rate falls up to the declared end, and rises after it."""
        at_end, after_T = self._at_end()
        rises = after_T.max() > self.rates[at_end] + _NEAR * self.rates.max()
        # The rate fell up to there, so that what is declared is the end of the rate, too.
        return bool(self.num_after and rises and self._falls_to(at_end))

    @property
    def stays(self) -> bool:
        """True where the rate was lower at the declared end than before, not 0, and one and the same ever after."""
        at_end, after_T = self._at_end()
        end = self.rates[at_end]
        fell = end < self.rates[: at_end + 1].max()
        return bool(self.num_after and fell and end > 0 and np.all(after_T == after_T[-1]) and after_T[-1] > 0)

    @property
    def end_step(self) -> int:
        """The first update at or after the declared end."""
        return int(self.steps[self._at_end()[0]])

    @property
    def num_lows(self) -> int:
        """How often the rate came to a minimum from above, and rose again."""
        moves = np.sign(np.diff(self.rates))
        # a minimum that lasts for several updates is one
        moves = moves[moves != 0]
        return int(np.sum((moves[:-1] < 0) & (moves[1:] > 0)))

    def _at_end(self) -> tuple[int, np.ndarray]:
        """Index of the first update at or after the declared end, and the rates from there on."""
        # the last update stands for an end that is not reached yet
        at_end = min(int(np.searchsorted(self.epochs, self.length)), len(self.epochs) - 1)
        return at_end, self.rates[at_end:]

    def _falls_to(self, at_end: int) -> bool:
        """True where the rate falls in the last tenth of the schedule, or by its last step."""
        first = int(np.searchsorted(self.epochs, 0.9 * self.length))
        part = self.rates[min(first, max(at_end - 1, 0)) : at_end + 1]
        return len(part) > 1 and part[-1] < part[0] and bool(np.all(np.diff(part) <= 0))


_NEAR = 1e-9
"""Share of the largest rate that roundings of rates in float64 may be."""


@memoized
def followed(run: Run) -> list[Followed]:
    """The schedulers of the first rank, by start of the job, then in the order in which they were made. Raises
    ``CannotTell`` where none was seen.
    """
    ranks = data_parallel_ranks(run)[:1]
    texts = {step: text for (step, _), text in run.texts("schedule_facts").items() if _ in ranks}
    if not texts:
        raise CannotTell(
            "no scheduler of torch.optim.lr_scheduler was seen (one is, once it is stepped)", reason="by-design"
        )
    epochs = {step: row for (step, _), row in run.lists("schedule_epochs", ranks=ranks).items() if len(row)}
    rates = {step: row for (step, _), row in run.lists("lr", ranks=ranks).items() if len(row)}
    passes, measured = run.pivot("epoch")
    num_epochs = int(np.max(passes[measured], initial=-1)) + 1
    begins = [0, *run.restarts, int(run.steps[-1]) + 1]
    stretches = [stretch for stretch in pairwise(begins) if stretch[0] < stretch[1]]
    schedules: list[Followed] = []
    for begin, end in stretches:
        of_start = _of_start(
            {step: json.loads(text) for step, text in texts.items() if begin <= step < end},
            {step: row for step, row in epochs.items() if begin <= step < end and step in rates},
            rates,
            num_epochs,
        )
        before = schedules[-len(of_start) :]
        if of_start and len(before) == len(of_start) and all(map(_goes_on, before, of_start)):
            schedules[-len(of_start) :] = map(_joined, before, of_start)
        else:
            schedules += of_start
    return schedules


def _goes_on(before: Followed, after: Followed) -> bool:
    """True if a scheduler of the next start is as one of the start before was, and further on."""
    alike = (before.label, before.num_schedulers) == (after.label, after.num_schedulers)
    return alike and before.steps[-1] < after.steps[0] and before.epochs[-1] <= after.epochs[0]


def _joined(before: Followed, after: Followed) -> Followed:
    steps, epochs, rates = (
        np.concatenate([getattr(before, name), getattr(after, name)]) for name in ("steps", "epochs", "rates")
    )
    return replace(after, steps=steps, epochs=epochs, rates=rates)


def _of_start(
    texts: Mapping[int, Mapping[str, Any]],
    epochs: Mapping[int, np.ndarray],
    rates: Mapping[int, np.ndarray],
    num_epochs: int,
) -> list[Followed]:
    """Those of one start. Where schedulers come and go, the last ones; none where several optimizers take turns, whose
    schedulers are not told apart.
    """
    if len({facts["optimizer"] for facts in texts.values()}) != 1:
        return []
    begin = max(texts)
    described: Sequence[Mapping[str, Any]] = texts[begin]["schedules"]
    steps = [step for step in epochs if step >= begin and len(epochs[step]) == len(described)]
    if len(steps) < UPDATES_AT_LEAST:
        return []
    largest = np.array([rates[step].max() for step in steps])
    return [
        Followed(
            str(facts.get("class", "")),
            str(facts.get("name", "")),
            int(facts.get("length", 0)),
            np.array(steps),
            np.array([epochs[step][index] for step in steps], dtype=np.int64),
            largest,
            len(described),
            num_epochs,
        )
        for index, facts in enumerate(described)
    ]
