"""Facts of the data that a training read.

D samples in the order in which one rank read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.series.drawn_indices import different_indices, index_passes
from trueline.judge.series.epochs import MOST_EPOCHS, epochs_of
from trueline.judge.stats.distinct import num_distinct
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted
from trueline.store.reader import Run

MAX_SAMPLES = 20_000_000
"""Digests of samples that are looked at together: 160 MB."""
FEW_RANKS = 32
"""Ranks, the first, of which it is said how much of the data set they read."""
TWENTIETH = 0.05
"""Share of a data set: below it stand rows that the data have twice, and what `drop_last` leaves out of each epoch."""
FEW_STEPS = 64
"""Steps whose batches stand for all, as batches have one size but at the ends of epochs."""


def samples(run: Run) -> tuple[str, Any]:
    """Samples read, those of them that are different, and how many the data set has."""
    digests_D = _digests(run)
    read, distinct = len(digests_D), num_distinct(digests_D)
    steps, ranks = len(run.steps), len(data_parallel_ranks(run))
    size = _loader(run).get("dataset_len")
    amount = "all of them different" if distinct == read else f"{distinct:,} of them different"
    text = f"{counted(read, 'sample')} in {counted(steps, 'step')} of {_processes(ranks)}, {amount}"
    if isinstance(size, int) and not isinstance(size, bool):
        text += f"; the data set has {size:,}"
    values = {"read": read, "different": distinct, "data_set": size}
    # an augmentation makes other samples of one each time, and samples may have the values of another one
    indices = different_indices(run, data_parallel_ranks(run))
    if indices is not None and indices != distinct:
        text += f", of which {indices:,} were drawn" if indices < distinct else ""
        values["drawn"] = indices
    return text, values


def reads_few(value: Mapping[str, Any]) -> bool:
    """Whether as many samples were read as the data set has, and fewer than half of these."""
    size = value["data_set"]
    return isinstance(size, int) and value["read"] >= size > 2 * value.get("drawn", value["different"])


def batch(run: Run) -> tuple[str, Any]:
    """Samples of a micro-batch, micro-batches of an update, and samples of an update on all ranks together."""
    ranks, steps = data_parallel_ranks(run), run.steps[:FEW_STEPS].tolist()
    steps_L, _, lengths_L, _ = run.flat("sample_digests", ranks=ranks, steps=steps)
    micros_TN, measured_TN = run.pivot("num_micro")
    if not len(lengths_L) or not measured_TN.any():
        raise CannotTell("no batch of samples was seen")
    # Medians: the last batch of an epoch may be smaller.
    of_update = int(np.median(np.bincount(np.searchsorted(steps, steps_L), weights=lengths_L)))
    micros = int(np.median(micros_TN[measured_TN]))
    of_rank = int(np.median(lengths_L))
    of_micro = of_rank // max(micros, 1)
    # A single micro-batch, and a single rank, say nothing that the number of samples does not.
    text = f"{counted(of_update, 'sample')} an update"
    text += f": {of_micro} a micro-batch" if micros > 1 or len(ranks) > 1 else ""
    text += f", {micros:,} micro-batches" if micros > 1 else ""
    text += f", {counted(len(ranks), 'rank')}" if len(ranks) > 1 else ""
    return text, {"update": of_update, "micro_batch": of_micro, "micro_batches": micros, "ranks": len(ranks)}


def shares(run: Run) -> tuple[str, Any] | None:
    """Different samples that ranks read, by values, as shares of the data set, and those that none has read though the
    data were gone through.
    """
    size, ranks = _loader(run).get("dataset_len"), data_parallel_ranks(run)
    epochs_TN, measured_TN = run.pivot("epoch")
    if type(size) is not int or not size or not measured_TN.any():
        return None
    distinct = num_distinct(_digests(run))
    # those of a rank alone, one at a time
    by_rank = [num_distinct(run.flat("sample_digests", ranks=[rank])[-1]) for rank in ranks[:FEW_RANKS]]
    whole = int(epochs_TN[measured_TN].max() - epochs_TN[measured_TN].min())
    drawn = different_indices(run, ranks) if whole else None
    if drawn is not None and distinct > drawn:
        return _shares_by_index(run, drawn, size)
    if distinct > size or not whole:
        return None  # values change from epoch to epoch, or the data were not gone through
    if any(_joins_batches(run, rank) for rank in ranks[:FEW_RANKS]):
        raise CannotTell("fewer batches were seen than the DataLoader yielded and backward passes were made of")
    low, high = min(by_rank) / size, max(by_rank) / size
    share = f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
    who = "each rank" if len(ranks) > 1 else "the training"
    text = f"{who} read {share} of the data set in {counted(whole, 'whole epoch')} and what followed"
    # samples with the values of another one are no samples that nobody read
    alike = max(drawn - distinct, 0) if drawn is not None else 0
    unread = 0 if _leaves_out_by_chance(run, distinct, size) else size - distinct - alike
    text += f"; {alike:,} of its {size:,} samples have the values of another one" if alike else ""
    text += f"; {unread:,} of its {size:,} samples, by their values, were read by none" if unread else ""
    shares_read = {"least": round(low, 4), "most": round(high, 4)}
    return text, shares_read | {"unread": unread, "alike": alike, "data_set": size, "epochs": whole}


def _joins_batches(run: Run, rank: int) -> bool:
    """True if batches of the loader of a rank are more than forward passes that count, and backward passes are as many:
    several are one batch to Trueline, where the script gives it a list of them, or their gradients are thrown away.
    """
    column = run.ranks.index(rank)
    (batches_TN, seen_TN), (micros_TN, micro_TN) = run.pivot("loader_batches"), run.pivot("num_micro")
    (begun_TN, has_begun_TN), epochs_T = run.pivot("passes_begun"), run.pivot("epoch")[0][:, column]
    known_T = seen_TN[:, column] & micro_TN[:, column] & has_begun_TN[:, column]
    yielded = called = begun = 0.0
    for step in np.flatnonzero(known_T[1:] & known_T[:-1]) + 1:
        # of one epoch, and no row is missing
        if epochs_T[step] == epochs_T[step - 1] and run.steps[step] == run.steps[step - 1] + 1:
            yielded += batches_TN[step, column] - batches_TN[step - 1, column]
            called += micros_TN[step, column]
            begun += begun_TN[step, column]
    return yielded - called > TWENTIETH * yielded >= yielded - begun


def reads_many_twice(value: Mapping[str, Any]) -> bool:
    """Whether more samples came again than rows that a data set has twice explain."""
    return value["again"] > TWENTIETH * value["samples"]


def leaves_many_out(value: Mapping[str, Any]) -> bool:
    """Whether more samples were never read than the ends of epochs explain."""
    return value["unread"] > TWENTIETH * value["data_set"]


def has_many_alike(value: Mapping[str, Any]) -> bool:
    """Whether more samples have the values of another one than repeats in a data set explain."""
    return value.get("alike", 0) > TWENTIETH * value["data_set"]


def alike_samples(value: Mapping[str, Any]) -> str:
    """What is to be confirmed of samples that are alike."""
    return (
        f"{value['alike']:,} of the {value['data_set']:,} samples of the data set have the values of another one, bit "
        "for bit"
    )


def unread_samples(value: Mapping[str, Any]) -> str:
    """What is to be confirmed of samples that nobody reads."""
    return (
        f"{value['unread']:,} of the {value['data_set']:,} samples of the data set were never read, in "
        f"{counted(value['epochs'], 'whole epoch')} and what followed"
    )


def _shares_by_index(run: Run, drawn: int, size: int) -> tuple[str, Any]:
    """As ``shares``, of samples whose values an augmentation changes."""
    ranks = data_parallel_ranks(run)
    ended = min(sum(index_pass.ended for index_pass in index_passes(run, rank)) for rank in ranks)
    who = "the ranks" if len(ranks) > 1 else "the training"
    text = f"{who} drew {drawn / size:.0%} of the indices of the data set in {counted(ended, 'whole epoch')}"
    unread = 0 if _leaves_out_by_chance(run, drawn, size) else size - drawn
    text += f"; {unread:,} of its {size:,} samples were read by none" if unread else ""
    share = round(drawn / size, 4)
    return text, {"least": share, "most": share, "unread": unread, "data_set": size, "epochs": ended}


def _leaves_out_by_chance(run: Run, different: int, size: int) -> bool:
    """True of a sampler that draws each sample again and again by its weight, as it is meant to, and has drawn half."""
    return _loader(run).get("sampler") == "WeightedRandomSampler" and 2 * different >= size


def epoch_order(run: Run) -> tuple[str, Any] | None:
    """Whether the epochs of the first rank have one order of samples: of each the samples that it begins with."""
    ranks = data_parallel_ranks(run)[:1]
    epochs = epochs_of(run, ranks[0]) if ranks else []
    if not epochs:
        raise CannotTell("no DataLoader was gone through, or it is not one of torch, or no batch of samples was seen")
    if len(epochs) < 2:
        return None
    first, later = epochs[0].digests, [epoch.digests for epoch in epochs[1:]]
    # The last epoch may have been left in its midst.
    equal = [np.array_equal(samples_D[: len(first)], first[: len(samples_D)]) for samples_D in later]
    if all(equal):
        order = "each has the samples of the first in the same order"
    elif not any(equal) and not any(np.isin(samples_D, first).any() for samples_D in later):
        # Samples are known by their values, which an augmentation changes: then their order is not.
        order = "none has a sample of the first with the same values"
        by_index = {index_pass.order for index_pass in index_passes(run, ranks[0])[: len(epochs)]}
        order += ", but their indices come in one order" if len(by_index) == 1 and "" not in by_index else ""
    elif not any(equal):
        order = "each has another order than the first"
    else:
        order = f"{sum(equal)} of {len(later)} have the order of the first"
    number = counted(len(epochs), "epoch")
    number = f"the first {number}" if len(epochs) == MOST_EPOCHS else number
    return f"{number}: {order}", {
        "epochs": len(epochs),
        "as_the_first": sum(equal),
        "stream": bool(_loader(run).get("stream")),
        "shuffles": _loader(run).get("shuffles"),
    }


def streams_in_one_order(value: Mapping[str, Any]) -> bool:
    """Whether all epochs of a stream have the order of the first. Of one that declares to shuffle, and of samplers,
    `epochs-alike` tells it.
    """
    is_one = value["as_the_first"] == value["epochs"] - 1
    return is_one and value["stream"] and value.get("shuffles") is not True


def read_twice(run: Run) -> tuple[str, Any] | None:
    """Samples that the first rank read more than once within its first epoch, where that came to its end."""
    ranks = data_parallel_ranks(run)[:1]
    epochs = epochs_of(run, ranks[0]) if ranks else []
    if len(epochs) < 2:
        return None
    passes = index_passes(run, ranks[0])
    if passes and passes[0].ended:
        # Indices know what is augmented, and rows that the data set has twice.
        num_samples, num_again = passes[0].drawn, passes[0].drawn - passes[0].different
    else:
        digests_D = epochs[0].digests
        num_samples, num_again = len(digests_D), len(digests_D) - len(np.unique(digests_D))
    # A weighted sampler draws with replacement, as it is meant to.
    if not num_again or _loader(run).get("sampler") == "WeightedRandomSampler":
        return None
    text = f"{num_again:,} of {counted(num_samples, 'sample')} of the first epoch were read before in that epoch"
    return text, {"again": num_again, "samples": num_samples}


def loader(run: Run) -> tuple[str, Any]:
    """What the DataLoader of the first rank was made with."""
    settings = _loader(run)
    if not settings:
        raise CannotTell("no DataLoader of torch was seen")
    words = [str(settings.get("dataset_type") or "a data set")]
    words += [f"read by {settings['sampler']}"] if settings.get("sampler") else []
    words += (
        ["shuffled" if settings["shuffle"] else "not shuffled"] if isinstance(settings.get("shuffle"), bool) else []
    )
    if isinstance(settings.get("num_workers"), int):
        words.append(
            counted(settings["num_workers"], "loader worker") if settings["num_workers"] else "no loader workers"
        )
    words += ["the last incomplete batch is dropped"] if settings.get("drop_last") is True else []
    recorded = ("dataset_type", "sampler", "shuffle", "num_workers", "drop_last", "seed", "batch_size")
    return ", ".join(words), {name: settings[name] for name in recorded if name in settings}


def tokens(run: Run) -> tuple[str, Any] | None:
    """Tokens that the losses of a step average over, where these are tokens."""
    source = run.env[run.ranks[0]].token_source if run.ranks and run.ranks[0] in run.env else ""
    values_TN, measured_TN = run.pivot("tokens")
    if not source or source == "samples" or not measured_TN.any():
        return None
    of_rank = values_TN[measured_TN]
    low, high = int(of_rank.min()), int(of_rank.max())
    if _counts_samples(run, values_TN):
        return None  # a target a sample, as of a classification: how many samples there are is a fact of its own
    amount = f"{low}" if low == high else f"{low} to {high}"
    per = "an update" if len(run.ranks) == 1 else "a rank and update"
    return f"{amount} tokens {per} are trained on", {"least": low, "most": high}


def _counts_samples(run: Run, tokens_TN: np.ndarray) -> bool:
    """Whether as many tokens as samples were counted at each of the first steps."""
    ranks, steps = data_parallel_ranks(run)[:FEW_RANKS], run.steps[:FEW_STEPS].tolist()
    samples = run.lists("sample_digests", ranks=ranks, steps=steps)
    return bool(samples) and all(
        tokens_TN[steps.index(step), run.ranks.index(rank)] == len(digests) for (step, rank), digests in samples.items()
    )


def _loader(run: Run) -> dict[str, Any]:
    return next((env.data for _, env in sorted(run.env.items()) if env.data), dict[str, Any]())


def _digests(run: Run) -> np.ndarray:
    """[D] of all ranks that read data of their own."""
    ranks = data_parallel_ranks(run)
    *_, of_first_step = run.flat("sample_digests", ranks=ranks, steps=run.steps[:1].tolist())
    if len(of_first_step) * len(run.steps) > MAX_SAMPLES:
        raise CannotTell(f"there may be more than {MAX_SAMPLES:,}, which are not looked at together")
    *_, digests_D = run.flat("sample_digests", ranks=ranks)
    if not len(digests_D):
        raise CannotTell("no batch of samples was seen")
    return digests_D


def _processes(num: int) -> str:
    return "one process" if num == 1 else counted(num, "rank")
