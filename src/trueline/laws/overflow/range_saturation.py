"""A call comes within a factor of two of what its dtype can hold, or gradients sink into its subnormal numbers.

What it finds
-------------
In recorded steps (`trueline run --plan ops` or `mix`): products whose largest value would overflow if it doubled, which
precedes an overflow; and gradients with so many subnormal elements that their rounding error exceeds that of all other
elements.

Why it matters
--------------
float16 ends at 65,504, and products grow while a model trains. A step later the loss is NaN, and a gradient scaler
cannot help: it scales gradients, not outputs. At the other end, what is below 6e-8 is zero: the parameters behind it
stop learning, and nothing else shows it.

How it decides
--------------
From extremes and counts, by the definition of the dtype; nothing is tuned.

- Near the top: a matrix product, linear layer or convolution in the forward pass returned finite numbers only, the
  largest of which is above half of the largest that there is, and took none that are. One more doubling is not finite.
  A warning; the measured value is how many doublings are left.
- Near zero: n subnormal numbers are each rounded by at most half of the smallest number s there is, together by at most
  s √n / 2, where all numbers of a gradient of norm g are rounded by about u g (u is the unit roundoff). Where
  s √n / 2 > u g the loss near zero may outweigh all other rounding. An info, because small gradients may be intended.

Masks (`finfo.min`) and the results of a gradient scaler are neither: only products are judged near the top, and only in
forward. float8 is left out: its scales map the largest value to the end of its range on purpose.

What it may miss
----------------
Numbers that are zero already: what they were is lost. Casts within a call, as autocast makes them. An overflow that
comes at once, without a step before it.

Example
-------
Call blocks.1.mlp.0.linear#0 returned values up to 41,216 in float16 on ranks 0 and 1 at step 8: twice that overflows.

Wrong and right
---------------
Wrong:

```python
with torch.autocast("cuda", dtype=torch.float16):  # ends at 65,504
    loss = model(inputs).loss
```

Right:

```python
with torch.autocast("cuda", dtype=torch.bfloat16):  # has the range of float32
    loss = model(inputs).loss
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import MAX_SITES, Bools
from trueline.judge.recorded.step_values import function_name
from trueline.judge.recorded.steps import chunks, require_statistics
from trueline.schema.finding import Finding
from trueline.schema.formats import FORMATS
from trueline.schema.site import Site
from trueline.schema.text.words import counted, named_some, ranks_text, steps_text
from trueline.store.reader import Run
from trueline.store.records.arrays import floats

CODE = "range-saturation"
QUESTION = "recorded"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

_JUDGED = {name: FORMATS[name] for name in ("float16", "bfloat16", "float32")}
"""Formats of the dtypes that are judged."""

_PRODUCTS = frozenset(
    {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "bilinear", "conv1d", "conv2d", "conv3d"}
    | {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
)

_COLUMNS = ("step", "rank", "micro", "phase", "name", "call", "slot", "kind", "api", "dtype")
_NUMBERS = ("nan", "pos_inf", "neg_inf", "subnormal", "min", "max", "sum_sq")


@dataclass(frozen=True)
class _Hit:
    """One row that is near an end of its range: doublings that are left, or the loss near zero over other rounding."""

    site: Site
    dtype: str
    value: float
    measured: float


def check(run: Run) -> list[Finding]:
    """The Finding of each end of the range; raises ``CannotTell`` where no step was recorded with statistics."""
    require_statistics(run)
    high: list[_Hit] = []
    low: list[_Hit] = []
    for rows in _tables(run):
        high += _near_the_top(rows)
        low += _near_zero(rows)
    return [*_findings(high, _top_claim, severity_is_warning=True), *_findings(low, _zero_claim)]


class _Rows:
    """The rows of some steps as arrays [R]; numbers are float64 with NaN where nothing was measured."""

    def __init__(self, table: Any) -> None:
        self.texts: dict[str, NDArray[Any]] = {
            name: np.asarray(table[name].to_pylist(), dtype=object) for name in _COLUMNS
        }
        self.numbers: dict[str, NDArray[np.float64]] = {name: floats(table[name]) for name in _NUMBERS}
        low_R, high_R = np.abs(self.numbers["min"]), np.abs(self.numbers["max"])
        self.largest: NDArray[np.float64] = np.fmax(low_R, high_R)
        self.finite: Bools = np.asarray(
            self.numbers["nan"] + self.numbers["pos_inf"] + self.numbers["neg_inf"] == 0, dtype=np.bool_
        )

    def of(self, field: str) -> NDArray[np.float64]:
        """A number of each row's dtype; NaN for a dtype that is not judged."""
        known = {name: getattr(each, field) for name, each in _JUDGED.items()}
        return np.array([known.get(dtype, math.nan) for dtype in self.texts["dtype"]], dtype=np.float64)

    def site(self, index: int) -> Site:
        """The Site of a row."""
        step, rank, micro, phase, name, call, slot = (self.texts[column][index] for column in _COLUMNS[:7])
        return Site(step, micro or 0, rank, phase, name or "", call or 0, slot)


