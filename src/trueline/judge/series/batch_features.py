"""Whether a rank that stands out was fed with other inputs, or other labels, than the others.

Letters: T steps, S steps of the evidence, N workers, F features.
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
class Fed:
    """``parts`` says of inputs and labels "other" or "alike", where known; ``text`` what differs most, or is empty."""

    parts: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Arguments:
    """What models are called on by the names of the arguments: those of the tensors that ``batch_features`` are of, ""
    where none is known, and [S, N, F] features of the others.
    """

    read: str = ""
    labels: str = ""
    others: Mapping[str, Floats] = field(default_factory=dict[str, Floats])


def arguments_of(run: Run, ranks: Sequence[int], steps: Ints) -> Arguments:
    """Of these steps of a Run; names that are the same on several ranks are one argument."""
    known = {rank: {names_id(names): names for names in run.env[rank].arguments} for rank in ranks if rank in run.env}
    main, others = Counter[tuple[str, str]](), dict[str, Floats]()
    for (step, rank), row in run.lists("argument_features", steps=steps.tolist(), ranks=ranks).items():
        names = known.get(rank, {}).get(int(row[0]), [])
        if len(row) != 1 + len(FEATURES) * len(names[len(PARTS) :]) or not names:
            continue
        main[names[0], names[1]] += 1
        at = int(np.searchsorted(steps, step)), ranks.index(rank)
        for name, features in zip(names[len(PARTS) :], row[1:].reshape(-1, len(FEATURES)), strict=True):
            if name not in others:
                others[name] = np.full((len(steps), len(ranks), len(FEATURES)), np.nan)
            others[name][at] = features
    read, labels = max(main, key=lambda each: main[each]) if main else ("", "")
    return Arguments(read, labels, others)


def fed(
    features_SNF: Floats,
    workers: tuple[int, ...],
    others: tuple[int, ...],
    arguments: Arguments = Arguments(),
    *,
    ranks: Sequence[int] = (),
) -> Fed:
    """What ``workers`` read beside ``others``, by position.

    A feature differs where, over the steps, all workers are above all others, or below, more often than chance gives:
    at each step every order of N workers is as likely, so w of them are on top once in C(N, w) times. The number of
    such steps is binomial, at ``NAMING_LEVEL`` split over tensors, features and sides; and by ``SPREADS`` on average.
    Where several workers stand beside several others, each may read what none else does: then the two of all that are
    farthest apart are compared, and named by ``ranks`` [N]. A second tensor that the model does not call a label is an
    input.
    """
    read = (("inputs", arguments.read), ("labels", arguments.labels))
    halves = np.split(features_SNF, len(PARTS), axis=-1)
    tensors = [(name or part, values, part) for (part, name), values in zip(read, halves, strict=True)]
    tensors += [(name, values, "inputs") for name, values in arguments.others.items()]
    parts: dict[str, str] = {}
    said: list[tuple[float, str]] = []
    for name, values_SNF, usually in tensors:
        part = "labels" if is_target(name) else "inputs" if name != usually else usually
        for index, feature in enumerate(FEATURES[:-1]):
            values_SN = values_SNF[:, :, index]
            one, other = (workers, others) if len(workers) == 1 else _extremes(values_SN, (*workers, *others))
            mine, theirs = values_SN[:, list(one)], values_SN[:, list(other)]
            known_S = np.isfinite(mine).all(1) & np.isfinite(theirs).all(1)
            times = _times_apart(mine[known_S], theirs[known_S], len(tensors))
            if times:
                at, beside = (f" on rank {ranks[side[0]]}" if ranks and one != workers else "" for side in (one, other))
                values = f"{np.mean(mine[known_S]):.3g}{at} and not {np.mean(theirs[known_S]):.3g}"
                values = f"{values}, as{beside}" if beside else values
                said.append((times, f"the {feature} of {name if name != usually else f'the {part}'} is {values}"))
                parts[part] = "other"
            elif times is not None:
                parts.setdefault(part, "alike")
    return Fed(parts, max(said)[1] if said else "")


def computed_alike(operations_SN: Floats, workers: tuple[int, ...], others: tuple[int, ...]) -> str:
    """Whether losses are computed by "other" operations than the others', which agree, or "alike"; '' if neither is so
    at every step at which all were looked at, or there is none.
    """
    known_S = np.isfinite(operations_SN[:, [*workers, *others]]).all(1)
    mine_Sw, theirs_So = operations_SN[known_S][:, list(workers)], operations_SN[known_S][:, list(others)]
    if not len(mine_Sw) or not (theirs_So == theirs_So[:, :1]).all():
        return ""
    same_Sw = mine_Sw == theirs_So[:, :1]
    return "alike" if same_Sw.all() else "" if same_Sw.any() else "other"


def not_finite(run: Run, step: int, ranks: Sequence[int]) -> list[str] | None:
    """Names of the tensors that ranks read at a step and that are not finite ("" where they have none), but for masks;
    None where some were not looked at.
    """
    rows = run.lists("batch_features", steps=[step], ranks=ranks)
    flags = [np.reshape(row, (len(PARTS), -1))[:, -1] for row in rows.values() if len(row) == NUM_FEATURES]
    arguments = arguments_of(run, ranks, np.array([step]))
    names = (arguments.read, arguments.labels)
    broken = [name for place, name in enumerate(names) if any(flag[place] > 0 for flag in flags)]
    broken += [
        name
        for name, values in arguments.others.items()
        if (values[..., -1] > 0).any() and not any(word in name for word in _MAY_BE_INFINITE)
    ]
    if broken:
        return broken
    return [] if len(flags) == len(ranks) and all(flag[0] == 0 for flag in flags) else None


def _extremes(values_SN: Floats, workers: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The worker whose values are largest on average, and the one whose are smallest."""
    means = [float(np.mean(values_SN[:, worker])) for worker in workers]
    return (workers[int(np.argmax(means))],), (workers[int(np.argmin(means))],)


def _times_apart(mine_Sw: Floats, theirs_So: Floats, num_tensors: int) -> float | None:
    """How many spreads of batches they are apart; 0 if not for certain, None where there are too few steps."""
    num_steps, num_mine = mine_Sw.shape
    chance = 1 / comb(num_mine + theirs_So.shape[1], num_mine)
    level = NAMING_LEVEL / (2 * len(FEATURES) * num_tensors)
    if not num_steps or chance**num_steps > level:
        return None
    above = int(np.count_nonzero(mine_Sw.min(1) > theirs_So.max(1)))
    below = int(np.count_nonzero(mine_Sw.max(1) < theirs_So.min(1)))
    if binomial_tail(max(above, below), num_steps, chance) > level:
        return 0.0
    spread = float(np.sqrt(np.mean(np.square(np.diff(theirs_So, axis=0))) / 2)) if num_steps > 1 else 0.0
    apart = abs(float(np.mean(mine_Sw) - np.mean(theirs_So)))
    times = apart / spread if spread > 0 else np.inf
    return times if times >= SPREADS else 0.0
