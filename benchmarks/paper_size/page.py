"""The page of results.

Letters: T steps, N workers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from benchmarks.page import table
from benchmarks.paper.cells import PAPER, READINGS
from benchmarks.paper_size.workers import PARTS

ABOUT = """\
A Llama of {parameters:,} parameters ({layers} layers, hidden size {hidden}) with random weights in bfloat16, without
dropout. {workers} workers, one row of {num_tokens:,} tokens each, of which those of responses count in the loss;
{rows:,} rows of text ({text}), {steps} optimizer steps of Adafactor in each cell. The workers take turns on one copy of
the model: of each gradient the norm and the sketch are kept ({groups} groups of {k} numbers), and the gradients are
added up in bfloat16. Every worker is computed, also where equal batches make some of them equal.

{readings}

{untrained}In each cell: the mean over steps, and the least and the largest of them."""

EXPECTED = """\
What theory expects: workers on equal batches do not differ (`unsharded`, S1-1). Where all read different batches
(`unsharded` S1-3, and `sharded` as long as no row comes again), they differ as batches do, so these should be alike;
how far that is, only measuring says. Where one of {workers} reads another batch, a spread is |d|/√{workers} of
its distance d to the others, a range |d|, and {alike} of the {pairs} pairs have cosine 1. With the mean |d| and the
mean cosine over all pairs of workers of `unsharded` S1-3, that is the row *expected*."""

HEADER = ["reading", "setting", "loss std", "loss range", "norm std", "mean norm", "mean cosine"]

COST = """\
Medians over {turns} turns of a worker ({updates} for the update), with quartiles, in seconds on the clock and of CPU
(all threads). *Norm and sketch* is what a sampled step adds to every rank; *norm by torch* is `get_total_norm` of the
same gradients, as clipping computes it."""


def page(results: dict[str, Any]) -> str:
    """README.md."""
    return "\n\n".join([_head(results), _dispersions(results), _agreement(results), _cost(results)]) + "\n"


def _head(results: dict[str, Any]) -> str:
    about, size = results["about"], results["size"]
    lines = [
        f"command: `{about['command']}`",
        f"machine: {about['machine']}",
        f"commit {about['commit']}, {about['date']}",
    ]
    title = "# The paper's settings at the paper's size"
    words = ABOUT.format(
        **results["layout"],
        layers=size["shape"]["num_hidden_layers"],
        hidden=size["shape"]["hidden_size"],
        rows=results["rows"],
        text=results["text"],
        readings="\n".join(f"- {name}: {text}" for name, text in READINGS.items()),
        untrained=_untrained(results["cells"]),
        **{name: size[name] for name in ("workers", "num_tokens", "steps")},
    )
    return "\n".join([title, "", *(f"- {line}" for line in lines), "", words])


def _untrained(cells: Sequence[dict[str, Any]]) -> str:
    trained = {(cell["reading"], cell["setting"]) for cell in cells}
    every = itertools.product(READINGS, (setting.name for setting in PAPER))
    left = [f"{reading} {setting}" for reading, setting in every if (reading, setting) not in trained]
    return f"Not trained: {', '.join(left)}.\n\n" if left else ""


def _dispersions(results: dict[str, Any]) -> str:
    workers = results["size"]["workers"]
    pairs = workers * (workers - 1) // 2
    words = EXPECTED.format(workers=workers, alike=pairs - workers + 1, pairs=pairs)
    rows = []
    for cell in results["cells"]:
        series = _series(cell["steps"])
        rows.append([cell["reading"], cell["setting"], *(_span(values) for values in series)])
        if (cell["reading"], cell["setting"]) == ("unsharded", "s1-2"):
            rows.append(["unsharded", "*expected* of s1-2", *_expected(results)])
    return f"## How far workers are apart\n\n{words}\n\n{table(HEADER, rows)}"


def _series(steps: Sequence[dict[str, Any]]) -> list[list[float]]:
    """[T] each: the columns of ``HEADER`` that are measured."""
    found = []
    for step in steps:
        loss_N, norm_N = np.array(step["loss"]), np.array(step["norm"])
        spreads = [loss_N.std(ddof=1), np.ptp(loss_N), norm_N.std(ddof=1), norm_N.mean()]
        found.append([*map(float, spreads), step["cosine"]])
    return [list(column) for column in zip(*found, strict=True)]


def _expected(results: dict[str, Any]) -> list[str]:
    """The row of S1-2 that follows from what the workers of S1-3 measured."""
    apart = next(cell for cell in results["cells"] if (cell["reading"], cell["setting"]) == ("unsharded", "s1-3"))
    workers = results["size"]["workers"]

    def distance(name: str) -> float:
        pairs = (itertools.combinations(step[name], 2) for step in apart["steps"])
        return float(np.mean([abs(one - other) for each in pairs for one, other in each]))

    odd = 2 / workers
    cosine = 1 - odd + odd * float(np.mean([step["cosine"] for step in apart["steps"]]))
    spreads = [distance("loss") / math.sqrt(workers), distance("loss"), distance("norm") / math.sqrt(workers)]
    return [*(f"{value:.4g}" for value in spreads), "", f"{cosine:.4g}"]


def _agreement(results: dict[str, Any]) -> str:
    steps = [step for cell in results["cells"] for step in cell["steps"]]
    off = [abs(step["weighted_sketched"] - step["weighted"]) for step in steps]
    apart = [(gap, step["se"]) for gap, step in zip(off, steps, strict=True) if step["weighted"] < 1 - 1e-3]
    largest = max(gap / error for gap, error in apart)
    return (
        "## Sketches against whole gradients\n\nThe mean cosine over pairs, each weighted by the product of its "
        "norms, follows from the norm of the sum of the whole gradients as well as from that of the sketches. Over "
        f"{len(apart)} steps whose workers differ, the two are {max(off):.5f} apart at most, {largest:.1f} of the "
        "standard errors that the recorder gives to a cosine from sketches alone."
    )


def _cost(results: dict[str, Any]) -> str:
    spent = {name: np.array(results["spent"][name]) for name in PARTS}
    pass_s = spent["forward"] + spent["backward"]
    rows = [
        [name, *(_quartiles(spent[name][:, kind], ".2f") for kind in (0, 1)), *_ratios(spent[name], spent["backward"])]
        for name in PARTS
    ]
    words = COST.format(turns=len(pass_s), updates=len(spent["update"]))
    share = [_quartiles(spent["norm and sketch"][:, kind] / pass_s[:, kind], ".3f") for kind in (0, 1)]
    layout = results["layout"]
    kept = (layout["groups"] * (layout["k"] + 1)) * 8
    return "\n\n".join(
        [
            "## Cost of norm and sketch",
            words,
            table(["part", "clock, s", "CPU, s", "of backward, clock", "of backward, CPU"], rows),
            f"Norm and sketch, of forward and backward together: {share[0]} on the clock, {share[1]} of CPU.",
            f"Memory: {results['peak_bytes'] / 1e9:.1f} GB at most, of which weights, one gradient and the sum of all "
            f"are {2 * layout['parameters'] / 1e9:.1f} GB each; {kept / 1e3:.0f} kB are kept of each "
            "worker.",
        ]
    )


def _ratios(part: np.ndarray, backward: np.ndarray) -> list[str]:
    if len(part) != len(backward):
        return ["", ""]
    return [_quartiles(part[:, kind] / backward[:, kind], ".3f") for kind in (0, 1)]


def _quartiles(values: np.ndarray, form: str) -> str:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:{form}} ({low:{form}} – {high:{form}})"


def _span(values: Iterable[float]) -> str:
    found = list(values)
    return f"{np.mean(found):.4g} ({min(found):.4g} – {max(found):.4g})"
