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

from trueline.judge.series.sampled_updates import Aside, sampled_updates
from trueline.judge.series.update_rules import TOLERANCE
from trueline.judge.stats.memoize import memoized
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.formats import FORMATS
from trueline.store.reader import Run

FEWEST = 3
"""Updates between the first and the last digest: a warm-up may begin with a learning rate of 0."""

Why = Literal["all", "frozen", "unfrozen", "replaced", "untied", "last", "ungrouped", ""]


@dataclass(frozen=True)
class Left:
    """Parameters of ``rank`` that stayed bit for bit from ``step_first`` to ``step_last`` though they had gradients.
    They came to be outside at ``step_first``, or where that is the first sample to show it, at ``since`` or later.
    The optimizer (``optimizers`` by class) holds ``num_held`` of the model's parameters. ``why`` says what shows that
    they were to train: the optimizer lacks ``all`` of the model, or holds what is ``frozen`` (``held_frozen``) alone,
    they were ``unfrozen`` or ``replaced`` while
    training went on, began as a copy of one that it holds (``untied``), are the ``last`` of a model most of which it
    holds, or are missing from groups by weight decay (``ungrouped``); '' where it may be meant.
    """

    rank: int
    names: Sequence[str]
    step_first: int
    step_last: int
    since: int
    num_held: int
    optimizers: Sequence[str]
    why: Why
    held_frozen: Sequence[str] = ()


@dataclass(frozen=True)
class Decayed:
    """A frozen parameter of ``rank`` all of whose elements were multiplied by one ``factor`` from the update of
    ``step`` to that of ``until``.
    """

    rank: int
    name: str
    step: int
    until: int
    factor: float


@memoized
def left_alone(run: Run) -> tuple[Left, ...]:
    """By rank. Raises ``CannotTell`` where no update was sampled."""
    sampled = sampled_updates(run)
    found: list[Left] = []
    for rank in sorted({rank for _, rank in sampled.outside} & run.env.keys()):
        steps = sorted(step for step, of in sampled.outside if of == rank)
        held = max(sampled.held[step, rank] for step in steps)
        frozen = sampled.frozen.get((steps[-1], rank), ())
        without: Why = "frozen" if frozen else "all"
        stayed: defaultdict[tuple[int, int, Why], list[str]] = defaultdict(list)
        for name in sampled.outside[steps[-1], rank]:
            inside = [step for step in steps if name not in sampled.outside[step, rank]]
            since = next(step for step in steps if not inside or step > inside[-1])
            if steps[-1] - since >= FEWEST and _stayed(run, rank, name, since):
                first, why = _why(run, rank, name, since)
                after = min(inside[-1] + 1, first) if inside and why != "replaced" else first
                stayed[after, first, why if held else without].append(name)
        for (after, first, why), names in stayed.items():
            of = _place_of(run.env[rank], names) if why == "last" else why
            found.append(Left(rank, names, first, steps[-1], after, held, sampled.optimizers, of, frozen))
    return tuple(found)


def _stayed(run: Run, rank: int, name: str, first: int) -> bool:
    """Whether the parameter was the same at every look since step ``first``, of which there were several: its digests,
    or where it was trained later than most the elements that each sample has.
    """
    env = run.env[rank]
    names = [*env.params, *env.frozen]
    rows = [digests for (step, of), digests in run.lists("param_digests").items() if of == rank and step >= first]
    if len(rows) >= FEWEST:
        every = [*rows, *(digests for (_, of), digests in run.lists("closing_digests").items() if of == rank)]
        if len({len(digests) for digests in every}) == 1 and name in names and names.index(name) < len(rows[0]):
            return len({int(digests[names.index(name)]) for digests in every}) == 1
    looks = [each for each in _asides(run).get((rank, name), ()) if each.step >= first]
    return len(looks) >= FEWEST and all(
        each.version == looks[0].version and np.array_equal(each.values, looks[0].values) for each in looks
    )


@memoized
def _asides(run: Run) -> Mapping[tuple[int, str], Sequence[Aside]]:
    found: defaultdict[tuple[int, str], list[Aside]] = defaultdict(list)
    for each in sorted(sampled_updates(run).aside, key=lambda each: each.step):
        found[each.rank, each.name].append(each)
    return found


