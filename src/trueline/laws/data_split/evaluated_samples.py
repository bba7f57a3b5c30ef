"""What evaluations read, and how much of it the training reads.

n samples of a training, m of an evaluation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.stats.distinct import num_distinct
from trueline.judge.stats.memoize import memoized
from trueline.judge.stats.tails import ALARM_LEVEL, binomial_tail
from trueline.schema.columns.evaluated import EvaluatedPart, evaluated
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

MAX_SAMPLES = 20_000_000
"""Digests of the training that are looked at together: 160 MB."""
LEAST_ROWS = 8
"""Samples of a forward pass from which on it may hold some that are trained on and some that are not."""
NEARLY_ALL = 0.95
"""Share from which on all are: a sampler may have left some out so far, and a data set may hold some rows twice."""
NEW = 0.01
"""Share of the last quarter of what was read that may be new where all was read before."""
ONE_IN_A_MILLION = 14
"""Pairs of equal rows of which none is seen with probability 1e-6."""

Digests = NDArray[np.uint64]


class _Pass(NamedTuple):
    """A forward pass of ``rank`` on these samples."""

    rank: int
    digests: Digests


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The samples that one source of evaluations reads: ``size`` different ones at the last time that was looked at,
    of which ``before`` were trained on before that and ``ever`` at any time. ``chance`` is at least the probability
    that another sample of such data is one that was trained on; ``is_whole``: the training data were gone through, and
    they are among what is evaluated if ``holds_training``. ``is_mixed``: passes of no loader that hold both kinds.
    """

    source: int
    steps: tuple[int, ...]
    size: int
    before: int
    ever: int
    chance: float
    is_whole: bool
    holds_training: bool
    is_mixed: bool

    @property
    def tail(self) -> float:
        """Largest probability with which so many are trained on by chance."""
        return binomial_tail(self.before, self.size, self.chance)

    @property
    def is_trained(self) -> bool:
        """Whether all of it is trained on."""
        return self.ever >= NEARLY_ALL * self.size


@memoized
def evaluated_of(run: Run) -> tuple[Evaluated, ...]:
    """Of each source; raises ``CannotTell`` where no evaluation was seen, or nothing that is trained on."""
    ranks = data_parallel_ranks(run)
    by_source = _by_source(run, ranks)
    if not by_source:
        raise CannotTell("no forward pass in evaluation mode, without gradients, was seen", reason="by-design")
    steps_R, _, lengths_R, digests_n = run.flat("sample_digests", ranks=ranks)
    if not len(digests_n):
        raise CannotTell("no batch of samples was seen")
    if len(digests_n) > MAX_SAMPLES:
        raise CannotTell(f"there are more than {MAX_SAMPLES:,} samples, which are not looked at together")
    steps_n = np.repeat(steps_R, lengths_R)
    repeats = _repeats(steps_n, digests_n)
    last_of = {source: max(batches) for source, batches in by_source.items()}
    sources: list[Evaluated] = []
    for source, batches in by_source.items():
        first, last = min(batches), last_of[source]
        # of what is evaluated no more the folds of a cross-validation are: each has a training of its own
        begin = max((end for other, end in last_of.items() if other and source and end < first), default=-1)
        chosen = _recurring(batches) if source == 0 else batches
        passes = chosen.get(last, ())
        trained = np.unique(digests_n[steps_n >= begin])
        before = np.unique(digests_n[(steps_n >= begin) & (steps_n < last)])
        is_mixed = source == 0 and len(passes) > 1
        if is_mixed:
            passes = [a_pass for a_pass in passes if 0 < np.isin(a_pass.digests, before).sum() < len(a_pass.digests)]
            passes = passes if len(passes) > 1 else ()
        if not passes or not len(before):
            continue
        evaluated_m = np.unique(np.concatenate([a_pass.digests for a_pass in passes]))
        sources.append(
            Evaluated(
                source=source,
                steps=tuple(sorted(chosen)),
                size=len(evaluated_m),
                before=int(np.isin(evaluated_m, before).sum()),
                ever=int(np.isin(evaluated_m, trained).sum()),
                chance=min(seen.chance(len(before), passes) for seen in repeats),
                is_whole=_gone_through(run, ranks, digests_n[(steps_n >= begin) & (steps_n < last)], len(before)),
                holds_training=bool(np.isin(trained, evaluated_m).mean() >= NEARLY_ALL),
                is_mixed=is_mixed,
            )
        )
    return tuple(sources)


