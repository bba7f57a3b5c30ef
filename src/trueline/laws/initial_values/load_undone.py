"""Weights are drawn anew after they were loaded.

What it finds
-------------
A checkpoint is loaded, and something draws the weights again before training begins: `model.apply(init_weights)`, a
wrapper that initialises all that is inside it, `reset_parameters`, a second construction of the model, an embedding
that was made longer and drawn as a whole.

Why it matters
--------------
Training begins from random weights, and everybody believes that it goes on from the checkpoint. The load raised no
error; the loss begins high and falls all the same.

How it decides
--------------
By up to 64 elements of each parameter, as the last load before the first update left them and as that update finds
them. A parameter was drawn anew where at most an eighth of these are what was loaded, but for rounding to bfloat16, and
the others have no correlation with it beyond chance (half of 1, or four standard errors), or where a matrix or vector
of several values is one value throughout. Most of the matrices among them must have the mean and the kurtosis of what
initialisers draw, which weights of another checkpoint seldom have. A cast, a merged adapter, an average, pruning,
noise that is added and a later load leave a correlation. It is for you to confirm where

- more than half of the matrices that were loaded and can be compared were drawn anew, or
- these lie in three or more places of the model, with others between them that are as they were loaded, or
- an embedding that has more rows than were loaded was drawn with the old ones, or
- the module that was loaded is gone before any update, and the model has another one of its class.

A head, the last layers, or one part of the model that is drawn anew is meant so, as is one that another module has
replaced: these are left alone. All ranks that loaded weights must have lost them, as DDP may give a rank those of
another.

What it may miss
----------------
Loads without `load_state_dict` or `from_pretrained`; loads before `trueline.watch` where the job is not started by
`trueline run`; parameters that are kept in another form afterwards (FSDP1, ZeRO 3, quantization, weight norm); parts
at the end of the model that were drawn by mistake.

Example
-------
All 20 parameters loaded by load_state_dict into Encoder (train.py:31) were drawn anew before the first update:
body.0.weight, body.0.bias, body.2.weight and 17 more.

Wrong and right
---------------
Wrong:

```python
model.load_state_dict(torch.load("pretrained.pt"))
model.apply(init_weights)
```

Right:

```python
model.apply(init_weights)
model.load_state_dict(torch.load("pretrained.pt"))
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.initial_values.columns import (
    NUM_COMPARED,
    NUM_FIELDS,
    Comparison,
    InitialValues,
    LoadedParam,
    frozen_params,
    loaded_params,
)
from trueline.laws.initial_values.drawn import FEWEST
from trueline.laws.initial_values.initial_values import is_fresh
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "load-undone"
CALLS = {"": ("load_state_dict", "from_pretrained")}
QUESTION = "start"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

FEWEST_ELEMENTS = 16
"""Elements of which a correlation can be told from none."""
MOST_CLOSE = 1 / 8
"""Share of the elements that may be what was loaded by chance: two draws agree within 2^-8 once in some hundred."""
MOST_ERRORS, MOST_CORRELATION = 4.0, 0.5
FEWEST_PLACES = 3
"""Places of the model, with loaded parts between them, in which nobody draws a part of it anew on purpose."""

Pair = tuple[LoadedParam, Comparison]


@dataclass(frozen=True, slots=True)
class _LookedAt:
    """A parameter before the update."""

    name: str
    shape: tuple[int, ...]
    value: InitialValues


@dataclass(frozen=True, slots=True)
class _Undone:
    """``kind`` of loads of one rank that were undone: the parameters that were drawn anew, of ``num`` compared ones."""

    kind: str
    drawn: tuple[LoadedParam, ...]
    num: int


def check(run: Run) -> list[Finding]:
    """A Finding for each start of the job that undoes loads; raises ``CannotTell`` where none were looked at, or of
    nothing that was loaded there is anything to compare.
    """
    texts = run.texts("loaded_params") if run.has("loaded_params") else {}
    if not texts:
        raise CannotTell(
            "what was loaded before training is seen only of jobs that `trueline run` starts", reason="not-recorded"
        )
    rows, looks = run.lists("loaded_compared"), _looks(run)
    undone: dict[int, dict[int, _Undone | None]] = {}
    for (step, rank), text in sorted(texts.items()):
        row = np.asarray(rows.get((step, rank), ()), dtype=np.float64).reshape(-1, NUM_COMPARED)
        pairs = list(zip(loaded_params(text), (Comparison(*fields) for fields in row.tolist()), strict=False))
        pairs = [pair for pair in pairs if _can_tell(pair[1])]
        if pairs:
            undone.setdefault(step, {})[rank] = _undone(pairs, looks.get((step, rank), {}))
    if not undone:
        raise CannotTell(
            "nothing was loaded before training, or what was is kept in another form now", reason="by-design"
        )
    findings: list[Finding] = []
    for step, by_rank in undone.items():
        loads = {rank: load for rank, load in by_rank.items() if load is not None}
        if len(loads) == len(by_rank):
            findings.append(_finding(run, loads[min(loads)], step, tuple(loads)))
    return findings


def _looks(run: Run) -> dict[tuple[int, int], dict[str, bool]]:
    """Of each start and rank, whether matrices look drawn, by their names."""
    looks: dict[tuple[int, int], dict[str, bool]] = {}
    frozen = run.texts("frozen_params") if run.has("frozen_params") else {}
    frozen_values = run.lists("frozen_values") if frozen else {}
    for (step, rank), row in run.lists("initial_values").items():
        env, values = run.env.get(rank), _values(row)
        # the lists of that start, where parameters have changed since
        lists = [] if env is None else [entry for entry in (env, *env.lists) if len(entry.params) == len(values)]
        params = [
            _LookedAt(name, tuple(shape), value)
            for entry in lists[:1]
            for name, shape, value in zip(entry.params, entry.param_shapes, values, strict=True)
        ]
        if (step, rank) in frozen_values:
            values = _values(frozen_values[step, rank])
            of_frozen = zip(frozen_params(frozen[step, rank]), values, strict=False)
            params += [_LookedAt(param.name, param.shape, value) for param, value in of_frozen]
        looks[step, rank] = {
            param.name: param.value.spread > 0 and is_fresh(param.value)
            for param in params
            if _is_matrix(param.shape) and param.value.looked >= FEWEST
        }
    return looks


def _values(row: NDArray[np.float64]) -> list[InitialValues]:
    return [InitialValues(*numbers) for numbers in row.astype(np.float64).reshape(-1, NUM_FIELDS).tolist()]


def _is_matrix(shape: Sequence[int]) -> bool:
    return sum(size > 1 for size in shape) > 1


def _can_tell(pair: Comparison) -> bool:
    """True where what was loaded has several values, so that others can be told from them."""
    return pair.looked >= FEWEST_ELEMENTS and not pair.was_constant


def _is_drawn(pair: Comparison) -> bool:
    if pair.close > MOST_CLOSE * pair.looked:
        return False
    if pair.is_constant:
        return True
    return abs(pair.correlation) <= max(MOST_CORRELATION, MOST_ERRORS / math.sqrt(pair.looked))


def _undone(pairs: Sequence[Pair], looks: Mapping[str, bool]) -> _Undone | None:
    """What was drawn anew of loads, where that is hardly meant; None elsewhere."""
    matrices = [pair for pair in pairs if _is_matrix(pair[0].shape)]
    drawn = [param for param, pair in pairs if _is_drawn(pair)]
    drawn_matrices = [(param, pair) for param, pair in matrices if _is_drawn(pair)]
    as_drawn = [pair.is_constant or looks[param.name] for param, pair in drawn_matrices if param.name in looks]
    if 2 * sum(as_drawn) <= len(as_drawn):
        return None
    gone = [param for param, _ in pairs if param.way == "gone"]
    if gone:
        # a second construction draws all of it
        return _Undone("gone", tuple(gone), len(gone)) if all(param in drawn for param in gone) else None
    if 2 * len(drawn_matrices) > len(matrices):
        return _Undone("drawn", tuple(drawn), len(pairs))
    longer = [param for param in drawn if param.rows_added]
    if longer:
        return _Undone("rows", tuple(longer), len(pairs))
    in_place = {param.name for param in drawn if param.way == "same"}
    places = sum(is_drawn for is_drawn, _ in groupby(matrices, key=lambda pair: pair[0].name in in_place))
    return _Undone("places", tuple(drawn), len(pairs)) if places >= FEWEST_PLACES else None


def _finding(run: Run, undone: _Undone, step: int, ranks: tuple[int, ...]) -> Finding:
    names = [param.name for param in undone.drawn]
    at_restart = f" at the restart at step {step}" if step in run.restarts else ""
    on = "" if len(ranks) == len(run.ranks) else f" on {ranks_text(ranks)}"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=_claim(undone, f"before the first update{at_restart}{on}"),
        ranks=ranks,
        step_first=step,
        step_last=step,
        sites=sites_of(step, ranks[:1], phase="param", names=names[:MAX_SITES]),
        measured=float(len(names)),
        expected=0.0,
        unit="parameters that were loaded and drawn anew",
        false_alarm_rate=None,
        evidence={"kind": undone.kind, "names": names[:100], "num_compared": undone.num},
        next=(
            "Initialise first and load then: look for what draws weights behind the load (model.apply(init), "
            "init_weights, post_init, reset_parameters, a wrapper that does so, a second construction).",
            "Print one weight behind the load and before the first step.",
        ),
    )


def _claim(undone: _Undone, when: str) -> str:
    first, num = undone.drawn[0], len(undone.drawn)
    at_line = f" ({first.line})" if first.line else ""
    by = f"{first.call} into {first.into}{at_line}"
    if undone.kind == "rows":
        return (
            f"{first.name} was loaded with {counted(first.shape[0], 'row')} by {by}, and drawn anew as a whole {when}, "
            f"with {counted(first.rows_added, 'row')} more."
        )
    names = named_some([param.name for param in undone.drawn])
    if undone.kind == "gone":
        return (
            f"The {first.into} that {first.call} filled{at_line} is gone {when}, and the one that is trained was drawn "
            f"anew: {names}."
        )
    share = "All" if num == undone.num else f"{num:,} of"
    return (
        f"{share} {counted(undone.num, 'parameter')} loaded by {by} {'was' if num == 1 else 'were'} drawn anew {when}: "
        f"{names}."
    )
