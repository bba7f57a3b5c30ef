"""The page: every table from the JSON files of the parts, with command, machine, commit and date."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from studies.judgement import figure
from studies.judgement.rivals import RULES
from benchmarks.page import records, table

Found = dict[str, Any]


def compact(found: Found) -> str:
    """JSON with one row a line, numbers to four digits."""
    parts = []
    for name, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join(json.dumps(_rounded(row), ensure_ascii=False) for row in value)
            parts.append(f"{json.dumps(name)}: [\n{rows}\n]")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(_rounded(value), ensure_ascii=False)}")
    return "{" + ",\n".join(parts) + "}\n"


def write(folder: Path, kept: dict[str, Found]) -> None:
    """README.md and the figure in ``folder``."""
    if "curves" in kept:
        (folder / "curves.svg").write_text(figure.svg(kept["curves"]["rows"]), encoding="utf-8")
    (folder / "README.md").write_text(page(kept), encoding="utf-8")


def page(kept: dict[str, Found]) -> str:
    """The whole page, of the parts that there are."""
    sections = [HEAD]
    for name, section in SECTIONS.items():
        if name in kept:
            sections.append(section(kept[name]))
    return "\n\n".join(sections) + "\n"


def agreement(found: Found) -> str:
    """Virtual against real workers."""
    rows = [
        {
            "training": row["name"],
            "steps": row["steps"],
            "loss, largest relative": f"{row['loss']:.1e}",
            "gradient norm": f"{row['grad_norm']:.1e}",
            "cosine to the other, RMS": f"{row['cosine']:.4f}",
            "1/√k of a sketch": f"{row['cosine_sketch']:.4f}",
        }
        for row in found["rows"]
    ]
    return _section("Virtual workers against real ones", AGREEMENT, found, records(rows))


def healthy(found: Found) -> str:
    """False alarms in trainings, by kind and by number of workers."""
    by_kind = _alarm_table(found["rows"], "kind", "healthy training")
    by_workers = _alarm_table(found["rows"], "workers", "workers")
    told = Counter((one["code"], one["severity"], one["kind"], one["workers"]) for one in found["alarms"])
    listed = [[*what, count] for what, count in sorted(told.items())]
    tables = [by_kind, by_workers]
    if listed:
        tables += [
            "What alarmed under the default budget:",
            table(["code", "severity", "training", "workers", "alarms"], listed),
        ]
    return _section("False alarms in healthy trainings", HEALTHY, found, "\n\n".join(tables))


def simulated(found: Found) -> str:
    """False alarms in simulations, by noise and number of workers."""
    rows = found["rows"]
    sizes = sorted({row["workers"] for row in rows})
    cells = []
    for noise in dict.fromkeys(row["noise"] for row in rows):
        mine = {row["workers"]: row for row in rows if row["noise"] == noise}
        total = _total(mine.values())
        cells.append([noise, *(f"{mine[n]['alarms']} in {_short(mine[n]['steps'])}" for n in sizes), rate(*total)])
    every = [_total([row for row in rows if row["workers"] == n]) for n in sizes]
    cells.append(["all", *(rate(*one) for one in every), rate(*_total(rows))])
    head = ["noise", *(f"N = {n}" for n in sizes), "alarms per 10,000 steps (95 %)"]
    text = SIMULATED.format(millions=sum(row["steps"] for row in rows) / 1e6)
    return _section("False alarms in simulations", text, found, table(head, cells))


def memory(found: Found) -> str:
    """Autocorrelated ranks: trainings in order, simulations, and delays of faults."""
    rows = []
    for row in found["simulated"]:
        ratio = "{1:.1f} ({0:.1f} – {2:.1f})".format(*row["ratios"])
        cells = [
            f"{rate(row['alarms'][promise], row['steps'])} [{10_000 * row['without'][promise] / row['steps']:.2f}]"
            for promise in reversed(row["alarms"])
        ]
        rows.append([row["noise"], row["workers"], row["length"], _short(row["steps"]), ratio, *cells])
    head = ["memory", "N", "steps of a run", "steps", "divided by", "budget 0.1", "budget 1", "budget 10"]
    delays = table(["fault", "delays", "name rank 1", "name others"], [_remembered(row) for row in found["power"]])
    early = table(["steps so far", "runs", "alarms, budget 0.1"], [list(row.values()) for row in found["cut"]])
    body = [_alarm_table(found["rows"], "workers", "workers"), MEMORY_CUT, early]
    body += [MEMORY_SIMULATED, table(head, rows), MEMORY_POWER.format(**found["setting"]), delays]
    return _section("Autocorrelated ranks", MEMORY, found, "\n\n".join(body))


def _remembered(row: Found) -> list[Any]:
    """One fault in order."""
    delays = ", ".join("–" if run["delay"] is None else str(run["delay"]) for run in row["runs"])
    told = [one["ranks"] == [1] for run in row["runs"] for one in run["told"]]
    return [row["fault"], delays, sum(told), len(told) - sum(told)]


def power(found: Found) -> str:
    """Delay and names by fault, ours and the rules', with the limits."""
    rows = found["rows"]
    early = sum(row["early"] for row in rows)
    steps = sum(found["start"] * len(row["delays"]) for row in rows)
    tables = [
        records(map(_ours, rows)),
        f"Before the fault began, there were {early} alarms in {steps:,} steps.",
        SCALES,
        _scales(rows),
        RIVALS,
        records(map(_rules, rows)),
    ]
    return _section("Power", POWER.format(seeds=len(rows[0]["delays"])), found, "\n\n".join(tables))


