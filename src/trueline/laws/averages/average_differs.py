"""An average of the weights (EMA, SWA, a momentum teacher) is not the average of the weights.

What it finds
-------------
An average that follows other weights than the model's (an uninitialised or stale copy, another rank's), that the
optimizer trains as well, that is the model itself, or that differs between ranks. Parameters that it leaves out. A
declared decay that is swapped with its complement, applied several times between two updates, or another one. Averages
in bfloat16 or float16 whose moves rounding loses. As information: an average that does not move in any sampled step
although it is not the model, buffers that it leaves out, tensors that are copied, a decay below a half. For you to
confirm: buffers that it leaves out, as the running statistics of batch normalisation, where it is called in evaluation
mode in the steps, which reads them.

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
`AveragedModel`; and a module of the model's class, or a list or mapping of tensors of its shapes, that nobody declared
is taken for one where it moves between updates, in three samples or more, to the model each time, and no optimizer
holds it. A decay is held against only where it is
declared (`averages=[(teacher, 0.996)]`), in 3 samples or more, and all of them: it is to be that after every update. A
schedule that begins below it is an information.
Of buffers it is seen in the same samples whether a module that holds one is called in evaluation mode:
in three samples or more in which it has not moved, and is not the model's.
Lost is counted where rounding is coarser than in float32, of elements whose distance to the model is larger than
rounding explains: a warning where those that stay have a fifth of its squared norm.

What it may miss
----------------
Averages that are not declared and are only in variables of a function that makes them anew, or were made after the
first steps; tensors and steps
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
from trueline.laws.averages.averaging import Averaging, Interval, Piece, common_share, sampled_averagings
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
"""Most applications of a decay between two updates that are told."""

WORTH_TELLING = 0.2
"""Share of what is to move and stays, from which on that is told, as of `update-lost`."""

AverageFault = Literal[
    "rule", "trained", "same", "left-out", "several", "swapped", "often", "decay", "lost", "ranks", "still", "buffers",
    "buffers-read", "copied", "rising", "fast",
]  # fmt: skip

_ERRORS: tuple[AverageFault, ...] = ("rule", "trained", "same", "swapped", "often", "decay")
_WARNINGS: tuple[AverageFault, ...] = ("left-out", "lost", "ranks")

_ADVICE: Mapping[AverageFault, str] = {
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
    "buffers-read": "Let the buffers follow as well: copy them from the model after each update. Or leave the copy in "
    "training mode, where it takes the statistics of its own batch.",
    "copied": "If that is not meant, look for parameters that are shared, or left out of the average.",
    "rising": "If it is a warm-up, declare the average without the decay.",
    "fast": "If the model is to have the smaller part, swap them: e = decay * e + (1 - decay) * p.",
}

AffectedPieces = tuple[Averaging, Sequence[Piece]]
"""An averaging and its tensors that a Finding is about."""


def check(run: Run) -> list[Finding]:
    """A Finding for each way in which an average is not one; raises ``CannotTell`` where none was seen."""
    by_key: dict[str, list[Averaging]] = {}
    for averaging in sampled_averagings(run):
        # judged by the calls that update it
        if averaging.is_torchs:
            continue
        by_key.setdefault(averaging.key, []).append(averaging)
    histories = [history for history in by_key.values() if not history[0].is_undeclared or _behaves_as_average(history)]
    averagings = [averaging for history in histories for averaging in history]
    if not averagings:
        raise CannotTell(
            "no average of the weights was seen: there is none, it is no AveragedModel of torch and not declared, or "
            "its tensors have other names or shapes than the model's",
            reason="by-design",
        )
    if not any(averaging.moves or _follows_params(averaging) for averaging in averagings):
        raise CannotTell(
            "what the averages follow is not the same from an update to the next one, as where that is compiled",
            reason="undecidable",
        )
    return [finding for history in histories for finding in _findings(history)]


def _follows_params(averaging: Averaging) -> bool:
    """True if it follows parameters that stay from the update on."""
    return averaging.gap != "update" and not all(piece.is_buffer for piece in averaging.pieces)


def _findings(history: Sequence[Averaging]) -> list[Finding]:
    """Findings of one average, whose averagings are its ``history``."""
    # An average that is the model itself breaks every other rule, too.
    return _alias_findings(history) or [
        *_rule_findings(history),
        *_still_findings(history),
        *_rounding_findings(history),
        *_buffer_findings(history),
        *_rank_findings(history),
    ]


def _behaves_as_average(history: Sequence[Averaging]) -> bool:
    """True if a module that nobody declared is an average by what it does: it moves between updates, in several
    samples, each time to the model, and no optimizer holds it.
    """
    moving = [averaging for averaging in history if averaging.moves]
    pieces = [piece for averaging in history for piece in averaging.pieces]
    is_trained = any(piece.in_optimizer or piece.is_model_tensor for piece in pieces)
    num_steps = len({averaging.step for averaging in moving})
    return num_steps >= FEWEST and not is_trained and all(share_of(averaging) for averaging in moving)


def share_of(averaging: Averaging) -> Interval | None:
    """The shares that explain all moving parameters of an averaging; None for none, or where nothing moves."""
    moving = [piece for piece in averaging.params if piece.moves]
    if not moving:
        return None
    share = common_share([(0.0, 1.0), *(piece.share for piece in moving)])
    if share is None and averaging.gap == "update":
        # An average that is made just before the update follows the model of before.
        return common_share([(0.0, 1.0), *(piece.share_towards(piece.earlier_model) for piece in moving)])
    return share


def _rule_findings(history: Sequence[Averaging]) -> list[Finding]:
    """Findings of averagings that no share explains, and of the decays that the others show."""
    by_fault: defaultdict[AverageFault, list[AffectedPieces]] = defaultdict(list)
    shares: list[tuple[Averaging, Interval]] = []
    for averaging in history:
        moving = [piece for piece in averaging.params if piece.moves]
        share = share_of(averaging)
        if share is not None:
            shares.append((averaging, share))
            unmoved = [piece for piece in averaging.params if not piece.moves and piece.trains]
            left_out = [piece for piece in unmoved if not common_share([share, piece.share])]
            if left_out and averaging.gap != "update":
                by_fault["left-out"].append((averaging, left_out))
        elif moving and averaging.gap == "update":
            trained = [piece for piece in moving if piece.in_optimizer]
            by_fault["trained" if trained else "rule"].append((averaging, trained or moving))
        elif moving:
            fault, pieces = _fault_between_updates(moving)
            by_fault[fault].append((averaging, pieces))
    findings = [_finding(fault, affected, history) for fault, affected in by_fault.items()]
    return [*findings, *_decay_findings(shares, history)]


def _fault_between_updates(moving: Sequence[Piece]) -> tuple[AverageFault, list[Piece]]:
    """Fault of pieces that no one share explains, and those that have it."""
    wrong = [piece for piece in moving if common_share([(0.0, 1.0), piece.share]) is None]
    if wrong:
        return "rule", wrong
    copies = [piece for piece in moving if piece.share[1] >= 1]
    averaged = [piece for piece in moving if piece.share[1] < 1]
    return ("copied", copies) if common_share([piece.share for piece in averaged]) else ("several", list(moving))


def _decay_findings(shares: Sequence[tuple[Averaging, Interval]], history: Sequence[Averaging]) -> list[Finding]:
    """Findings of a declared decay that all samples but copies contradict, or of one far from usual where none is."""
    # Averages begin with copies of the model, whose share is 1.
    averaged = [(averaging, share) for averaging, share in shares if share[1] < 1]
    affected = [(averaging, averaging.params) for averaging, _ in averaged]
    intervals = [share for _, share in averaged]  # of s = 1 - decay
    decay = history[0].decay
    if len(averaged) < FEWEST:
        return []
    decay_text = _decay_text(intervals[-1])
    if decay is None:
        is_fast = all(low > 0.5 for low, _ in intervals) and common_share([intervals[0], intervals[-1]])
        return [_finding("fast", affected, history, decay_text)] if is_fast and len(averaged) >= FAST else []
    if any(low <= 1 - decay <= high for low, high in intervals):
        return []
    if _all_contain(intervals, decay):
        return [_finding("swapped", affected, history, decay_text)]
    # Applied k times a decay d is one of d^k.
    if times := next((k for k in range(2, MOST_CALLS + 1) if _all_contain(intervals, 1 - decay**k)), 0):
        return [_finding("often", affected, history, counted(times, "time"))]
    rises = intervals[0][0] > intervals[-1][1] and intervals[-1][0] > 1 - decay
    return [_finding("rising" if rises else "decay", affected, history, decay_text)]


def _decay_text(share: Interval) -> str:
    """The decay in as many digits as both ends of the interval of its share agree in; else both."""
    low, high = 1 - share[1], 1 - share[0]
    agreed = (f"{low:.{digits}g}" for digits in (6, 4, 2) if f"{low:.{digits}g}" == f"{high:.{digits}g}")
    return next(agreed, f"{low:.4g} to {high:.4g}")


def _all_contain(intervals: Iterable[Interval], share: float) -> bool:
    return all(low <= share <= high for low, high in intervals)


def _alias_findings(history: Sequence[Averaging]) -> list[Finding]:
    """An average all of whose tensors are the model's own."""
    affected = [
        (averaging, averaging.pieces)
        for averaging in history
        if all(piece.is_model_tensor for piece in averaging.pieces)
    ]
    return [_finding("same", affected, history)] if len(affected) == len(history) else []


