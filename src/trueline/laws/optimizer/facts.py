"""Facts of updates: dtypes of gradients and states, by how much weights change, settings that change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.facts.fact import Mark, Subject
from trueline.judge.series.sampled_updates import Slice, sampled_updates
from trueline.judge.series.update_rules import GRAD, PARAM
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted, listed
from trueline.store.reader import Run

SHORT = ("bfloat16", "float16")
CYCLED = ("momentum", "betas")
FEW = 2
"""Values that a setting has which somebody changed once."""
RATES = ("lr", "initial_lr", "max_lr", "min_lr")
"""Settings that a schedule changes, of which the line of the learning rate tells."""

LARGE = 0.1
"""Share of their size by which ten updates replace weights."""
TINY = 1e-6
"""Share by which 10,000 updates, all in one direction, change weights by a hundredth."""


def dtypes(run: Run) -> tuple[str, Any]:
    """Dtypes of gradients and of optimizer states that have as many elements as their parameter."""
    slices = _slices(run)
    gradients = sorted({sample.dtypes[GRAD] for sample in slices if GRAD in sample.dtypes})
    states: dict[str, str] = {}
    for sample in slices:
        # most optimizers make their states in the first update: they are not there before it
        for name in sample.before.keys() | sample.after.keys():
            if name not in (PARAM, GRAD) and name in sample.dtypes:
                states[name] = sample.dtypes[name]
    if not gradients:
        raise CannotTell("no gradient was there at an update that was sampled")
    by_dtype = defaultdict[str, list[str]](list)
    for name, dtype in sorted(states.items()):
        by_dtype[dtype].append(name)
    words = [f"{listed(names)} {dtype}" for dtype, names in by_dtype.items()]
    text = f"gradients are {listed(gradients)} at the update"
    text += f"; of the optimizer's states {listed(words)}" if words else "; the optimizer has no states"
    return text, {"gradients": gradients, "states": dict(sorted(states.items()))}


def short_states(value: Mapping[str, Any]) -> str:
    """``the optimizer's states exp_avg and exp_avg_sq are bfloat16``."""
    states = _short_states(value)
    be = "state {} is" if len(states) == 1 else "states {} are"
    return f"the optimizer's {be.format(listed(list(states)))} {listed(sorted(set(states.values())))}"


def _short_states(value: Mapping[str, Any]) -> dict[str, str]:
    return {name: dtype for name, dtype in value["states"].items() if dtype in SHORT}


def update_over_weight(run: Run) -> tuple[str, Any] | None:
    """By what share of their size an update changes weights, root mean squares over what was sampled, by part."""
    slices = _slices(run)
    env = run.env.get(slices[0].rank)
    part_of = {name: group.name for group in env.groups for name in group.params} if env else dict[str, str]()
    sums = defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for sample in slices:
        if PARAM in sample.before and PARAM in sample.after:
            moves_K = sample.after[PARAM] - sample.before[PARAM]
            sizes = (float(np.sum(moves_K**2)), float(np.sum(sample.before[PARAM] ** 2)))
            sums[part_of.get(sample.name, sample.name)][0] += sizes[0]
            sums[part_of.get(sample.name, sample.name)][1] += sizes[1]
    # Weights that are still 0 have no size that a change would be a share of.
    parts = {
        part: math.sqrt(moved / size)
        for part, (moved, size) in sums.items()
        if size > 0 and math.isfinite(moved / size)
    }
    if not parts:
        return None
    least, most = min(parts, key=parts.__getitem__), max(parts, key=parts.__getitem__)
    text = f"an update changes weights by {100 * parts[most]:.2g} % of their size"
    if len(parts) > 1:
        text = (
            f"an update changes weights by {100 * parts[least]:.2g} % of their size (`{least}`) to "
            f"{100 * parts[most]:.2g} % (`{most}`)"
        )
    num = len({sample.step for sample in slices})
    return f"{text}, at elements of {counted(num, 'sampled update')}", {"parts": parts, "updates": num}


def changed_settings(run: Run) -> tuple[str, Any] | None:
    """Settings of the optimizer, but for rates, that are others at a later update, with the first such step."""
    changes: dict[str, dict[str, Any]] = {}
    first: dict[str, Mapping[str, Any]] = {}
    numbers = defaultdict[str, set[str]](set)
    for sample in _slices(run):
        settings = first.setdefault(sample.name, sample.settings)
        for name in settings.keys() & sample.settings.keys():
            numbers[name].add(str(sample.settings[name]))
            if name not in RATES and name not in changes and settings[name] != sample.settings[name]:
                changes[name] = {"step": sample.step, "before": settings[name], "after": sample.settings[name]}
    if not changes:
        return None
    for name, change in changes.items():
        # OneCycleLR and CyclicLR move momentum, or the first of betas, at each update.
        change["scheduled"] = name in CYCLED and len(numbers[name]) > FEW
    words = [
        f"{name} with a schedule"
        if change["scheduled"]
        else f"{name} from {change['before']} to {change['after']} by step {change['step']}"
        for name, change in sorted(changes.items())
    ]
    return f"settings of the optimizer changed: {listed(words)}", changes


def _slices(run: Run) -> Sequence[Slice]:
    ranks = data_parallel_ranks(run)[:1]
    slices = [sample for sample in sampled_updates(run).slices if sample.rank in ranks]
    if not slices:
        raise CannotTell("no update of the first rank was sampled")
    return slices


def master_copies(run: Run) -> tuple[str, Any] | None:
    """Parameters of which the optimizer updates copies in higher precision, of those that were looked at."""
    copies = sampled_updates(run).copies
    if not copies:
        return None
    names = {pair.name for pair in copies}
    shorts = sorted({pair.dtype for pair in copies})
    text = f"the optimizer updates copies in higher precision of {counted(len(names), 'parameter')} that are"
    return f"{text} {listed(shorts)}", {"parameters": len(names), "dtypes": shorts}


SUBJECTS = (
    Subject("master-copies", "update", "copies in higher precision", master_copies),
    Subject(
        "update-dtypes",
        "update",
        "dtypes of gradients and states",
        dtypes,
        (
            # Optimizers make states in the dtype of their parameter.
            Mark(
                "states-in-16-bits",
                lambda value: bool(_short_states(value)),
                short_states,
                said_by=("weights-in-16-bits",),
                advice=(
                    "Keep the weights in float32 and compute in 16 bits by `torch.autocast`: the optimizer's "
                    "states have the dtype of the weights."
                ),
            ),
        ),
    ),
    Subject(
        "update-over-weight",
        "update",
        "the size of updates",
        update_over_weight,
        (
            Mark(
                "updates-large",
                lambda value: min(value["parts"].values()) > LARGE,
                advice="Lower the learning rate: each update changes the weights by a large part of their size.",
            ),
            Mark(
                "updates-tiny",
                lambda value: 0 < max(value["parts"].values()) < TINY,
                advice="Raise the learning rate, or look by what gradients are divided: the weights hardly change.",
            ),
        ),
    ),
    Subject(
        "settings-changed",
        "update",
        "settings of the optimizer that change",
        changed_settings,
        (
            Mark(
                "settings-changed",
                lambda value: not all(change.get("scheduled") for change in value.values()),
                advice="Look for what assigns to `optimizer.param_groups` or loads its state while it trains.",
            ),
        ),
    ),
)
