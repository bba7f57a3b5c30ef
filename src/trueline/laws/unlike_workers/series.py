"""Arrays of what each worker measured at each step, with who may be compared with whom: all that judgement reads.

Workers are compared at a step if they are meant to be equal: all of them, or those of one declared group
(``Plan.worker_groups``, or that hold the same piece of their sequences). A worker whose number of samples is not the
step's most common one is left out at that step if that is now and then (the last batch of an epoch). Where it lasts,
from some step on or over the whole Run, or where numbers vary all the time (batches filled up to a number of tokens),
they are part of what is compared.

Letters: T steps, N workers, G parameter groups. NaN is not measured, or not finite.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trueline.judge.compared_ranks import Bools, Floats, Ints, columns_of, numbers, several_workers
from trueline.judge.series.batch_features import Arguments, model_arguments
from trueline.judge.series.whole_parameters import replica_sets, unshared_params
from trueline.judge.stats.memoize import memoized
from trueline.laws.data_split.consumed import Samples, consumed_samples, first_within, repeated_slots
from trueline.laws.unlike_workers.loss_weighting import weighting_of
from trueline.schema.columns.batch_features import NUM_FEATURES
from trueline.schema.errors import CannotTell, RunError
from trueline.store.reader import Run

SampleLosses = Mapping[int, tuple[Floats, ...]]

LASTING_STEPS = 5
"""Steps in a row with an uncommon number of samples that are more than a last batch, of which an epoch has one. An
alarm takes longer than this with up to a hundred workers (``outliers.fewest_steps``), so that waiting delays none."""


MOSTLY = 0.9
"""Of steps in which workers have the same shares of tokens as usual: the rest are last batches of epochs."""


def _absent() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class WorkerSeries:
    """The series of N workers over T steps; what is left out is not measured. Two are the same only if they are one
    object, and nothing in it may change once it was judged (``memoize``).

    ``allowance`` is the persistent shift, in spreads, that is no fault at a step (see ``shard_allowance``).
    """

    steps: Ints
    """[T] optimizer steps, ascending."""
    ranks: tuple[int, ...]
    """N global ranks."""
    loss: Floats
    """[T, N] each worker's loss before averaging."""
    log_norm: Floats
    """[T, N] natural log of the norm of each worker's gradient before reduction."""
    cosine: Floats
    """[T, N] cosine to the mean of the others' gradients."""
    group_names: tuple[str, ...] = ()
    """G parameter groups."""
    group_log_norm: Floats = field(default_factory=_absent)
    """[T, N, G]"""
    group_cosine: Floats = field(default_factory=_absent)
    """[T, N, G]"""
    features: Floats = field(default_factory=_absent)
    """[T, N, features] of the batches (``schema.batch_features``)."""
    arguments: Callable[[Ints], Arguments] = field(default=lambda steps: Arguments(), repr=False)
    """What models were called on at some steps; read when it is asked for, as it is told of findings only."""
    loss_operations: Floats = field(default_factory=_absent)
    """[T, N] a digest of the operations that the loss is computed by."""
    tokens: Floats = field(default_factory=_absent)
    """[T, N] tokens that the loss averages over."""
    samples: Floats = field(default_factory=_absent)
    """[T, N] samples consumed."""
    sample_losses: SampleLosses = field(default_factory=dict[int, tuple[Floats, ...]])
    """By index of the step: per-sample (or per-micro-batch) losses, N arrays, where all workers left some."""
    declared: tuple[tuple[int, ...], ...] = ()
    """Positions (0 to N-1) that are meant to be equal, by group; empty: all are. A worker in none is not compared."""
    allowance: Floats = field(default_factory=_absent)
    """[T, N]"""
    consumed: Samples | None = None
    """What the workers read, where digests were left; its workers are ``ranks``."""

    def __post_init__(self) -> None:
        """Fill what was left out."""
        shape, num_groups = self.loss.shape, len(self.group_names)
        for name, whole, fill in (
            ("group_log_norm", (*shape, num_groups), math.nan),
            ("group_cosine", (*shape, num_groups), math.nan),
            ("features", (*shape, NUM_FEATURES), math.nan),
            ("loss_operations", shape, math.nan),
            ("tokens", shape, math.nan),
            ("samples", shape, math.nan),
            ("allowance", shape, 0.0),
        ):
            if getattr(self, name).size == 0:
                object.__setattr__(self, name, np.full(whole, fill))

    @property
    def num_workers(self) -> int:
        """N."""
        return len(self.ranks)

    def first(self, num_steps: int) -> WorkerSeries:
        """The compared series of the first steps; this one where there are no more."""
        if len(self.steps) <= num_steps:
            return self
        names = ("steps", "loss", "log_norm", "cosine", "group_log_norm", "group_cosine", "tokens", "samples")
        return WorkerSeries(
            ranks=self.ranks,
            group_names=self.group_names,
            declared=self.declared,
            **{name: getattr(self, name)[:num_steps] for name in names},
        )

    def compared_masks(self) -> list[Bools]:
        """[T, N] masks, one for each declared group: the workers that are compared with each other at each step."""
        groups = self.declared or (tuple(range(self.num_workers)),)
        return [_compared_mask(self.samples, group) for group in groups]

    def compared(self, values: Floats) -> list[Floats]:
        """``values`` [T, ..., N] once for each declared group, with NaN for whom is not compared at that step."""
        middle = (1,) * (values.ndim - 2)
        return [
            np.where(mask_TN.reshape(mask_TN.shape[0], *middle, mask_TN.shape[1]), values, np.nan)
            for mask_TN in self.compared_masks()
        ]


