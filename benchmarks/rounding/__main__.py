"""Measure rounding errors beside the expected ones and rewrite README.md beside this.

    python -m benchmarks.rounding

Under a minute on one core. A band of `compare.expect.ops.LAWS` is to hold 99 % of what is measured here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from benchmarks.page import arguments, head, table, write
from benchmarks.rounding import allreduce, ops, orders, shifts

from trueline.comparison.expect.ops import LAWS
from trueline.comparison.expect.rounding import ORDER_LIMIT, STAGNATION

THREADS = (1, 2)
Entry = TypeVar("Entry")

ABOUT_OPS = """\
Error of the output in the L2 norm against the same op in float64 on the same inputs, over the expected one of the \
class (`trueline.comparison.expect.ops`). Lengths of sums from 4 to 4,096, inputs normal, positive and \
heavy-tailed, with 1 and 2 threads. The band is what the code says of the class; "inside" is the share of measurements \
in it."""

ABOUT_ORDERS = """\
Simulated gradients of N workers with a mean cosine (0, 0.1, 0.5, 0.9, and half of the least there is), added up one \
after the other, round a ring and by halves, under 4 permutations of the workers. "Error" is against float64, \
"difference" is between two permutations; both over what is expected. Left out is what stagnates (below)."""

ABOUT_ALL_REDUCE = f"""\
gloo, a process a rank, {allreduce.ELEMENTS:,} elements: the error over that of a ring, and the difference when ranks \
0 and 1 swap their gradients, over that of two orders."""

ABOUT_STAGNATION = f"""\
bfloat16, one after the other, partial sums in bfloat16. u·sqrt(e(N)) is the unit roundoff times the partial sum over \
a term; the code calls it stagnation above {STAGNATION:g}. Equal terms (cosine 1) round alike: their errors add up, \
and orders do not differ."""

ABOUT_SHIFTS = f"""\
How far rounding moves the sum, and the sum of squares, of an output of 64 x {shifts.WIDTH} elements, over what \
independent errors of the size that was measured would move them by (`sum_std`, `sum_sq_std`), over {shifts.DRAWS} \
inputs. 1 is independence (less for squares, where it is a limit)."""


def main() -> None:
    """Measure all and write the page."""
    arguments(__doc__).parse_args()
    title = head("How much rounding is expected, and measured", command="python -m benchmarks.rounding")
    parts = [
        title,
        "## Ops",
        ABOUT_OPS,
        _ops([ratio for threads in reversed(THREADS) for ratio in ops.measure(threads)]),
        "## Sums of workers' gradients",
        ABOUT_ORDERS,
        _orders(list(orders.sums())),
        "## A real all-reduce",
        ABOUT_ALL_REDUCE,
        _all_reduce(list(allreduce.all_reduces())),
        "## Where low precision stagnates",
        ABOUT_STAGNATION,
        _stagnation(list(orders.near_stagnation())),
        "## Sums and sums of squares",
        ABOUT_SHIFTS,
        _shifts(list(shifts.shifts())),
    ]
    write(__file__, *parts)


def _ops(ratios: Sequence[ops.Ratio]) -> str:
    rows = []
    for (op_class, dtype), group in _grouped(ratios, lambda one: (one.op_class, one.dtype)):
        values = np.array([one.ratio for one in group])
        worst = max(group, key=lambda one: one.ratio)
        low, high = LAWS[op_class].band
        inside = float(np.mean((values >= low) & (values <= high)))
        spread = (f"{value:.2f}" for value in np.quantile(values, (0, 0.005, 0.5, 0.995, 1)))
        of, band = f"{worst.name}, {worst.kind}", f"{low:g} – {high:g}"
        rows.append([op_class, dtype, len(values), *spread, of, band, f"{inside:.1%}"])
    spread_of = ("least", "0.5 %", "median", "99.5 %", "most")
    return table(["class", "dtype", "measurements", *spread_of, "of", "band", "inside"], rows)


def _orders(sums: Sequence[orders.Sums]) -> str:
    head = ["dtype", "partial sums", "order", "settings", "error: least, median, most"]
    head += ["difference: least, median, most", "largest difference of two"]
    rows = []
    held = [one for one in sums if orders.follows(one) and one.workers > 2]
    for key, group in _grouped(held, lambda one: (one.dtype, one.accumulate, one.order)):
        errors, differences = (np.array([getattr(one, name) for one in group]) for name in ("error", "difference"))
        most = max(one.most for one in group)
        rows.append([*key, len(group), _three(errors), _three(differences), f"{most:.2f}"])
    two = [one for one in sums if one.workers == 2]
    apart = sum(one.most > 0 for one in two)
    beyond = sum(one.most > ORDER_LIMIT for one in held)
    return (
        f"{table(head, rows)}\n\n"
        f"Of {len(two)} settings with two workers, {apart} had a difference at all. Of the other {len(held)}, {beyond} "
        f"had one beyond the limit of {ORDER_LIMIT:g} times the expected."
    )


def _all_reduce(reduced: Sequence[allreduce.AllReduce]) -> str:
    rows = [[one.dtype, one.ranks, f"{one.cosine:g}", f"{one.error:.2f}", f"{one.difference:.2f}"] for one in reduced]
    return table(["dtype", "ranks", "mean cosine", "error", "difference"], rows)


def _stagnation(sums: Sequence[orders.Sums]) -> str:
    rows = [
        [one.workers, f"{one.cosine:g}", f"{one.nearness:.2f}", f"{one.error:.2f}", f"{one.difference:.2f}"]
        for one in sorted(sums, key=lambda one: one.nearness)
    ]
    return table(["workers", "mean cosine", "u·sqrt(e(N))", "error", "difference"], rows)


def _shifts(moved: Sequence[shifts.Shift]) -> str:
    rows = [
        [one.op, one.dtype, f"{one.sum_rms:.2f}, {one.sum_most:.2f}", f"{one.sum_sq_rms:.2f}, {one.sum_sq_most:.2f}"]
        for one in moved
    ]
    head = ["output of", "dtype", "sum: root mean square, most", "sum of squares: root mean square, most"]
    return table(head, rows)


def _grouped(entries: Sequence[Entry], key: Callable[[Entry], tuple]) -> list[tuple[tuple, list[Entry]]]:
    groups: defaultdict[tuple, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[key(entry)].append(entry)
    return list(groups.items())


def _three(values: np.ndarray) -> str:
    return f"{values.min():.2f}, {np.median(values):.2f}, {values.max():.2f}"


if __name__ == "__main__":
    main()
