"""An average of the weights (EMA, SWA, a momentum teacher) is not the average of the weights.

What it finds
-------------
An average that follows other weights than the model's (an uninitialised or stale copy, another rank's), that the
optimizer trains as well, that is the model itself, or that differs between ranks. Parameters that it leaves out. A
declared decay that is swapped with its complement, applied several times between two updates, or another one. Averages
in bfloat16 or float16 whose moves rounding loses. As information: an average that does not move in any sampled step
although it is not the model, buffers that it leaves out, tensors that are copied, a decay below a half.

Why it matters
--------------
What is evaluated and published is the average, while training goes on without it: the loss shows nothing. Where the
average is a teacher, the model learns from it.

How it decides
--------------
By arithmetic. Around the first 16 updates, and then around every 20th, later every 100th, 16 neighbouring elements of
up to 8 tensors (in rotation) of the average and of the model are copied before the update, after it, and before the
next one; of torch's `AveragedModel` around its own `update_parameters`, so that averages once an epoch are seen. With
e' = e + s (p - e), every element bounds the share s = 1 - d from both sides: rounding may explain 8 units of the format
of the average, of |e| + |p|, and where the model's is coarser, as many of that, of s |p|. One s between 0 and 1 must
satisfy all elements of all tensors; d may change from step to step. There are no statistics and so no false alarms.
An average is seen where it is declared, `trueline.watch(model, optimizer, averages=[teacher])`, or is an
`AveragedModel`; and a module of the model's class that nobody declared is taken for one where it moves between updates,
in three samples or more, to the model each time, and no optimizer holds it. A decay is held against only where it is
declared (`averages=[(teacher, 0.996)]`), in 3 samples or more, and all of them: it is to be that after every update. A
schedule that begins below it is an information.
Lost is counted where rounding is coarser than in float32, of elements whose distance to the model is larger than
rounding explains: a warning where those that stay have a fifth of its squared norm.

What it may miss
----------------
Averages that are not declared and are no modules like the model, or were made after the first steps; tensors and steps
that were not sampled; a wrong decay that is not declared; an average that is made just before the update instead of
just after it, which follows the model one step later. Whether one that does not move is to begin later cannot be told,
unless its decay is declared.

Example
-------
The average Teacher on rank 0 at steps 0-11 follows other weights than those of the model: no decay
explains 0.weight and 0.bias.

Wrong and right
---------------
Wrong:

```python
for e, p in zip(teacher.parameters(), student.parameters()):
    e.data.mul_(1 - decay).add_(p.data, alpha=decay)
```

Right:

```python
for e, p in zip(teacher.parameters(), student.parameters()):
    e.data.mul_(decay).add_(p.data, alpha=1 - decay)
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.judge.series.update_rules import TOLERANCE
from trueline.laws.averages.averaging import Averaging, Interval, Piece, agree, sampled_averagings
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.formats import FORMATS
from trueline.schema.text.words import counted, named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "average-differs"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("average_facts", "average_values")
ACROSS_RANKS = False

FEWEST = 3
"""Samples from which on it is told that an average has another decay, or does not move."""

FAST = 16
"""Samples with one decay below a half from which on that is told: schedules that begin there are past it by then."""

MOST_CALLS = 8
"""How often a decay may be applied between two updates that is told."""

WORTH_TELLING = 0.2
"""Share of what is to move and stays, from which on that is told, as of `update-lost`."""

Kind = Literal[
    "rule", "trained", "same", "left-out", "several", "swapped", "often", "decay", "lost", "ranks", "still", "buffers",
    "copied", "rising", "fast",
]  # fmt: skip

_ERRORS: tuple[Kind, ...] = ("rule", "trained", "same", "swapped", "often", "decay")
_WARNINGS: tuple[Kind, ...] = ("left-out", "lost", "ranks")

_ADVICE: Mapping[Kind, str] = {
    "rule": "Look at which model the update is given: the one that is trained, after the optimizer's update, not a "
    "copy of it; and for what else writes into the average. If it is not to be d e + (1 - d) p, do not declare it.",
    "trained": "Leave the average's parameters out of the optimizer, and use the average under torch.no_grad().",
    "same": "Make the average of a copy: copy.deepcopy(model).",
    "left-out": "Go through the parameters of both by name. If these are to stay, declare a mapping of the others.",
    "several": "If they are to have different decays, declare an average for each.",
    "swapped": "Swap them: e = decay * e + (1 - decay) * p.",
    "often": "Update the average once after each update of the optimizer, not after each micro-batch.",
    "decay": "Print the decay where the average is updated. If a schedule changes it, declare the average without it.",
    "lost": "Keep the average in float32.",
    "ranks": "Begin with the same average on all ranks (a copy of the model once DDP has it), and update it on all.",
    "still": "Look whether the update of the average is called. If it begins later, nothing is wrong.",
    "buffers": "If the average is used in evaluation mode, copy the buffers too (AveragedModel does) or use update_bn.",
    "copied": "If that is not meant, look for parameters that are shared, or left out of the average.",
    "rising": "If it is a warm-up, declare the average without the decay.",
    "fast": "If the model is to have the smaller part, swap them: e = decay * e + (1 - decay) * p.",
}

Judged = tuple[Averaging, Sequence[Piece]]
"""An averaging and which of its tensors a Finding is about."""


def check(run: Run) -> list[Finding]:
    """A Finding for each way in which an average is not one; raises ``CannotTell`` where none was seen."""
    of_each: dict[str, list[Averaging]] = {}
    for one in sampled_averagings(run):
        of_each.setdefault(one.key, []).append(one)
    of_each = {key: some for key, some in of_each.items() if not some[0].found or _averages(some)}
    every = [one for some in of_each.values() for one in some]
    if not every:
        raise CannotTell(
            "no average of the weights was seen: there is none, it is no AveragedModel of torch and not declared, or "
            "its tensors have other names or shapes than the model's",
            reason="by-design",
        )
    if not any(one.moves or (one.gap != "update" and not all(each.is_buffer for each in one.pieces)) for one in every):
        raise CannotTell(
            "what the averages follow is not the same from an update to the next one, as where that is compiled",
            reason="undecidable",
        )
    found: list[Finding] = []
    for some in of_each.values():
        found += _same(some) or [*_each(some), *_still(some), *_lost(some), *_buffers(some), *_ranks(some)]
    return found


def _averages(some: Sequence[Averaging]) -> bool:
    """Whether what nobody declared is an average by what it does: it moves between updates, in several samples, each
    time to the model, and no optimizer holds it.
    """
    moving = [one for one in some if one.moves]
    held = any(piece.held or piece.same for one in some for piece in one.pieces)
    return len({one.step for one in moving}) >= FEWEST and not held and all(share_of(one) for one in moving)


def share_of(one: Averaging) -> Interval | None:
    """The shares that explain all moving parameters of an averaging; None for none, or where nothing moves."""
    moving = [each for each in one.params if each.moves]
    found = agree([(0.0, 1.0), *(each.share for each in moving)]) if moving else None
    if found is None and one.gap == "update":
        return agree([(0.0, 1.0), *(each.share_of(each.earlier) for each in moving)]) if moving else None
    return found


def _each(some: Sequence[Averaging]) -> list[Finding]:
    """What each averaging shows by itself, and what they show of a decay."""
    of_kind: defaultdict[Kind, list[Judged]] = defaultdict(list)
    shares: list[tuple[Averaging, Interval]] = []
    for one in some:
        moving = [each for each in one.params if each.moves]
        share = share_of(one)
        if share is not None:
            shares.append((one, share))
            left = [each for each in one.params if not each.moves and each.trains and not agree([share, each.share])]
            if left and one.gap != "update":
                of_kind["left-out"].append((one, left))
        elif moving and one.gap == "update":
            trained = [each for each in moving if each.held]
            of_kind["trained" if trained else "rule"].append((one, trained or moving))
        elif moving:
            kind, pieces = _kind_of(moving)
            of_kind[kind].append((one, pieces))
    found = [_finding(kind, judged, some) for kind, judged in of_kind.items()]
    return [*found, *_decay(shares, some)]


def _kind_of(moving: Sequence[Piece]) -> tuple[Kind, list[Piece]]:
    """Why no share explains all of these."""
    wrong = [each for each in moving if agree([(0.0, 1.0), each.share]) is None]
    if wrong:
        return "rule", wrong
    copies = [each for each in moving if each.share[1] >= 1]
    rest = [each for each in moving if each.share[1] < 1]
    return ("copied", copies) if agree([each.share for each in rest]) else ("several", list(moving))


def _decay(shares: Sequence[tuple[Averaging, Interval]], some: Sequence[Averaging]) -> list[Finding]:
    """Of a declared decay, what all samples but copies contradict; without one, what is far from usual."""
    known = [(one, share) for one, share in shares if share[1] < 1]
    judged = [(one, one.params) for one, _ in known]
    intervals = [share for _, share in known]
    decay = some[0].decay
    if len(known) < FEWEST:
        return []
    low, high = 1 - intervals[-1][1], 1 - intervals[-1][0]
    told = next((f"{low:.{n}g}" for n in (6, 4, 2) if f"{low:.{n}g}" == f"{high:.{n}g}"), f"{low:.4g} to {high:.4g}")
    if decay is None:
        slow = all(share[0] > 0.5 for share in intervals) and agree([intervals[0], intervals[-1]])
        return [_finding("fast", judged, some, told)] if slow and len(known) >= FAST else []
    if any(least <= 1 - decay <= most for least, most in intervals):
        return []
    if _all_have(decay, intervals):
        return [_finding("swapped", judged, some, told)]
    if times := next((k for k in range(2, MOST_CALLS + 1) if _all_have(1 - decay**k, intervals)), 0):
        return [_finding("often", judged, some, counted(times, "time"))]
    rises = intervals[0][0] > intervals[-1][1] and intervals[-1][0] > 1 - decay
    return [_finding("rising" if rises else "decay", judged, some, told)]


def _all_have(share: float, intervals: Iterable[Interval]) -> bool:
    return all(low <= share <= high for low, high in intervals)


def _same(some: Sequence[Averaging]) -> list[Finding]:
    """An average all of whose tensors are the model's own."""
    judged = [(one, one.pieces) for one in some if all(each.same for each in one.pieces)]
    return [_finding("same", judged, some)] if len(judged) == len(some) else []


