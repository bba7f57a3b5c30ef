"""Parameters that the optimizer holds and that nothing trains: their gradient is zero, or missing, from the start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trueline.judge.series.sampled_updates import Slice, sampled_updates
from trueline.judge.series.update_rules import GRAD
from trueline.schema.text.words import numberless
from trueline.store.reader import Run

FEWEST = 16
"""Steps with measured gradients: layers that begin as zeros learn one after the other, each an update later than the
one behind it, as the first matrix of a LoRA pair does."""

Kind = Literal["zero-gradient", "no-gradient"]

_FILLS = frozenset({"deepspeed", "fsdp1", "megatron"})
"""Adapters of what gives parameters without a part in the loss a gradient of zeros."""


@dataclass(frozen=True)
class Untrained:
    """``names`` have a gradient of exactly zero, or none, on all ``ranks`` at all ``num_steps`` measured steps from
    ``step_first`` to ``step_last``. ``share`` is theirs of the elements of the model that are to train. ``by_design``:
    of each a layer alike is trained, as of experts of which not every one is chosen, and nothing else of its own
    module; or each is a bias whose weight is trained, as a critic's last one: the loss goes by differences.
    """

    kind: Kind
    names: Sequence[str]
    ranks: Sequence[int]
    step_first: int
    step_last: int
    num_steps: int
    share: float
    by_design: bool


def untrained(run: Run) -> list[Untrained]:
    """At most one for each kind and ``by_design``. Raises ``CannotTell`` where no update was sampled."""
    held: defaultdict[str, list[Slice]] = defaultdict(list)
    for each in sampled_updates(run).slices:
        if each.is_own and each.trains:
            held[each.name].append(each)
    zeros, steps = _zeros(run)
    if len(steps) < FEWEST:
        return []
    sizes = run.env[min(run.env)].param_sizes
    trained = {numberless(name) for name in sizes.keys() - zeros}
    alive = {name.rpartition(".")[0] for name in sizes.keys() - zeros}
    found: defaultdict[tuple[Kind, bool], list[str]] = defaultdict(list)
    for name in zeros:
        kind = _kind(held.get(name, ()), fills=run.manifest.adapter in _FILLS)
        if kind is not None:
            of, _, own = name.rpartition(".")
            found[kind, own == "bias" if of in alive else numberless(name) in trained].append(name)
    total = sum(sizes.values())
    return [
        Untrained(
            kind,
            names,
            tuple(run.ranks),
            steps[0],
            steps[-1],
            len(steps),
            sum(sizes[name] for name in names) / total,
            by_design,
        )
        for (kind, by_design), names in found.items()
    ]


def _zeros(run: Run) -> tuple[list[str], list[int]]:
    """Parameters of all ranks that never had a gradient other than zero, and the steps at which that was measured."""
    names = [env.params for env in run.env.values()]
    rows = run.lists("param_grad_norms")
    if not rows or not names or any(each != names[0] for each in names) or {rank for _, rank in rows} != set(run.ranks):
        return [], []
    if any(len(row) != len(names[0]) for row in rows.values()):
        return [], []  # the model changed while it was trained
    never_P = (np.stack(list(rows.values())) <= 0).all(axis=0)
    return [names[0][p] for p in np.flatnonzero(never_P)], sorted({step for step, _ in rows})


def _kind(slices: Sequence[Slice], *, fills: bool) -> Kind | None:
    """What the updates had for a gradient of one parameter; None where that changed, was not zero, or is not known."""
    slices = [each for each in slices if each.settings.get("lr") != 0]
    has = {each.has_gradient for each in slices}
    if len(has) != 1:
        return None
    if has == {False}:
        return "no-gradient"
    zero = all(GRAD in each.before and not each.before[GRAD].any() for each in slices)
    return ("no-gradient" if fills else "zero-gradient") if zero else None