def _still_findings(history: Sequence[Averaging]) -> list[Finding]:
    """An average that is not the model, is further from it than a declared decay lets stay, and does not move in any
    sample.
    """
    decay = history[0].decay
    declared: Interval = (0.0, 0.0) if decay is None else (1 - decay, 1 - decay)
    affected: list[AffectedPieces] = []
    for averaging in history:
        far = [piece for piece in averaging.params if piece.is_far.any()]
        pieces = [piece for piece in far if decay is None or not common_share([piece.share, declared])]
        if pieces and averaging.gap != "update":
            affected.append((averaging, pieces))
    num_steps = len({averaging.step for averaging, _ in affected})
    if any(averaging.moves for averaging in history) or num_steps < FEWEST or _share_lost(history) is not None:
        return []
    return [_finding("still", affected, history)]


def _buffer_findings(history: Sequence[Averaging]) -> list[Finding]:
    """Buffers that never move while parameters of the average and the model's buffers do."""
    buffers: defaultdict[str, list[tuple[Averaging, Piece]]] = defaultdict(list)
    for averaging in history:
        for piece in averaging.pieces if averaging.moves else ():
            if piece.is_buffer and not piece.is_model_tensor and piece.is_finite:
                buffers[piece.name].append((averaging, piece))
    # Buffers that do not change in the model, as masks, need no average: the model's must be elsewhere.
    still = {
        name
        for name, samples in buffers.items()
        if len({averaging.step for averaging, _ in samples}) >= FEWEST
        and not any(piece.moves for _, piece in samples)
        and sum(bool(piece.is_far.any()) for _, piece in samples) >= FEWEST
    }
    affected = [
        (averaging, pieces)
        for averaging in history
        if (pieces := [piece for piece in averaging.pieces if piece.name in still])
    ]
    # at as many steps as they were not moved: what is copied just before an evaluation follows the model
    num_read = len({averaging.step for averaging, _ in affected if averaging.reads_buffers})
    fault: AverageFault = "buffers-read" if num_read >= FEWEST else "buffers"
    return [_finding(fault, affected, history)] if affected else []


