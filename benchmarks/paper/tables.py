"""The tables of the README and of the documentation page, from the results."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product

import numpy as np
from benchmarks.page import table
from benchmarks.paper.cells import DROPOUT, LIBRARY, PAPER, READINGS, Cell, cells
from benchmarks.paper.results import QUANTITIES, Floats, Results

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % points of Student's t with 1, 2, 3, … degrees of freedom (any table)."""

EXPECTED = {"s1-1": "low", "s1-2": "slightly higher", "s1-3": "large"}
"""How far apart the paper expects workers to be; where they are close, the mean cosine is high."""

TEXTS = {LIBRARY: "Standard-library set"}


def interval(values_S: Floats) -> tuple[float, float]:
    """Mean of ``values_S`` [seeds], and half the width of its 95 % interval (Student's t); inf for a single seed."""
    dof = len(values_S) - 1
    if dof < 1:
        return float(values_S.mean()), math.inf
    return float(values_S.mean()), T_975[dof - 1] * float(values_S.std(ddof=1)) / math.sqrt(len(values_S))


def sections(results: Results) -> str:
    """All tables under their headings."""
    found: list[str] = []
    for text in results.texts():
        for start in dict.fromkeys(cell.start for cell in cells(text)):
            found += [f"## {title(text)}, {start} weights", "", _dispersions(results, text, start), ""]
    found += ["## Difference to S1-1", "", _differences(results), ""]
    found += ["## Difference to S1-1, by epoch", "", _epochs(results), ""]
    found += ["## Caught by coverage", "", _coverage(results), ""]
    found += ["## One process against real workers", "", _ddp(results)]
    return "\n".join(found)


def title(text: str) -> str:
    """What a text is called in headings."""
    return TEXTS.get(text, f"`{text}`")


def _dispersions(results: Results, text: str, start: str) -> str:
    rows = []
    for cell in cells(text):
        if cell.start == start:
            curves = [results.curves(cell, quantity) for quantity in QUANTITIES]
            values = [_with_interval(curve_ST.mean(axis=1)) for curve_ST in curves]
            rows.append([cell.reading, cell.dropout, cell.setting, EXPECTED[cell.setting], len(curves[0]), *values])
    head = ["reading", "dropout", "setting", "the paper expects", "seeds", *QUANTITIES.values()]
    return table(head, rows)


def _differences(results: Results) -> str:
    rows = []
    for cell in _sharded(results):
        healthy = Cell(cell.text, cell.start, cell.reading, PAPER[0].name, cell.dropout)
        values = [_difference(results, cell, healthy, quantity) for quantity in QUANTITIES]
        rows.append([title(cell.text), cell.start, cell.dropout, cell.setting, *values])
    return table(["text", "weights", "dropout", "setting", *QUANTITIES.values()], rows)


def _difference(results: Results, cell: Cell, healthy: Cell, quantity: str, steps: slice = slice(None)) -> str:
    """How far ``cell`` lies from ``healthy`` at ``steps``, in percent of it or in cosine; bold if it excludes zero."""
    here, there = (results.curves(each, quantity)[:, steps] for each in (cell, healthy))
    both = min(len(here), len(there))
    here_S, there_S = here[:both].mean(axis=1), there[:both].mean(axis=1)
    if quantity == "cosine":
        mean, half = interval(here_S - there_S)
        text = f"{mean:+.4f}{_margin(half, 4)}"
    else:
        mean, half = interval(100 * (here_S - there_S) / there_S.mean())
        text = f"{mean:+.1f}{_margin(half, 1)} %"
    return f"**{text}**" if abs(mean) > half else text


def _margin(half: float, decimals: int) -> str:
    return "" if math.isinf(half) else f" ± {half:.{decimals}f}"


def _epochs(results: Results) -> str:
    """The same difference within the first epoch and after it, for texts that are gone through more than once."""
    size = results.about["size"]
    rows = []
    for cell in _sharded(results):
        first = math.ceil(results.about["rows"][cell.text] / (size["workers"] * size["batch_size"]))
        if first < size["steps"]:
            healthy = Cell(cell.text, cell.start, cell.reading, PAPER[0].name, cell.dropout)
            for name, steps in (("first", slice(0, first)), ("later", slice(first, None))):
                values = [_difference(results, cell, healthy, quantity, steps) for quantity in QUANTITIES]
                rows.append([title(cell.text), cell.start, cell.dropout, cell.setting, name, *values])
    return table(["text", "weights", "dropout", "setting", "epoch", *QUANTITIES.values()], rows)


def _sharded(results: Results) -> Iterable[Cell]:
    """The cells of S1-2 and S1-3 with a DistributedSampler."""
    for text in results.texts():
        for cell in cells(text):
            if cell.reading == "sharded" and cell.setting != PAPER[0].name:
                yield cell


def _coverage(results: Results) -> str:
    ways = {
        "first_shared": "first equal digests on two workers",
        "declared": "`shard-overlap`",
        "digests_only": "`shard-overlap`, digests alone",
        "duplicates": "`duplicate-data`",
    }
    rows = []
    for text, reading, setting in product(results.texts(), READINGS, PAPER):
        here = {"text": text, "reading": reading, "setting": setting.name}
        found = [row for row in results.coverage if here.items() <= row.items()]
        rows.append([title(text), reading, setting.name, *(_caught([row[way] for row in found]) for way in ways)])
    return table(["text", "reading", "setting", *ways.values()], rows)


def _caught(steps: list[int | None]) -> str:
    known = [step for step in steps if step is not None]
    if not known:
        return f"0 of {len(steps)}"
    return f"{len(known)} of {len(steps)}: {np.median(known):g} ({max(known)})"


def _ddp(results: Results) -> str:
    places = list(product(("loss", "norm"), ("first", "all")))
    rows = [
        [
            row["reading"],
            row["setting"],
            *(f"{row[name][when]:.1e}" for name, when in places),
            ", ".join(f"`{code}`" for code in row["codes"]) or "nothing",
        ]
        for row in results.ddp
    ]
    steps = {"first": "first step", "all": "largest"}
    head = ["reading", "setting", *(f"{name}, {steps[when]}" for name, when in places), "`trueline check` says"]
    return table(head, rows)


def legend() -> str:
    """What the words in the tables mean, one line each."""
    words = [*READINGS.items(), *((f"dropout {name}", text) for name, text in DROPOUT.items())]
    return "\n".join(f"- {name}: {text}" for name, text in words)


def _with_interval(values_S: Floats) -> str:
    """Mean and half-width, both to the second significant digit of the half-width, at most four decimals."""
    mean, half = interval(values_S)
    if math.isinf(half):
        return f"{mean:.3f}"
    decimals = 4 if half == 0 else max(0, min(4, 1 - math.floor(math.log10(half))))
    return f"{mean:.{decimals}f} ± {half:.{decimals}f}"
