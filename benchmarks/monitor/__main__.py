"""Measure what monitoring costs beside msProbe's monitors, and rewrite README.md beside this.

    python -m benchmarks.monitor [--rounds 12]

Six processes train the model of `benchmarks.recording` on one thread each and take turns of a few steps in rotating
order, so that only one runs at a time. Needs msProbe: pip install -e '.[bench]'.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.page import arguments, head, records, write
from benchmarks.recording.measure import quartiles
from benchmarks.recording.model import BATCH, INNER, LAYERS, LENGTH, VOCAB, WIDTH
from benchmarks.recording.tools import OPS
from benchmarks.recording.turns import Left, Trainee, Turn

EVERYTHING_V1 = ("xy_distribution", "mv_distribution", "param_distribution", "wg_distribution")

PARAMETERS = {"phases": ["bwd", "grad"], "names": ["*.weight"]}
ASKED: Mapping[str, Mapping[str, tuple[str, dict[str, Any]]]] = {
    "weight gradients, every step": {
        "msProbe v1": ("monitor-v1", {"wg_distribution": True}),
        "msProbe v2": ("monitor-v2", {"weight_grad": {}}),
        "Trueline": ("trueline", {"preset": "monitor", "every": 1, **PARAMETERS}),
    },
    "everything, every step": {
        "msProbe v1": ("monitor-v1", dict.fromkeys(EVERYTHING_V1, True)),
        "msProbe v2": ("monitor-v2", {"module": {}, "weight_grad": {}, "optimizer": {}, "param": {}}),
        "Trueline": ("trueline", {"preset": "monitor", "every": 1}),
    },
    "everything, by default": {"Trueline": ("trueline", {"preset": "monitor"})},
}
AIMS = {"weight gradients, every step": 1.05, "everything, every step": 1.3, "everything, by default": 1.01}

STEPS = 3
STEPS_BY_DEFAULT = 40
"""A turn by default has several intervals of the schedule."""
SETTLING = 320
"""Steps before the default is timed: it samples more often in the first 300."""

ABOUT = f"""\
A Llama of {LAYERS} layers, {WIDTH} wide, {INNER} inside, {VOCAB:,} words, with random weights; {BATCH} x {LENGTH}
tokens, float32, AdamW; one process and one thread. Ratios are to the unmonitored step of the same round, medians with
quartiles, on the clock and of CPU time (which has what threads do until the process is idle again). An unmonitored
process once more shows how far from 1 the machine alone takes a ratio. Values are rows a step: each tool decides which
tensors have one, and ours have more numbers each. msProbe computes {", ".join(OPS)}. The aim is met where the
larger of both ratios is within it."""


def main() -> None:
    """Measure all and write the page."""
    parser = arguments(__doc__, rounds=12)
    chosen = parser.parse_args()
    if importlib.util.find_spec("msprobe") is None:
        sys.exit("msProbe is not installed. Install the version that is compared with: pip install -e '.[bench]'.")
    os.environ["OMP_NUM_THREADS"] = "1"
    title = head("What monitoring costs", command=f"python -m benchmarks.monitor --rounds {chosen.rounds}")
    tables: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (what, tools) in enumerate(ASKED.items()):
            steps = STEPS if len(tools) > 1 else STEPS_BY_DEFAULT
            turns, left = _measure(tools, Path(folder) / str(number), rounds=chosen.rounds, steps=steps)
            tables += [f"## {what.capitalize()}", _table(turns, left, AIMS[what])]
            print(tables[-1], file=sys.stderr, flush=True)
    write(__file__, title, ABOUT, *tables)


def _measure(
    tools: Mapping[str, tuple[str, dict[str, Any]]], folder: Path, *, rounds: int, steps: int
) -> tuple[dict[str, list[Turn]], dict[str, Left]]:
    bare: dict[str, tuple[str, dict[str, Any]]] = {"unmonitored": ("bare", {}), "unmonitored once more": ("bare", {})}
    trainees = {
        name: Trainee(tool, folder / name.replace(" ", "-"), dict(settings))
        for name, (tool, settings) in (bare | tools).items()
    }
    for name, trainee in trainees.items():
        trainee.ready()
        trainee.turn(SETTLING if steps == STEPS_BY_DEFAULT and name in tools else steps)
    turns: dict[str, list[Turn]] = {name: [] for name in trainees}
    order = [*trainees]
    for round_ in range(rounds):
        for name in (*order[round_ % len(order) :], *order[: round_ % len(order)]):
            turns[name].append(trainees[name].turn(steps))
    return turns, {name: trainee.finish() for name, trainee in trainees.items()}


def _table(turns: Mapping[str, list[Turn]], left: Mapping[str, Left], aim: float) -> str:
    plain = turns["unmonitored"]
    rows: list[dict[str, Any]] = []
    for name, of in turns.items():
        if name == "unmonitored":
            continue
        wall = [one.wall_s / other.wall_s for one, other in zip(of, plain, strict=True)]
        cpu = [one.cpu_s / other.cpu_s for one, other in zip(of, plain, strict=True)]
        low, middle, high = quartiles(wall)
        ours = name == "Trueline"
        rows.append(
            {
                "tool": name,
                "step time, times the unmonitored": f"{middle:.3f} ({low:.3f} – {high:.3f})",
                "CPU time": f"{statistics.median(cpu):.3f}",
                "aim": f"≤ {aim}" if ours else "",
                "met": ("yes" if max(middle, statistics.median(cpu)) <= aim else "no") if ours else "",
                "values a step": f"{left[name].values_a_step:,.1f}",
                "bytes a step": f"{left[name].bytes_a_step:,.0f}",
            }
        )
    step_s = statistics.median(turn.wall_s for turn in plain)
    return f"An unmonitored step took {1000 * step_s:.0f} ms.\n\n{records(rows)}"


if __name__ == "__main__":
    main()