def _rounding_findings(history: Sequence[Averaging]) -> list[Finding]:
    """Moves that rounding loses, of an average in a coarse format."""
    share = _share_lost(history)
    if share is None or share < WORTH_TELLING:
        return []
    affected = [
        (averaging, pieces)
        for averaging in history
        if (pieces := [piece for piece in averaging.params if _is_coarse(piece)])
    ]
    return [_finding("lost", affected, history, f"{share:.0%}", measured=share)]


def _share_lost(history: Sequence[Averaging]) -> float | None:
    """Share of the squared distance to the model that stays although the average is known to be updated, of elements in
    a coarse format that are far from the model; None where there are none.
    """
    updated = [
        averaging
        for averaging in history
        if averaging.gap == "call" or (averaging.gap == "between" and (averaging.moves or averaging.decay))
    ]
    far = stay = 0.0
    for piece in (piece for averaging in updated for piece in averaging.params if _is_coarse(piece)):
        gap2 = np.where(piece.is_far, piece.model - piece.before, 0.0) ** 2
        far += float(gap2.sum())
        stay += float(gap2[piece.before == piece.after].sum())
    return stay / far if far else None


def _is_coarse(piece: Piece) -> bool:
    return piece.unit > FORMATS["float32"].unit


def _rank_findings(history: Sequence[Averaging]) -> list[Finding]:
    """Averages that differ although what they follow is the same, among ranks on which they move."""
    moving_ranks = {averaging.rank for averaging in history if averaging.moves}
    replicas: defaultdict[tuple[int, str, str], list[tuple[Averaging, Piece]]] = defaultdict(list)
    for averaging in history:
        if averaging.gap != "update" and averaging.rank in moving_ranks:
            for piece in averaging.params:
                replicas[averaging.step, averaging.gap, piece.name].append((averaging, piece))
    differing: dict[int, tuple[Averaging, list[Piece]]] = {}
    for samples in replicas.values():
        first = samples[0][1]
        unlike = [(averaging, piece) for averaging, piece in samples[1:] if _differs_from(piece, first)]
        for averaging, piece in [samples[0], *unlike] if unlike else []:
            differing.setdefault(id(averaging), (averaging, []))[1].append(piece)
    return [_finding("ranks", [*differing.values()], history)] if differing else []