@memoized
def series_of(run: Run) -> WorkerSeries:
    """The series of a Run's data-parallel workers; raises ``CannotTell`` where there are fewer than two."""
    measured = _as_measured(run)
    ranks, samples = list(measured.ranks), _samples(run)
    num_TN = _num_samples(run, ranks, samples)
    # Sums over more tokens are larger by their number: divided by it they are as exchangeable as others.
    weight_TN = lasting_weights(measured.loss, measured.log_norm, measured.tokens)
    return replace(
        measured,
        loss=measured.loss / weight_TN,
        log_norm=measured.log_norm - np.log(weight_TN),
        group_log_norm=measured.group_log_norm - np.log(weight_TN)[..., None],
        features=_groups(run, ranks, "batch_features", NUM_FEATURES),
        arguments=_argument_reader(run, ranks),
        loss_operations=_where_measured(*numbers(run, "loss_operations", ranks)),
        samples=num_TN,
        sample_losses=_sample_losses(run, ranks),
        allowance=np.zeros(num_TN.shape) if samples is None else _allowance(run, samples, num_TN),
        consumed=samples,
    )


@memoized
def as_measured(run: Run) -> WorkerSeries:
    """The series without what takes all steps or is told of findings alone: values are those that were measured,
    whatever workers weigh, and samples are counted, not looked at. Raises ``CannotTell`` as ``series_of`` does.
    """
    measured = _as_measured(run)
    return replace(measured, samples=_num_digests(run, list(measured.ranks)))


def measured_alone(run: Run) -> WorkerSeries:
    """The losses, norms and cosines of the whole gradients alone, as measured: norms without what is each rank's own,
    such as experts, and no cosines beside such, which have all in one. Raises ``CannotTell`` as ``series_of`` does.
    """
    ranks = several_workers(run)
    unshared, shape = _unshared_params(run, ranks), (len(run.steps), len(ranks))
    return WorkerSeries(
        steps=run.steps.astype(np.int64),
        ranks=tuple(ranks),
        loss=_finite(numbers(run, "loss", ranks)[0]),
        log_norm=_log(numbers(run, "grad_norm", ranks)[0] if not unshared else _norms_without(run, ranks, unshared)),
        cosine=_finite(numbers(run, "cosine_others", ranks)[0]) if not unshared else np.full(shape, np.nan),
        declared=_declared(run, ranks),
    )