def _still(some: Sequence[Averaging]) -> list[Finding]:
    """An average that is not the model, is further from it than a declared decay lets stay, and does not move in any
    sample.
    """
    decay = some[0].decay
    declared: Interval = (0.0, 0.0) if decay is None else (1 - decay, 1 - decay)
    judged = [
        (one, pieces)
        for one in some
        if one.gap != "update"
        and (pieces := [e for e in one.params if e.apart.any() and (decay is None or not agree([e.share, declared]))])
    ]
    if any(one.moves for one in some) or len({one.step for one, _ in judged}) < FEWEST or _share_lost(some) is not None:
        return []
    return [_finding("still", judged, some)]


def _buffers(some: Sequence[Averaging]) -> list[Finding]:
    """Buffers that never move while parameters of the average and the model's buffers do."""
    held: defaultdict[str, list[tuple[Averaging, Piece]]] = defaultdict(list)
    for one in (each for each in some if each.moves):
        for each in one.pieces:
            if each.is_buffer and not each.same and each.is_finite:
                held[each.name].append((one, each))
    still = {
        name
        for name, each in held.items()
        if len({one.step for one, _ in each}) >= FEWEST
        and not any(piece.moves for _, piece in each)
        and sum(bool(piece.apart.any()) for _, piece in each) >= FEWEST
    }
    judged = [(one, pieces) for one in some if (pieces := [each for each in one.pieces if each.name in still])]
    return [_finding("buffers", judged, some)] if judged else []