def _setting(row: Found) -> dict[str, Any]:
    return {"fault": row["fault"], "training": row["training"], "N": row["workers"]}


def _ours(row: Found) -> dict[str, Any]:
    return _setting(row) | {
        "found": f"{_hits(row)} of {len(row['delays'])}",
        "delay": _delays(row["delays"], row["watched"]),
        "named, at the alarm": _names(row["named"]),
        "named, at the end": _names(row["named_at_end"]),
        "limit": f"{row['limit']:.0f}",
        "cap": f"{row['cap']:.0f}",
        "codes at the alarm": _codes(row["first"]),
        "codes at the end": _codes(row["codes"]),
    }


def _codes(counts: dict[str, int]) -> str:
    return ", ".join(f"{code} {count}" for code, count in Counter(counts).most_common()) or "–"


def _rules(row: Found) -> dict[str, Any]:
    cells = _setting(row)
    for rule in RULES:
        one = row["rules"][rule]
        cells[f"{rule}: found, delay"] = f"{_hits(one)}, {_delays(one['delays'], row['watched'])}, {one['right']} right"
    return cells


def _scales(rows: Sequence[Found]) -> str:
    """Where ``worker-scale`` is told, when, and how well its factor is known."""
    cells = []
    for row in rows:
        scale = row["scale"]
        if _hits(scale) or "×" in row["fault"]:
            factors = sorted(scale["factors"])
            middle = f"{np.median(factors):.3f} ({factors[0]:.3f} – {factors[-1]:.3f})" if factors else "–"
            told = {
                "reported": f"{_hits(scale)} of {len(scale['delays'])}",
                "steps until reported": _delays(scale["delays"], row["watched"]),
                "factor (range)": middle,
                "interval holds it": scale["covered"],
            }
            cells.append(_setting(row) | told)
    return records(cells)


def curves(found: Found) -> str:
    """Delay against shift and number of workers."""
    rows = found["rows"]
    sizes, shifts = sorted({row["workers"] for row in rows}), sorted({row["shift"] for row in rows})
    cell = {(row["workers"], row["shift"]): row for row in rows}
    cells = [[f"{shift:g}", *(_curve_cell(cell[n, shift]) for n in sizes)] for shift in shifts]
    cells.append(["cap", *(f"{cell[n, shifts[0]]['cap']:.1f}" for n in sizes)])
    right = (
        sum(row["right"] for row in rows if row["workers"] > 2),
        sum(row["found"] for row in rows if row["workers"] > 2),
    )
    text = CURVES.format(right=right[0], found=right[1])
    figure_line = "![Delay against the size of the shift, for several numbers of workers](curves.svg)"
    return _section(
        "Delay against shift and number of workers",
        text,
        found,
        "\n\n".join([table(["shift, spreads", *(f"N = {n}" for n in sizes)], cells), figure_line]),
    )


def intervals(found: Found) -> str:
    """Coverage of effect sizes."""
    rows = [
        {
            "N": row["workers"],
            "shift, spreads": f"{row['shift']:g}",
            "steps after the start": row["after"],
            "found": f"{row['found']} of {row['runs']}",
            "mean estimate": "–" if row["mean"] is None else f"{row['mean']:.2f}",
            "intervals that hold the shift": _share(row, "held"),
            "plain ones": _share(row, "plain"),
        }
        for row in found["rows"]
    ]
    return _section("Effect sizes and their intervals", INTERVALS, found, records(rows))