def _unshared_params(run: Run, ranks: Sequence[int]) -> frozenset[str]:
    """Parameters of which the ``ranks`` hold values of their own, as experts; not where they hold the same part."""
    unshared = unshared_params(run)
    return frozenset() if any(set(ranks) <= set(holders) for holders in replica_sets(run, unshared)) else unshared


def _norms_without(run: Run, ranks: Sequence[int], unshared: Collection[str]) -> Floats:
    """[T, N] norm of each worker's gradients of all parameters but ``unshared``."""
    norms_TNP, measured_TN = run.stack("param_grad_norms", ranks=ranks)
    shared_P = ~np.isin(np.array(run.env[ranks[0]].params, dtype=str), sorted(unshared))
    squares_TN = np.sum(np.maximum(norms_TNP[..., shared_P], 0.0) ** 2, axis=2)
    return np.where(measured_TN & shared_P.any(), np.sqrt(squares_TN), np.nan)


def _as_measured(run: Run) -> WorkerSeries:
    alone = measured_alone(run)
    ranks = list(alone.ranks)
    # Norms of groups have what is a rank's own, such as experts, in them.
    group_names = () if _unshared_params(run, ranks) else _group_names(run, ranks)
    return replace(
        alone,
        group_names=group_names,
        group_log_norm=_log(_groups(run, ranks, "group_grad_norms", len(group_names))),
        group_cosine=_finite(_groups(run, ranks, "group_cosine_others", len(group_names))),
        tokens=_finite(numbers(run, "tokens", ranks)[0]),
    )


def shard_allowance(samples: Samples, step_index: Ints, num_TN: Floats) -> Floats:
    """[T, N] the persistent shift of a worker's mean loss, in spreads, that reading its own samples again explains.

    Samples that are fresh, or dealt out anew in every epoch, are exchangeable between workers. A worker that reads
    samples again which it and no one else has read before (fixed shards, from the second epoch on) keeps the mean of
    these: with B samples a step out of n distinct ones it differs by sqrt(B / n) spreads, one standard deviation of
    the mean of n over that of B. Of these 2 + sqrt(2 ln N) are allowed, two beyond the largest of N normal values,
    times the fraction of such samples in the step. ``step_index`` [n] is the row of each slot.
    """
    reread, fresh = _reread_slots(samples)
    slots = (step_index, samples.worker)
    if not reread.any():
        return np.zeros(num_TN.shape)
    again_TN, fresh_TN = (_counted(num_TN.shape, [positions[mask] for positions in slots]) for mask in (reread, fresh))
    distinct_TN = np.maximum(np.cumsum(fresh_TN, axis=0), 1)
    batch_TN = np.maximum(np.nan_to_num(num_TN, nan=1.0), 1)
    limit = 2 + math.sqrt(2 * math.log(num_TN.shape[1]))
    return limit * np.sqrt(batch_TN / np.maximum(distinct_TN, batch_TN)) * again_TN / batch_TN


def _counted(shape: tuple[int, ...], positions: Sequence[Ints]) -> Floats:
    """[T, N] numbers of times that ``positions`` (a row and a column each) name a place."""
    flat = np.ravel_multi_index(tuple(positions), shape)
    return np.bincount(flat, minlength=math.prod(shape)).reshape(shape).astype(np.float64)


