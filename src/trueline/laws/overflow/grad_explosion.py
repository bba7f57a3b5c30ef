"""Gradients grow from layer to layer on their way back until they overflow.

What it finds
-------------
In recorded steps (`trueline run --plan mix`, or `ops` or `modules` with the phase bwd): consecutive layers of one kind
whose gradients grow from layer to layer in backward, by two orders of magnitude or more in all, until they are no
longer finite, or within a factor of two of that.

Why it matters
--------------
The layer at which a gradient overflows says little about the cause: one more layer, or a smaller loss, would have moved
it. That every layer multiplies the gradient points to what all of them share: a mask or a length that does not fit, the
scale of attention or of the initialisation, a missing normalisation.

How it decides
--------------
From extremes and counts of recorded gradients, exactly: values that are not finite, or that overflow when they double,
are facts.

- Layers of one kind are those whose names differ in one number (`layers.3.mlp`, `layers.4.mlp`), or the calls of one
  name; of these, gradients of the same output, or of the same parameter, in the same dtype are compared, in the order
  of backward.
- Starting at the last finite gradient, it follows the chain towards the loss for as long as each value is larger than
  the one before.
- It reports a chain of three layers or more over which the largest magnitude grew at least a hundredfold: as an error
  if the next layer is not finite, as a warning if the last value overflows when it doubles.

Under float16 with a gradient scaler it is an info: a scaler looks for the largest scale that fits, and skips the step.

Gradients of a healthy model can grow as much: growth alone is no fault, and is not reported. `studies/spikes`
measures how far gradients of healthy models grow and how far they stay from the end of their range.

What it may miss
----------------
Models whose layers have no numbers in their names. Growth by a factor that is not steady, or that begins less than a
hundredfold below the end of the range. Growth that stays within the range, as it mostly does in bfloat16 and float32:
`grad-spike` reports jumps of norms. Steps that were not recorded.

Example
-------
Gradients grew 1,110-fold over 5 layers, from 18.5 at layers.9#0 to 20,544 at layers.4#0, and were not finite at
layers.3#0, on ranks 0 and 1 at step 6 (float16 ends at 65,504).

Wrong and right
---------------
Wrong:

```python
nn.init.normal_(layer.weight, std=1.0)  # a layer of width n multiplies gradients by about the root of n
x = layer(x)
```

Right:

```python
nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
x = x + layer(norm(x))
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES
from trueline.judge.recorded.step_values import StepValues, Value, read_step
from trueline.judge.recorded.steps import chunks, is_scaled, require_statistics
from trueline.laws.overflow.gradient_growth import Growth, growths
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.formats import FORMATS
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run
from trueline.store.records.arrays import floats, to_numpy

CODE = "grad-explosion"
QUESTION = "recorded"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

LAYERS = 3
"""Fewest layers over which a gradient grows."""

FOLD = 100.0
"""Least growth over them: two orders of magnitude."""

_LARGEST = {name: FORMATS[name].largest for name in ("float16", "bfloat16", "float32", "float64")}
"""float8 is left out: its scales map the largest value to the end of its range on purpose."""


@dataclass(frozen=True)
class _RankGrowth:
    """The chain of one rank's step that grew most."""

    step: StepValues
    growth: Growth

    @property
    def rank(self) -> int:
        return self.step.ranks[0]


def check(run: Run) -> list[Finding]:
    """The Finding of the first step that shows it; raises ``CannotTell`` where no gradient was recorded."""
    require_statistics(run)
    infos: list[Finding] = []
    for step in _suspects(run):
        rank_growths = [
            rank_growth
            for rank in run.record_ranks
            if (rank_growth := _steepest_growth(read_step(run, step, rank))) is not None
        ]
        # A scaler overflows on purpose, in search of its scale; a later step may show what it does not explain.
        if rank_growths and _has_scaler(run, rank_growths):
            infos = infos or [_finding(rank_growths, scaled=True)]
        elif rank_growths:
            return [_finding(rank_growths, scaled=False)]
    return infos


