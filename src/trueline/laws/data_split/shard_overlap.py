"""Within an epoch some samples are consumed by several workers, or some by none.

What it finds
-------------
Overlap: workers whose shards are not disjoint, because a sampler's seed or epoch number depends on the rank, because
each rank shuffles by itself, or because one rank alone differs. Coverage: data that is split twice, so that each
worker reads one N-th of its own N-th and the rest is never read.

Why it matters
--------------
Some samples weigh more than others and some never count, in an epoch that looks complete. Losses, gradient norms and
cosines look like those of a healthy run, because shards are drawn from the same data either way: only the samples show
it.

How it decides
--------------
Overlap, by declaration: samplers that shuffle one data set in several parts need one seed. Where recorded seeds
differ, the first sample that two workers consume within an epoch settles it. Likewise if samplers declare to split
one data set of D rows between all workers without replacement, and the Run consumed exactly D distinct samples: then
no two rows are equal (pigeonhole), and no sample may come twice in an epoch. Both are exact contradictions.

Overlap, by digests alone: equal rows and sampling with replacement repeat samples, too, but they do so within a
worker as readily as between workers. The null hypothesis is that the slots of an epoch are exchangeable. Take the
slots in order, and suppose that one holds a sample that was seen exactly once before. Let c be all samples seen once
so far in the epoch, c_r those of them seen by worker r. Exchanging the slots of two such samples leaves everything
else as it was, so each of the c is equally likely to be the one that came again: the repeat falls between workers
with probability 1 - c_r/c exactly, given all that came before. The product of likelihood ratios against odds 3, 10,
100 and 10,000 times larger is a test martingale, averaged over these odds and over epochs as starts; by Ville's
inequality it ever exceeds 1/a with probability at most a. Nothing else is assumed about the data, nothing is tuned,
and it does not matter when one looks.

The same is asked for single workers: whether repeats that involve worker r are more than chance gives (among c_r and
the c_q of the other worker only, unless all are declared to draw from one data set, so that workers may have sources
of their own). The false-alarm rate of 1e-6 a Run is split 0.5 : 0.3 : 0.2 between all workers, single workers
(divided by N) and coverage. A sample counts only in the first epoch that repeats it, since fixed shards repeat their
coincidences; where one data set is declared, epochs count unless they replay an earlier order. Padding cannot alarm:
it repeats samples of an epoch's first step in the last one, and these pairs are left out (everywhere, where no epoch
was seen).

It names the ranks that are in more of the repeats than the 2/N of equal ranks (binomial tail below 0.001 over N), or
else all that take part in any.

Coverage, exactly: fewer samples consumed in a complete epoch than `plan.dataset_size`, by more than `drop_last` can
drop; or samplers that leave shards of their data set unread, because the rows behind them differ between ranks.
Coverage, probably: each worker reads one N-th of the shard that its sampler assigns to it, in every complete epoch; or
one N-th of the data set that it declares, and that data set is its own: its rows differ, or samples of one epoch recur
in the next, in another order, on the worker that had them, while new ones keep coming (1e-6 a Run, by a test
martingale like the above; not where workers draw with replacement).

What it may miss
----------------
Samples that are changed on the fly never repeat, so they cannot be judged; the check says so. Overlap
between few workers in few steps: with 8 workers, 4 samples each and 8,000 rows it takes 48 steps by digests alone,
and 5 with recorded seeds (`benchmarks/exact_checks/power.py`). Rows that are equal in an order that is not shuffled,
or shards that were cleared of equal rows one by one, break the exchangeability; where a sampler declares file order
the finding is a warning without a false-alarm rate. Coverage needs a complete epoch.

Example
-------
The samplers shuffle with different seeds, rank 0 with 0 and ranks 1-3 with 1. Within an epoch 24 samples were
consumed by two workers.

Wrong and right
---------------
Wrong:

```python
sampler = DistributedSampler(dataset, seed=args.seed + rank)  # ranks cut their parts from different orders
```

Right:

```python
sampler = DistributedSampler(dataset, seed=args.seed)  # one order, cut into parts that share nothing
```
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import Ints
from trueline.judge.series.declared_sampling import ONE_SPLIT, SPLIT_STREAM, DeclaredSampling, declared_sampling
from trueline.judge.stats.tails import ALARM_LEVEL, probability
from trueline.laws.data_split.consumed import Samples, consumed_samples
from trueline.laws.data_split.coverage import (
    Gap,
    Returns,
    draws_with_replacement,
    find_returns,
    fresh_after_complete,
    gap_in_share,
    gap_of_own_rows,
    log_e_of_staying,
    require_returns,
    rows_are_distinct,
    short_epoch,
)
from trueline.laws.data_split.fresh import FreshSamples
from trueline.laws.data_split.repeats_in_epoch import Repeats, SeenOnce, find_overlap, find_repeats, workers_to_name
from trueline.schema.finding import Finding, Severity
from trueline.schema.site import Site
from trueline.schema.text.words import counted, listed, ranks_text
from trueline.store.reader import Run

CODE = "shard-overlap"
CALLS = {"": ("DistributedSampler", "DataLoader")}
QUESTION = "data"
FOLLOWS = FreshSamples()
NEEDS: tuple[str, ...] = ("sample_digests", "epoch")

_ONE_SEED = (
    "Give every rank the same seed and its own rank: DistributedSampler(dataset, num_replicas=world_size, rank=rank, "
    "seed=SEED), and call sampler.set_epoch(epoch) with the same number on every rank.",
    "Shuffle before splitting, with one seed on all ranks, wherever the data is shuffled by hand.",
)
_SPLIT_ONCE = (
    "Split the data once: either give each rank its own rows and an ordinary sampler (num_replicas=1), or give every "
    "rank all rows and a DistributedSampler.",
    "A data set that already knows its rank must not go through a library that splits again (Accelerate: "
    "dispatch_batches or split_batches; Lightning: use_distributed_sampler=False).",
)


@dataclass(frozen=True)
class _Evidence:
    samples: Samples
    declared: DeclaredSampling
    repeats: Repeats


def check(run: Run) -> list[Finding]:
    """Findings of overlap and of missing coverage; raises ``CannotTell`` where digests cannot tell."""
    samples = consumed_samples(run)
    expected_ranks = run.manifest.data_parallel_ranks if run.manifest.adapter else range(run.world_size)
    findings = judge(
        samples,
        declared_sampling(run.env, samples.ranks),
        dataset_size=run.manifest.plan.get("dataset_size"),
        all_present=set(samples.ranks) == set(expected_ranks),
    )
    if not findings:
        require_returns(samples)
    return findings


def judge(
    samples: Samples, declared: DeclaredSampling, *, dataset_size: int | None = None, all_present: bool = True
) -> list[Finding]:
    """Findings on samples alone: ``dataset_size`` is what the plan declares for an epoch over all workers.

    Without ``all_present`` (a rank left nothing) parts of the data may be missing because of that.
    """
    seen_once = SeenOnce(samples, one_data_set=declared.splits_one_data_set)
    evidence = _Evidence(samples, declared, find_repeats(samples, seen_once))
    findings = [_overlap_finding(evidence, seen_once), _gap_finding(evidence, dataset_size, all_present=all_present)]
    return [finding for finding in findings if finding is not None]


def _overlap_finding(evidence: _Evidence, seen_once: SeenOnce) -> Finding | None:
    samples, declared, repeats = evidence.samples, evidence.declared, evidence.repeats
    crossing = np.flatnonzero(repeats.across_workers)
    if odd := declared.odd_seeds():
        return _seeds_finding(evidence, odd, crossing)
    if declared.splits_one_data_set and rows_are_distinct(samples, declared.all_equal("dataset_len")):
        # a step that accumulates over the end of an epoch holds samples of both: the outer steps prove nothing.
        inner = ~samples.in_first_step[repeats.first[crossing]] & ~samples.in_last_step[repeats.slot[crossing]]
        if inner.any():
            return _contradiction_finding(evidence, crossing[inner])
    overlap = find_overlap(samples, seen_once, repeats)
    return None if overlap is None else _unlikely_finding(evidence, overlap.events, log_e=overlap.log_e)


def _seeds_finding(evidence: _Evidence, odd: tuple[int, ...], crossing: Ints) -> Finding:
    seed_of = {rank: facts["seed"] for rank, facts in evidence.declared.by_rank.items()}
    by_seed: defaultdict[Any, list[int]] = defaultdict(list)
    for rank, seed in seed_of.items():
        by_seed[seed].append(rank)
    groups = sorted(by_seed.items(), key=lambda item: (len(item[1]), item[1]))
    seeds = listed([f"{ranks_text(ranks)} with {seed}" for seed, ranks in groups])
    repeats_text = (
        f"{_consumed_clause(len(crossing))} by two workers"
        if len(crossing)
        else "No sample was consumed by two workers yet"
    )
    return _finding(
        evidence,
        crossing,
        odd,
        severity="error" if len(crossing) else "warning",
        claim=f"The samplers shuffle with different seeds, {seeds}. {repeats_text}.",
        measured=float(len(crossing)),
        expected=0.0,
        unit="samples consumed by two workers in one epoch",
        more={"kind": "seeds", "seeds": {str(rank): seed for rank, seed in seed_of.items()}},
    )


def _contradiction_finding(evidence: _Evidence, crossing: Ints) -> Finding:
    num_rows = evidence.declared.all_equal("dataset_len")
    return _finding(
        evidence,
        crossing,
        _ranks_to_name(evidence, crossing),
        severity="error",
        claim=f"{_consumed_clause(len(crossing))} by two workers{_involved_clause(evidence, crossing) or ','} though "
        f"the samplers split one data set of {num_rows:,} different rows.",
        measured=float(len(crossing)),
        expected=0.0,
        unit="samples consumed by two workers in one epoch",
    )


def _unlikely_finding(evidence: _Evidence, events: Ints, *, log_e: float) -> Finding:
    repeats, by_design = evidence.repeats, evidence.declared.in_file_order
    crossing = events[repeats.across_workers[events]]
    chance = float(repeats.chance[events].mean())
    return _finding(
        evidence,
        crossing,
        _ranks_to_name(evidence, crossing),
        severity="warning" if by_design else "error",
        claim=f"{_consumed_clause(len(crossing))} by two workers{_involved_clause(evidence, crossing)} and "
        f"{len(events) - len(crossing):,} twice by one, though chance gives {1 - chance:.0%} of repeats to one worker.",
        measured=len(crossing) / len(events),
        expected=chance,
        unit="fraction of repeats that are between workers",
        false_alarm_rate=None if by_design else ALARM_LEVEL,
        more={"chance_bound": probability(-log_e)},
    )


def _finding(
    evidence: _Evidence,
    crossing: Ints,
    ranks: tuple[int, ...],
    *,
    severity: Severity,
    claim: str,
    measured: float,
    expected: float,
    unit: str,
    false_alarm_rate: float | None = 0.0,
    more: dict[str, Any] | None = None,
) -> Finding:
    samples, repeats = evidence.samples, evidence.repeats
    events = _events_of_ranks(evidence, crossing, ranks)
    steps = samples.step[repeats.slot[events]]
    return Finding(
        code=CODE,
        severity=severity,
        claim=claim,
        ranks=ranks,
        step_first=int(steps.min()) if len(steps) else None,
        step_last=int(steps.max()) if len(steps) else None,
        sites=tuple(
            _site(samples, int(slot)) for event in events[:2] for slot in (repeats.first[event], repeats.slot[event])
        ),
        measured=measured,
        expected=expected,
        unit=unit,
        false_alarm_rate=false_alarm_rate,
        evidence={
            "kind": "read-twice",
            "samples_shared": len(crossing),
            "samples_consumed": len(samples),
            **(more or {}),
        },
        next=_advice(evidence.declared),
    )


def _advice(declared: DeclaredSampling) -> tuple[str, ...]:
    if declared.draws_splits:
        return (ONE_SPLIT,)
    return (SPLIT_STREAM,) if declared.is_stream else _ONE_SEED


def _ranks_to_name(evidence: _Evidence, crossing: Ints) -> tuple[int, ...]:
    workers = workers_to_name(evidence.repeats, crossing, len(evidence.samples.ranks))
    return tuple(evidence.samples.ranks[worker] for worker in workers)


def _events_of_ranks(evidence: _Evidence, crossing: Ints, ranks: tuple[int, ...]) -> Ints:
    """Repeats between workers that one of ``ranks`` took part in."""
    number = np.array(evidence.samples.ranks)
    ranks_here, ranks_there = number[evidence.repeats.worker[crossing]], number[evidence.repeats.first_worker[crossing]]
    return crossing[np.isin(ranks_here, ranks) | np.isin(ranks_there, ranks)]


def _involved_clause(evidence: _Evidence, crossing: Ints) -> str:
    ranks = _ranks_to_name(evidence, crossing)
    num_involved = len(_events_of_ranks(evidence, crossing, ranks))
    if len(ranks) == len(evidence.samples.ranks):
        return ""
    return f", {'all' if num_involved == len(crossing) else f'{num_involved:,}'} of them involving {ranks_text(ranks)},"


def _consumed_clause(number: int) -> str:
    return f"Within an epoch {counted(number, 'sample')} {'was' if number == 1 else 'were'} consumed"


def _site(samples: Samples, slot: int) -> str:
    rank = samples.ranks[int(samples.worker[slot])]
    return str(Site(int(samples.step[slot]), 0, rank, "batch", "samples", slot=f"in{samples.position[slot]}"))


def _gap_finding(evidence: _Evidence, dataset_size: int | None, *, all_present: bool) -> Finding | None:
    samples, declared = evidence.samples, evidence.declared
    if dataset_size is not None and (gap := short_epoch(samples, declared, dataset_size)) is not None:
        return _missing_finding(samples, gap, claim=_gap_claim(samples, gap, "the plan declares"), severity="error")
    if (gap := gap_in_share(samples, declared)) is not None:
        claim = _gap_claim(samples, gap, "the samplers deal out")
        return _missing_finding(samples, gap, claim=claim, severity="warning", false_alarm_rate=None)
    returns = find_returns(samples)
    if returns.between_workers(len(samples.ranks)):
        return None
    parts = declared.uncovered_parts() if all_present else None
    if parts is not None:
        return _unread_parts_finding(samples, declared, *parts)
    return _own_rows_finding(evidence, returns)


def _own_rows_finding(evidence: _Evidence, returns: Returns) -> Finding | None:
    samples, declared = evidence.samples, evidence.declared
    gap = gap_of_own_rows(samples, declared)
    if gap is None:
        return None
    rows = declared.of_each("rows_digest")
    if rows is not None and declared.num_replicas is None and len(set(rows.values())) == len(rows):
        return _missing_finding(
            samples,
            gap,
            severity="warning",
            claim=_gap_claim(samples, gap, "the data sets of all ranks hold together, which are different ones"),
            false_alarm_rate=None,
        )
    log_e, fresh = log_e_of_staying(returns), fresh_after_complete(samples, declared, returns)
    if log_e is None or fresh is None or draws_with_replacement(samples, declared):
        return None
    stayed_text = f"{int(np.count_nonzero(returns.stays)):,} of {len(returns.stays):,}"
    return _missing_finding(
        samples,
        gap,
        severity="warning",
        false_alarm_rate=ALARM_LEVEL,
        claim=f"Every worker reads one of {len(samples.ranks)} parts of the rows that it declares, and they are rows "
        f"of its own: {stayed_text} samples that came again in another order came to the worker that had "
        f"them, while an epoch brought {fresh:,} that no earlier one held.",
        more={"samples_fresh": fresh, "samples_returned": len(returns.stays), "chance_bound": probability(-log_e)},
    )


def _gap_claim(samples: Samples, gap: Gap, source: str) -> str:
    share = f"{gap.consumed:,} of the {gap.expected:,} samples"
    return f"The epoch {_epoch_text(samples, gap.block)} consumed {share} that {source}."


def _epoch_text(samples: Samples, block: int) -> str:
    slots = samples.slots_of(block)
    return f"of steps {samples.step[slots.start]}-{samples.step[slots.stop - 1]}"


def _unread_parts_finding(samples: Samples, declared: DeclaredSampling, num_read: int, parts: int) -> Finding:
    rows = declared.of_each("rows_digest")
    holders = "that only some ranks hold" if rows is not None and len(set(rows.values())) > 1 else "that all ranks hold"
    return _missing_finding(
        samples,
        Gap(num_read, parts, 0),
        severity="error",
        unit="fraction of shards that are read",
        claim=f"The samplers split the rows {holders} into {parts} parts, of which {counted(num_read, 'part')} "
        f"{'is' if num_read == 1 else 'are'} read.",
        more={
            "kind": ["left-out", "own-rows" if rows is not None and len(set(rows.values())) > 1 else "same-part"],
            "sampler_ranks": {str(rank): facts["sampler_rank"] for rank, facts in declared.by_rank.items()},
            "rows_digests": {} if rows is None else {str(rank): digest for rank, digest in rows.items()},
        },
    )


def _missing_finding(
    samples: Samples,
    gap: Gap,
    *,
    severity: Severity,
    claim: str,
    unit: str = "fraction of rows consumed in an epoch",
    false_alarm_rate: float | None = 0.0,
    more: dict[str, Any] | None = None,
) -> Finding:
    slots = samples.slots_of(gap.block)
    return Finding(
        code=CODE,
        severity=severity,
        claim=claim,
        ranks=samples.ranks,
        step_first=int(samples.step[slots.start]),
        step_last=int(samples.step[-1]),
        sites=(_site(samples, slots.start),),
        measured=gap.consumed / gap.expected,
        expected=1.0,
        unit=unit,
        false_alarm_rate=false_alarm_rate,
        evidence={"kind": "left-out", **(more or {})},
        next=_SPLIT_ONCE,
    )