def _differs_from(piece: Piece, first: Piece) -> bool:
    """True if averages of the same weights differ."""
    if piece.after.shape != first.after.shape or not (piece.model == first.model).all():
        return False
    return bool((piece.after != first.after).any())


def _finding(
    fault: AverageFault,
    affected: Sequence[AffectedPieces],
    history: Sequence[Averaging],
    detail: str = "",
    *,
    measured: float | None = None,
) -> Finding:
    """The Finding of one fault; ``detail`` is the decay, the share or the number that its claim says."""
    names = list(dict.fromkeys(piece.name for _, pieces in affected for piece in pieces))
    steps = sorted({averaging.step for averaging, _ in affected})
    ranks = tuple(sorted({averaging.rank for averaging, _ in affected}))
    among = sorted({averaging.step for averaging in history})
    # What nobody declared may be the weights of an engine, which follow the model at once.
    noun = "copy of the weights" if history[0].is_undeclared and not history[0].is_torchs else "average"
    average = f"The {noun} {history[0].name}" if history[0].name != "the average" else f"The {noun}"
    location = f"on {ranks_text(ranks)} at {steps_text(steps, among=among)}"
    tensors, decay = named_some(names), history[0].decay
    dtypes = named_some(sorted({piece.dtype for _, pieces in affected for piece in pieces}))
    claims: dict[AverageFault, str] = {
        "rule": f"{average} follows other weights than those of the model {location}: no decay explains {tensors}.",
        "trained": f"{average} is changed by the update of the optimizer, which holds {tensors}, {location}.",
        "same": f"{average} is the model itself {location}: {tensors} of both are one tensor.",
        "left-out": f"{average} leaves out {tensors} {location}, which the model trains.",
        "several": f"{average} has different decays for {tensors} {location}.",
        "swapped": f"{average} is updated with a decay of {detail} {location}, and {decay:g} is declared: they are "
        "swapped."
        if decay is not None
        else "",
        "often": f"{average} moves between two updates {location} as if its decay of {decay} were applied {detail}.",
        "decay": f"{average} is updated with a decay of {detail} {location}, and {decay} is declared.",
        "lost": f"Rounding loses {detail} of what {average[0].lower()}{average[1:]} is to move (squared norm) "
        f"{location}: it is {dtypes}.",
        "ranks": f"{average} differs between the {ranks_text(ranks)} at {steps_text(steps, among=among)}, while what "
        f"it follows is the same: {tensors}.",
        "still": f"{average} does not move {location}, and is not the model: {tensors}.",
        "buffers": f"{average} leaves out the buffers {tensors} {location}, which are not those of the model.",
        "buffers-read": f"{average} is called in evaluation mode with buffers that do not follow the model's "
        f"{location}: {tensors}.",
        "copied": f"{average} has copies of {tensors} of the model {location}, and averages of the others.",
        "rising": f"{average} begins with a lower decay than the declared {decay}, and is at {detail} {location}.",
        "fast": f"{average} has a decay of {detail} {location}: the model has the larger part in each update.",
    }
    severity: Severity = "error" if fault in _ERRORS else "warning" if fault in _WARNINGS else "info"
    if fault == "buffers-read":
        severity = "confirm"
    if history[0].custom and fault in ("rule", "left-out"):
        severity = "info"  # a function of the user's own may average otherwise
    if fault == "still" and decay is not None and decay < 1:
        severity = "warning"
    return Finding(
        code=CODE,
        severity=severity,
        claim=claims[fault],
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="opt", names=names[: MAX_SITES // 2]),
        measured=_worst_excess(affected) if fault == "rule" else measured,
        expected=1.0 if fault == "rule" else WORTH_TELLING if fault == "lost" else None,
        unit="largest difference, over what rounding may explain (at most)"
        if fault == "rule"
        else "share of the squared distance to the model that stays (at most)",
        false_alarm_rate=0.0,
        evidence={"kind": fault, "names": names[:100]},
        next=(_ADVICE[fault],),
    )


def _worst_excess(affected: Sequence[AffectedPieces]) -> float:
    """The largest difference from the share that fits best, over what rounding explains."""
    worst = 0.0
    for _, pieces in affected:
        for piece in pieces:
            gap, moved = piece.model - piece.before, piece.after - piece.before
            # Least squares; the norm is kept from 0 where the average is the model.
            share = min(max(float(gap @ moved) / max(float(gap @ gap), 1e-300), 0.0), 1.0)
            unit = max(piece.unit, piece.model_unit * share)
            allowed = TOLERANCE * unit * (np.abs(piece.before) + np.abs(piece.model)) + piece.tiny
            worst = max(worst, float(np.max(np.abs(moved - share * gap) / allowed)))
    return worst
