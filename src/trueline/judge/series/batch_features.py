"""Comparison of the inputs and labels that an outlying rank read with those of its peers.

Letters: S steps of the evidence, N workers, w workers that stand out, o their peers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb

import numpy as np

from trueline.judge.compared_ranks import Floats, Ints
from trueline.judge.stats.tails import NAMING_LEVEL, binomial_tail
from trueline.schema.columns.batch_features import FEATURES, NUM_FEATURES, PARTS, is_target, names_id
from trueline.store.reader import Run

SPREADS = 3.0
"""Times the spread between batches that a difference must be. Fixed random shards of n samples, read in batches of B,
differ by some sqrt(4/3 B / (n - B)) of it for good (four ranks): a fifth of this where a shard has four batches, so
that chance reaches it at 4.5 standard deviations, and less where shards have more."""


_MAY_BE_INFINITE = ("mask", "bias")
"""In names of what is added to the scores of attention: -inf there leaves a place out."""


@dataclass(frozen=True)
class FeedComparison:
    """``parts`` says of inputs and labels "other" or "alike", where known; ``text`` what differs most, or is empty."""

    parts: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Arguments:
    """Names of the arguments that a model is called on: ``inputs`` and ``labels`` are those of the tensors of the
    column ``batch_features``, "" where none is known. ``by_name`` has the features [S, N, F] of all further ones.
    """

    inputs: str = ""
    labels: str = ""
    by_name: Mapping[str, Floats] = field(default_factory=dict[str, Floats])


def model_arguments(run: Run, ranks: Sequence[int], steps: Ints) -> Arguments:
    """Arguments of the model at ``steps``. Equal names on several ranks are one argument."""
    envs = {rank: run.env[rank] for rank in ranks if rank in run.env}
    names_by_id = {rank: {names_id(names): names for names in env.arguments} for rank, env in envs.items()}
    counts, by_name = Counter[tuple[str, str]](), dict[str, Floats]()
    for (step, rank), row in run.lists("argument_features", steps=steps.tolist(), ranks=ranks).items():
        names = names_by_id.get(rank, {}).get(int(row[0]), [])
        # A row refers to names by their digest; where the environment lacks these, its numbers belong to nothing.
        if len(row) != 1 + len(FEATURES) * len(names[len(PARTS) :]) or not names:
            continue
        counts[names[0], names[1]] += 1
        at = int(np.searchsorted(steps, step)), ranks.index(rank)
        for name, features in zip(names[len(PARTS) :], row[1:].reshape(-1, len(FEATURES)), strict=True):
            if name not in by_name:
                by_name[name] = np.full((len(steps), len(ranks), len(FEATURES)), np.nan)
            by_name[name][at] = features
    inputs, labels = counts.most_common(1)[0][0] if counts else ("", "")
    return Arguments(inputs, labels, by_name)


def compare_feeds(
    features_SNF: Floats,
    workers: tuple[int, ...],
    peers: tuple[int, ...],
    arguments: Arguments = Arguments(),
    *,
    ranks: Sequence[int] = (),
) -> FeedComparison:
    """Compare what ``workers`` read with what ``peers`` read; both are positions on the axis N.

    A feature differs where, over the steps, all workers are above all others, or below, more often than chance gives:
    at each step every order of N workers is as likely, so w of them are on top once in C(N, w) times. The number of
    such steps is binomial, at ``NAMING_LEVEL`` split over tensors, features and sides; and by ``SPREADS`` on average.
    Where several workers stand beside several others, each may read what none else does: then the two of all that are
    farthest apart are compared, and named by ``ranks`` [N]. A second tensor that the model does not call a label is an
    input.
    """
    main = (("inputs", arguments.inputs), ("labels", arguments.labels))
    halves = np.split(features_SNF, len(PARTS), axis=-1)
    tensors = [(name or part, values, part) for (part, name), values in zip(main, halves, strict=True)]
    tensors += [(name, values, "inputs") for name, values in arguments.by_name.items()]
    parts: dict[str, str] = {}
    differences: list[tuple[float, str]] = []
    for name, values_SNF, default in tensors:
        part = "labels" if is_target(name) else "inputs" if name != default else default
        for index, feature in enumerate(FEATURES[:-1]):
            values_SN = values_SNF[:, :, index]
            side_a, side_b = (workers, peers) if len(workers) == 1 else _extremes(values_SN, (*workers, *peers))
            a_Sw, b_So = values_SN[:, list(side_a)], values_SN[:, list(side_b)]
            finite_S = np.isfinite(a_Sw).all(1) & np.isfinite(b_So).all(1)
            a_Sw, b_So = a_Sw[finite_S], b_So[finite_S]
            spreads = _spreads_apart(a_Sw, b_So, len(tensors))
            if spreads:
                names_ranks = bool(ranks) and side_a != workers
                on_a, on_b = (f" on rank {ranks[side[0]]}" if names_ranks else "" for side in (side_a, side_b))
                values = f"{np.mean(a_Sw):.3g}{on_a} and not {np.mean(b_So):.3g}" + (f", as{on_b}" if on_b else "")
                tensor = name if name != default else f"the {part}"
                differences.append((spreads, f"the {feature} of {tensor} is {values}"))
                parts[part] = "other"
            elif spreads is not None:
                parts.setdefault(part, "alike")
    return FeedComparison(parts, max(differences)[1] if differences else "")


def computed_alike(operations_SN: Floats, workers: tuple[int, ...], peers: tuple[int, ...]) -> str:
    """Compare the operations that compute losses: "other" than the peers', which agree, or "alike"; '' if neither holds
    at every step at which all were looked at, or there is no such step.
    """
    finite_S = np.isfinite(operations_SN[:, [*workers, *peers]]).all(1)
    workers_Sw, peers_So = operations_SN[finite_S][:, list(workers)], operations_SN[finite_S][:, list(peers)]
    if not len(workers_Sw) or not (peers_So == peers_So[:, :1]).all():
        return ""
    same_Sw = workers_Sw == peers_So[:, :1]
    return "alike" if same_Sw.all() else "" if same_Sw.any() else "other"


def not_finite(run: Run, step: int, ranks: Sequence[int]) -> list[str] | None:
    """Names of the tensors that ranks read at a step and that are not finite ("" where they have none), but for masks;
    None where some were not looked at.
    """
    rows = run.lists("batch_features", steps=[step], ranks=ranks)
    flags = [np.reshape(row, (len(PARTS), -1))[:, -1] for row in rows.values() if len(row) == NUM_FEATURES]
    arguments = model_arguments(run, ranks, np.array([step]))
    names = (arguments.inputs, arguments.labels)
    broken = [name for index, name in enumerate(names) if any(flag[index] > 0 for flag in flags)]
    broken += [
        name
        for name, values in arguments.by_name.items()
        if (values[..., -1] > 0).any() and not any(word in name for word in _MAY_BE_INFINITE)
    ]
    if broken:
        return broken
    return [] if len(flags) == len(ranks) and all(flag[0] == 0 for flag in flags) else None


def _extremes(values_SN: Floats, workers: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The worker whose values are largest on average, and the one whose are smallest."""
    means = [float(np.mean(values_SN[:, worker])) for worker in workers]
    return (workers[int(np.argmax(means))],), (workers[int(np.argmin(means))],)


def _spreads_apart(workers_Sw: Floats, peers_So: Floats, num_tensors: int) -> float | None:
    """Distance of workers and peers in spreads of batches; 0 if it may be chance, None where there are too few
    steps.
    """
    num_steps, num_workers = workers_Sw.shape
    chance = 1 / comb(num_workers + peers_So.shape[1], num_workers)
    level = NAMING_LEVEL / (2 * len(FEATURES) * num_tensors)
    if not num_steps or chance**num_steps > level:  # not even a difference at every step would be significant
        return None
    above = int(np.count_nonzero(workers_Sw.min(1) > peers_So.max(1)))
    below = int(np.count_nonzero(workers_Sw.max(1) < peers_So.min(1)))
    if binomial_tail(max(above, below), num_steps, chance) > level:
        return 0.0
    spread = float(np.sqrt(np.mean(np.square(np.diff(peers_So, axis=0))) / 2)) if num_steps > 1 else 0.0
    gap = abs(float(np.mean(workers_Sw) - np.mean(peers_So)))
    spreads = gap / spread if spread > 0 else np.inf
    return spreads if spreads >= SPREADS else 0.0
