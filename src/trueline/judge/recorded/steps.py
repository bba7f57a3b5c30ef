"""Recorded steps that are worth reading: those with statistics, and those with values that are not finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from trueline.judge.recorded.step_values import StepValues
from trueline.schema.errors import CannotTell
from trueline.schema.plan import WATCH_ONLY
from trueline.store.reader import Run
from trueline.store.records.arrays import floats, to_numpy
from trueline.store.records.record_summary import damaged_records

_AT_A_TIME = 32
"""Steps that are looked through at a time, which bounds memory."""

_SCALER = "_amp_foreach_non_finite_check"
"""Function that ``torch.amp.GradScaler`` calls before each update, as in the ``api`` of its calls."""


def require_statistics(run: Run) -> None:
    """Raise ``CannotTell`` where nothing was recorded, or no statistics were."""
    if not run.has_records:
        damage = damaged_records(run)
        if damage:
            raise CannotTell(f"no recorded step can be read: {damage}", reason="damaged")
        raise CannotTell(
            "no step was recorded, as `--plan mix` does",
            reason="no-data" if _asked_to_record(run) else "not-recorded",
        )
    for steps in chunks(run.record_steps.tolist()):
        table = cast(Any, run).records(steps=steps, columns=["nan"], resolve=False)
        if table["nan"].null_count < len(table):
            return
    raise CannotTell(
        'the recorded steps have no statistics; record with depth = "stats" or more, as `--plan mix` does',
        reason="not-recorded",
    )


def _asked_to_record(run: Run) -> bool:
    """True if any Plan of the Run asked for recorded steps."""
    plans = [run.manifest.plan, *(revision.plan for revision in run.manifest.plans)]
    return any(plan.get("preset", "workers") not in WATCH_ONLY for plan in plans)


def nonfinite_steps(run: Run) -> list[int]:
    """The recorded steps, ascending, that may hold more than masks: with a value that is not finite outside of the
    forward pass, or one of a single element that may be a loss, or without any gradient that could tell.

    Raises ``CannotTell`` where nothing was recorded, or no statistics were.
    """
    require_statistics(run)
    nonfinite: list[int] = []
    for steps in chunks(run.record_steps.tolist()):
        columns = ["step", "phase", "name", "numel", "nan", "pos_inf", "neg_inf"]
        table = cast(Any, run).records(steps=steps, columns=columns, resolve=False)
        step_R = to_numpy(table["step"])
        phase_R = np.asarray(table["phase"].to_pylist(), dtype=object)
        counts_R = [floats(table[name]) for name in columns[4:]]
        numel_R = floats(table["numel"])
        bad_R = np.any([count > 0 for count in counts_R], axis=0)
        name_R = np.asarray(table["name"].to_pylist(), dtype=object)
        backward_R = phase_R == "bwd"
        with_gradient = set(name_R[backward_R].tolist())
        # In the forward pass -inf is mostly a mask: only a loss, a single element with a gradient, is telling there.
        telling_R = bad_R & (phase_R != "fwd")
        for row in np.flatnonzero(bad_R & ~telling_R & (numel_R == 1)).tolist():
            telling_R[row] = name_R[row] in with_gradient
        telling_R |= bad_R & ~np.isin(step_R, np.unique(step_R[backward_R]))
        nonfinite += [int(step) for step in np.unique(step_R[telling_R])]
    return nonfinite


def is_scaled(run: Run, step: StepValues) -> bool:
    """True if a gradient scaler is at work on the rank of a recorded step."""
    env = run.env.get(step.ranks[0])
    return (env is not None and env.in_float16) or any(_SCALER in value.api for value in step.values)


def chunks(steps: Sequence[int]) -> Iterator[Sequence[int]]:
    """``steps`` in stretches that are looked through at a time."""
    for start in range(0, len(steps), _AT_A_TIME):
        yield steps[start : start + _AT_A_TIME]
