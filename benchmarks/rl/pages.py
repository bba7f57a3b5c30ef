"""The page of what was measured, of the results that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.page import head, table, write
from benchmarks.rl import measure, rivals
from gallery.rollouts.loop import FAULTS, TWINS
from gallery.scoring import upper_bound

Results = Sequence[dict[str, Any]]

ABOUT = """\
A fault is judged by one Run of six steps. *Named*: the first cause of the first incident is right; *open*: it says \
that it cannot tell. The columns of frameworks have in how many of these Runs their own constants, applied to the \
same tokens, alarm at one step or more; they say nothing of causes. `constants.toml` has them with their sources.

- **our own engine**: a decoder with three layers and random weights, which move by 3 % a step, and an engine of its \
own with a cache (`testing/rollouts`); 768 tokens a step of 256 words.
- **CTranslate2, Llama** and **CTranslate2, Qwen2**: GRPO with real updates and syncs, \
`examples/grpo_two_engines.py`, with 256 and 32,768 words, and about 750 and 570 tokens a step; float32 on both \
sides. What is wrong inside an engine cannot be planted in CTranslate2; the part `cache` has it for our own engine \
with 32,768 words.

A part that has fewer Runs than 20 of each fault was not finished. Rules were changed after a look at results of \
these very faults and seeds: by what a cut is told, that any decay of a gap beyond rounding counts for another \
prompt, that this is no sign where two passes of the trainer differ, what float32 loses of logarithms, how far \
engines of 8 bits may be apart. The faults were run again after that, so these are not numbers of unseen data. Later \
the checks were taught missing log-probabilities, tokens of the trainer's own distribution and nonsense; after that 17 \
of these Runs were judged again (all twelve faults in our own engine, five in CTranslate2), with the same causes."""


def write_page() -> None:
    """README.md beside this file."""
    models = {
        "Our own engine, 256 words": measure.read("own"),
        "CTranslate2, Llama, 256 words": measure.read("llama"),
        "CTranslate2, Qwen2, 32,768 words": [*measure.read("qwen2"), *measure.read("cache")],
    }
    twins = [*measure.read("twins"), *measure.read("learning")]
    faults = [one for results in models.values() for one in results]
    parts = [head("Rollout engine against trainer", command="python -m benchmarks.rl"), ABOUT]
    for title, results in models.items():
        if results:
            parts += [f"## {title}", _counts(results), _faults(results)]
    if twins:
        parts += ["## Healthy loops", _bound(twins), _twins(twins)]
    if faults and twins:
        parts += ["## Beside the constants of frameworks", _rivals(faults, twins)]
    if quick := measure.read("quick"):
        parts += ["## A temperature of 0.9", _quick(quick)]
    if drawn := measure.read("drawn"):
        parts += ["## Healthy rollouts that are drawn", _drawn(drawn)]
    write(__file__, *parts)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _counts(results: Results) -> str:
    total = len(results)
    of = {kind: sum(one["cause"] == kind for one in results) for kind in ("named", "wrong", "abstained", "none")}
    named, wrong = 1 - upper_bound(total - of["named"], total), upper_bound(of["wrong"], total)
    return (
        f"{total} Runs: cause named {of['named']} ({_percent(of['named'] / total)}), wrong {of['wrong']}, open "
        f"{of['abstained']}, nothing found {of['none']}. With 95 % confidence (Clopper and Pearson) the cause is named "
        f"in at least {_percent(named)} of such Runs, and a wrong one in at most {_percent(wrong)}."
    )


def _faults(results: Results) -> str:
    rows: list[list[Any]] = []
    for case, says in FAULTS.items():
        own = [one for one in results if one["case"] == case]
        if own:
            kinds = [sum(one["cause"] == kind for one in own) for kind in ("named", "abstained", "wrong", "none")]
            theirs = [sum(one["rivals"][name] > 0 for one in own) for name in rivals.NAMES]
            rows.append([says, len(own), *kinds, *theirs])
    header = ["planted", "Runs", "named", "open", "wrong", "missed", *rivals.NAMES]
    return table(header, rows, right=range(1, len(header)))