def onsets(found: Found) -> str:
    """Coverage of the interval of the first step."""
    rows = [
        {
            "N": row["workers"],
            "first step": row["first"],
            "shift, spreads": row["shift"],
            "noise": row["law"],
            "found": f"{row['found']} of {row['runs']}",
            "intervals that hold it": _share(row, "held"),
            "median width": "–" if row["width"] is None else f"{row['width']:.2g}",
            "mean error": "–" if row["off"] is None else f"{row['off']:.2g}",
        }
        for row in [*found["rows"], _all_onsets(found["rows"])]
    ]
    return _section("Since which step", ONSETS, found, records(rows))


def _share(row: Found, kind: str) -> str:
    return f"{row[kind]} ({row[kind] / max(row['found'], 1):.0%})"


def _all_onsets(rows: Sequence[Found]) -> Found:
    sums = {name: sum(row[name] for row in rows) for name in ("runs", "found", "held")}
    return {"workers": "all", "first": "", "shift": "", "law": "", "width": None, "off": None} | sums


SECTIONS: dict[str, Callable[[Found], str]] = {
    "agreement": agreement,
    "healthy": healthy,
    "memory": memory,
    "simulated": simulated,
    "power": power,
    "curves": curves,
    "intervals": intervals,
    "onsets": onsets,
}

ONSETS = """One worker's loss is shifted from a step on, and the run is judged 120 steps later. The first step is a
least-squares change point with a 95 % interval (`judge/stats/change_point.py`); errors and widths are in steps."""

HEAD = """# The judgement of workers: false alarms and power

The seven checks that compare workers (`worker-loss-outlier`, `worker-grad-norm-outlier`, `worker-direction-outlier`,
`worker-scale`, `dispersion-high`, `dispersion-low`, `token-imbalance`) together have a budget of `Plan.false_alarms`
expected alarms in 10,000 healthy steps, 0.1 by default. This page measures whether they keep it, and what they find.
`python -m studies.judgement` measures everything and writes this page; `--quick` shows a small piece in a minute
or two."""

AGREEMENT = """The trainings below compute N workers one after the other in one process: every worker has its own
batch, forward, backward and gradient, the gradients are averaged, one optimizer takes one step. Two real processes
under DDP and gloo, watched by the recorder, see the same numbers up to rounding (cosines: up to the sketch's error)."""

HEALTHY = """All checks of the family together, under the default budget (0.1 alarms per 10,000 steps) and under two
looser ones, at which there is more to be counted. One alarm is one finding in one run. Cells: alarms, then alarms per
10,000 steps with the exact 95 % interval of a Poisson count, which must not lie above the budget. The last columns are
rules that people use (`rivals.py`), alarms per 10,000 steps, those within 50 steps of each other counted once."""

MEMORY = """Healthy workers that each read documents in order. How long their values stay correlated is measured on each
run (`judge/stats/autocorrelation.py`), and evidence is divided by it; the budget is then approximate. A language
model:"""

MEMORY_CUT = "The same when fewer steps were recorded, which do not show yet how long values stay correlated:"

MEMORY_SIMULATED = """Simulated, one statistic with the whole budget for itself. The values of a worker are an
autoregression, or part of the variance stays for a document. Divided by: median (10 % – 90 %) over the runs.
Cells: alarms per 10,000 steps, and in brackets those that there would be if nothing were divided."""

MEMORY_POWER = """Faults of one worker (rank 1) of {workers} that read documents in order, from step {start} on.
Delay: steps from the start to the first alarm of the run so far, on whatever rank (seen after 4, 5, 6, 7, 8, 10 …
steps). Findings: of all runs, at their ends; those that name others are false."""

SIMULATED = """One statistic by the code of the checks, with the whole budget for itself: {millions:.1f} million
steps. An alarm is a worker whose detector passes ln(10,000 N) within a run of at most 10,000 steps."""

POWER = """One worker (rank 1) of N is made wrong from step 100 on, in {seeds} seeds each. Delay: steps from the
start of the fault to the alarm, median (90 % point); "–" is beyond the steps watched (300, or 1,000 for weak faults
in the MLP). Named, at the alarm: the findings of the run cut at its alarm name right ranks alone, "both" of two
workers, or no one in particular ("all"). Limit: ln(100,000) / KL for a normal shift of the measured size in the
statistic that shifts most (loss, norm or cosine): no procedure with the same budget that looks at this statistic
alone can on average be faster (parameter groups, and shifts that are larger at first, can). Cap: ln(threshold) / ln
N, the fastest that any test of exchangeability of one statistic can be."""

SCALES = """When `worker-scale` says that the gradient is a healthy one times a factor (looked at 10, 16, 26 … steps
after the alarm), and the factor it then gives. Every fault that was ever called a scale is listed:"""