def lasting_weights(loss_TN: Floats, log_norm_TN: Floats, tokens_TN: Floats) -> Floats:
    """[T, N] by how much more than the others a worker that always has more tokens counts: their number over its mean
    over workers, where losses and gradients both grow with it as sums over tokens do, so that every token counts alike.
    1 elsewhere.
    """
    with np.errstate(invalid="ignore"):
        share_TN = tokens_TN / tokens_TN.mean(axis=1, keepdims=True)
    known_T = np.isfinite(share_TN).all(axis=1)
    usual_N = np.median(share_TN[known_T], axis=0) if known_T.any() else np.ones(share_TN.shape[1])
    ones_TN = np.ones(share_TN.shape)
    if np.ptp(usual_N) == 0 or np.mean(share_TN[known_T] == usual_N) < MOSTLY or not (tokens_TN[known_T] > 0).all():
        return ones_TN
    weighting = weighting_of(loss_TN, log_norm_TN, np.log(tokens_TN), loss_is_local=True)
    # Gradients alone may grow with tokens for another reason: losses that are sums grow in proportion.
    slope = weighting.loss_slope
    if weighting.averaging != "by tokens" or slope is None or not slope.low <= 1 <= slope.high:
        return ones_TN
    return np.where(known_T[:, None], share_TN, 1.0)


def _compared_mask(samples_TN: Floats, group: tuple[int, ...]) -> Bools:
    """[T, N] mask of the workers of ``group`` to compare: all but those with an uncommon number of samples at times.

    Numbers vary all the time where uncommon ones are more than half of the (M - 1)/M that there can be at most.
    """
    mask_TN = np.zeros(samples_TN.shape, dtype=np.bool_)
    mask_TN[:, list(group)] = True
    inside_TM = samples_TN[:, list(group)]
    known_T = np.all(np.isfinite(inside_TM) & (inside_TM > 0), axis=1)
    odd_KM = _uncommon(inside_TM[known_T])
    if 2 * np.count_nonzero(odd_KM) <= (len(group) - 1) * len(odd_KM):
        mask_TN[np.ix_(known_T, group)] = ~odd_KM | _persistent(odd_KM)
    return mask_TN


def _uncommon(counts_KM: Floats) -> Bools:
    """[K, M] where a worker has another count than the most common one of its step (of several, the largest)."""
    odd_KM = np.zeros(counts_KM.shape, dtype=np.bool_)
    for k in np.flatnonzero(np.any(counts_KM != counts_KM[:, :1], axis=1)):
        counts, votes = np.unique(counts_KM[k], return_counts=True)
        odd_KM[k] = counts_KM[k] != counts[np.flatnonzero(votes == votes.max())[-1]]
    return odd_KM


def _persistent(odd_KM: Bools) -> Bools:
    """[K, M] where ``odd_KM`` is set at ``LASTING_STEPS`` in a row, this one among them."""
    out_KM = np.zeros(odd_KM.shape, dtype=np.bool_)
    if len(odd_KM) >= LASTING_STEPS:
        windows_of_M = np.lib.stride_tricks.sliding_window_view(odd_KM, LASTING_STEPS, axis=0)
        in_row_M = np.asarray(np.all(windows_of_M, axis=2), dtype=np.bool_)
        for offset in range(LASTING_STEPS):
            out_KM[offset : len(in_row_M) + offset] |= in_row_M
    return out_KM


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def _where_measured(values: Floats, measured: Bools) -> Floats:
    return np.where(measured, values, np.nan)