def _lost(some: Sequence[Averaging]) -> list[Finding]:
    share = _share_lost(some)
    if share is None or share < WORTH_TELLING:
        return []
    judged = [(one, pieces) for one in some if (pieces := [each for each in one.params if _is_coarse(each)])]
    return [_finding("lost", judged, some, f"{share:.0%}", measured=share)]


def _share_lost(some: Sequence[Averaging]) -> float | None:
    """Of elements in a coarse format that are far from the model, the share of the squared distance that stays although
    the average is known to be updated; None where there are none.
    """
    known = [one for one in some if one.gap == "call" or (one.gap == "between" and (one.moves or one.decay))]
    far = stay = 0.0
    for each in (piece for one in known for piece in one.params if _is_coarse(piece)):
        gap2 = np.where(each.apart, each.model - each.before, 0.0) ** 2
        far += float(gap2.sum())
        stay += float(gap2[each.before == each.after].sum())
    return stay / far if far else None


def _is_coarse(piece: Piece) -> bool:
    return piece.unit > FORMATS["float32"].unit


def _ranks(some: Sequence[Averaging]) -> list[Finding]:
    """Averages that differ although what they follow is the same, among ranks on which they move."""
    moving = {one.rank for one in some if one.moves}
    at: defaultdict[tuple[int, str, str], list[tuple[Averaging, Piece]]] = defaultdict(list)
    for one in some:
        if one.gap != "update" and one.rank in moving:
            for each in one.params:
                at[one.step, one.gap, each.name].append((one, each))
    of: dict[int, tuple[Averaging, list[Piece]]] = {}
    for each in at.values():
        first = each[0][1]
        others = [(one, piece) for one, piece in each[1:] if piece.after.shape == first.after.shape]
        others = [(one, piece) for one, piece in others if (piece.model == first.model).all()]
        differing = [(one, piece) for one, piece in others if (piece.after != first.after).any()]
        for one, piece in [each[0], *differing] if differing else []:
            of.setdefault(id(one), (one, []))[1].append(piece)
    return [_finding("ranks", [*of.values()], some)] if of else []