def _tables(run: Run) -> Iterator[_Rows]:
    for steps in chunks(run.record_steps.tolist()):
        table: Any = cast(Any, run).records(steps=steps, phases=("fwd", "bwd"), columns=[*_COLUMNS, *_NUMBERS])
        yield _Rows(table)


def _near_the_top(rows: _Rows) -> list[_Hit]:
    texts = rows.texts
    near_R = (rows.largest > rows.of("largest") / 2) & rows.finite
    hits: list[_Hit] = []
    for index in np.flatnonzero(near_R & (texts["phase"] == "fwd") & (texts["kind"] == "op")).tolist():
        api, slot = str(texts["api"][index]), str(texts["slot"][index])
        is_product = slot.startswith("out") and function_name(api) in _PRODUCTS
        if is_product and not _took_as_large(rows, index, near_R):
            value, dtype = float(rows.largest[index]), str(texts["dtype"][index])
            left = math.log2(_JUDGED[dtype].largest / value)
            hits.append(_Hit(rows.site(index), dtype, value, left))
    return hits


def _took_as_large(rows: _Rows, index: int, near_R: Bools) -> bool:
    """Whether an input of the call that returned a row is as near to the end: the rows of a call follow each other."""
    for before in range(index - 1, -1, -1):
        if any(rows.texts[name][before] != rows.texts[name][index] for name in ("step", "rank", "name", "call")):
            return False
        if near_R[before] or not rows.finite[before]:
            return True
    return False


def _near_zero(rows: _Rows) -> list[_Hit]:
    lost_R = rows.of("smallest") * np.sqrt(rows.numbers["subnormal"]) / 2
    other_R = rows.of("unit") * np.sqrt(rows.numbers["sum_sq"])
    is_gradient_R = (rows.texts["phase"] == "bwd") & (rows.texts["kind"] == "param")
    sunk = np.flatnonzero((lost_R > other_R) & rows.finite & is_gradient_R)
    return [
        _Hit(
            rows.site(index),
            str(rows.texts["dtype"][index]),
            float(rows.numbers["subnormal"][index]),
            float(lost_R[index] / other_R[index]) if other_R[index] else math.inf,
        )
        for index in sunk.tolist()
    ]


def _findings(hits: Sequence[_Hit], claim: Any, *, severity_is_warning: bool = False) -> list[Finding]:
    if not hits:
        return []
    steps = sorted({hit.site.step for hit in hits})
    ranks = tuple(sorted({hit.site.rank for hit in hits}))
    worst = (min if severity_is_warning else max)(hits, key=lambda hit: hit.measured)
    first = [hit for hit in hits if hit.site.step == steps[0]]
    names = list(dict.fromkeys(f"{hit.site.name}#{hit.site.call}" for hit in hits))
    return [
        Finding(
            code=CODE,
            severity="warning" if severity_is_warning else "info",
            claim=claim(hits, worst, f"on {ranks_text(ranks)} at {steps_text(steps)}"),
            ranks=ranks,
            step_first=steps[0],
            step_last=steps[-1],
            sites=tuple(dict.fromkeys(str(hit.site) for hit in (*first, worst)))[:MAX_SITES],
            measured=worst.measured if math.isfinite(worst.measured) else None,
            expected=1.0,
            unit=_TOP_UNIT if severity_is_warning else _ZERO_UNIT,
            false_alarm_rate=0.0,
            evidence={"names": names[:100], "worst": str(worst.site), "dtype": worst.dtype, "num_rows": len(hits)},
            next=(_TOP_NEXT if severity_is_warning else _ZERO_NEXT,),
        )
    ]


_TOP_UNIT = "doublings that are left until it overflows"
_ZERO_UNIT = "bound on the loss near zero over the rounding error of all other elements"
_TOP_NEXT = "Run that call in bfloat16 or float32, or find out why its output grows: plot its largest value over steps."
_ZERO_NEXT = "Scale the loss (torch.amp.GradScaler), or use bfloat16."


def _top_claim(hits: Sequence[_Hit], worst: _Hit, where: str) -> str:
    names = list(dict.fromkeys(f"{hit.site.name}#{hit.site.call}" for hit in hits))
    call = f"{'Call' if len(names) == 1 else 'Calls'} {named_some(names)}"
    return f"{call} returned values up to {worst.value:,.5g} in {worst.dtype} {where}: twice that overflows."


def _zero_claim(hits: Sequence[_Hit], worst: _Hit, where: str) -> str:
    names = list(dict.fromkeys(hit.site.name for hit in hits))
    return (
        f"Gradients of {counted(len(names), 'parameter')} ({named_some(names)}) sink into the subnormal numbers of "
        f"{worst.dtype} {where}: up to {worst.value:,.0f} elements of one."
    )
