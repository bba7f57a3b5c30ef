"""Measure what bits alone cost beside the unmonitored step and other recordings, and rewrite bits.md.

    python -m benchmarks.recording.bits [--rounds 12]

A process each trains bare and under each Plan; they take turns of two steps in rotating order, one at a time, and are
compared round by round on the clock of their own CPU time, which other work on the machine disturbs least.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.page import arguments, head, table, write
from benchmarks.recording.measure import quartiles
from benchmarks.recording.turns import Trainee

PLANS: dict[str, dict[str, Any]] = {
    "`bits`": {"preset": "bits"},
    "`bits`, without call stacks": {"preset": "bits", "stacks": False},
    "`ops`, structure alone": {"preset": "ops", "depth": "structure", "every": 1},
    "`workers`, every step": {"preset": "workers", "every": 1},
    "`mix`, statistics": {"preset": "mix", "depth": "stats"},
    "`mix`, fingerprints and statistics": {"preset": "mix", "depth": "fingerprint"},
}
STEPS = 2

ABOUT = """The model of [the other page](README.md); of a step about 650 calls of torch functions are recorded, with \
2,200 values, of which 860 are hashed, 340 MB. CPU time of a step over that of the unmonitored step of the same \
round: median and quartiles. `workers` is what watching takes where it samples every step, which presets other than \
`bits` do at the start of a run; `structure` is what it takes to see the calls, without reading a value."""


def main() -> None:
    """Take turns, and write the page."""
    parser = arguments(__doc__, rounds=12)
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that train
    with tempfile.TemporaryDirectory() as folder:
        trainees = {"bare": Trainee("bare", Path(folder) / "bare", {})}
        for number, (name, plan) in enumerate(PLANS.items()):
            trainees[name] = Trainee("trueline", Path(folder) / str(number), plan)
        for trainee in trainees.values():
            trainee.ready()
        names = list(trainees)
        ratios: dict[str, list[float]] = {name: [] for name in PLANS}
        for round_ in range(1 + chosen.rounds):
            turned = names[round_ % len(names) :] + names[: round_ % len(names)]
            turns = {name: trainees[name].turn(STEPS) for name in turned}
            if round_:  # the first warms up
                for name in PLANS:
                    ratios[name].append(turns[name].cpu_s / turns["bare"].cpu_s)
        left = {name: trainee.finish() for name, trainee in trainees.items()}
    rows = []
    for name in PLANS:
        low, middle, high = quartiles(ratios[name])
        rows.append([name, f"{middle:.2f}", f"{low:.2f} – {high:.2f}", f"{left[name].bytes_a_step / 1e3:.1f} kB"])
    command = f"python -m benchmarks.recording.bits --rounds {chosen.rounds}"
    text = table(["recorded", "times the unmonitored step", "quartiles", "bytes a step"], rows, right={1, 2, 3})
    write(__file__, head("What bits alone cost", command=command), ABOUT, text, name="bits.md")


if __name__ == "__main__":
    main()