def _suspects(run: Run) -> list[int]:
    """The recorded steps, ascending, with a gradient that is not finite or overflows when it doubles."""
    suspects: list[int] = []
    any_gradient = False
    for steps in chunks(run.record_steps.tolist()):
        columns = ["step", "dtype", "nan", "pos_inf", "neg_inf", "min", "max"]
        table = cast(Any, run).records(steps=steps, phases=("bwd",), columns=columns)
        any_gradient |= len(table) > 0
        number_of = {name: floats(table[name]) for name in columns[2:]}
        bad_R = number_of["nan"] + number_of["pos_inf"] + number_of["neg_inf"] > 0
        limit_R = np.array([_LARGEST.get(name or "", np.inf) for name in table["dtype"].to_pylist()])
        near_R = np.fmax(np.abs(number_of["min"]), np.abs(number_of["max"])) > limit_R / 2
        suspects += np.unique(to_numpy(table["step"])[bad_R | near_R]).tolist()
    if not any_gradient:
        raise CannotTell(
            "no gradient was recorded; let the plan record the phase bwd, as `--plan mix` does", reason="not-recorded"
        )
    return suspects


def _steepest_growth(step: StepValues) -> _RankGrowth | None:
    large_growths = [
        growth for growth in growths(step, _LARGEST) if growth.num_layers >= LAYERS and growth.ratio >= FOLD
    ]
    return _RankGrowth(step, max(large_growths, key=lambda growth: growth.weight)) if large_growths else None


def _has_scaler(run: Run, rank_growths: Sequence[_RankGrowth]) -> bool:
    """True where a gradient scaler is at work on every rank that shows the growth."""
    return all(is_scaled(run, rank_growth.step) for rank_growth in rank_growths)


def _finding(rank_growths: Sequence[_RankGrowth], *, scaled: bool) -> Finding:
    first = rank_growths[0]
    same_chain = [rank_growth for rank_growth in rank_growths if rank_growth.growth.key == first.growth.key]
    step, growth = first.step.step, first.growth
    ranks = tuple(rank_growth.rank for rank_growth in same_chain)
    dtype = growth.gradients[-1].dtype
    overflowed = growth.beyond is not None
    sites = [str(value.site) for rank_growth in same_chain for value in _named_gradients(rank_growth.growth)]
    return Finding(
        code=CODE,
        severity="info" if scaled else "error" if overflowed else "warning",
        claim=_claim(first, ranks, dtype) + (" A gradient scaler is at work: it skips such a step." if scaled else ""),
        ranks=ranks,
        step_first=step,
        step_last=step,
        sites=tuple(dict.fromkeys(sites))[:MAX_SITES],
        measured=growth.ratio,
        expected=1.0,
        unit="largest gradient of the last layer that is finite over that of the first",
        false_alarm_rate=0.0,
        evidence={
            "dtype": dtype,
            "largest_number": _LARGEST[dtype],
            "fold_per_layer": growth.ratio ** (1 / growth.num_layers),
            "layers": [
                {"site": str(value.site), "largest": largest}
                for value, largest in zip(growth.gradients, growth.largest, strict=True)
            ],
            "beyond": None if growth.beyond is None else str(growth.beyond.site),
        },
        next=(
            "Look at what these layers share: masks and lengths, the scale of attention, the initialisation, a "
            "normalisation that is missing.",
            "Compare with a step before it that is healthy: does each layer multiply there too?",
        ),
    )


def _named_gradients(growth: Growth) -> tuple[Value, ...]:
    """The gradients to name: where it overflowed, or the last before that; then the layers, last first."""
    beyond = () if growth.beyond is None else (growth.beyond,)
    return (*beyond, growth.gradients[-1], growth.gradients[0])


def _claim(rank_growth: _RankGrowth, ranks: tuple[int, ...], dtype: str) -> str:
    growth = rank_growth.growth
    where = f"on {ranks_text(ranks)} at step {rank_growth.step.step}"
    text = (
        f"Gradients grew {growth.ratio:,.0f}-fold over {growth.num_layers} layers, from {growth.largest[0]:,.5g} at "
        f"{_call_text(growth.gradients[0])} to {growth.largest[-1]:,.5g} at {_call_text(growth.gradients[-1])}"
    )
    if growth.beyond is None:
        return f"{text}, {where}: twice that overflows {dtype}."
    end = f"{dtype} ends at {_LARGEST[dtype]:,.5g}"
    return f"{text}, and were not finite at {_call_text(growth.beyond)}, {where} ({end})."


def _call_text(value: Value) -> str:
    return f"{value.site.name}#{value.site.call}"