def _bound(twins: Results) -> str:
    steps, alarms = sum(one["steps"] for one in twins), sum(one["incidents"] for one in twins)
    tokens = sum(one["tokens"] for one in twins) // steps
    limit = f" That bounds the rate at {30_000 / steps:.2g} in 10,000 steps with 95 % confidence." if not alarms else ""
    return (
        f"{steps:,} steps of {tokens:,} tokens on average: {alarms} alarms of Trueline.{limit} Of frameworks, the "
        "steps at which their constants alarm."
    )


def _twins(twins: Results) -> str:
    rows: list[list[Any]] = []
    for says in dict.fromkeys(map(_says, twins)):
        own = [one for one in twins if _says(one) == says]
        steps, tokens = (sum(one[name] for one in own) for name in ("steps", "tokens"))
        gap = sum(one["mean_abs_diff"] * one["tokens"] for one in own) / tokens
        theirs = [f"{sum(one['rivals'][name] for one in own):,}" for name in rivals.NAMES]
        rows.append([says, f"{steps:,}", f"{gap:.1e}", sum(one["incidents"] for one in own), *theirs])
    header = ["healthy", "steps", "mean abs d", "Trueline", *rivals.NAMES]
    return table(header, rows, right=range(1, len(header)))


def _says(twin: Mapping[str, Any]) -> str:
    """What a healthy loop is; those that learn have a learning rate."""
    from benchmarks.rl import engines

    return (engines.TWINS if "lr" in twin else TWINS)[twin["case"]]


def _rivals(faults: Results, twins: Results) -> str:
    steps = sum(one["steps"] for one in twins)
    kinds = list(FAULTS)
    rows: list[list[Any]] = []
    for name in rivals.NAMES:
        found = [one["rivals"][name] > 0 for one in faults]
        never = sum(not any(one["rivals"][name] for one in faults if one["case"] == case) for case in kinds)
        wolf = sum(one["rivals"][name] for one in twins)
        crying = sum(one["rivals"][name] > 0 for one in twins)
        lines = "; ".join(_line(each) for each in rivals.CONSTANTS if each["framework"] == name)
        rows.append([name, lines, _percent(sum(found) / len(found)), never, _percent(wolf / steps), crying])
    found = [one["cause"] != "none" for one in faults]
    alarms = sum(one["incidents"] > 0 for one in twins)
    never = sum(not any(one["cause"] != "none" for one in faults if one["case"] == case) for case in kinds)
    rows.append(
        ["Trueline", "", _percent(sum(found) / len(found)), never, f"{sum(o['incidents'] for o in twins)}", alarms]
    )
    header = [
        *("", "alarms unless", "Runs with a fault found", f"of {len(kinds)} faults never seen"),
        *("healthy steps with an alarm", f"of {len(twins)} healthy loops alarmed"),
    ]
    return table(header, rows, right=range(2, len(header)))


def _line(constant: dict[str, Any]) -> str:
    low, high = (f"{constant[name]:g}" if name in constant else "" for name in ("low", "high"))
    return f"{f'{low} ≤ ' if low else ''}{constant['metric']}{f' ≤ {high}' if high else ''}"


def _quick(results: Results) -> str:
    steps = [one["crossed"] + 1 for one in results if one["crossed"] is not None]
    tokens = sum(one["tokens"] for one in results) // sum(one["steps"] for one in results)
    return (
        f"CTranslate2 samples at 0.9 and records log-probabilities from before it, as it does by itself; {tokens:,} "
        f"tokens a step of the Llama above. Found within five steps: {len(steps)} of {len(results)} seeds, after "
        f"{min(steps, default=0)} to {max(steps, default=0)} steps."
    )


def _drawn(results: Results) -> str:
    steps, alarms = sum(one["steps"] for one in results), sum(len(one["found"]) for one in results)
    rows = [
        [case, sum(one["steps"] for one in own), sum(len(one["found"]) for one in own)]
        for case in dict.fromkeys(one["case"] for one in results)
        if (own := [one for one in results if one["case"] == case])
    ]
    said = (
        f"Tokens of distributions that are made up, 50 words, {results[0]['tokens']:,} tokens a step, Runs of "
        f"{results[0]['steps']} steps: {alarms} alarms in {steps:,} steps."
    )
    if not alarms:
        said += f" That bounds the rate at {30_000 / steps:.2g} in 10,000 steps with 95 % confidence."
    return f"{said}\n\n{table(['healthy', 'steps', 'alarms'], rows, right=(1, 2))}"
