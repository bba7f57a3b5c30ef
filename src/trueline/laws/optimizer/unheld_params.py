"""Parameters of the model that the optimizer does not hold: those with a gradient that nothing else moves either, and
frozen ones that are decayed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from trueline.judge.series.sampled_updates import SampledUpdates, UnheldSample, sampled_updates
from trueline.judge.series.update_rules import TOLERANCE
from trueline.judge.stats.memoize import memoized
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.formats import FORMATS
from trueline.store.reader import Run

FEWEST = 3
"""Updates between the first and the last digest: a warm-up may begin with a learning rate of 0."""

TrainingSign = Literal["all", "frozen", "unfrozen", "added", "replaced", "untied", "last", "ungrouped", ""]


@dataclass(frozen=True)
class UnheldParams:
    """Parameters of ``rank`` that stayed bit for bit from ``step_first`` to ``step_last`` though they had gradients.

    They left the optimizer at ``step_first``, or where that is the first sample to show it, at ``earliest_step`` or
    later. The optimizer (``optimizers`` by class) holds ``num_held`` of the model's parameters. ``sign`` is what shows
    that they were to train:

    - the optimizer lacks ``all`` of the model, or holds nothing but what is ``frozen`` (``held_frozen``);
    - they were ``unfrozen``, ``added`` to the model or ``replaced`` while training went on;
    - they began as a copy of one that it holds (``untied``);
    - they are the ``last`` of a model most of which it holds;
    - they are missing from groups by weight decay (``ungrouped``);
    - '' where it may be meant.
    """

    rank: int
    names: Sequence[str]
    step_first: int
    step_last: int
    earliest_step: int
    num_held: int
    optimizers: Sequence[str]
    sign: TrainingSign
    held_frozen: Sequence[str] = ()


@dataclass(frozen=True)
class DecayedParam:
    """A frozen parameter of ``rank`` whose elements were all multiplied by one ``factor`` between two updates."""

    rank: int
    name: str
    step: int
    next_step: int
    factor: float


@memoized
def unheld_params(run: Run) -> tuple[UnheldParams, ...]:
    """Parameters outside of the optimizer, by rank. Raises ``CannotTell`` where no update was sampled."""
    sampled = sampled_updates(run)
    ranks = sorted({rank for _, rank in sampled.outside} & run.env.keys())
    return tuple(params for rank in ranks for params in _unheld_of_rank(run, rank, sampled))


def _unheld_of_rank(run: Run, rank: int, sampled: SampledUpdates) -> list[UnheldParams]:
    steps = sorted(step for step, sampled_rank in sampled.outside if sampled_rank == rank)
    num_held = max(sampled.num_held[step, rank] for step in steps)
    frozen = sampled.frozen.get((steps[-1], rank), ())
    # Where the optimizer holds nothing that trains, all parameters are outside for that one reason.
    sign_of_all: TrainingSign = "frozen" if frozen else "all"
    unheld: defaultdict[tuple[int, int, TrainingSign], list[str]] = defaultdict(list)
    for name in sampled.outside[steps[-1], rank]:
        held_at = [step for step in steps if name not in sampled.outside[step, rank]]
        start = next(step for step in steps if not held_at or step > held_at[-1])
        param = _UnheldParam(run, rank, name, start)
        if steps[-1] - start >= FEWEST and param.stays():
            first, sign = param.sign()
            earliest = min(held_at[-1] + 1, first) if held_at and sign != "replaced" else first
            unheld[earliest, first, sign if num_held else sign_of_all].append(name)
    env = run.env[rank]
    return [
        UnheldParams(
            rank,
            names,
            first,
            steps[-1],
            earliest,
            num_held,
            sampled.optimizers,
            _sign_by_position(env, names) if sign == "last" else sign,
            frozen,
        )
        for (earliest, first, sign), names in unheld.items()
    ]


@dataclass(frozen=True)
class _UnheldParam:
    """The parameter ``name`` of ``rank``, which every sample from step ``start`` on shows outside of the optimizer."""

    run: Run
    rank: int
    name: str
    start: int

    def stays(self) -> bool:
        """True if it was the same at every look since then, of which there were several.

        Looks are its digests, or where it was trained later than most, the elements that each sample has.
        """
        env = self.run.env[self.rank]
        names = [*env.params, *env.frozen]
        rows = [digests for step, digests in _digests(self.run, self.rank) if step >= self.start]
        if len(rows) >= FEWEST:
            closing = self.run.lists("closing_digests").items()
            rows += [digests for (_, rank), digests in closing if rank == self.rank]
            # A list of another length is of a model that was changed since: positions do not name the same parameters.
            if len({len(row) for row in rows}) == 1 and self.name in names and names.index(self.name) < len(rows[0]):
                return len({int(row[names.index(self.name)]) for row in rows}) == 1
        samples = _unheld_samples(self.run).get((self.rank, self.name), ())
        samples = [sample for sample in samples if sample.step >= self.start]
        return len(samples) >= FEWEST and all(
            sample.version == samples[0].version and np.array_equal(sample.values, samples[0].values)
            for sample in samples
        )

    def sign(self) -> tuple[int, TrainingSign]:
        """The step from which on it is outside, and what shows that it was to train."""
        env = self.run.env[self.rank]
        first = env.lists[0] if env.lists else env
        was_frozen = self.name in first.frozen
        is_new = not was_frozen and self.name not in first.params
        for change in env.changes:
            if change.name == self.name and change.step <= self.start:
                if change.replaced:
                    return change.step, "replaced"
                if change.trains and was_frozen:
                    return self.start, "unfrozen"
                if change.trains and is_new:
                    return self.start, "added"
                was_frozen = was_frozen or not change.trains
        return self.start, "untied" if self.name in _copies_of_moving(self.run, self.rank) else "last"


def _digests(run: Run, rank: int) -> list[tuple[int, np.ndarray]]:
    """Step and digests of all parameters of ``rank``, by step."""
    return [(step, row) for (step, row_rank), row in run.lists("param_digests").items() if row_rank == rank]


@memoized
def _unheld_samples(run: Run) -> Mapping[tuple[int, str], Sequence[UnheldSample]]:
    """Samples of parameters that the optimizer does not hold, by rank and name, each in the order of steps."""
    samples: defaultdict[tuple[int, str], list[UnheldSample]] = defaultdict(list)
    for sample in sorted(sampled_updates(run).unheld, key=lambda sample: sample.step):
        samples[sample.rank, sample.name].append(sample)
    return samples


def _copies_of_moving(run: Run, rank: int) -> set[str]:
    """Names of parameters that stayed at the first update and began as a copy of one that moved."""
    env = run.env[rank]
    rows = [row for _, row in _digests(run, rank)]
    if len(rows) < 2 or len(rows[0]) < len(env.params) or len(rows[0]) != len(rows[1]):
        return set()
    begins = [(int(digest), tuple(shape)) for digest, shape in zip(rows[0], env.param_shapes, strict=False)]
    stays = [begin[0] == int(digest) for begin, digest in zip(begins, rows[1], strict=False)]
    moving = {begin for begin, stay in zip(begins, stays, strict=False) if not stay}
    params = zip(env.params, begins, stays, strict=False)
    return {name for name, begin, stay in params if stay and begin in moving}


def _sign_by_position(env: RankEnv, names: Sequence[str]) -> TrainingSign:
    """``last`` or ``ungrouped`` by where ``names`` are in the model, if they are less than half of its elements.

    They are the ``last`` with the last parameter: what comes first is left out where only a head is to train. They are
    ``ungrouped`` where the optimizer has groups of other weight decay, which are made of all parameters by their names.
    It must also hold others of the module of each, or of the one around it, which is thus not left out as a whole.
    """
    sizes = env.param_sizes
    if not sizes or 2 * sum(sizes.get(name, 0) for name in names) >= sum(sizes.values()):
        return ""
    if env.params[-1] in names:
        return "last"
    decays = {group.get("weight_decay") for group in env.optimizer.get("groups", ())}
    unheld = set(names)
    held_params = [name for name in env.params if name not in unheld]
    in_held_module = all(any(param.startswith(_owner_prefixes(name)) for param in held_params) for name in names)
    return "ungrouped" if len(decays) > 1 and in_held_module else ""


def _owner_prefixes(name: str) -> tuple[str, ...]:
    """Beginnings of the names of its module's parameters, and of those of the module around that, unless this is the
    model or the first inside it: nearly all of a model.
    """
    parts = name.split(".")[:-1]
    outer = (".".join(parts[:-1]) + ".",) if len(parts) > 2 else ()
    return (".".join(parts) + "." if parts else "", *outer)


@memoized
def decayed_params(run: Run) -> tuple[DecayedParam, ...]:
    """Frozen parameters that shrink between updates. Raises ``CannotTell`` where no update was sampled."""
    decayed: list[DecayedParam] = []
    for (rank, name), samples in _unheld_samples(run).items():
        factors = [(old, new, _decay_factor(old, new)) for old, new in pairwise(samples)]
        decays = [(old, new, factor) for old, new, factor in factors if factor is not None]
        if len(decays) >= FEWEST:
            decayed += [DecayedParam(rank, name, old.step, new.step, factor) for old, new, factor in decays]
    return tuple(decayed)


def _decay_factor(old: UnheldSample, new: UnheldSample) -> float | None:
    """The factor below 1 that all elements of a frozen parameter were multiplied by; None where there is none."""
    usable = (old.values != 0) & np.isfinite(old.values) & np.isfinite(new.values)
    if old.trains or new.trains or old.values.shape != new.values.shape or usable.sum() < FEWEST:
        return None
    ratios = new.values[usable] / old.values[usable]
    factor = float(np.median(ratios))
    slack = TOLERANCE * FORMATS["float32"].unit * (new.step - old.step)
    # Elements of one magnitude would have one ratio whatever moved them.
    alike = np.all(np.abs(ratios - factor) <= slack) and len(set(np.abs(old.values[usable]).tolist())) > 1
    return factor if alike and 0 < factor < 1 - 2 * slack else None
