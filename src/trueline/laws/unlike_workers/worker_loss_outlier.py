"""One worker's loss differs from the others'.

What it finds
-------------
A rank whose loss, before any averaging, is higher or lower than the others' more often than chance allows; since when,
and by how much. Labels permuted or noised on one rank, another preprocessing or tokenizer, a harder or easier shard, or
a loss that is averaged over something else do that.

Why it matters
--------------
The mean over workers hides it: with N workers a rank that learns from noise moves the mean by 1/N of its own shift. The
run trains, a little worse, as that rank's gradients pull in another direction.

How it decides
--------------
Healthy workers draw their batches from one pool, so at each step every order of the workers is equally likely, however
the losses are distributed and whatever all of them do together (warm-up, spikes, curriculum). Trueline bets against
that at every step, for each worker, and adds up what the bets win from every possible start (an e-detector: exact, for
any distribution and any number of steps). The threshold is set so that all checks that compare workers together raise
at most `false_alarms` (plan, default 0.1) false alarms per 10,000 healthy steps; this one has a sixth of it. The checks
of jumps over time have a second budget of the same size, and each exact check that counts adds at most 1e-6 a Run. The
Finding bounds the probability that a healthy run looks like this. Since when: the step that best divides the
differences to the others into some around 0 and some around another level, with a 95 % interval
(`judge/stats/change_point.py`; studies/judgement, onsets: 97 % of 2,778 intervals held the step at which a shift
began).

The worker with the most evidence is named and removed, and the others are judged again without it. With two workers, or
where no majority agrees, the Finding says that they differ and that it is undecided which rank is faulty, unless one
series jumps at that step by more than it ever has and the other does not. Only workers of one declared group are
compared (`worker_groups`), and only equally large batches where batches are unequal now and then. Where workers read
fixed shards again and again, a persistent difference of the size that shards have by chance is allowed for.

What it may miss
----------------
Shifts that are small against the spread between workers: with 8 workers a shift of 1 spread takes about 34 steps, of 3
about 9, with two workers 58 and 24 (studies/judgement, curves). Fewer steps than ln(threshold) / ln N cannot raise
an alarm. A shift that all workers share. A loss that is only scaled, along with its gradient, is reported by
`worker-scale` instead.

Example
-------
The loss of rank 3 is 0.31 above the others' mean of 2.1 since step 1240 (between 1238 and 1246).

Wrong and right
---------------
Wrong:

```python
tokenizer = AutoTokenizer.from_pretrained("/local/tokenizer")  # one node has an older copy
```

Right:

```python
tokenizer = AutoTokenizer.from_pretrained("/shared/tokenizer")
```
"""

from __future__ import annotations

from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.judge.stats.intervals import mean_of_workers
from trueline.laws.unlike_workers.gradient_scale import unexplained
from trueline.laws.unlike_workers.outlier_finding import NamedOutlier
from trueline.laws.unlike_workers.outliers import find_outliers
from trueline.laws.unlike_workers.quiet import Quiet
from trueline.laws.unlike_workers.series import WorkerSeries, series_of
from trueline.schema.finding import Finding
from trueline.schema.text.words import of_ranks
from trueline.store.reader import Run

CODE = "worker-loss-outlier"
QUESTION = "workers"
NEEDS: tuple[str, ...] = (
    "loss",
    "grad_norm",
    "group_grad_norms",
    "group_cosine_others",
    "sample_digests",
    "cosine_others",
    "tokens",
)
FOLLOWS = Quiet("loss")


def check(run: Run) -> list[Finding]:
    """A warning for each worker whose loss stands out; raises ``CannotTell`` without losses to compare."""
    return judge(series_of(run), alarm_budget_of(run))


def judge(series: WorkerSeries, budget: AlarmBudget) -> list[Finding]:
    """A warning for each worker of ``series`` whose loss stands out; raises ``CannotTell`` as ``check`` does."""
    outliers = unexplained(find_outliers(series, budget, "loss"), series, budget)
    return [_finding(NamedOutlier(series, outlier)) for outlier in outliers]


def _finding(outlier: NamedOutlier) -> Finding:
    loss_TN = outlier.series.loss
    difference = outlier.effect(loss_TN)
    expected = outlier.effect(loss_TN, mean_of_workers).value - difference.value
    side = "above" if difference.value > 0 else "below"
    peers = f"that of {outlier.counterpart}" if outlier.is_undecided else f"{outlier.counterpart}' mean"
    return Finding(
        code=CODE,
        severity="warning",
        claim=outlier.claim(
            f"{of_ranks(['loss'], outlier.ranks)} {abs(difference.value):.3g} {side} {peers} of "
            f"{expected:.4g} {outlier.when_text}",
        ),
        sites=outlier.sites(("loss",), phase="loss"),
        measured=difference.value,
        expected=0.0,
        unit="loss minus the others' mean loss",
        next=(
            f"Look at the samples and labels that {outlier.subject} read at step "
            f"{outlier.first_step} and after: are they masked, shuffled or cut like the others'?",
            outlier.declaration_advice,
        ),
        **outlier.fields(
            difference.interval(),
            num_steps=difference.num_steps,
            kind=[side, *(["several"] if outlier.is_in_halves else [])],
        ),
    )
