"""Gradients add up to something else than the sum of a step's micro-batches.

What it finds
-------------
A `zero_grad` that is missing, that is called on another optimizer or model, on some of the parameters, or on some ranks
alone: every update then applies the gradients of all earlier steps again.

Gradients that are changed between two micro-batches of a step: divided by their number, unscaled by a `GradScaler` or
clipped by value after each, or cleared in part, so that the earlier micro-batches count otherwise than the later ones.

Micro-batches at the end of an epoch that are too few for an update, and whose gradients the next epoch's first update
has on top of its own.

Why it matters
--------------
The step is no longer the gradient of its batch but a sum over the whole training. It grows, clipping hides that, and
the loss falls at first as it does with a large momentum. All ranks share it, so that comparing them shows nothing.

How it decides
--------------
By equality. At the first 16 updates, and then at every 20th, later every 100th, 16 neighbouring elements of the
gradients of up to 32 parameters (in rotation, other ones on each rank) are copied as the update leaves them, and looked
at again before the backward passes of the next step begin. A gradient is a finding where it is the same tensor, has the
same elements, not all of them zero, at the first of these passes, is not cleared before any later one, and a pass adds
to it. Only parameters count that both the optimizer that has updated and the next one hold. There are no statistics and
so no false alarms.

So these are left alone: several backward passes before one update; `zero_grad` anywhere between an update and the
backward pass, with `set_to_none=False` too, or inside of a closure; the gradients that a generator leaves in its
critic, if they are cleared before the critic's own (WGAN-GP, R1, DDPG); those of a second optimizer that updates less
often; those that code scales or replaces on purpose.

What one backward pass leaves is what the next one of the same step finds, bit for bit, or earlier micro-batches weigh
otherwise than later ones. At as many steps, the same number of elements is copied just after a pass and just before the
next, in the first two gaps. It is a warning where in each gradient they are multiplied by one number (to 8 u, where u
is the unit roundoff), or where none grows or changes its sign; else an information, as noise or a projection may be
meant; and only at three such steps or more, or all. Left alone are gradients that are all cleared, as in front of
another loss, that are put back as an earlier pass had left them, that the next pass does not add to, elements that are
zero at the update too (a mask), and, where a script reduces gradients by hand after each micro-batch, all that is not
one factor. Calls of `clip_grad_norm_` in a gap are told by `clip-differs`. Who clips the gradient of each micro-batch
on purpose keeps their sum elsewhere: clipping `.grad`, which holds the sum, shrinks the first micro-batch again and
again.

A generator's backward pass goes through its critic and leaves gradients there. At a few steps of jobs with several
optimizers all updates are followed: to be confirmed is an update that uses such gradients together with those of a
later pass, where nothing wrote to them but backward passes. The loss begins at these parameters and goes on to those
that the other optimizer then updated: of tasks that share a part the heads stand next to their losses, and are left
alone.

Micro-batches whose gradients an update uses are counted at every step. Some were left over where the first step of each
epoch but the first, as the script goes through its `DataLoader`, has the same number more than all other steps have,
and that number is smaller than theirs.

What it may miss
----------------
Gradients that frameworks keep elsewhere than in `.grad` (DeepSpeed, Megatron's `main_grad`), for which it cannot tell;
gradients of another loss that are added after `zero_grad`; those of optimizers of one model that take turns, but for a
few steps that are followed from update to update; elements
that were not sampled; a part of the parameters, between samples; passes after the eighth of a step, and gaps after the
second.

Example
-------
The gradients of 0.weight and 0.bias that an update had used were still there on rank 0 when the backward passes of
steps 7-12 began, and were added to: no zero_grad cleared them.

Wrong and right
---------------
Wrong:

```python
for batch in loader:
    loss = model(batch)
    loss.backward()
    optimizer.step()
```

Right:

```python
for batch in loader:
    optimizer.zero_grad()
    loss = model(batch)
    loss.backward()
    optimizer.step()
```
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, data_parallel_ranks, sites_of
from trueline.judge.series.clip_calls import clip_calls
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "grad-accumulates"
CALLS = {"": ("zero_grad",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = (
    "kept_gradients",
    "holdings",
    "changed_between",
    "clip_facts",
    "clip_values",
    "num_micro",
    "epoch",
)
ACROSS_RANKS = False

_NEXT = (
    "Call optimizer.zero_grad() once for every optimizer.step(): right after it, or before the first backward pass of "
    "the next step.",
    "If you do: look whether that optimizer holds these parameters, and whether the call is ever skipped.",
)

_FEWEST_STEPS = 3
"""Steps at which gradients are changed between passes for that to be no single intervention."""

_FIELDS = 4
"""Numbers that ``changed_between`` has of each gradient that was changed."""

_NEAR = 1e-3
"""Relative difference within which the factors of two gradients are one, in bfloat16 too."""

PositionsByKey = Mapping[tuple[int, int], Sequence[int] | np.ndarray]
"""Positions of parameters among those of the model, by step and rank."""


@dataclass(frozen=True)
class _Change:
    """A gradient, by position, that was changed between two backward passes of a step, the first of this ``number``.

    It was multiplied by ``factor`` (NaN: by no one number), or so that it ``shrinks`` element by element.
    """

    step: int
    rank: int
    position: int
    number: int
    factor: float
    shrinks: bool


def check(run: Run) -> list[Finding]:
    """A Finding for all gradients that were kept, and one for those changed between passes; raises ``CannotTell`` where
    none was looked at.
    """
    uncleared = run.lists("kept_gradients")
    changed = run.lists("changed_between")
    # The columns of another law are read as they lie: `kept` of its `Holdings`.
    rows = {key: json.loads(text) for key, text in run.texts("holdings").items()}
    held, crossed = (
        {(row["step"] + 1, rank): list(row[name]) for (_, rank), row in rows.items() if row.get(name)}
        for name in ("kept", "crossed")
    )
    if not uncleared and not changed and not held and not crossed:
        has_optimizer = run.has("optimizer_digest")
        raise CannotTell(
            "no update left gradients in .grad that were looked at before the next backward pass: the framework keeps "
            "them elsewhere, updates are compiled, or the Run is of an older version"
            if has_optimizer
            else "no update of an optimizer was seen",
            reason="no-data" if has_optimizer else "not-recorded",
        )
    uncleared = {key: positions for key, positions in uncleared.items() if len(positions)}
    by_name = {key: _names(run, {key: positions}) for key, positions in uncleared.items()}
    findings = [_uncleared_finding(by_name or held)] if by_name or held else []
    findings += [_crossed_finding(crossed)] if crossed and not findings else []
    return [*findings, *_change_findings(run, changed), *_epoch_findings(run)]


def _uncleared_finding(uncleared: Mapping[tuple[int, int], Sequence[str]]) -> Finding:
    """Gradients, by name, that an update had used and that the next backward passes added to."""
    steps, ranks = sorted({step for step, _ in uncleared}), tuple(sorted({rank for _, rank in uncleared}))
    names = list(dict.fromkeys(name for row in uncleared.values() for name in row))
    names_at_first = list(
        dict.fromkeys(name for (step, _), row in uncleared.items() if step == steps[0] for name in row)
    )
    return Finding(
        code=CODE,
        severity="error",
        claim=f"The gradient{'' if len(names) == 1 else 's'} of {named_some(names)} that an update had used "
        f"{'was' if len(names) == 1 else 'were'} still there on {ranks_text(ranks)} when the backward passes of "
        f"{steps_text(steps)} began, and were added to: no zero_grad cleared {'it' if len(names) == 1 else 'them'}.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="bwd", names=names_at_first[: MAX_SITES // 2]),
        measured=float(len(names)),
        expected=0.0,
        unit="parameters whose gradient was not cleared, of those that were looked at",
        false_alarm_rate=0.0,
        evidence={"kind": "kept", "names": names[:100], "num_steps": len(steps)},
        next=_NEXT,
    )


def _crossed_finding(crossed: Mapping[tuple[int, int], Sequence[str]]) -> Finding:
    """Gradients, by name, that have in them what a pass left on its way to what another optimizer updated."""
    steps, ranks = sorted({step for step, _ in crossed}), tuple(sorted({rank for _, rank in crossed}))
    names = list(dict.fromkeys(name for row in crossed.values() for name in row))
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"The update of {named_some(names)} also uses gradients of a backward pass that was for another "
        f"optimizer: its loss goes through {'it' if len(names) == 1 else 'them'}, and nothing cleared what it left "
        f"({ranks_text(ranks)}, {steps_text(steps)}, as far as was followed).",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="bwd", names=names[: MAX_SITES // 2]),
        measured=float(len(names)),
        expected=0.0,
        unit="parameters whose gradient has that of another optimizer's loss in it",
        false_alarm_rate=0.0,
        evidence={"kind": "of-another-loss", "names": names[:100], "num_steps": len(steps)},
        next=(
            "Call zero_grad() of their optimizer in front of its own backward pass, as a critic's in front of the "
            "critic's; or let them need no gradient while the other loss is computed.",
        ),
    )


def _change_findings(run: Run, rows: Mapping[tuple[int, int], np.ndarray]) -> list[Finding]:
    """Gradients that are changed between passes at several steps; ``rows`` are those of ``changed_between``."""
    clipped = _clipped_between_passes(run) if rows else frozenset[tuple[int, int]]()
    changes = [
        _Change(*key, int(position), int(number), float(factor), bool(shrinks))
        for key, row in sorted(rows.items())
        if key not in clipped
        for position, number, factor, shrinks in np.reshape(row[1:], (-1, _FIELDS))
    ]
    # A loop that averages over ranks by hand may do so after each pass: that is no one factor.
    if run.manifest.adapter == "manual" and len(data_parallel_ranks(run)) > 1:
        changes = [change for change in changes if math.isfinite(change.factor)]
    steps = sorted({step for step, _ in rows.keys() - clipped})
    if len({change.step for change in changes}) < min(_FEWEST_STEPS, len(steps)) or not changes:
        return []
    return [_change_finding(run, changes, steps)]


def _clipped_between_passes(run: Run) -> frozenset[tuple[int, int]]:
    """The steps and ranks at which gradients were clipped between backward passes by a function of torch."""
    # clip-differs tells of these.
    try:
        return frozenset((call.step, call.rank) for call in clip_calls(run) if call.then == "backward")
    except CannotTell:
        return frozenset()


def _epoch_findings(run: Run) -> list[Finding]:
    """One Finding of ranks that go on with what was left of the epoch before."""
    (micros_TN, measured_TN), (epochs_TN, _) = run.pivot("num_micro"), run.pivot("epoch")
    by_rank: dict[int, tuple[list[int], int, int]] = {}
    for column, rank in enumerate(run.ranks):
        measured_T = measured_TN[:, column]
        steps, micros, epochs = (
            values_T[measured_T] for values_T in (run.steps, micros_TN[:, column], epochs_TN[:, column])
        )
        begins = np.concatenate([[False], epochs[1:] > epochs[:-1]])[: len(steps)]
        usual, at_begin = np.unique(micros[~begins]), np.unique(micros[begins])
        # As many micro-batches or more than an update has would be another batch size, not a rest.
        if len(usual) == len(at_begin) == 1 and 0 < at_begin[0] - usual[0] < usual[0]:
            by_rank[rank] = steps[begins].tolist(), int(at_begin[0]), int(usual[0])
    if not by_rank:
        return []
    steps, num, usual = next(iter(by_rank.values()))
    ranks, num_left = tuple(by_rank), num - usual
    last = "the last one" if num_left == 1 else f"the last {num_left}"
    return [
        Finding(
            code=CODE,
            severity="warning",
            claim=f"{steps_text(steps).capitalize()}, where epochs begin, use the gradients of {num} micro-batches on "
            f"{ranks_text(ranks)}, and all others those of {usual}: {last} of each epoch had no update, and what "
            f"{'it' if num_left == 1 else 'they'} left was not cleared.",
            ranks=ranks,
            step_first=steps[0],
            step_last=steps[-1],
            sites=sites_of(steps[0], ranks[:2], phase="bwd", names=("all",)),
            measured=float(num),
            expected=float(usual),
            unit="micro-batches whose gradients an update uses",
            false_alarm_rate=0.0,
            evidence={"kind": "left-over", "num_steps": len(steps)},
            next=(
                "Update at the last batch of an epoch, too, and divide the loss by the micro-batches that this update "
                "has; or call optimizer.zero_grad() when an epoch begins.",
            ),
        )
    ]


def _change_finding(run: Run, changes: Sequence[_Change], sampled_steps: Sequence[int]) -> Finding:
    steps, ranks = sorted({change.step for change in changes}), tuple(sorted({change.rank for change in changes}))
    positions: dict[tuple[int, int], list[int]] = {}
    for change in changes:
        positions.setdefault((change.step, change.rank), []).append(change.position)
    names = _names(run, positions)
    factors = [change.factor for change in changes]
    is_one_factor = bool(np.isfinite(factors).all()) and float(np.ptp(factors)) <= _NEAR * abs(factors[0])
    is_smaller = all(math.isfinite(change.factor) or change.shrinks for change in changes)
    multiplied = f"multiplied by {factors[0]:.4g}" if factors[0] else "set to zero"
    how = multiplied if is_one_factor else "made smaller" if is_smaller else "changed"
    numbers = {change.number for change in changes}
    passes = "" if len(numbers) > 1 else f" {changes[0].number + 1} and {changes[0].number + 2}"
    return Finding(
        code=CODE,
        severity="warning" if is_smaller else "confirm",
        claim=f"The gradient{'' if len(names) == 1 else 's'} of {named_some(names)} "
        f"{'was' if len(names) == 1 else 'were'} {how} between backward passes{passes} of "
        f"{steps_text(steps, among=sampled_steps)} on {ranks_text(ranks)}: earlier micro-batches weigh otherwise than "
        "later ones.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="bwd", names=names[: MAX_SITES // 2]),
        measured=factors[0] if is_one_factor else float(len(names)),
        expected=1.0 if is_one_factor else 0.0,
        unit="times what the pass before had left"
        if is_one_factor
        else "parameters whose gradient was changed between passes",
        false_alarm_rate=0.0,
        evidence={"kind": "between-passes", "names": names[:100], "num_steps": len(steps)},
        next=(
            "Look at what the loop does after backward and before the last micro-batch of an update: divide the loss, "
            "not gradients; unscale, clip and clear once an update.",
        ),
    )


def _names(run: Run, positions: PositionsByKey) -> list[str]:
    """Names of the parameters at these positions, once each."""
    params = {rank: env.params for rank, env in run.env.items()}
    rows = [(params[rank], int(position)) for (_, rank), row in positions.items() for position in row if rank in params]
    # A model that was changed may have fewer parameters than when the gradient was seen.
    return list(dict.fromkeys(names[position] for names, position in rows if position < len(names)))