RIVALS = """The rules that people use, on the same runs: found, delay, and how often the first alarm after the start
names the worker that is wrong. Their alarms in healthy trainings are in the table of false alarms."""

INTERVALS = """One worker's loss is shifted, Student noise of 3 degrees of freedom: how often the 95 % interval of the
reported effect holds the truth. Where a run ends soon after the alarm, only runs that looked strong are found, and the
interval is of steps selected for it, widened by 1.5. Plain: over all steps of the evidence, those that raised the
alarm among them, and not widened."""

CURVES = """One worker of N is shifted by so many spreads, normal noise, 40 runs each (20 at N = 128, 10 at 1,024);
the statistic has the share of the budget that the loss has. Cells: median delay in steps (90 % point), then the
information limit ln(100,000) / KL. Cap: ln(threshold) / ln N. With more than two workers the right one crossed first
in {right} of {found} runs."""


def _alarm_table(rows: Sequence[Found], by: str, label: str) -> str:
    cells = []
    groups: list[tuple[str, list[Found]]] = [
        (str(name), [row for row in rows if row[by] == name]) for name in dict.fromkeys(row[by] for row in rows)
    ]
    for name, mine in [*groups, ("all", list(rows))]:
        steps = sum(row["steps"] for row in mine)
        alarms_of = [sum(row["alarms"][budget] for row in mine) for budget in reversed(mine[0]["alarms"])]
        worker_steps = sum(row["steps"] * row["workers"] for row in mine)
        rates = [f"{10_000 * sum(row['rules'][rule] for row in mine) / steps:.1f}" for rule in RULES]
        runs = sum(row["runs"] for row in mine)
        counts = [f"{alarms}: {rate(alarms, steps)}" for alarms in alarms_of]
        cells.append([name, runs, f"{steps:,}", f"{worker_steps:,}", *counts, *rates])
    budgets = [f"budget {budget}" for budget in reversed(rows[0]["alarms"])]
    head = [label, "runs", "steps", "worker-steps", *budgets, *RULES]
    return table(head, cells)


def _section(title: str, text: str, found: Found, body: str) -> str:
    made = found["made"]
    stamp = f"`{made['command']}`; {made['machine']}; commit {made['commit']}, {made['date']}."
    return f"## {title}\n\n{text}\n\n{stamp}\n\n{body}"


def _total(rows: Iterable[Found]) -> tuple[int, int]:
    kept = list(rows)
    return sum(row["alarms"] for row in kept), sum(row["steps"] for row in kept)


def rate(alarms: int, steps: int) -> str:
    """Alarms per 10,000 steps with their exact 95 % interval."""
    low, high = poisson_interval(alarms)
    scale = 10_000 / steps
    return f"{alarms * scale:.2f} ({low * scale:.2f} – {high * scale:.2f})"


def poisson_interval(count: int) -> tuple[float, float]:
    """The exact 95 % interval of a Poisson mean from one count (Garwood 1936)."""
    low = 0.0 if count == 0 else _mean_with(count - 1, 0.975)
    return low, _mean_with(count, 0.025)


def _mean_with(count: int, chance: float) -> float:
    """The mean at which a Poisson count is at most ``count`` with probability ``chance``."""
    low, high = 0.0, 10.0 + 3.0 * count
    for _ in range(100):
        middle = (low + high) / 2
        logs = [k * math.log(middle) - middle - math.lgamma(k + 1) for k in range(count + 1)]
        low, high = (middle, high) if float(np.logaddexp.reduce(logs)) > math.log(chance) else (low, middle)
    return (low + high) / 2


def _hits(row: Found) -> int:
    return sum(delay is not None for delay in row["delays"])


def _delays(delays: Sequence[int | None], watched: int) -> str:
    known = np.array([math.inf if delay is None else delay for delay in delays])
    points = (float(np.median(known)), float(np.quantile(known, 0.9, method="higher")))
    middle, slow = (f"{point:g}" if math.isfinite(point) else "–" for point in points)
    return f"{middle} ({slow})"


def _names(named: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(named.items(), key=lambda item: -item[1])) or "–"


def _curve_cell(row: Found) -> str:
    median = "–" if row["median"] is None else f"{row['median']:g}"
    slow = "–" if row["slow"] is None else f"{row['slow']:g}"
    return f"{median} ({slow}), {row['limit']:.1f}"


def _short(steps: int) -> str:
    return f"{steps / 1e6:.2g}M" if steps >= 1e6 else f"{steps / 1e3:.3g}k"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
