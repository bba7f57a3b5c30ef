"""Two or more workers consume the same samples in the same steps.

What it finds
-------------
Workers that read the same data at the same time: no DistributedSampler, a sampler with num_replicas=1, a stream that
was never split by rank, two ranks with one shard. All of the batch or a part of it, in the same order or not.

Why it matters
--------------
N workers that read the same samples do the work of one. The loss curve looks normal, the global batch is N times
smaller than it seems, an epoch takes N times as long, and with dropout on not even the gradients are equal.

How it decides
--------------
By digests of the samples, whatever their order, compared with what chance gives: a data set may hold equal rows,
and sampling with replacement repeats rows. The null hypothesis is that the slots of an epoch (step, worker, position)
are exchangeable: permuting what is in them is as likely as what was seen. That holds for any shuffled data set with
any number of equal rows, and for any sampling with replacement.

Go through the slots in order. If the sample in a slot is in m - 1 more slots, then under the null hypothesis these
are a uniformly random choice of the R slots that are not known yet. Let s of those R be in the same step on other
workers: each of the m - 1 falls there with probability s/R, so their number k is hypergeometric and

    E[t^k] <= (1 + (t - 1) s/R)^(m - 1)          for every t > 1 (Hoeffding 1963, theorem 4)

Hence the product of t^k / (1 + (t - 1) s/R)^(m - 1) over all samples is a non-negative supermartingale that starts at
1. By Ville's inequality it exceeds 1/a with probability at most a, at any time: that, averaged over t = 3, 10, 100
and 10,000, over epochs as starts, and over four ways to look (the slots of an epoch or of one step; the same step or
also the same position in it), gives the false-alarm rate of 1e-6 a Run. Each sample counts in the first epoch only
that repeats it, because an order that is not reshuffled repeats its coincidences. Nothing else is assumed about the
data, and nothing is tuned. `benchmarks/exact_checks/false_alarms.py` counts false alarms in simulated healthy runs.

Where the same position tells most, only samples at the same position of the step are counted, and beside them those
that come again in other steps of the epoch: B positions a worker and step put such a sample at its old position once
in B times. Where all k of them are there, B^-k is at most 1e-6 and most samples are new, what is digested hangs on the
position: random numbers that are mixed into the batch are the same at every step (kind "positions-kept").

Ranks that exchanged nothing meanwhile, where the script reduces by hand, train alike and not together, as a teacher
that each makes for itself: that is an information.

Ranks that all exchange tensors within the forward pass, with some parameters in common and some of their own since the
first step (tensor parallelism by hand, also where each has the loss of its own tokens), compute one batch together:
those of a set that reads the same samples count as one, where all sets are of one size.

Two workers are named together if the share of samples that they have in common in a step is likelier under the
highest share of any pair than under chance.

What it may miss
----------------
Two ranks that read the same samples in different steps (see shard-overlap); samples that are changed on the fly, as
augmented images are, before they are digested; a Run that repeats one single batch, since then every worker repeats
itself as well; samples of which there are so few that workers share most of them by chance, as the states of a small
game; epochs of a single step, where padding repeats samples by design; ranks whose experts are exchanged by hand, where
all of them read the same. It takes two or three steps with four
samples a worker, ten steps with one (`benchmarks/exact_checks/power.py`). In a data set that is read in file order,
equal rows may follow each other and meet in one step by design; where a sampler declares that, the finding is a warning
without a false-alarm rate.

Example
-------
Ranks 0 and 1 consumed the same samples at steps 0-49.

Wrong and right
---------------
Wrong:

```python
loader = DataLoader(dataset, batch_size=16, shuffle=True)  # equal seeds: every rank reads the same rows
```

Right:

```python
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
```
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, numbers
from trueline.judge.series.declared_sampling import ONE_SPLIT, SPLIT_STREAM, DeclaredSampling, declared_sampling
from trueline.judge.stats.tails import ALARM_LEVEL, probability
from trueline.laws.data_split.consumed import Samples, consumed_samples
from trueline.laws.data_split.fresh import FreshSamples
from trueline.laws.data_split.repeats_in_step import Duplicates, comparable_slots, find_duplicates, shared_slots
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.words import capitalized, counted, listed, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "duplicate-data"
CALLS = {"": ("DistributedSampler", "DataLoader")}
QUESTION = "data"
FOLLOWS = FreshSamples()
NEEDS: tuple[str, ...] = ("sample_digests",)
FEW_SAMPLES = 0.75
"""Where more of the samples of a step are shared by chance, they are states, not samples: a game's board, a category.
Those come in an order of their own, so that slots are not exchangeable."""
MOSTLY_SHARED = 0.25
"""Share of samples from which ranks read the same data; below, what they read overlaps."""
SEEDED_AGAIN = (
    "Look for a seed that is set at every step: torch.manual_seed or a Generator made in the loop. Random parts of the "
    "batch, as noise, augmentation or drawn indices, are then the same at every step and on every rank; seed once, "
    "before the loop, with another seed on each rank."
)


def check(run: Run) -> list[Finding]:
    """Finding on all workers that consume samples of others in the same step; raises ``CannotTell``."""
    samples = consumed_samples(run)
    if not comparable_slots(samples).any():
        raise CannotTell(
            "every epoch is a single step long, where padding repeats samples on other workers by design",
            reason="undecidable",
        )
    duplicates = find_duplicates(samples)
    if duplicates is None:
        return []
    if duplicates.chance > FEW_SAMPLES:
        raise CannotTell(
            f"there are so few different samples that workers share {duplicates.chance:.0%} of them by chance",
            reason="undecidable",
        )
    alone = _exchange_nothing(run, samples.ranks, duplicates.step_first, duplicates.step_last)
    return [_finding(samples, duplicates, declared_sampling(run.env, samples.ranks), alone=alone)]


def _exchange_nothing(run: Run, ranks: Sequence[int], first: int, last: int) -> bool:
    """True where the script, which reduces by hand, started no collective of these ranks from ``first`` to ``last``."""
    in_steps = (run.steps >= first) & (run.steps <= last)
    started_TN, measured_TN = numbers(run, "passes", ranks)
    count_TN = np.where(measured_TN, started_TN, 0.0)[in_steps]
    if any(env.talks_in_forward for env in run.env.values()):  # in groups that are not all of them
        return False
    return run.manifest.adapter == "manual" and len(count_TN) > 1 and not np.any(count_TN != count_TN[0])


def _finding(samples: Samples, duplicates: Duplicates, declared: DeclaredSampling, *, alone: bool) -> Finding:
    groups = [[samples.ranks[worker] for worker in group] for group in duplicates.groups]
    ranks = sorted(rank for group in groups for rank in group)
    in_part = len(groups[0]) < len(samples.ranks)
    share = duplicates.shared / duplicates.consumed
    by_design = declared.splits_one_data_set and declared.in_file_order
    ranks_clause = listed([ranks_text(group) for group in groups])
    where = ", each at the same position of its batch," if duplicates.same_position else ""
    predicate = "consumed the same samples" if share == 1 else f"shared {share:.1%} of their samples{where}"
    alone_clause = ", and exchanged nothing with each other: each does all of the work by itself" if alone else ""
    again_clause = (
        f" {counted(duplicates.num_at_old_position, 'sample')} of other steps came again, all at their old position."
        if duplicates.num_at_old_position
        else ""
    )
    return Finding(
        code=CODE,
        severity="info" if alone else "warning" if by_design else "error",
        claim=f"{capitalized(ranks_clause)} {predicate} at {_steps_clause(samples, duplicates)}{alone_clause}."
        f"{again_clause}",
        ranks=tuple(ranks),
        step_first=duplicates.step_first,
        step_last=duplicates.step_last,
        sites=_sites(samples, duplicates),
        measured=share,
        expected=duplicates.chance,
        unit="fraction of samples shared",
        false_alarm_rate=None if by_design else ALARM_LEVEL,
        evidence={
            "kind": _kind(duplicates, share, in_part=in_part),
            "groups": groups,
            "samples_shared": duplicates.shared,
            "samples_consumed": duplicates.consumed,
            "chance_bound": probability(-duplicates.log_e),
        },
        next=(SEEDED_AGAIN,)
        if duplicates.num_at_old_position
        else _same_part(groups)
        if in_part
        else _advice(declared, few=share < MOSTLY_SHARED),
    )


def _kind(duplicates: Duplicates, share: float, *, in_part: bool) -> str:
    if duplicates.num_at_old_position:
        return "positions-kept"
    return "some-ranks" if in_part else "same-samples" if share >= MOSTLY_SHARED else "few"


def _steps_clause(samples: Samples, duplicates: Duplicates) -> str:
    steps = np.unique(samples.step)
    in_steps = steps[(steps >= duplicates.step_first) & (steps <= duplicates.step_last)]
    if len(in_steps) == duplicates.num_steps:
        return steps_text(in_steps.tolist(), among=steps.tolist())
    return f"{duplicates.num_steps} of the steps {duplicates.step_first}-{duplicates.step_last}"


def _sites(samples: Samples, duplicates: Duplicates) -> tuple[str, ...]:
    members = np.isin(samples.worker, [worker for group in duplicates.groups for worker in group])
    shared = shared_slots(samples, same_position=duplicates.same_position) & members
    slots = np.flatnonzero(shared & (samples.step == duplicates.step_first))
    order = slots[np.lexsort((samples.worker[slots], samples.position[slots]))][:MAX_SITES]
    return tuple(
        str(
            Site(
                int(samples.step[i]),
                0,
                samples.ranks[samples.worker[i]],
                "batch",
                "samples",
                slot=f"in{samples.position[i]}",
            )
        )
        for i in order
    )


def _same_part(groups: list[list[int]]) -> tuple[str, ...]:
    ranks_clause = listed([ranks_text(group) for group in groups])
    return (
        f"{capitalized(ranks_clause)} take the same part of the data: print which part (rank, shard, files) each "
        "rank's reader is given. It should be the global rank, dist.get_rank(), of dist.get_world_size(): neither the "
        "local rank or the node's number, nor one that was divided.",
    )


def _advice(declared: DeclaredSampling, *, few: bool) -> tuple[str, ...]:
    if declared.is_stream:
        return (SPLIT_STREAM,)
    sampler, parts = declared.all_equal("sampler"), declared.num_replicas
    if few and declared.draws_splits:
        return (ONE_SPLIT,)
    if few and sampler != "DistributedSampler":
        return (
            "Look for what makes the parts of ranks overlap: print the indices or files that each rank's part is made "
            "of. A split or shuffle that comes before the parts needs one seed on all ranks.",
        )
    if sampler == "DistributedSampler" and parts is not None and parts < len(declared.by_rank):
        return (
            f"The DistributedSampler splits the data into {parts} for {len(declared.by_rank)} workers: build it with "
            "num_replicas=world_size and rank=rank, after init_process_group.",
        )
    if sampler and parts is None:
        return (
            f"The DataLoader uses {sampler}, which does not split the data: pass "
            "sampler=DistributedSampler(dataset, num_replicas=world_size, rank=rank).",
        )
    return (
        "Give every rank its own shard: DistributedSampler(dataset, num_replicas=world_size, rank=rank); a stream "
        "needs datasets.distributed.split_dataset_by_node or its own stride by rank.",
    )
