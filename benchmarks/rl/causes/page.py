"""The page of what was measured, of the results that are there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from benchmarks.page import head, table, write
from benchmarks.rl import measure
from gallery.scoring import upper_bound

Results = Sequence[dict[str, Any]]

HALVES = {"open": "open", "held": "set aside"}
TITLES = {"open": "Open faults", "held": "Faults that were set aside"}
SOURCES = {"record": "recorded", "import": "imported"}
KINDS = ("named", "open", "wrong", "none")
ABOUT = """\
Sixty planted faults in a loop of rollouts and updates, six steps of about 700 tokens, with as many seeds as the \
tables have Runs, and twelve healthy trainings that look like them. Each training is judged twice: as `rl.record` and \
`rl.record_sync` have it (both log-probabilities, entropy, varentropy, the mass above, the likeliest token, log-odds, \
the number of likelier words, versions, digests), and as `trueline import rl` reads it from what a framework's log \
has of the same steps: of even seeds verl's tensors (with entropies), of odd ones slime's samples (without).

- **small**: three layers, 256 words, both sides by hand; a mean entropy of 1.6 nats.
- **large**: Qwen3-MoE of transformers trains, with four experts, grouped queries, tied embeddings and 8,000 words; an \
engine by hand samples. A mean entropy of 2.0 nats.

Both engines have a cache, fused matrices and one token at a time; weights are random and move by 3 % a step, \
everything is in float32 unless a row says otherwise. *Named*: the first cause of the first incident is right. *Open*: \
it says that the cause cannot be told. *Wrong*: another cause is named. *Nothing*: there is no finding, which of a log \
may be all that can be said. A healthy lag at which the trainer's log-probabilities are of its own weights is judged \
as recorded alone, since no log says that it is meant. Bounds are those of Clopper and Pearson with 95 % confidence."""
SET_ASIDE = """\
Forty-eight faults are open: checks were changed after a look at what they said of them. Thirty-six of these had been \
set aside before, in three halves, and were run once then: {first}; {second}; {third}. The twelve that are set aside \
now, of other mechanisms, were written down with their right causes before any was judged, and not seen by those who \
wrote the checks: SHA-256 `{digest}` of the file of them was committed before. Whoever wrote them had seen which \
findings speak for five of their causes, and of the other seven the names and manuals alone. They were run once, after \
the last change of the checks. Runs of one fault are alike: bounds are of more seeds of these faults, not of other \
faults, of which the column *faults named* says more: those whose cause is named in at least nine of ten Runs."""


def write_page() -> None:
    """causes.md beside the page of the other parts."""
    halves = {half: measure.read(f"causes-{half}") for half in HALVES}
    twins = measure.read("causes-twins")
    from benchmarks.rl.causes.part import HELD

    parts = [head("Causes of a disagreement", command="python -m benchmarks.rl --part causes"), ABOUT]
    if any(halves.values()):
        parts += [
            "## In all",
            _summary(halves),
            SET_ASIDE.format(digest=HELD, **{half: _once_held(half) for half in ("first", "second", "third")})
            if halves["held"]
            else "What is set aside was not run yet.",
        ]
    parts += [part for half, own in halves.items() if own for part in (f"## {TITLES[half]}", _faults(own))]
    if twins:
        parts += ["## Healthy trainings", _alarms(twins), _twins(twins)]
    write(measure.__file__, *parts, name="causes.md")


def _once_held(which: str) -> str:
    """What was said of the faults that were set aside before."""
    own = _of(measure.read(f"causes-{which}-held"), source="record")
    counts = _counts(own)
    return f"{100 * counts[0] / max(len(own), 1):.1f} % named, {counts[2]} wrong of {len(own)} Runs, recorded"


def _of(results: Results, **wanted: str) -> list[dict[str, Any]]:
    return [one for one in results if all(one[name] == value for name, value in wanted.items())]


def _counts(results: Results) -> list[int]:
    return [len(_of(results, cause=kind)) for kind in KINDS]


def _summary(halves: dict[str, Results]) -> str:
    rows: list[list[Any]] = []
    for source, half in product(SOURCES, halves):
        own = _of(halves[half], source=source)
        for model in ("small", "large", "both"):
            of_model = own if model == "both" else _of(own, model=model)
            if of_model:
                rows.append([SOURCES[source], HALVES[half], model, *_line(of_model)])
    header = [
        "",
        "faults",
        "model",
        "Runs",
        *("named", "open", "wrong", "nothing"),
        "named, at least",
        "wrong, at most",
    ]
    return table(header, rows, right=range(3, len(header)))


def _line(results: Results) -> list[Any]:
    total, counts = len(results), _counts(results)
    named, wrong = 1 - upper_bound(total - counts[0], total), upper_bound(counts[2], total)
    shares = [f"{100 * counts[0] / total:.1f} %", *counts[1:]]
    cases = list(dict.fromkeys(one["case"] for one in results))
    mostly = sum(_counts(own)[0] >= 0.9 * len(own) for case in cases if (own := _of(results, case=case)))
    return [total, *shares, f"{100 * named:.1f} %", f"{100 * wrong:.2f} %", f"{mostly} of {len(cases)}"]


def _faults(results: Results) -> str:
    rows: list[list[Any]] = []
    for case in dict.fromkeys(one["case"] for one in results):
        own = _of(results, case=case)
        cells = []
        for source, model in product(SOURCES, ("small", "large")):
            some = _of(own, source=source, model=model)
            cells.append(" / ".join(map(str, _counts(some))) if some else "")
        others = dict.fromkeys(one["said"] for one in own if one["cause"] == "wrong")
        source = f" ({own[0]['from']})" if own[0]["from"] else ""
        causes = " or ".join(f"`{cause}`" for cause in own[0]["causes"])
        rows.append([own[0]["says"] + source, causes, *cells, ", ".join(f"`{other}`" for other in others)])
    header = ["planted", "right", *(f"{SOURCES[s]}, {m}" for s, m in product(SOURCES, ("small", "large")))]
    legend = "Runs in which the cause was named / left open / wrong / nothing was found."
    return f"{legend}\n\n{table([*header, 'named wrongly'], rows, right=range(2, 6))}"


def _alarms(twins: Results) -> str:
    said = []
    for source, name in SOURCES.items():
        own = _of(twins, source=source)
        steps, alarms = sum(one["steps"] for one in own), sum(bool(one["found"]) for one in own)
        tokens = sum(one["tokens"] for one in own) // max(steps, 1)
        bound = f", at most {30_000 / steps:.2g} in 10,000 steps with 95 % confidence" if not alarms else ""
        said.append(
            f"{name.capitalize()}: {alarms} of {len(own)} trainings with an alarm, {steps:,} steps of {tokens} "
            f"tokens{bound}."
        )
    return " ".join(said)


def _twins(twins: Results) -> str:
    rows: list[list[Any]] = []
    for case in dict.fromkeys(one["case"] for one in twins):
        own = _of(twins, case=case)
        gap = sum(one["mean_abs_diff"] for one in own) / len(own)
        steps = sum(one["steps"] for one in _of(own, source="record"))
        alarms = [sum(bool(one["found"]) for one in _of(own, source=source)) for source in SOURCES]
        codes = dict.fromkeys(code for one in own for code in one["found"])
        rows.append([own[0]["says"], f"{steps:,}", f"{gap:.1e}", *alarms, ", ".join(f"`{code}`" for code in codes)])
    header = ["healthy", "steps", "mean abs d", *(f"alarms, {name}" for name in SOURCES.values()), "found"]
    return table(header, rows, right=range(1, 5))
