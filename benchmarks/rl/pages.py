"""The page of what was measured, of the results that are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.page import head, table, write
from benchmarks.rl import measure, rivals

from trueline.testing.gallery import upper_bound
from trueline.testing.rollouts.loop import FAULTS, TWINS

TITLES = {"faults": "Twelve faults, 256 words", "large": "Twelve faults, 32,768 words"}


def write_page() -> None:
    """README.md beside this file."""
    parts = [head("Rollout engine against trainer", command="python -m benchmarks.rl")]
    parts.append(
        "A decoder with three layers and random weights, which move by 3 % a step; an engine of its own samples from "
        "it "
        "with a cache (`testing/rollouts`). A fault is judged by one Run of a few steps. *Named*: the first cause of "
        "the "
        "first incident is right; *open*: it says that it cannot tell. The constants of frameworks are applied to the "
        "same "
        "tokens: at how many of the steps each alarms (`rivals.py` has their sources). What a cut is told by, and "
        "from which ratio on a prompt is blamed, were changed after "
        "a first look at seed 0 of the faults; the other seeds were not looked at before."
    )
    for name, title in TITLES.items():
        results = measure.read(name)
        if results:
            parts += [f"## {title}", _counts(results), _faults(results)]
    twins = measure.read("twins")
    if twins:
        parts += ["## Healthy loops", _bound(twins), _twins(twins)]
    drawn = measure.read("simulated")
    if drawn:
        parts += ["## Healthy rollouts that are drawn", _drawn(drawn)]
    write(__file__, *parts)


def _drawn(results: Sequence[dict[str, Any]]) -> str:
    """``python -m benchmarks.rl.simulated``."""
    steps, alarms = sum(one["steps"] for one in results), sum(len(one["found"]) for one in results)
    rows = [
        [case, sum(one["steps"] for one in own), sum(len(one["found"]) for one in own)]
        for case in dict.fromkeys(one["case"] for one in results)
        if (own := [one for one in results if one["case"] == case])
    ]
    said = (
        f"Tokens of distributions that are made up, 50 words, {results[0]['tokens']:,} tokens a step, Runs of "
        f"{results[0]['steps']} steps (`python -m benchmarks.rl.simulated`): {alarms} alarms in {steps:,} steps."
    )
    if not alarms:
        said += f" That bounds the rate at {3 / steps * 10_000:.2g} in 10,000 steps with 95 % confidence."
    return f"{said}\n\n{table(['healthy', 'steps', 'alarms'], rows, right=(1, 2))}"


def _counts(results: Sequence[dict[str, Any]]) -> str:
    total = len(results)
    of = {kind: sum(one["cause"] == kind for one in results) for kind in ("named", "wrong", "abstained", "none")}
    bound = 100 * upper_bound(of["wrong"] + of["none"], total)
    return (
        f"{total} Runs: cause named {of['named']}, wrong {of['wrong']}, open {of['abstained']}, nothing found "
        f"{of['none']}. "
        f"With 95 % confidence a wrong or missing answer is given in at most {bound:.2g} % of such Runs."
    )


def _faults(results: Sequence[dict[str, Any]]) -> str:
    rows: list[list[Any]] = []
    for case, says in FAULTS.items():
        own = [one for one in results if one["case"] == case]
        if own:
            steps = sum(one["steps"] for one in own)
            kinds = [sum(one["cause"] == kind for one in own) for kind in ("named", "abstained", "wrong", "none")]
            theirs = [f"{100 * sum(one['rivals'][name] for one in own) / steps:.0f} %" for name in rivals.NAMES]
            rows.append([says, len(own), *kinds, *theirs])
    header = ["planted", "Runs", "named", "open", "wrong", "missed", *rivals.NAMES]
    return table(header, rows, right=range(1, len(header)))


def _bound(twins: Sequence[dict[str, Any]]) -> str:
    steps, alarms = sum(one["steps"] for one in twins), sum(one["incidents"] for one in twins)
    limit = (
        f" None in {steps:,} steps bounds the rate at {3 / steps * 10_000:.2g} in 10,000 with 95 % confidence."
        if not alarms
        else ""
    )
    return f"{steps:,} steps of {twins[0]['tokens']:,} tokens: {alarms} alarms.{limit}"


def _twins(twins: Sequence[dict[str, Any]]) -> str:
    rows = [
        [TWINS[one["case"]], f"{one['steps']:,}", one["incidents"], *(one["rivals"][name] for name in rivals.NAMES)]
        for one in twins
    ]
    header = ["healthy", "steps", "alarms", *rivals.NAMES]
    return table(header, rows, right=range(1, len(header)))