def _finding(
    kind: Kind, judged: Sequence[Judged], some: Sequence[Averaging], told: str = "", *, measured: float | None = None
) -> Finding:
    names = list(dict.fromkeys(each.name for _, pieces in judged for each in pieces))
    steps = sorted({one.step for one, _ in judged})
    ranks = tuple(sorted({one.rank for one, _ in judged}))
    among = sorted({one.step for one in some})
    who = f"The average {some[0].name}" if some[0].name != "the average" else "The average"
    where = f"on {ranks_text(ranks)} at {steps_text(steps, among=among)}"
    of, decay = named_some(names), some[0].decay
    dtypes = named_some(sorted({each.dtype for _, pieces in judged for each in pieces}))
    claims: dict[Kind, str] = {
        "rule": f"{who} follows other weights than those of the model {where}: no decay explains {of}.",
        "trained": f"{who} is changed by the update of the optimizer, which holds {of}, {where}.",
        "same": f"{who} is the model itself {where}: {of} of both are one tensor.",
        "left-out": f"{who} leaves out {of} {where}, which the model trains.",
        "several": f"{who} has different decays for {of} {where}.",
        "swapped": f"{who} is updated with a decay of {told} {where}, and {decay:g} is declared: they are swapped."
        if decay is not None
        else "",
        "often": f"{who} moves between two updates {where} as if its decay of {decay} were applied {told}.",
        "decay": f"{who} is updated with a decay of {told} {where}, and {decay} is declared.",
        "lost": f"Rounding loses {told} of what {who[0].lower()}{who[1:]} is to move (squared norm) {where}: it is "
        f"{dtypes}.",
        "ranks": f"{who} differs between the {ranks_text(ranks)} at {steps_text(steps, among=among)}, while what it "
        f"follows is the same: {of}.",
        "still": f"{who} does not move {where}, and is not the model: {of}.",
        "buffers": f"{who} leaves out the buffers {of} {where}, which are not those of the model.",
        "copied": f"{who} has copies of {of} of the model {where}, and averages of the others.",
        "rising": f"{who} begins with a lower decay than the declared {decay}, and is at {told} {where}.",
        "fast": f"{who} has a decay of {told} {where}: the model has the larger part in each update.",
    }
    severity: Severity = "error" if kind in _ERRORS else "warning" if kind in _WARNINGS else "info"
    if some[0].custom and kind in ("rule", "left-out"):
        severity = "info"  # a function of the user's own may average otherwise
    if kind == "still" and decay is not None and decay < 1:
        severity = "warning"
    return Finding(
        code=CODE,
        severity=severity,
        claim=claims[kind],
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="opt", names=names[: MAX_SITES // 2]),
        measured=_worst(judged) if kind == "rule" else measured,
        expected=1.0 if kind == "rule" else WORTH_TELLING if kind == "lost" else None,
        unit="largest difference, over what rounding may explain (at most)"
        if kind == "rule"
        else "share of the squared distance to the model that stays (at most)",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "names": names[:100]},
        next=(_ADVICE[kind],),
    )


def _worst(judged: Sequence[Judged]) -> float:
    """The largest difference from the share that fits best, over what rounding explains."""
    worst = 0.0
    for _, pieces in judged:
        for each in pieces:
            gap, moved = each.model - each.before, each.after - each.before
            share = min(max(float(gap @ moved) / max(float(gap @ gap), 1e-300), 0.0), 1.0)
            allowed = (
                TOLERANCE * max(each.unit, each.of_model * share) * (np.abs(each.before) + np.abs(each.model))
                + each.tiny
            )
            worst = max(worst, float(np.max(np.abs(moved - share * gap) / allowed)))
    return worst
