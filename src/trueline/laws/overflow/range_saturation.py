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
class _NearEnd:
    """A row that is near an end of its range: doublings that are left, or the loss near zero over other rounding."""

    site: Site
    dtype: str
    value: float
    measured: float


def check(run: Run) -> list[Finding]:
    """The Finding of each end of the range; raises ``CannotTell`` where no step was recorded with statistics."""
    require_statistics(run)
    near_top: list[_NearEnd] = []
    near_zero: list[_NearEnd] = []
    for rows in _row_tables(run):
        near_top += _rows_near_top(rows)
        near_zero += _rows_near_zero(rows)
    return [*_findings(near_top, _top_claim, severity_is_warning=True), *_findings(near_zero, _zero_claim)]


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

    def format_numbers(self, field: str) -> NDArray[np.float64]:
        """A number of each row's dtype; NaN for a dtype that is not judged."""
        number_of = {name: getattr(number_format, field) for name, number_format in _JUDGED.items()}
        return np.array([number_of.get(dtype, math.nan) for dtype in self.texts["dtype"]], dtype=np.float64)

    def site(self, index: int) -> Site:
        """The Site of a row."""
        step, rank, micro, phase, name, call, slot = (self.texts[column][index] for column in _COLUMNS[:7])
        return Site(step, micro or 0, rank, phase, name or "", call or 0, slot)


def _row_tables(run: Run) -> Iterator[_Rows]:
    for steps in chunks(run.record_steps.tolist()):
        table: Any = cast(Any, run).records(steps=steps, phases=("fwd", "bwd"), columns=[*_COLUMNS, *_NUMBERS])
        yield _Rows(table)


def _rows_near_top(rows: _Rows) -> list[_NearEnd]:
    texts = rows.texts
    near_R = (rows.largest > rows.format_numbers("largest") / 2) & rows.finite
    near_ends: list[_NearEnd] = []
    for index in np.flatnonzero(near_R & (texts["phase"] == "fwd") & (texts["kind"] == "op")).tolist():
        api, slot = str(texts["api"][index]), str(texts["slot"][index])
        # Sums of products grow before all else; what only passes a value on is not to blame for it.
        is_product = slot.startswith("out") and function_name(api) in _PRODUCTS
        if is_product and not _has_large_input(rows, index, near_R):
            value, dtype = float(rows.largest[index]), str(texts["dtype"][index])
            doublings = math.log2(_JUDGED[dtype].largest / value)
            near_ends.append(_NearEnd(rows.site(index), dtype, value, doublings))
    return near_ends


def _has_large_input(rows: _Rows, index: int, near_R: Bools) -> bool:
    """True where an input of the call that returned a row is as near to the end: then a call before it is the cause."""
    for row in range(index - 1, -1, -1):  # the rows of a call follow each other, what it took first
        if any(rows.texts[name][row] != rows.texts[name][index] for name in ("step", "rank", "name", "call")):
            return False
        if near_R[row] or not rows.finite[row]:
            return True
    return False


def _rows_near_zero(rows: _Rows) -> list[_NearEnd]:
    # Each subnormal number is rounded by half of the smallest at most, and errors add up as random ones do.
    lost_R = rows.format_numbers("smallest") * np.sqrt(rows.numbers["subnormal"]) / 2
    rounding_R = rows.format_numbers("unit") * np.sqrt(rows.numbers["sum_sq"])
    is_gradient_R = (rows.texts["phase"] == "bwd") & (rows.texts["kind"] == "param")
    rows_near_zero = np.flatnonzero((lost_R > rounding_R) & rows.finite & is_gradient_R)
    return [
        _NearEnd(
            rows.site(index),
            str(rows.texts["dtype"][index]),
            float(rows.numbers["subnormal"][index]),
            float(lost_R[index] / rounding_R[index]) if rounding_R[index] else math.inf,
        )
        for index in rows_near_zero.tolist()
    ]


def _findings(near_ends: Sequence[_NearEnd], claim: Any, *, severity_is_warning: bool = False) -> list[Finding]:
    if not near_ends:
        return []
    steps = sorted({near_end.site.step for near_end in near_ends})
    ranks = tuple(sorted({near_end.site.rank for near_end in near_ends}))
    worst = (min if severity_is_warning else max)(near_ends, key=lambda hit: hit.measured)
    first_ends = [near_end for near_end in near_ends if near_end.site.step == steps[0]]
    names = list(dict.fromkeys(f"{near_end.site.name}#{near_end.site.call}" for near_end in near_ends))
    return [
        Finding(
            code=CODE,
            severity="warning" if severity_is_warning else "info",
            claim=claim(near_ends, worst, f"on {ranks_text(ranks)} at {steps_text(steps)}"),
            ranks=ranks,
            step_first=steps[0],
            step_last=steps[-1],
            sites=tuple(dict.fromkeys(str(near_end.site) for near_end in (*first_ends, worst)))[:MAX_SITES],
            measured=worst.measured if math.isfinite(worst.measured) else None,
            expected=1.0,
            unit=_TOP_UNIT if severity_is_warning else _ZERO_UNIT,
            false_alarm_rate=0.0,
            evidence={"names": names[:100], "worst": str(worst.site), "dtype": worst.dtype, "num_rows": len(near_ends)},
            next=(_TOP_NEXT if severity_is_warning else _ZERO_NEXT,),
        )
    ]


_TOP_UNIT = "doublings that are left until it overflows"
_ZERO_UNIT = "bound on the loss near zero over the rounding error of all other elements"
_TOP_NEXT = "Run that call in bfloat16 or float32, or find out why its output grows: plot its largest value over steps."
_ZERO_NEXT = "Scale the loss (torch.amp.GradScaler), or use bfloat16."


def _top_claim(near_ends: Sequence[_NearEnd], worst: _NearEnd, place_text: str) -> str:
    names = list(dict.fromkeys(f"{near_end.site.name}#{near_end.site.call}" for near_end in near_ends))
    call = f"{'Call' if len(names) == 1 else 'Calls'} {named_some(names)}"
    return f"{call} returned values up to {worst.value:,.5g} in {worst.dtype} {place_text}: twice that overflows."


def _zero_claim(near_ends: Sequence[_NearEnd], worst: _NearEnd, place_text: str) -> str:
    names = list(dict.fromkeys(near_end.site.name for near_end in near_ends))
    return (
        f"Gradients of {counted(len(names), 'parameter')} ({named_some(names)}) sink into the subnormal numbers of "
        f"{worst.dtype} {place_text}: up to {worst.value:,.0f} elements of one."
    )