def _why(run: Run, rank: int, name: str, since: int) -> tuple[int, Why]:
    """Since which step the parameter is outside, and what shows that it was to train."""
    env = run.env[rank]
    was_frozen = name in (env.lists[0] if env.lists else env).frozen
    for change in env.changes:
        if change.name == name and change.step <= since:
            if change.replaced:
                return change.step, "replaced"
            if change.trains and was_frozen:
                return since, "unfrozen"
            was_frozen = was_frozen or not change.trains
    return since, "untied" if name in _copied(run, rank) else "last"


def _copied(run: Run, rank: int) -> set[str]:
    """The parameters that began as a copy of one that moved at once."""
    env = run.env[rank]
    rows = [digests for (_, of), digests in run.lists("param_digests").items() if of == rank]
    if len(rows) < 2 or len(rows[0]) < len(env.params) or len(rows[0]) != len(rows[1]):
        return set()
    begins = [(int(digest), tuple(shape)) for digest, shape in zip(rows[0], env.param_shapes, strict=False)]
    moved = {begin for begin, then in zip(begins, rows[1], strict=False) if begin[0] != int(then)}
    stayed = [int(then) == begin[0] for begin, then in zip(begins, rows[1], strict=False)]
    return {name for name, begin, stays in zip(env.params, begins, stayed, strict=False) if stays and begin in moved}


def _place_of(env: RankEnv, names: Sequence[str]) -> Why:
    """Where ``names`` are in the model, if they are less than half of its elements. They are the ``last`` with the last
    parameter: what comes first is left out where only a head is to train. They are ``ungrouped`` where the optimizer
    has groups of other weight decay, which are made of all parameters by their names, and holds others of the module
    of each, or of the one around it, which is thus not left out as a whole.
    """
    sizes = env.param_sizes
    if not sizes or 2 * sum(sizes.get(name, 0) for name in names) >= sum(sizes.values()):
        return ""
    if env.params[-1] in names:
        return "last"
    decays = {group.get("weight_decay") for group in env.optimizer.get("groups", ())}
    left = set(names)
    held = [name for name in env.params if name not in left]
    in_part = all(any(name.startswith(owner) for owner in _owners(one) for name in held) for one in names)
    return "ungrouped" if len(decays) > 1 and in_part else ""


def _owners(name: str) -> tuple[str, ...]:
    """How the names of its module's parameters begin, and those of the module around that, unless this is the model or
    the first inside it: nearly all of a model.
    """
    parts = name.split(".")[:-1]
    around = (".".join(parts[:-1]) + ".",) if len(parts) > 2 else ()
    return (".".join(parts) + "." if parts else "", *around)


@memoized
def decayed(run: Run) -> tuple[Decayed, ...]:
    """Frozen parameters that shrink between updates. Raises ``CannotTell`` where no update was sampled."""
    found: list[Decayed] = []
    for (rank, name), looks in _asides(run).items():
        for old, new in pairwise(looks):
            factor = _factor(old, new)
            if factor is not None:
                found.append(Decayed(rank, name, old.step, new.step, factor))
    counts = {key: sum((each.rank, each.name) == key for each in found) for key in _asides(run)}
    return tuple(each for each in found if counts[each.rank, each.name] >= FEWEST)


def _factor(old: Aside, new: Aside) -> float | None:
    """By what all elements of a frozen parameter were multiplied; None where they were not."""
    known = (old.values != 0) & np.isfinite(old.values) & np.isfinite(new.values)
    if old.trains or new.trains or old.values.shape != new.values.shape or known.sum() < FEWEST:
        return None
    ratios = new.values[known] / old.values[known]
    factor = float(np.median(ratios))
    slack = TOLERANCE * FORMATS["float32"].unit * (new.step - old.step)
    alike = np.all(np.abs(ratios - factor) <= slack) and len(set(np.abs(old.values[known]).tolist())) > 1
    return factor if alike and 0 < factor < 1 - 2 * slack else None
