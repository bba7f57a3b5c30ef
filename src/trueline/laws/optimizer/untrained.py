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

GradientLack = Literal["zero-gradient", "no-gradient"]

_ZERO_FILLING_ADAPTERS = frozenset({"deepspeed", "fsdp1", "megatron"})
"""Adapters of what gives parameters without a part in the loss a gradient of zeros."""


@dataclass(frozen=True)
class UntrainedParams:
    """``names`` have a gradient of exactly zero, or none, on all ``ranks`` at all ``num_steps`` measured steps from
    ``step_first`` to ``step_last``.

    ``share`` is theirs of the elements of the model that are to train. They are so ``by_design`` in two cases. Of each,
    a layer alike is trained, as of experts of which not every one is chosen, and nothing else of its own module. Or
    each is a bias whose weight is trained, as a critic's last one: the loss goes by differences.
    """

    kind: GradientLack
    names: Sequence[str]
    ranks: Sequence[int]
    step_first: int
    step_last: int
    num_steps: int
    share: float
    by_design: bool


def untrained_params(run: Run) -> list[UntrainedParams]:
    """At most one for each kind and ``by_design``. Raises ``CannotTell`` where no update was sampled."""
    samples_of: defaultdict[str, list[Slice]] = defaultdict(list)
    for sample in sampled_updates(run).slices:
        if sample.is_own and sample.trains:
            samples_of[sample.name].append(sample)
    zeros, steps = _without_gradient(run)
    if len(steps) < FEWEST:
        return []
    sizes = run.env[min(run.env)].param_sizes
    trained = sizes.keys() - zeros
    trained_layers = {numberless(name) for name in trained}
    trained_modules = {name.rpartition(".")[0] for name in trained}
    untrained: defaultdict[tuple[GradientLack, bool], list[str]] = defaultdict(list)
    for name in zeros:
        kind = _gradient_lack(samples_of.get(name, ()), fills_zeros=run.manifest.adapter in _ZERO_FILLING_ADAPTERS)
        if kind is not None:
            module, _, role = name.rpartition(".")
            by_design = role == "bias" if module in trained_modules else numberless(name) in trained_layers
            untrained[kind, by_design].append(name)
    total = sum(sizes.values())
    return [
        UntrainedParams(
            kind,
            names,
            tuple(run.ranks),
            steps[0],
            steps[-1],
            len(steps),
            sum(sizes[name] for name in names) / total,
            by_design,
        )
        for (kind, by_design), names in untrained.items()
    ]


def _without_gradient(run: Run) -> tuple[list[str], list[int]]:
    """Parameters of all ranks that never had a gradient other than zero, and the steps at which that was measured.

    Both are empty where ranks have different parameters, or one of them has no rows.
    """
    params = [env.params for env in run.env.values()]
    rows = run.lists("param_grad_norms")
    if not rows or not params or any(names != params[0] for names in params):
        return [], []
    if {rank for _, rank in rows} != set(run.ranks):
        return [], []
    if any(len(row) != len(params[0]) for row in rows.values()):
        return [], []  # the model changed while it was trained
    never_P = (np.stack(list(rows.values())) <= 0).all(axis=0)
    return [params[0][p] for p in np.flatnonzero(never_P)], sorted({step for step, _ in rows})


def _gradient_lack(samples: Sequence[Slice], *, fills_zeros: bool) -> GradientLack | None:
    """Gradient of one parameter at its updates; None where it changed, was not zero, or is not known.

    A gradient of zeros is no gradient of a framework that ``fills_zeros``.
    """
    samples = [sample for sample in samples if sample.settings.get("lr") != 0]  # a rate of 0 trains nothing anyway
    presence = {sample.has_gradient for sample in samples}
    if len(presence) != 1:
        return None
    if presence == {False}:
        return "no-gradient"
    is_zero = all(GRAD in sample.before and not sample.before[GRAD].any() for sample in samples)
    return ("no-gradient" if fills_zeros else "zero-gradient") if is_zero else None