def parts_of(run: Run) -> tuple[tuple[int, int, EvaluatedPart], ...]:
    """Step, rank and what was seen of the parts of a data set that evaluations read."""
    rows = sorted(run.texts("evaluated").items())
    return tuple((step, rank, part) for (step, rank), text in rows for part in evaluated(text)[1])


@dataclass(frozen=True, slots=True)
class _Repeats:
    """Pairs of rows that were drawn as different ones, and how many of them are equal by value."""

    pairs: float
    equal: float

    def chance(self, num_trained: int, passes: Sequence[_Pass]) -> float:
        """At least the probability that a sample of the same data is among ``num_trained`` ones by chance: the sum
        over these of the probability of a pair of equal rows. Rows of one of ``passes`` are different ones as well.
        """
        of_first_rank = [a_pass.digests for a_pass in passes if a_pass.rank == passes[0].rank]
        pairs = self.pairs + sum(len(digests) * (len(digests) - 1) / 2 for digests in of_first_rank)
        equal = self.equal + sum(len(digests) - num_distinct(digests) for digests in of_first_rank)
        most = equal + 5 * np.sqrt(equal) + ONE_IN_A_MILLION
        return min(1.0, float(num_trained * most / pairs)) if pairs else 1.0


def _by_source(run: Run, ranks: Sequence[int]) -> dict[int, dict[int, list[_Pass]]]:
    """Of each source, by step, the passes over it on all ranks."""
    digests = run.lists("evaluated_digests", ranks=ranks)
    sources: defaultdict[int, defaultdict[int, list[_Pass]]] = defaultdict(lambda: defaultdict(list))
    for key, text in sorted(run.texts("evaluated").items()):
        batches, row = evaluated(text)[0], digests.get(key)
        if row is None or sum(batch.rows for batch in batches) != len(row):
            continue
        values = np.asarray(row, dtype=np.uint64)
        begins = np.cumsum([0, *(batch.rows for batch in batches)])
        for batch, begin in zip(batches, begins, strict=False):
            sources[batch.source][batch.step].append(_Pass(key[1], values[begin : begin + batch.rows]))
    return {source: dict(by_step) for source, by_step in sources.items()}


def _recurring(batches: Mapping[int, list[_Pass]]) -> dict[int, list[_Pass]]:
    """Passes whose samples are evaluated together again in another step, as those of what an agent meets are not."""
    steps_of: defaultdict[bytes, set[int]] = defaultdict(set)
    for step, passes in batches.items():
        for _, digests in passes:
            steps_of[np.sort(digests).tobytes()].add(step)
    again = {
        step: [
            a_pass
            for a_pass in passes
            if len(a_pass.digests) >= LEAST_ROWS and len(steps_of[np.sort(a_pass.digests).tobytes()]) > 1
        ]
        for step, passes in batches.items()
    }
    return {step: passes for step, passes in again.items() if passes}


def _repeats(steps_n: NDArray[Any], digests_n: Digests) -> tuple[_Repeats, ...]:
    """Of the first rows read, as many as there are different ones, which are one pass if none of them comes twice; and
    of steps up to there, where rows may be drawn again and again.
    """
    num = num_distinct(digests_n)
    first_n, steps_n = digests_n[:num], steps_n[:num]
    _, begins = np.unique(steps_n, return_index=True)
    sizes = np.diff([*begins, num])
    different = sum(num_distinct(step_digests) for step_digests in np.split(first_n, begins[1:]))
    return (
        _Repeats(num * (num - 1) / 2, num - num_distinct(first_n)),
        _Repeats(float((sizes * (sizes - 1) / 2).sum()), num - different),
    )


def _gone_through(run: Run, ranks: Sequence[int], read_n: Digests, num_different: int) -> bool:
    """Whether all the training's data are among what it has read, by values, so that the rest is not its own. False
    where values change, as by an augmentation.
    """
    size = run.env[ranks[0]].data.get("dataset_len") if ranks[0] in run.env else None
    if isinstance(size, int) and NEARLY_ALL * size <= num_different <= size / NEARLY_ALL:
        return True
    quarter = len(read_n) // 4
    new = ~np.isin(read_n[len(read_n) - quarter :], read_n[: len(read_n) - quarter])
    return quarter >= LEAST_ROWS and bool(new.mean() <= NEW)


def leaking(sources: Sequence[Evaluated], *, least: float) -> Iterator[Evaluated]:
    """Sources of which a part is trained on, more than chance and a share ``least`` explain, and not all, nor all that
    is trained on.
    """
    for source in sources:
        is_part = source.is_whole and not source.is_trained and not source.holds_training
        if is_part and source.before >= least * source.size and source.tail < ALARM_LEVEL:
            yield source