def _log(values: Floats) -> Floats:
    """Natural log; NaN for a gradient that was zero or absent, which ``worker-silent`` judges."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _finite(np.log(np.where(values > 0, values, np.nan)))


def _group_names(run: Run, ranks: list[int]) -> tuple[str, ...]:
    """Names of the parameter groups where all ranks have the same, else none."""
    names = [tuple(group.name for group in run.env[rank].groups) for rank in ranks if rank in run.env]
    return names[0] if names and all(rank_names == names[0] for rank_names in names) else ()


def _argument_reader(run: Run, ranks: list[int]) -> Callable[[Ints], Arguments]:
    """A reader of what models were called on at some steps."""
    # The series are memoized with the Run, and would never let go of it.
    run_reference = weakref.ref(run)

    def read_arguments(steps: Ints) -> Arguments:
        live_run = run_reference()
        return Arguments() if live_run is None else model_arguments(live_run, ranks, steps)

    return read_arguments


def _groups(run: Run, ranks: list[int], column: str, num_groups: int) -> Floats:
    """[T, N, G] of a list column of G numbers; all NaN where there is none, or of another length."""
    absent = np.full((len(run.steps), len(ranks), num_groups), np.nan)
    try:
        values, measured = run.stack(column)
    except RunError:
        return absent
    if not measured.any() or values.shape[2] != num_groups:
        return absent
    columns = columns_of(run, ranks)
    return np.where(measured[:, columns, None], values[:, columns], np.nan)


def _samples(run: Run) -> Samples | None:
    try:
        return consumed_samples(run)
    except CannotTell:
        return None


def _num_samples(run: Run, ranks: list[int], samples: Samples | None) -> Floats:
    """[T, N] samples consumed; NaN where no digests were left."""
    shape = len(run.steps), len(ranks)
    if samples is None:
        return np.full(shape, np.nan)
    count_TN = _counted(shape, (np.searchsorted(run.steps, samples.step), samples.worker))
    return np.where(count_TN > 0, count_TN, np.nan)


def _num_digests(run: Run, ranks: list[int]) -> Floats:
    """[T, N] samples whose digests were left; NaN where there were none."""
    steps_R, ranks_R, lengths_R, _ = run.flat("sample_digests", ranks=ranks)
    count_TN = np.full((len(run.steps), len(ranks)), np.nan)
    count_TN[np.searchsorted(run.steps, steps_R), np.searchsorted(ranks, ranks_R)] = lengths_R
    return np.where(count_TN > 0, count_TN, np.nan)


def _allowance(run: Run, samples: Samples, num_TN: Floats) -> Floats:
    return shard_allowance(samples, np.searchsorted(run.steps, samples.step).astype(np.int64), num_TN)


def _reread_slots(samples: Samples) -> tuple[Bools, Bools]:
    """[n] masks of the slots whose worker, and no other so far, has read the sample at a step before, and of those
    whose worker reads it for the first time.
    """
    repeated = repeated_slots(samples.first_in_run)
    order = repeated[np.lexsort((samples.step[repeated], samples.digest[repeated]))]
    digest, step, worker = samples.digest[order], samples.step[order], samples.worker[order]
    # Sorted by digest, then step, the first slot of each sample is that of its owner.
    opens = np.ones(len(order), dtype=np.bool_)
    opens[1:] = digest[1:] != digest[:-1]
    number = np.cumsum(opens) - 1
    owner, first_step = worker[opens][number], step[opens][number]
    shared_at = np.full(int(number[-1]) + 1 if len(order) else 0, np.iinfo(np.int64).max)
    np.minimum.at(shared_at, number[worker != owner], step[worker != owner])
    reread = np.zeros(len(samples), dtype=np.bool_)
    reread[order] = (worker == owner) & (step > first_step) & (step <= shared_at[number])
    return reread, first_within(samples.worker, samples.first_in_run) == np.arange(len(samples))


def _sample_losses(run: Run, ranks: list[int]) -> SampleLosses:
    """Per-sample losses of every worker's batch, by index of the step, where all workers left them."""
    rows = run.lists("part_losses")
    losses: dict[int, tuple[Floats, ...]] = {}
    for index, step in enumerate(run.steps.tolist()):
        if all((step, rank) in rows for rank in ranks):
            losses[index] = tuple(_finite(rows[step, rank].astype(np.float64)) for rank in ranks)
    return losses


def _declared(run: Run, ranks: list[int]) -> tuple[tuple[int, ...], ...]:
    """Positions of the ranks of each of the plan's ``worker_groups``, or of those that hold the same pieces."""
    groups = run.manifest.plan.get("worker_groups") or run.manifest.pieces
    return tuple(tuple(ranks.index(rank) for rank in group if rank in ranks) for group in groups)
